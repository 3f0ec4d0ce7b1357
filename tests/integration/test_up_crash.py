"""What the supervisor tells real controllers of a broker that died."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire.link.network import Address
from quire.v1 import controller_pb2, metadata_pb2
from quire_broker.cli.supervisor import crash
from quire_broker.cli.supervisor.crash import CrashReport
from tests.integration.controller_cluster import CLUSTER_ID, LOOPBACK, ControllerCluster, controller_cluster, told
from tests.raftkill.processes import free_ports


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ControllerCluster]:
    async with controller_cluster(tmp_path, size=1) as cluster:
        yield cluster


async def register(cluster: ControllerCluster, broker_id: int) -> None:
    brokers = cluster["c1"].brokers
    request = controller_pb2.RegisterBrokerRequest(
        cluster_id=CLUSTER_ID,
        broker_id=broker_id,
        node_id=f"n{broker_id}",
        incarnation_id=bytes([broker_id]) * 16,
        features=metadata_pb2.FeatureRange(level_min=1, level_max=1),
    )
    epoch = (await told(brokers.RegisterBroker(request))).broker_epoch
    await told(brokers.UnfenceBroker(controller_pb2.UnfenceBrokerRequest(broker_id=broker_id, broker_epoch=epoch)))


async def fenced(cluster: ControllerCluster) -> dict[str, bool]:
    answer = await told(cluster["c1"].admin.DescribeCluster(controller_pb2.DescribeClusterRequest()))
    return {each.broker.node_id: each.broker.fenced for each in answer.brokers}


async def test_dead_broker_is_fenced_and_no_other(cluster: ControllerCluster) -> None:
    await register(cluster, 1)
    await register(cluster, 2)
    nobody = Address(LOOPBACK, free_ports(1)[0])
    controllers = [nobody, Address(LOOPBACK, cluster["c1"].grpc_port)]
    await CrashReport("n1", controllers, tls=None)()
    assert await fenced(cluster) == {"n1": True, "n2": False}
    await CrashReport("n1", controllers, tls=None)()
    await CrashReport("never-registered", controllers, tls=None)()
    assert await fenced(cluster) == {"n1": True, "n2": False}


async def test_report_that_nobody_hears_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "REPORT_MS_MAX", 200)
    await CrashReport("n1", [Address(LOOPBACK, free_ports(1)[0])], tls=None)()
    await CrashReport("n1", [], tls=None)()
