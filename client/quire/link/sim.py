"""The simulated network: the twin of `tcp`, in memory, on a given clock and a given source of randomness.

It stands below the sessions, so that what runs on it is the real greeting, the real parser and the real timers. A
connection behaves as TCP does: bytes come in order, in chunks of any size, each after a delay of its own. A cut holds
them up, in one direction, until it is healed; only a connection that breaks loses bytes, and then a suffix.

    network = SimNetwork(SimScheduler(), random.Random(seed))
    network.host("a")                         is the Network of node a; addresses are (host name, any port)
    network.cut("a", "b"); network.heal()     one way; `partition` cuts both ways between groups
    network.break_connections("a", "b")       all connections between the two, as a router that forgets them
    network.pause("a"); network.resume("a")   a process stopped by SIGSTOP: what is due meanwhile happens afterwards
    network.crash("a")                        its callbacks never happen; its peers see their connections reset

Same seed and same calls, same history.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from quire.errors import UnavailableError
from quire.link.handshake import NodeIdentity
from quire.link.network import Abortable, Accept, Address, Scheduler, Timer
from quire.types import Buffer

KERNEL_BYTES: Final = 64 * 1024
"""What the sender's operating system takes although the receiver has not."""
FIRST_FREE_PORT: Final = 40_000

Callback = Callable[[], object]


# --- time ----------------------------------------------------------------------------------------------------------


class SimTimer:
    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None

    def run(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


class SimScheduler:
    """Virtual time: it stands still while callbacks run, and jumps to the next one that is due."""

    def __init__(self) -> None:
        self._now = 0.0
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, SimTimer]] = []

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callback, /) -> SimTimer:
        return self.call_later(0, callback)

    def call_later(self, delay: float, callback: Callback, /) -> SimTimer:
        timer = SimTimer(callback)
        # The number keeps those that are due at the same time in the order in which they were asked for.
        heapq.heappush(self._due, (self._now + max(delay, 0), next(self._numbers), timer))
        return timer

    def step(self) -> bool:
        """Run the next callback. False if there is none."""
        while self._due:
            self._now, _, timer = heapq.heappop(self._due)
            if timer.callback is not None:
                timer.run()
                return True
        return False

    def run_for(self, duration: float) -> None:
        """Run all that is due within so many seconds, then let them have passed."""
        end = self._now + duration
        while self._due and self._due[0][0] <= end:
            self.step()
        self._now = max(self._now, end)


# --- the network ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SimConfig:
    delay_ms_min: float = 0.05
    delay_ms_max: float = 2.0


