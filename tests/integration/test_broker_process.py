"""One broker and one controller as real processes: what is stored can be read, also after they were killed."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

from quire.records import decode, encode_columns, iter_batches
from quire.v1 import broker_pb2, durability_pb2, records_pb2, topics_pb2
from tests.integration.broker_cluster import BrokerCluster, BrokerProcess, broker_cluster, tail
from tests.integration.controller_cluster import LOOPBACK, told
from tests.integration.metrics_docs import OPERATING, documented_metrics, metrics_in
from tests.raftkill.processes import free_ports

NOW_MS = 4_000_000_000_000
TOPIC = topics_pb2.TopicRef(name="orders")


def raw(*values: bytes) -> records_pb2.RecordSet:
    return records_pb2.RecordSet(raw_batches=encode_columns(list(values), timestamp_ms=NOW_MS))


async def produce(broker: BrokerProcess, *values: bytes, partition: int = 0) -> broker_pb2.PartitionStored:
    request = broker_pb2.ProduceRequest(
        partitions=[broker_pb2.PartitionRecords(topic=TOPIC, partition=partition, records=raw(*values))]
    )
    return (await told(broker.stub.Produce(request, timeout=20))).partitions[0]


async def values_of(broker: BrokerProcess, partition: int = 0) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        request = broker_pb2.FetchRequest(
            form=broker_pb2.RECORD_FORM_RAW,
            partitions=[broker_pb2.FetchFrom(topic=TOPIC, partition=partition, offset=offset)],
        )
        fetched = (await told(broker.stub.Fetch(request, timeout=20))).partitions[0]
        assert not fetched.HasField("refusal"), fetched
        data = fetched.records.raw_batches
        for position, _ in iter_batches(data):
            found += [record.value or b"" for record in decode(data, position) if record.offset >= offset]
        if fetched.next_offset == offset:
            return found
        offset = fetched.next_offset


async def test_what_is_stored_can_be_read_also_after_a_kill(tmp_path: Path) -> None:
    async with broker_cluster(tmp_path) as cluster:
        await cluster.create_topic("orders", partitions=2)
        broker = cluster.brokers[0]
        stored = await produce(broker, b"a", b"b")
        assert (stored.base_offset, stored.end_offset, stored.duplicate) == (0, 2, False)
        assert stored.durability == durability_pb2.Durability(replicas=1, fsynced=True)
        await produce(broker, b"c")
        await produce(broker, b"other", partition=1)
        await kill_and_restart(cluster)
        assert await values_of(broker) == [b"a", b"b", b"c"]
        assert await values_of(broker, 1) == [b"other"]
        again = await produce(broker, b"d")
        assert (again.base_offset, again.leader_epoch > stored.leader_epoch) == (3, True)


async def test_metrics_are_those_that_are_documented(tmp_path: Path) -> None:
    async with broker_cluster(tmp_path) as cluster:
        await cluster.create_topic("orders", partitions=2)
        broker = cluster.brokers[0]
        await produce(broker, b"a", b"b")
        assert await values_of(broker) == [b"a", b"b"]
        _, text = await asyncio.to_thread(broker.http, "/metrics")
        assert metrics_in(text) == documented_metrics("broker")
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert values["quire_broker_partitions"] == values["quire_broker_partitions_led"] == "2.0"
        assert values["quire_broker_may_lead"] == values["quire_broker_disk_has_room"] == "1.0"
        assert values["quire_broker_partitions_offline"] == "0.0"
        assert values["quire_broker_produced_batches_total"] == "1.0"
        for name in ("produced", "fetched"):
            assert float(values[f"quire_broker_{name}_bytes_total"]) == len(raw(b"a", b"b").raw_batches)
        assert values['quire_rpc_calls_total{method="/quire.v1.BrokerService/Produce",status="OK"}'] == "1.0"


async def test_what_keeps_it_from_starting_is_as_documented(tmp_path: Path) -> None:
    """The code, and what the log says, of the table in docs/OPERATING.md."""
    section = OPERATING.read_text(encoding="utf-8").partition("\n## When a broker does not start, or ends\n")[2]
    rows = [row.split(" | ") for row in section.partition("\n## ")[0].splitlines() if row.startswith("| ")]
    told_of = {
        said: int(code.strip("| ")) for code, saying, _ in rows[1:] for said in re.findall("`([^`]+)`", saying)
    }

    async with broker_cluster(tmp_path) as cluster:
        await cluster.create_topic("orders")
        broker = cluster.brokers[0]
        second = BrokerProcess(cluster, 2, client=0, peer=0, metrics=0)
        other: dict[str, str | int | Path] = {
            "broker_listeners": f"client={LOOPBACK}:{free_ports(1)[0]}",
            "broker_peer_port": free_ports(1)[0],
        }

        def said(what: str, **changed: str | int | Path) -> None:
            second.log.unlink(missing_ok=True)
            second.start(**{**other, **changed})
            [code] = {code for saying, code in told_of.items() if what in saying}
            assert second.ended() == code
            assert what in second.log.read_text(), tail(second)

        said("is no flag", colour="red")
        said("does not say which broker it is", node_id="nameless")
        said("is in use by process", node_id="b1", node_data_dir=broker.data_dir)
        said("cannot listen on", broker_listeners=f"client={broker.address}")
        broker.kill(signal.SIGTERM)
        assert broker.ended() == told_of["stopped"] == 0
        assert broker.events()[-1]["event"] == "stopped"
        said("and this is to be broker 3", node_id="b3", node_data_dir=broker.data_dir)
        said("and this node is configured for", node_id="b1", node_cluster_id="b", node_data_dir=broker.data_dir)
        [name] = (broker.data_dir / "broker").glob("incarnation*")
        name.unlink()
        said("is missing, and there is data in", node_id="b1", node_data_dir=broker.data_dir)


async def kill_and_restart(cluster: BrokerCluster) -> None:
    broker = cluster.brokers[0]
    broker.die()
    await broker.hang_up()
    broker.start()
    await broker.ready()
    await cluster.leader_of("orders")
    await cluster.leader_of("orders", 1)
