"""How two nodes greet each other. Pure.

    dialer                              acceptor
      | ── HELLO  (who, whom, versions) ──► |   checks cluster, nodes, versions, certificate
      | ◄── WELCOME (who, version, session) |   or REFUSAL (why), and hangs up
      |   checks the same                   |

What a node claims about itself is compared with its certificate where there is one. Nothing else is accepted before
the greeting is over, and no frame with a body.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from quire.errors import InvalidArgumentError, MalformedFrameError, PeerRefusedError
from quire.link.frames import Frame, Limits, encode
from quire.types import Buffer
from quire.v1 import peer_pb2


class Kind(enum.IntEnum):
    """The kinds of frames that belong to the link. Others below FIRST_USER_KIND are ignored: a newer peer's."""

    HELLO = 1
    WELCOME = 2
    REFUSAL = 3
    PING = 4
    GOODBYE = 5


class State(enum.Enum):
    START = enum.auto()
    AWAITS_HELLO = enum.auto()
    AWAITS_ANSWER = enum.auto()
    GREETED = enum.auto()
    REFUSED = enum.auto()


class Event(enum.Enum):
    DIALED = enum.auto()
    ACCEPTED = enum.auto()
    HELLO = enum.auto()
    WELCOME = enum.auto()
    REFUSAL = enum.auto()


TRANSITIONS: Final = {
    (State.START, Event.DIALED): State.AWAITS_ANSWER,
    (State.START, Event.ACCEPTED): State.AWAITS_HELLO,
    (State.AWAITS_HELLO, Event.HELLO): State.GREETED,
    (State.AWAITS_ANSWER, Event.WELCOME): State.GREETED,
    (State.AWAITS_ANSWER, Event.REFUSAL): State.REFUSED,
}
"""Whatever is not here is out of turn and ends in REFUSED. So does what is in turn and fails a check."""

EVENTS: Final[Mapping[int, Event]] = {
    Kind.HELLO: Event.HELLO,
    Kind.WELCOME: Event.WELCOME,
    Kind.REFUSAL: Event.REFUSAL,
}

GREETING_LIMITS: Final = Limits(header_bytes_max=4 * 1024, body_bytes_max=0)
"""What a peer that has not said who it is may send in one frame."""
VERSIONS: Final = (1, 1)
"""The oldest and the newest version of the link that this code speaks."""
SESSION_ID_BYTES: Final = 16
MESSAGE_CHARACTERS_MAX: Final = 512

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Refusal(enum.StrEnum):
    """Why two nodes do not talk: quire.v1.PeerRefusalReason."""

    MALFORMED = enum.auto()
    WRONG_CLUSTER = enum.auto()
    UNEXPECTED_NODE = enum.auto()
    SAME_NODE = enum.auto()
    NO_COMMON_VERSION = enum.auto()
    CERTIFICATE = enum.auto()
    TOO_MANY_SESSIONS = enum.auto()


class NodeIdentity(NamedTuple):
    """Who a node is, to others: one of a cluster's nodes."""

    cluster_id: str
    node_id: str

    def __str__(self) -> str:
        return f"node '{self.node_id}' of cluster '{self.cluster_id}'"


class Greeted(NamedTuple):
    """What both sides know after the greeting."""

    peer_id: str
    session_id: bytes
    version: int
    body_bytes_max: int
    """The largest body that the peer accepts."""


class Answer(NamedTuple):
    frame: list[Buffer]
    greeted: Greeted | None


Admit = Callable[[str], None]
"""Raises PeerRefusedError for a node id that an acceptor does not want."""


def check_name(what: str, name: str) -> str:
    """A cluster's or a node's id, if it may be one: letters, digits, '.', '_' and '-', at most 63."""
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"{name[:80]!r} is no {what}: use 1 to 63 letters, digits, '.', '_' and '-', "
            "and begin with a letter or digit"
        )
    return name


def refused(refusal: Refusal, message: str) -> PeerRefusedError:
    return PeerRefusedError(message, refusal=refusal)


def refusal_frame(error: PeerRefusedError) -> list[Buffer]:
    """What tells the other side that, and why, we hang up."""
    reason = peer_pb2.PeerRefusalReason.Value(f"PEER_REFUSAL_REASON_{error.details['refusal'].upper()}")
    message = peer_pb2.PeerRefusal(reason=reason, message=error.message[:MESSAGE_CHARACTERS_MAX])
    return _frame(Kind.REFUSAL, message.SerializeToString())