class SimNetwork:
    """All hosts and the ways between them. `scheduler` may also be an event loop with virtual time."""

    def __init__(self, scheduler: Scheduler, randomness: random.Random, config: SimConfig | None = None) -> None:
        self.scheduler = scheduler
        self.randomness = randomness
        self._config = config or SimConfig()
        self._hosts: dict[str, SimHost] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._held: list[tuple[str, str, Callback]] = []
        """What is on its way over a cut: (from, to, what happens on arrival)."""
        self._pipes: dict[_Pipe, None] = {}

    def host(self, name: str) -> SimHost:
        if name not in self._hosts:
            self._hosts[name] = SimHost(self, name)
        return self._hosts[name]

    def cut(self, source: str, target: str) -> None:
        """From now on nothing of what `source` sends arrives at `target`. It is not lost as long as both wait."""
        self._cuts[source, target] = None

    def partition(self, *groups: Collection[str]) -> None:
        """Cut both ways between every two hosts of different groups."""
        for one, other in itertools.permutations(groups, 2):
            for source, target in itertools.product(one, other):
                self.cut(source, target)

    def heal(self) -> None:
        """Undo all cuts; what was held up arrives after its delay."""
        self._cuts.clear()
        held, self._held = self._held, []
        for source, target, arrive in held:
            self.travel(source, target, arrive)
        for pipe in list(self._pipes):
            pipe.on_heal()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def break_connections(self, one: str, other: str) -> None:
        """Reset all connections between two hosts. Of what is under way, some prefix still arrives."""
        for pipe in list(self._pipes):
            if {pipe.source.name, pipe.target.name} == {one, other}:
                pipe.reset()

    def pause(self, name: str) -> None:
        self.host(name).pause()

    def resume(self, name: str) -> None:
        self.host(name).resume()

    def crash(self, name: str) -> None:
        """Kill whatever runs on a host. It may be used again at once, as by a process that was started anew."""
        host = self.host(name)
        host.crash()
        for pipe in list(self._pipes):
            if pipe.source is host:
                pipe.reset()
                pipe.sender = None
            elif pipe.target is host:
                self.forget(pipe)
                pipe.receiver = None

    def delay_s(self) -> float:
        return self.randomness.uniform(self._config.delay_ms_min, self._config.delay_ms_max) / 1000

    def travel(self, source: str, target: str, arrive: Callback) -> None:
        """Have something happen at `target` that was sent by `source`, as soon as it can be there."""

        def after_delay() -> None:
            if self.is_cut(source, target):
                self._held.append((source, target, arrive))
            else:
                self.host(target).run(arrive)

        self.scheduler.call_later(self.delay_s(), after_delay)

    @property
    def connection_count(self) -> int:
        """How many there are, both directions of each; those of which one end is gone count half, rounded up."""
        return -(-len(self._pipes) // 2)

    def remember(self, pipe: _Pipe) -> None:
        self._pipes[pipe] = None

    def forget(self, pipe: _Pipe) -> None:
        self._pipes.pop(pipe, None)


class SimHost:
    """A node's Network and its clock."""

    def __init__(self, network: SimNetwork, name: str) -> None:
        self.network = network
        self.name = name
        self._doors: dict[int, SimDoor] = {}
        self._ports = itertools.count(FIRST_FREE_PORT)
        self._paused = False
        self._due: deque[tuple[int, Callback]] = deque()
        """What is to happen as soon as the host is resumed."""
        self.life = 0
        """Rises with every crash: what was asked for in an earlier life does not happen."""

    # as a Network

    @property
    def scheduler(self) -> SimHost:
        return self

    def identify(self, transport: asyncio.BaseTransport) -> NodeIdentity | None:
        return None

    def connect(self, address: Address, protocol: asyncio.BufferedProtocol) -> Abortable:
        attempt = _Attempt(self, protocol)
        target = self.network.host(address.host)
        self.network.travel(self.name, target.name, lambda: target.on_dialed(address.port, attempt))
        return attempt

    def listen(self, address: Address, accept: Accept) -> SimDoor:
        port = address.port or next(self._ports)
        if port in self._doors:
            raise UnavailableError(f"cannot listen on {address}: it is in use", address=address)
        door = SimDoor(Address(self.name, port), accept, lambda: self._doors.pop(port, None))
        self._doors[port] = door
        return door

    def on_dialed(self, port: int, attempt: _Attempt) -> None:
        door = self._doors.get(port)
        if door is None:
            self.network.travel(self.name, attempt.host.name, lambda: attempt.fail(ConnectionRefusedError(port)))
            return
        there, back = _Pipe(self.network, attempt.host, self), _Pipe(self.network, self, attempt.host)
        accepted = SimTransport(self, incoming=there, outgoing=back)
        dialed = SimTransport(attempt.host, incoming=back, outgoing=there)
        # Nothing may overtake the answer to the dialer, so its own end begins to take bytes only then.
        accepted.begin(door.accept(accepted))
        self.network.travel(self.name, attempt.host.name, lambda: attempt.succeed(dialed))

    # as a Scheduler

    def time(self) -> float:
        return self.network.scheduler.time()

    def call_soon(self, callback: Callback, /) -> Timer:
        return self.call_later(0, callback)

    def call_later(self, delay: float, callback: Callback, /) -> Timer:
        timer, life = SimTimer(callback), self.life
        self.network.scheduler.call_later(delay, lambda: self._run_in(life, timer.run))
        return timer

    # for the simulation

    def run(self, callback: Callback) -> None:
        """Have the host do something now, or when it is resumed."""
        self._run_in(self.life, callback)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        while self._due and not self._paused:
            self._run_in(*self._due.popleft())

    def crash(self) -> None:
        self.life += 1
        self._paused = False
        self._due.clear()
        self._doors.clear()

    def _run_in(self, life: int, callback: Callback) -> None:
        if life != self.life:
            return
        if self._paused:
            self._due.append((life, callback))
        else:
            callback()


class SimDoor:
    def __init__(self, address: Address, accept: Accept, remove: Callback) -> None:
        self.address = address
        self.accept = accept
        self._remove = remove

    def close(self) -> None:
        self._remove()


# --- connections ---------------------------------------------------------------------------------------------------


class _Attempt:
    """A connection that a host is making."""

    def __init__(self, host: SimHost, protocol: asyncio.BufferedProtocol) -> None:
        self.host = host
        self._protocol = protocol
        self._life = host.life
        self._over = False

    def succeed(self, transport: SimTransport) -> None:
        if self._is_over():
            transport.abort()
            return
        self._over = True
        transport.begin(self._protocol)

    def fail(self, error: Exception | None) -> None:
        if not self._is_over():
            self._over = True
            self._protocol.connection_lost(error)

    def abort(self) -> None:
        self.host.call_soon(lambda: self.fail(None))

    def _is_over(self) -> bool:
        return self._over or self._life != self.host.life


class _Mark(enum.Enum):
    END = enum.auto()
    """The sender has closed, and all before it has been sent."""
    RESET = enum.auto()


class _Pipe:
    """One direction of a connection: what is under way, in order."""

    def __init__(self, network: SimNetwork, source: SimHost, target: SimHost) -> None:
        self.source = source
        self.target = target
        self.sender: SimTransport | None = None
        self.receiver: SimTransport | None = None
        self.unacknowledged_bytes = 0
        self._network = network
        self._items: deque[tuple[float, memoryview | _Mark]] = deque()
        """Each with the time from which on it can be there, if those before it are."""
        self._closed = False
        self._delivered_bytes = 0
        """Delivered, and the sender does not know it yet."""
        network.remember(self)

    def put(self, item: memoryview | _Mark) -> None:
        if self._closed:
            return
        self._closed = isinstance(item, _Mark)
        if isinstance(item, memoryview):
            self.unacknowledged_bytes += len(item)
        at = self._network.scheduler.time() + self._network.delay_s()
        self._items.append((at, item))
        self._pump_at(at)

    def reset(self) -> None:
        """Some prefix of what is under way arrives, then the connection is gone."""
        for _ in range(self._network.randomness.randint(0, len(self._items))):
            self._items.pop()
        self._closed = False
        self.put(_Mark.RESET)

    def on_heal(self) -> None:
        self._acknowledge()
        self._pump_at(self._network.scheduler.time() + self._network.delay_s())

    def pump(self) -> None:
        """Deliver what is there, if the receiver wants it."""
        while self._items and self.receiver is not None and self.receiver.takes_bytes:
            at, item = self._items[0]
            if at > self._network.scheduler.time() or self._network.is_cut(self.source.name, self.target.name):
                return
            self._items.popleft()
            if isinstance(item, _Mark):
                self._network.forget(self)
                self.receiver.on_mark(item)
                return
            rest = self.receiver.on_bytes(item, self._network.randomness)
            self._delivered_bytes += len(item) - len(rest)
            if rest:
                self._items.appendleft((at, rest))
            self._acknowledge()

    def _pump_at(self, at: float) -> None:
        delay = at - self._network.scheduler.time()
        self._network.scheduler.call_later(delay, lambda: self.target.run(self.pump))

    def _acknowledge(self) -> None:
        if self._delivered_bytes and not self._network.is_cut(self.target.name, self.source.name):
            self.unacknowledged_bytes -= self._delivered_bytes
            self._delivered_bytes = 0
            if self.sender is not None:
                self.source.run(self.sender.on_acknowledged)


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, host: SimHost, *, incoming: _Pipe, outgoing: _Pipe) -> None:
        super().__init__()
        self._host = host
        self._incoming = incoming
        self.outgoing = outgoing
        self._protocol: asyncio.BufferedProtocol | None = None
        self._reading = True
        self._closing = False
        self._lost = False
        self._blocked = False
        self._high, self._low = KERNEL_BYTES, KERNEL_BYTES // 4

    def begin(self, protocol: asyncio.BufferedProtocol) -> None:
        self._protocol = protocol
        self._incoming.receiver = self.outgoing.sender = self
        if self._closing:  # while the protocol was being made
            self._host.call_soon(lambda: protocol.connection_lost(None))
            return
        protocol.connection_made(self)
        self._host.call_soon(self._incoming.pump)

    # what a protocol calls

    def write(self, data: Buffer) -> None:
        if self._closing or not data:
            return
        self.outgoing.put(memoryview(bytes(data)))
        if self._protocol is not None and not self._blocked and self.get_write_buffer_size() > self._high:
            self._blocked = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return max(0, self.outgoing.unacknowledged_bytes - KERNEL_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = KERNEL_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._host.call_soon(self._incoming.pump)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.outgoing.put(_Mark.END)
            self.on_acknowledged()

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self.outgoing.reset()
            self._lose(None)

    # what the network calls

    @property
    def takes_bytes(self) -> bool:
        return self._reading and not self._lost

    def on_bytes(self, data: memoryview, randomness: random.Random) -> memoryview:
        """Take some of the bytes, and give back the others."""
        if self._protocol is None or self._closing:
            return data[len(data) :]
        room = memoryview(self._protocol.get_buffer(-1))
        count = randomness.randint(1, min(len(data), len(room)))
        room[:count] = data[:count]
        self._protocol.buffer_updated(count)
        return data[count:]

    def on_mark(self, mark: _Mark) -> None:
        if mark is _Mark.RESET:
            self._closing = True
            self.outgoing.put(_Mark.RESET)
            self._lose(ConnectionResetError("the connection was reset"))
        elif self._protocol is not None and not self._closing:
            self._protocol.eof_received()
            self.close()

    def on_acknowledged(self) -> None:
        size = self.get_write_buffer_size()
        if self._closing and size == 0:
            self._lose(None)
        elif self._protocol is not None and self._blocked and size <= self._low and not self._lost:
            self._blocked = False
            self._protocol.resume_writing()

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._host.network.forget(self._incoming)
        protocol = self._protocol
        if protocol is not None:
            self._host.call_soon(lambda: protocol.connection_lost(error))
