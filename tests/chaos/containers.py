"""Three nodes as containers, of deploy/compose.yaml as it is.

Needs root: packets between nodes are dropped in the network namespaces of their containers, and volumes are read
where Docker keeps them. All that is made bears this process's name (`owned`), and is removed in the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from quire.link.network import Address
from quire_broker.cli.supervisor.health import is_healthy
from tests.chaos.cluster import Ability, Unable
from tests.chaos.docker import answers, compose, container_of, docker, image_of, remove, remove_stale, run
from tests.chaos.owned import Owner
from tests.chaos.waiting import until
from tests.integration.up_processes import free_port_base

ROOT: Final = Path(__file__).resolve().parents[2]
NODES: Final = ("n1", "n2", "n3")
LEASE_MS: Final = 3_000
"""The default, which deploy/compose.yaml leaves as it is."""
BUILD_S_MAX: Final = 900.0
"""At first there may be Docker to install, a base image to make, and wheels to fetch."""
LOG_LINES: Final = 100
STOP_S_MAX: Final = 40
"""As in deploy/compose.yaml."""
CHAIN: Final = "QUIRE-CHAOS"
PORTS_TRIED_MAX: Final = 3


class Containers(Unable):
    kind = "containers"
    nodes: Sequence[str] = NODES
    able = frozenset({Ability.NETWORK, Ability.DISCONNECT})
    lease_ms = LEASE_MS

    def __init__(self) -> None:
        self.project = Owner.own().project()
        self._base = 0
        self._dropped: set[tuple[str, str]] = set()
        """(source, target): what goes from the first to the second is to be dropped."""
        self._disconnected: set[str] = set()

    @property
    def bootstrap(self) -> Sequence[str]:
        return [f"localhost:{self._port(node)}" for node in NODES]

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        assert os.geteuid() == 0, "containers are harmed by root only; QUIRE_NO_DOCKER=1 leaves them out"
        await run(str(ROOT / "scripts/image"), "--tag", image_of(self.project), timeout_s=BUILD_S_MAX)
        for tool in ("nsenter", "iptables"):
            assert shutil.which(tool), f"{tool} is missing; Debian's docker.io brings it"
        await remove_stale()
        self._base = free_port_base(len(NODES))
        await self.up()
        await self.ready()

    async def up(self, **settings: str) -> None:
        """With other settings, containers are made anew."""
        await self._compose("up", "-d", **settings)

    async def down(self) -> None:
        """Containers and network go, volumes stay."""
        await self._compose("down")

    async def end(self) -> None:
        if self._base or await answers():  # else it was never there, and `start` has said so
            await remove(self.project)

    async def ready(self, *nodes: str) -> None:
        await asyncio.gather(*map(self._ready, nodes or NODES))

    async def _ready(self, node: str) -> None:
        await until(lambda: self.is_well(node), lambda: f"{node} is not well:\n{self.logs_of(node)}")

    async def is_well(self, node: str) -> bool:
        doors = [Address("127.0.0.1", port) for port in self._doors(node)]
        return all([await is_healthy(door) for door in doors])

    # -- processes ---------------------------------------------------------------------------------------------------

    async def kill(self, *nodes: str) -> None:
        containers = [await self._container(node) for node in nodes]
        await docker("kill", "-s", "KILL", *containers)
        await docker("wait", *containers)

    async def terminate(self, *nodes: str) -> None:
        await asyncio.gather(*map(self._terminate, nodes))

    async def _terminate(self, node: str) -> None:
        container = await self._container(node)
        await docker("stop", "-t", str(STOP_S_MAX), container)
        code = await docker("inspect", "-f", "{{.State.ExitCode}}", container)
        assert code == "0", f"{node} ended with {code}:\n{self.logs_of(node)}"

    async def restart(self, *nodes: str) -> None:
        found = {node: await container_of(self.project, node) for node in nodes}
        if kept := [container for container in found.values() if container is not None]:
            await docker("start", *kept)
        if removed := [node for node, container in found.items() if container is None]:
            # Together with `certs`, which gives a new volume its certificate.
            await self._compose("up", "-d", "--no-recreate", *removed)
        # A started container has a network namespace that knows of no drops, and perhaps another address.
        await self._drop()

    async def wipe(self, node: str) -> None:
        container = await self._container(node)
        assert not (await self.inspect(node))["State"]["Running"], f"{node} is running"
        # `certs` has all volumes, and is made anew with the node.
        certs = await container_of(self.project, "certs")
        await docker("rm", container, *([certs] if certs else []))
        await docker("volume", "rm", self._volume(node))

    async def pause(self, *nodes: str) -> None:
        await docker("pause", *[await self._container(node) for node in nodes])

    async def resume(self, *nodes: str) -> None:
        await docker("unpause", *[await self._container(node) for node in nodes])

    async def pause_controllers(self, *nodes: str) -> None:
        await self._signal_controllers(nodes, signal.SIGSTOP)

    async def resume_controllers(self, *nodes: str) -> None:
        await self._signal_controllers(nodes, signal.SIGCONT)

    async def _signal_controllers(self, nodes: Sequence[str], number: signal.Signals) -> None:
        for node in nodes:
            # Not ps's own list of arguments: it is cut where the daemon's environment says how wide a screen is.
            pids = (await docker("top", await self._container(node), "-eo", "pid")).split()[1:]
            commands = {int(pid): command for pid in pids if (command := _command(pid))}
            found = [pid for pid, command in commands.items() if "quire_controller" in command]
            assert len(found) == 1, f"{node} has {len(found)} controllers: {commands}"
            os.kill(found[0], number)

    # -- network -----------------------------------------------------------------------------------------------------

    async def isolate(self, node: str) -> None:
        others = [other for other in NODES if other != node]
        await self._drop({(node, other) for other in others} | {(other, node) for other in others})

    async def cut(self, source: str, target: str) -> None:
        await self._drop({(source, target)})

    async def bridge(self, middle: str) -> None:
        ends = [node for node in NODES if node != middle]
        await self._drop({(source, target) for source in ends for target in ends if source != target})

    async def disconnect(self, node: str) -> None:
        await docker("network", "disconnect", self._network, await self._container(node))
        self._disconnected.add(node)

    async def connect(self, node: str) -> None:
        await docker("network", "connect", "--alias", node, self._network, await self._container(node))
        self._disconnected.discard(node)
        await self._drop()

    async def heal(self) -> None:
        self._dropped.clear()
        await self._drop()
        for node in sorted(self._disconnected):
            await self.connect(node)

    async def _drop(self, more: Iterable[tuple[str, str]] = ()) -> None:
        """Have each running node drop what it is to drop, at the addresses that the others have now."""
        self._dropped |= set(more)
        states = {node: await self._inspect(node) for node in NODES}
        addresses = {node: _address(state) for node, state in states.items() if state is not None}
        for node, state in states.items():
            if state is None or not state["State"]["Running"]:
                continue  # it hears of it when it is started
            sources = sorted(source for source, target in self._dropped if target == node)
            rules = [f"-A {CHAIN} -s {address} -j DROP" for each in sources if (address := addresses.get(each))]
            await _set_chain(state["State"]["Pid"], rules)

    # -- looking in --------------------------------------------------------------------------------------------------

    async def digest(self, node: str, topic: str, partition: int) -> str:
        volume = await docker("volume", "inspect", "-f", "{{.Mountpoint}}", self._volume(node))
        return await asyncio.to_thread(_digest, Path(volume) / "data/broker/topics", topic, partition)

    def logs_of(self, node: str) -> str:
        found = subprocess.run(
            ["docker", "ps", "-aq", "--filter", f"name=^{self.project}[_-]{node}[_-]1$"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        if not found.stdout.strip():
            return f"{node} has no container {found.stderr}".rstrip()
        logs = ["docker", "logs", "--tail", str(LOG_LINES), found.stdout.strip()]
        said = subprocess.run(logs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        return said.stdout.decode(errors="replace")

    async def exec(self, node: str, *command: str) -> str:
        """What a command prints that is run in its container."""
        return await docker("exec", await self._container(node), *command)

    async def run_certs(self, *command: str) -> str:
        """What a command prints that is run where certificates are made."""
        return await self._compose("run", "--rm", "-T", "certs", *command)

    async def certificate(self, node: str) -> str:
        """All that its file has, the key, too."""
        return await self.exec(node, "cat", f"/var/lib/quire/certs/{node}.pem")

    async def inspect(self, node: str) -> dict[str, Any]:
        found = await self._inspect(node)
        assert found is not None, f"{node} has no container"
        return found

    async def address(self, node: str) -> str:
        address = _address(await self.inspect(node))
        assert address is not None, f"{node} has no address"
        return address

    # -- names -------------------------------------------------------------------------------------------------------

    @property
    def _network(self) -> str:
        return f"{self.project}_default"

    def _volume(self, node: str) -> str:
        return f"{self.project}_{node}"

    def _port(self, node: str) -> int:
        """Where clients of this machine call its broker."""
        return self._base + 2 * NODES.index(node)

    def _doors(self, node: str) -> tuple[int, int]:
        """Where its broker and its controller say how they are."""
        return self._port(node) + 80, self._port(node) + 81

    async def _compose(self, *arguments: str, **settings: str) -> str:
        environ = {"COMPOSE_QUIRE_IMAGE": image_of(self.project), **settings}
        for node in NODES:
            environ[f"COMPOSE_QUIRE_{node.upper()}_PORT"] = str(self._port(node))
            environ[f"COMPOSE_QUIRE_{node.upper()}_METRICS_PORTS"] = "-".join(map(str, self._doors(node)))
        return await compose(self.project, str(ROOT / "deploy/compose.yaml"), *arguments, environ=environ)

    async def _container(self, node: str) -> str:
        container = await container_of(self.project, node)
        assert container is not None, f"{node} has no container"
        return container

    async def _inspect(self, node: str) -> dict[str, Any] | None:
        container = await container_of(self.project, node)
        if container is None:
            return None
        found: dict[str, Any] = json.loads(await docker("inspect", container))[0]
        return found


def _command(pid: str) -> list[str]:
    """Empty: it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _address(inspected: dict[str, Any]) -> str | None:
    """None: it does not run, or is disconnected."""
    networks = list(inspected["NetworkSettings"]["Networks"].values())
    return networks[0]["IPAddress"] or None if networks else None


async def _set_chain(pid: int, rules: Sequence[str]) -> None:
    """What the network namespace of this process drops of what comes in: all at once."""
    inside = ("nsenter", "-t", str(pid), "-n")
    lines = ["*filter", f":{CHAIN} - [0:0]", *rules, "COMMIT", ""]
    await run(*inside, "iptables-restore", "-w", "10", "--noflush", input="\n".join(lines))
    try:
        await run(*inside, "iptables", "-w", "10", "-C", "INPUT", "-j", CHAIN)
    except AssertionError:
        await run(*inside, "iptables", "-w", "10", "-I", "INPUT", "-j", CHAIN)


def _digest(topics: Path, topic: str, partition: int) -> str:
    folders = [
        each for each in topics.glob(f"{topic}-*") if re.fullmatch(rf"{re.escape(topic)}-[0-9a-f]{{12}}", each.name)
    ]
    assert len(folders) <= 1, f"{topic} is there {len(folders)} times"
    size, hashed = 0, hashlib.sha256()
    for path in sorted(folders[0].glob(f"{partition}/records/*.log")) if folders else ():
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                size += len(chunk)
                hashed.update(chunk)
    return f"{size}:{hashed.hexdigest()}" if size else "0:"