class Handshake:
    """One greeting, as either side. Made with `dialing` or `accepting`."""

    def __init__(
        self,
        local: NodeIdentity,
        *,
        wanted: str | None,
        session_id: bytes,
        admit: Admit,
        versions: tuple[int, int],
        body_bytes_max: int,
    ) -> None:
        self.state = State.START
        self.refused_by_peer = False
        self._local = local
        self._wanted = wanted
        self._session_id = session_id
        self._admit = admit
        self._versions = versions
        self._body_bytes_max = body_bytes_max
        self._certified: NodeIdentity | None = None

    @classmethod
    def dialing(
        cls, local: NodeIdentity, *, wanted: str, body_bytes_max: int, versions: tuple[int, int] = VERSIONS
    ) -> Handshake:
        """As the node that dialed, to reach the node `wanted`."""
        return cls(
            local,
            wanted=wanted,
            session_id=b"",
            admit=lambda _: None,
            versions=versions,
            body_bytes_max=body_bytes_max,
        )

    @classmethod
    def accepting(
        cls,
        local: NodeIdentity,
        *,
        session_id: bytes,
        admit: Admit,
        body_bytes_max: int,
        versions: tuple[int, int] = VERSIONS,
    ) -> Handshake:
        """As the node that was dialed. `session_id` is to be random: it names the session if there will be one."""
        return cls(
            local,
            wanted=None,
            session_id=session_id,
            admit=admit,
            versions=versions,
            body_bytes_max=body_bytes_max,
        )

    def begin(self, certified: NodeIdentity | None) -> list[Buffer]:
        """The connection is there, and its peer holds the certificate of this node (None: plain text)."""
        self._certified = certified
        if self._wanted is None:
            self.state = self._after(Event.ACCEPTED)
            return []
        if certified is not None:
            # Before we greet: whoever sits at the address of the node that we want is not to take its place.
            self._check_certificate(NodeIdentity(self._local.cluster_id, self._wanted))
        self.state = self._after(Event.DIALED)
        hello = peer_pb2.PeerHello(
            cluster_id=self._local.cluster_id,
            node_id=self._local.node_id,
            wanted_node_id=self._wanted,
            version_min=self._versions[0],
            version_max=self._versions[1],
            body_bytes_max=self._body_bytes_max,
        )
        return _frame(Kind.HELLO, hello.SerializeToString())

    def on_frame(self, frame: Frame) -> Answer:
        """What to answer, and the outcome once there is one. Raises PeerRefusedError or MalformedFrameError."""
        event = EVENTS.get(frame.kind)
        if event is None or (self.state, event) not in TRANSITIONS:
            state, self.state = self.state, State.REFUSED
            raise MalformedFrameError(
                f"a frame of kind {frame.kind} came during the greeting, in state {state.name}", kind=frame.kind
            )
        following = self._after(event)
        self.state = State.REFUSED  # until all checks are passed
        try:
            if event is Event.HELLO:
                answer = self._on_hello(peer_pb2.PeerHello.FromString(frame.header))
            elif event is Event.WELCOME:
                answer = self._on_welcome(peer_pb2.PeerWelcome.FromString(frame.header))
            else:
                raise self.peer_refusal(frame.header)
        except DecodeError as error:
            raise refused(Refusal.MALFORMED, f"the {event.name} does not parse") from error
        self.state = following
        return answer

    def peer_refusal(self, header: bytes) -> PeerRefusedError:
        """What a refusal from the peer means for us. One may also follow a welcome that the peer did not like."""
        self.refused_by_peer = True
        try:
            refusal = peer_pb2.PeerRefusal.FromString(header)
        except DecodeError as error:
            # Also when it comes long after the greeting: what a peer sends is never a bug of ours.
            malformed = refused(Refusal.MALFORMED, "the REFUSAL does not parse")
            malformed.__cause__ = error
            return malformed
        value = peer_pb2.PeerRefusalReason.DESCRIPTOR.values_by_number.get(refusal.reason)
        reason = "unknown" if value is None else value.name.removeprefix("PEER_REFUSAL_REASON_").lower()
        return PeerRefusedError(
            f"the peer refused the connection: {refusal.message[:MESSAGE_CHARACTERS_MAX]}", refusal=reason
        )

    # -- inside ----------------------------------------------------------------------------------------------------

    def _after(self, event: Event) -> State:
        return TRANSITIONS[self.state, event]

    def _on_hello(self, hello: peer_pb2.PeerHello) -> Answer:
        self._check_peer(hello.cluster_id, hello.node_id, hello.body_bytes_max)
        if hello.wanted_node_id != self._local.node_id:
            raise refused(
                Refusal.UNEXPECTED_NODE,
                f"node '{hello.node_id}' wants to reach node {hello.wanted_node_id[:80]!r}, but this is "
                f"'{self._local.node_id}'; correct the address that it dials",
            )
        if not 1 <= hello.version_min <= hello.version_max:
            raise refused(
                Refusal.MALFORMED, f"versions {hello.version_min} to {hello.version_max} are no range of versions"
            )
        oldest, newest = self._versions
        version = min(newest, hello.version_max)
        if version < max(oldest, hello.version_min):
            raise refused(
                Refusal.NO_COMMON_VERSION,
                f"node '{hello.node_id}' speaks versions {hello.version_min} to {hello.version_max} of the peer "
                f"link, node '{self._local.node_id}' {oldest} to {newest}; upgrade the older one",
            )
        self._admit(hello.node_id)
        greeted = Greeted(hello.node_id, self._session_id, version, hello.body_bytes_max)
        welcome = peer_pb2.PeerWelcome(
            cluster_id=self._local.cluster_id,
            node_id=self._local.node_id,
            version=version,
            session_id=self._session_id,
            body_bytes_max=self._body_bytes_max,
        )
        return Answer(_frame(Kind.WELCOME, welcome.SerializeToString()), greeted)

    def _on_welcome(self, welcome: peer_pb2.PeerWelcome) -> Answer:
        self._check_peer(welcome.cluster_id, welcome.node_id, welcome.body_bytes_max)
        if welcome.node_id != self._wanted:
            raise refused(
                Refusal.UNEXPECTED_NODE,
                f"node '{welcome.node_id}' answered where '{self._wanted}' was expected; correct the address",
            )
        if not self._versions[0] <= welcome.version <= self._versions[1]:
            raise refused(
                Refusal.NO_COMMON_VERSION, f"node '{welcome.node_id}' chose version {welcome.version}, not offered"
            )
        if len(welcome.session_id) != SESSION_ID_BYTES:
            raise refused(Refusal.MALFORMED, f"a session id has {SESSION_ID_BYTES} bytes")
        return Answer([], Greeted(welcome.node_id, welcome.session_id, welcome.version, welcome.body_bytes_max))

    def _check_peer(self, cluster_id: str, node_id: str, body_bytes_max: int) -> None:
        """What both sides check of the other's claims."""
        for what, name in (("cluster id", cluster_id), ("node id", node_id)):
            if not _NAME.fullmatch(name):
                raise refused(Refusal.MALFORMED, f"the peer's {what} {name[:80]!r} is none")
        if body_bytes_max < 1:
            raise refused(Refusal.MALFORMED, f"node '{node_id}' accepts no frame with a body")
        # First of all: what somebody claims who is not who he claims to be is not worth another check.
        if self._certified is not None:
            self._check_certificate(NodeIdentity(cluster_id, node_id))
        if cluster_id != self._local.cluster_id:
            raise refused(
                Refusal.WRONG_CLUSTER,
                f"node '{node_id}' belongs to cluster '{cluster_id}' and node '{self._local.node_id}' to "
                f"'{self._local.cluster_id}'; correct the address or the cluster id",
            )
        if node_id == self._local.node_id:
            raise refused(
                Refusal.SAME_NODE,
                f"both sides are node '{node_id}': it dialed itself, or two processes have the same node id",
            )

    def _check_certificate(self, claimed: NodeIdentity) -> None:
        if claimed != self._certified:
            raise refused(
                Refusal.CERTIFICATE,
                f"the certificate is that of {self._certified}, and not that of {claimed}; "
                "check which certificate the node was given",
            )


def _frame(kind: Kind, header: bytes) -> list[Buffer]:
    return encode(kind, header, body_bytes_max=0)
