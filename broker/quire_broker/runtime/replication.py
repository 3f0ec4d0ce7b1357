"""The ways between brokers: a session with each, what goes over it in one turn of the loop in one frame, and windows.

    replicas ──messages──► outgoing ─┐
    replicas ──push ready──► window ─┴──(one turn of the loop)──► frame ──► session ··· frame ──► replicas

Of two brokers the one whose node has the lesser name dials, so there is one session between them, used both ways.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from quire.config.broker import PEER_LISTENER
from quire.errors import MalformedFrameError, OutcomeUnknownError, QuireError, UnavailableError
from quire.link.config import LinkConfig
from quire.link.dialer import Dialer
from quire.link.frames import Frame
from quire.link.handshake import NodeIdentity
from quire.link.listener import Listener
from quire.link.network import Address, Network, Timer
from quire.link.session import Session
from quire.process import logs
from quire.types import Buffer
from quire.v1 import commands_pb2, controller_pb2, errors_pb2, metadata_pb2
from quire_broker.log.place import PartitionKey
from quire_broker.ports import Controllers
from quire_broker.replica.effects import Counted, NotFollowing, Proposal, PushReady
from quire_broker.replica.leader import Answer
from quire_broker.replica.messages import Message
from quire_broker.replica.streams import RECORDS
from quire_broker.replica.window import Window, WindowConfig
from quire_broker.runtime.replica import Replica
from quire_broker.runtime.replica_wire import FRAME_KIND, FrameBuilder, Piece, received
from quire_broker.state.image import Changes, MetadataImage

SESSION_BYTES_MAX: Final = 16 * 1024 * 1024
"""With more than this waiting in a session nothing is added to it."""
BUSY_S: Final = 0.002
MESSAGES_MAX: Final = 100_000
"""Messages to one broker that wait for their frame. More mean that something is wrong: the session is ended."""
CHANGES_A_REQUEST: Final = 64
PROPOSE_S_MAX: Final = 600.0
"""How long the controllers are asked, under one change id: the refusal of another attempt would say nothing of this
one, and meanwhile the high watermark waits for members that may be gone."""
PROPOSE_AGAIN_S: Final = 0.5
HAND_OVER_S_MAX: Final = 5.0

_log = logs.get("replication")
_problems = logs.Throttled(_log)

_STALE: Final = frozenset(
    {
        errors_pb2.ERROR_REASON_STALE_PARTITION_EPOCH,
        errors_pb2.ERROR_REASON_STALE_EPOCH,
        errors_pb2.ERROR_REASON_UNKNOWN_PARTITION,
        errors_pb2.ERROR_REASON_UNKNOWN_TOPIC,
    }
)
"""Refusals after which metadata comes that says what is so instead."""

_GONE: Final = errors_pb2.ERROR_REASON_STALE_BROKER_EPOCH
"""A member has registered anew since. No metadata of the partition need follow, and no other attempt of the same
proposal can succeed: broker epochs never go back."""


class Lane(NamedTuple):
    """What goes to one follower of one partition, from when it begins to follow until it does so no more."""

    key: PartitionKey
    number: int


class _Peer:
    """Another broker, while there is a session with it."""

    def __init__(self, session: Session, broker_id: int, config: WindowConfig) -> None:
        self.session = session
        self.broker_id = broker_id
        self.window: Window[Lane] = Window(config)
        self.lanes: dict[PartitionKey, Lane] = {}
        self.messages: deque[tuple[PartitionKey, Message | Piece, Buffer]] = deque()
        self.messages_bytes = 0
        """Of the batches that they bring."""
        self.timer: Timer | None = None


class Replication:
    """To be made on the running loop."""

    def __init__(
        self,
        image: MetadataImage,
        controllers: Controllers,
        *,
        broker_id: int,
        local: NodeIdentity,
        network: Network,
        listen: Address,
        randomness: random.Random,
        broker_epoch: Callable[[], int],
        replica_of: Callable[[PartitionKey], Replica | None],
        replicas: Callable[[], list[Replica]],
        link: LinkConfig | None = None,
        window: WindowConfig | None = None,
        propose_s_max: float = PROPOSE_S_MAX,
    ) -> None:
        self._image = image
        self._controllers = controllers
        self._broker_id = broker_id
        self._local = local
        self._network = network
        self._listen = listen
        self._randomness = randomness
        self._broker_epoch = broker_epoch
        self._replica_of = replica_of
        self._replicas = replicas
        self._link = link or LinkConfig()
        self._window = window or WindowConfig()
        self._propose_s_max = propose_s_max
        self._loop = asyncio.get_running_loop()
        self._peers: dict[int, _Peer] = {}
        self._listener = Listener(
            network=network,
            local=local,
            handler=self,
            config=self._link,
            knows=lambda peer: peer < local.node_id and self._broker_of(peer) is not None,
            new_session_id=lambda: randomness.randbytes(16),
        )
        self._dialers: dict[str, tuple[Address, Dialer]] = {}
        self._closing: list[Dialer] = []
        self._proposals: dict[PartitionKey, tuple[Replica, Proposal]] = {}
        self._proposing = asyncio.Event()
        self._handing_over: dict[PartitionKey, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = count()

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen for other brokers. Raises UnavailableError when the port cannot be had."""
        self._listener.start(self._listen)

    def on_changes(self, changes: Changes) -> None:
        """Brokers come, go and move."""
        if not changes.brokers and not changes.everything:
            return
        wanted: dict[str, Address] = {}
        for broker_id, broker in self._image.brokers.items():
            if broker_id != self._broker_id and self._local.node_id < broker.node_id:
                address = _peer_address(broker)
                if address is not None:
                    wanted[broker.node_id] = address
        for node_id, (address, dialer) in list(self._dialers.items()):
            if wanted.get(node_id) != address:
                dialer.close()
                self._closing.append(dialer)
                del self._dialers[node_id]
        for node_id, address in wanted.items():
            if node_id not in self._dialers:
                dialer = Dialer(
                    network=self._network,
                    local=self._local,
                    peer_id=node_id,
                    address=address,
                    handler=self,
                    config=self._link,
                    randomness=self._randomness,
                )
                self._dialers[node_id] = (address, dialer)
                dialer.start()

    async def run(self) -> None:
        """Tell the controllers of proposals, for ever."""
        while True:
            await self._proposing.wait()
            self._proposing.clear()
            while self._proposals:
                keys = list(self._proposals)[:CHANGES_A_REQUEST]
                self._spawn(self._propose([self._proposals.pop(key) for key in keys]), "propose")

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
        dialers = [*self._closing, *(dialer for _, dialer in self._dialers.values())]
        for dialer in dialers:
            dialer.close()
        await self._listener.wait_closed()
        for dialer in dialers:
            await dialer.wait_closed()

    def problems(self) -> dict[str, str]:
        """Why there is no session with a broker that this one dials."""
        return {
            node_id: dialer.last_error.message
            for node_id, (_, dialer) in self._dialers.items()
            if dialer.session is None and dialer.last_error is not None
        }

    # -- what the link calls ---------------------------------------------------------------------------------------

    def on_up(self, session: Session) -> None:
        broker_id = self._broker_of(session.peer_id)
        if broker_id is None:
            session.close("this broker does not know the other one any more")
            return
        self._peers[broker_id] = _Peer(session, broker_id, self._window)
        _log.info("linked", broker=broker_id, node=session.peer_id)
        for replica in self._replicas():
            replica.on_link(broker_id, session.session_id, is_up=True)

    def on_frame(self, session: Session, frame: Frame) -> None:
        if frame.kind != FRAME_KIND:
            return  # of a newer version, perhaps
        broker_id = self._broker_of(session.peer_id)
        if broker_id is None:
            return
        try:
            for key, message, data in received(frame.header, frame.body):
                replica = self._replica_of(key)
                if replica is not None:
                    replica.on_message(broker_id, session.session_id, message, data)
        except MalformedFrameError as error:
            session.abort(error)

    def on_down(self, session: Session, error: QuireError) -> None:
        for broker_id, peer in list(self._peers.items()):
            if peer.session is session:
                del self._peers[broker_id]
                if peer.timer is not None:
                    peer.timer.cancel()
                _problems.info("link lost", key=broker_id, broker=broker_id, why=error.message)
                for replica in self._replicas():
                    replica.on_link(broker_id, session.session_id, is_up=False)

    # -- what replicas call ----------------------------------------------------------------------------------------

    def link_to(self, broker_id: int) -> bytes | None:
        peer = self._peers.get(broker_id)
        return None if peer is None else peer.session.session_id

    def send(self, to: int, key: PartitionKey, message: Message | Piece, data: Buffer = b"") -> None:
        peer = self._peers.get(to)
        if peer is None:
            return
        if len(peer.messages) >= MESSAGES_MAX:
            peer.session.abort(UnavailableError(f"broker {to} takes nothing; the link to it is begun anew"))
            return
        if data and peer.messages_bytes >= SESSION_BYTES_MAX:
            return  # whoever wants a range asks again
        peer.messages.append((key, message, data))
        peer.messages_bytes += len(data)
        self._flush_soon(peer)

    def push_ready(self, to: int, replica: Replica, effect: PushReady) -> None:
        peer = self._peers.get(to)
        if peer is None:
            return
        peer.window.ready(self._lane(peer, replica), is_catch_up=effect.is_catch_up)
        self._flush_soon(peer)

    def counted(self, replica: Replica, effect: Counted) -> None:
        peer = self._peers.get(effect.to)
        if peer is not None and (lane := peer.lanes.get(replica.key)) is not None:
            peer.window.counted(lane, effect.offset)
            self._flush_soon(peer)

    def not_following(self, replica: Replica, effect: NotFollowing) -> None:
        peer = self._peers.get(effect.to)
        if peer is not None and (lane := peer.lanes.pop(replica.key, None)) is not None:
            peer.window.drop(lane)

    def propose(self, replica: Replica, proposal: Proposal) -> None:
        self._proposals[replica.key] = (replica, proposal)
        self._proposing.set()

    def hand_over(self, replica: Replica, to: int) -> None:
        if replica.key not in self._handing_over:
            task = self._spawn(self._hand_over(replica.key, to), "hand-over")
            self._handing_over[replica.key] = task
            task.add_done_callback(lambda _: self._handing_over.pop(replica.key, None) and None)

    def forget(self, replica: Replica) -> None:
        """The replica leads no more: nothing of it is to be pushed."""
        for peer in self._peers.values():
            if (lane := peer.lanes.pop(replica.key, None)) is not None:
                peer.window.drop(lane)

    # -- frames ----------------------------------------------------------------------------------------------------

    def _lane(self, peer: _Peer, replica: Replica) -> Lane:
        lane = peer.lanes.get(replica.key)
        if lane is None:
            lane = peer.lanes[replica.key] = Lane(replica.key, next(self._numbers))
        return lane

    def _flush_soon(self, peer: _Peer, after_s: float = 0.0) -> None:
        if peer.timer is None:
            flush = partial(self._flush, peer)
            peer.timer = self._loop.call_later(after_s, flush) if after_s else self._loop.call_soon(flush)

    def _flush(self, peer: _Peer) -> None:
        peer.timer = None
        if self._peers.get(peer.broker_id) is not peer:
            return
        if peer.session.outgoing_bytes > SESSION_BYTES_MAX:
            self._flush_soon(peer, BUSY_S)
            return
        frame = FrameBuilder()
        while peer.messages and not frame.is_full:
            key, message, data = peer.messages.popleft()
            peer.messages_bytes -= len(data)
            frame.add(key, message, data)
        # Behind all messages: of those that tell of a stream some belong before what is pushed of it now.
        while not frame.is_full and (turn := peer.window.next()) is not None:
            self._push(peer, frame, turn.lane, turn.bytes_max)
        if frame.is_full:
            self._flush_soon(peer)
        if frame.is_empty:
            return
        header, body = frame.build()
        try:
            peer.session.send(FRAME_KIND, header, body)
        except UnavailableError:
            return  # the session is over, and we are about to be told
        except QuireError as error:
            peer.session.abort(error)  # what was lost would be missed: both sides begin anew

    def _push(self, peer: _Peer, frame: FrameBuilder, lane: Lane, bytes_max: int) -> None:
        replica = self._replica_of(lane.key)
        offer = None if replica is None else replica.next_push(peer.broker_id)
        if replica is None or offer is None:
            peer.window.idle(lane)
            return
        batches = replica.read_for(offer.base_offset, bytes_max=bytes_max)
        leader = replica.leader
        if batches is None or not batches.data or leader is None or batches.base_offset != offer.base_offset:
            peer.window.idle(lane)
            return
        message = leader.push(peer.broker_id, RECORDS, base_offset=batches.base_offset, end_offset=batches.end_offset)
        peer.window.sent(lane, end_offset=batches.end_offset, size_bytes=len(batches.data))
        if batches.end_offset >= offer.end_offset:
            peer.window.idle(lane)
        frame.add(lane.key, message, batches.data)

    # -- controllers -----------------------------------------------------------------------------------------------

    async def _propose(self, proposals: list[tuple[Replica, Proposal]]) -> None:
        """Ask until there is an answer: a proposal whose fate is not known is not given up."""
        is_certain = True
        while True:
            current = [
                (replica, proposal)
                for replica, proposal in proposals
                if replica.leader is not None and replica.leader.proposal == proposal
            ]
            if not current:
                return
            request = controller_pb2.AlterPartitionsRequest(
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch(),
                changes=[_change(replica.key, proposal) for replica, proposal in current],
            )
            try:
                answer = await self._controllers.alter_partitions(request, timeout_s=self._propose_s_max)
            except OutcomeUnknownError as error:
                # Asked again it is another command: if that one is refused, this one may still be carried out.
                is_certain = False
                _problems.warning("an ISR change has an unknown outcome", why=error.message)
            except UnavailableError as error:
                _problems.warning("no controller took an ISR change", why=error.message)
            except QuireError as error:
                _problems.warning("an ISR change was refused", why=error.message)
                if is_certain:
                    for replica, proposal in current:
                        replica.on_answered(proposal, Answer.REFUSED)
                    return
            else:
                unsure = False
                for (replica, proposal), outcome in zip(current, answer.outcomes, strict=True):
                    verdict = _verdict(outcome)
                    if verdict is not Answer.REFUSED or is_certain or outcome.error == _GONE:
                        replica.on_answered(proposal, verdict)
                    else:
                        unsure = True
                if not unsure:
                    return
            await asyncio.sleep(PROPOSE_AGAIN_S)

    async def _hand_over(self, key: PartitionKey, to: int) -> None:
        request = controller_pb2.MoveLeadersRequest()
        move = request.moves.add(to_broker=to)
        move.partition.topic.topic_id = key.topic_id
        move.partition.partition = key.partition
        try:
            await self._controllers.forward("MoveLeaders", request.SerializeToString(), timeout_s=HAND_OVER_S_MAX)
        except QuireError as error:
            _problems.warning("a leadership cannot be handed over", key=key, partition=str(key), why=error.message)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _broker_of(self, node_id: str) -> int | None:
        for broker_id, broker in self._image.brokers.items():
            if broker.node_id == node_id and broker_id != self._broker_id:
                return broker_id
        return None

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _peer_address(broker: metadata_pb2.Broker) -> Address | None:
    for listener in broker.listeners:
        if listener.name == PEER_LISTENER:
            return Address(listener.host, listener.port)
    return None


def _change(key: PartitionKey, proposal: Proposal) -> commands_pb2.IsrChange:
    return commands_pb2.IsrChange(
        topic_id=key.topic_id,
        partition=key.partition,
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        isr=[
            commands_pb2.IsrMember(broker_id=each.broker_id, broker_epoch=each.broker_epoch) for each in proposal.isr
        ],
        damaged=proposal.damaged,
    )


def _verdict(outcome: commands_pb2.PartitionOutcome) -> Answer:
    if outcome.error == errors_pb2.ERROR_REASON_UNSPECIFIED:
        return Answer.COMMITTED
    return Answer.STALE if outcome.error in _STALE else Answer.REFUSED
