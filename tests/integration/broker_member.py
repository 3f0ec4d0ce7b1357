"""A process that belongs to a cluster as a broker does, and stores nothing. It writes down what happens to it.

    broker_member.py <parent's pid> <file for events> <flags of the configuration>

An event is a line of JSON. It looks every few milliseconds whether it may lead, and says so when that has changed
or when it had stood still.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from quire.config import Config
from quire.disk.os_disk import OsDisk
from quire.errors import UnavailableError
from quire.process.lock import DirectoryLock
from quire.process.run import Stop, run
from quire.process.start import configured
from quire.v1 import metadata_pb2
from quire_broker.adapters.controllers import GrpcMember
from quire_broker.runtime.controllers import QuorumClient
from quire_broker.runtime.incarnation import incarnation_id
from quire_broker.runtime.membership import Membership, Registration
from quire_broker.state.image import Changes, MetadataImage

PR_SET_PDEATHSIG: Final = 1
LOOK_S: Final = 0.005
STOOD_STILL_S: Final = 0.5


class Broker:
    def __init__(self, config: Config, events: Path) -> None:
        self._file = events.open("a", buffering=1)
        folder = config.node.data_dir / "broker"
        randomness = random.SystemRandom()
        self.image = MetadataImage()
        self.controllers = QuorumClient(
            [GrpcMember(address, tls=config.tls.files) for address in config.controllers],
            client_id=f"broker-{config.broker_id}",
            randomness=randomness,
        )
        incarnation = incarnation_id(
            OsDisk(),
            str(folder),
            cluster_id=config.node.cluster_id,
            broker_id=config.broker_id,
            data="topics",
            randomness=randomness,
        )
        self.membership = Membership(
            self.controllers,
            self.image,
            registration=Registration(
                cluster_id=config.node.cluster_id,
                broker_id=config.broker_id,
                node_id=config.node.id,
                incarnation_id=incarnation,
                listeners=[
                    metadata_pb2.Listener(
                        name=each.name,
                        protocol=metadata_pb2.LISTENER_PROTOCOL_GRPC,
                        host=each.advertised.host,
                        port=each.advertised.port,
                    )
                    for each in config.broker.listeners
                ],
                features=metadata_pb2.FeatureRange(level_min=1, level_max=1),
            ),
            heartbeat_ms=config.broker.heartbeat_ms,
            randomness=randomness,
            log_ends=lambda: (),
            on_changes=self._on_changes,
            on_registered=lambda epoch: self.say("registered", epoch=epoch),
            on_lease_gained=lambda: self.say("gained"),
            on_lease_lost=lambda: self.say("lost"),
        )
        self.say("started", incarnation=incarnation.hex())

    def say(self, what: str, **details: Any) -> None:
        self._file.write(json.dumps({"at": time.monotonic(), "what": what, **details}) + "\n")

    def _on_changes(self, changes: Changes) -> None:
        self.membership.on_applied(changes.version)

    async def look(self) -> None:
        might, looked = False, time.monotonic()
        while True:
            may, now = self.membership.may_lead(), time.monotonic()
            if now - looked > STOOD_STILL_S:
                self.say("resumed", may_lead=may, after_s=now - looked)
            if may != might:
                self.say("may lead" if may else "may not lead")
            might, looked = may, now
            await asyncio.sleep(LOOK_S)

    async def take_ids(self) -> None:
        """One in each registration that gets so far."""
        taken_in = 0
        while True:
            epoch = self.membership.broker_epoch
            if epoch != taken_in and self.membership.may_lead():
                with contextlib.suppress(UnavailableError):
                    self.say("producer id", number=await self.membership.next_producer_id())
                    taken_in = epoch
            await asyncio.sleep(LOOK_S)


async def serve(config: Config, events: Path, stop: Stop) -> None:
    with DirectoryLock(config.node.data_dir / "broker"):
        broker = Broker(config, events)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(broker.membership.run())
                watching = [group.create_task(broker.look()), group.create_task(broker.take_ids())]
                await stop.wait()
                await broker.membership.leave(timeout_s=2)
                for task in watching:
                    task.cancel()
        finally:
            await broker.controllers.close()
            broker.say("ended")


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # whatever ends the tests ends this process
    parent, events, *flags = sys.argv[1:]
    if os.getppid() != int(parent):
        sys.exit("the tests are gone")
    config = configured("broker", flags).config
    with contextlib.suppress(KeyboardInterrupt):
        run(lambda stop: serve(config, Path(events), stop), stop_ms_max=config.node.stop_ms_max)


if __name__ == "__main__":
    main()
