"""Clients of a cluster with certificates."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quire import Admin, Consumer, Producer
from quire.errors import InvalidArgumentError, UnavailableError
from quire.link import certs
from tests.integration.broker_cluster import LEASE_MS, BrokerCluster
from tests.integration.cli_runs import run_here
from tests.integration.controller_cluster import CLUSTER_ID
from tests.integration.up_processes import environment


class Secured(NamedTuple):
    addresses: list[str]
    ca: Path
    own: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "certs"
    nodes = [certs.NodeSpec(name, ("127.0.0.1",)) for name in ("c1", "b1", "client1")]
    now = datetime.datetime.now(datetime.UTC)
    certs.init(made, cluster_id=CLUSTER_ID, nodes=nodes, days=2, now=now)
    cluster = BrokerCluster(folder, brokers=1, controllers=1, lease_ms=LEASE_MS)

    async def start() -> None:
        for member in cluster.controllers:
            member.start(tls_ca_file=made / "ca.pem", tls_node_file=made / f"{member.id}.pem")
        for broker in cluster.brokers:
            broker.start(tls_ca_file=made / "ca.pem", tls_node_file=made / f"{broker.node_id}.pem")
            await broker.ready()

    try:
        asyncio.run(start())
        yield Secured(cluster.addresses, made / "ca.pem", made / "client1.pem")
    finally:
        cluster.end()


def test_everything_works_with_certificates(cluster: Secured) -> None:
    given: dict[str, Any] = {"tls_ca": cluster.ca, "tls_cert": str(cluster.own), "client_id": "secured"}
    with (
        Admin(cluster.addresses, **given) as admin,
        Producer(cluster.addresses, **given) as producer,
    ):
        admin.create_topic("orders", partitions=2)
        stored = [producer.send("orders", b"%d" % number, key=b"%d" % number).result(30) for number in range(10)]
        with Consumer(cluster.addresses, "orders", start="earliest", **given) as consumer:
            seen = {(message.partition, message.offset) for _, message in zip(range(10), consumer, strict=False)}
        assert seen == {(each.partition, each.offset) for each in stored}
        assert admin.describe_cluster().brokers[0].listeners[0].tls


def test_the_command_takes_certificates_from_its_variables(cluster: Secured) -> None:
    bootstrap = {"QUIRE_BOOTSTRAP": ",".join(cluster.addresses)}
    files = {"QUIRE_TLS_CA": str(cluster.ca), "QUIRE_TLS_CERT": str(cluster.own)}
    done = run_here(["cluster"], input=b"", environ={**environment(), **bootstrap, **files})
    assert (done.code, done.stderr) == (0, "")
    without = run_here(["cluster"], input=b"", environ={**environment(), **bootstrap})
    assert without.code == 1


@pytest.mark.parametrize("given", [{}, {"tls_ca": True}], ids=["plain text", "no certificate of its own"])
def test_client_without_certificates_is_told(cluster: Secured, given: dict[str, Any]) -> None:
    files: dict[str, Any] = {"tls_ca": cluster.ca} if given else {}
    with (
        Admin(cluster.addresses, connect_ms_max=500, call_ms_max=2_000, **files) as admin,
        pytest.raises(UnavailableError, match="tls_ca"),
    ):
        admin.list_topics()


def test_files_that_are_not_what_they_should_be(cluster: Secured, tmp_path: Path) -> None:
    (tmp_path / "wrong.pem").write_text("not a certificate")
    files: list[dict[str, Any]] = [
        {"tls_ca": tmp_path / "wrong.pem"},
        {"tls_cert": tmp_path / "wrong.pem"},
        {"tls_cert": cluster.ca},
        {"tls_cert": tmp_path / "missing.pem"},
    ]
    for given in files:
        with pytest.raises(InvalidArgumentError, match=r"\.pem"):
            Admin("localhost:7400", **given)
