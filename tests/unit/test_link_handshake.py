"""The greeting: what two nodes agree on, and every reason for which they do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidArgumentError, MalformedFrameError, PeerRefusedError
from quire.link.frames import Frame, FrameParser
from quire.link.handshake import (
    EVENTS,
    GREETING_LIMITS,
    TRANSITIONS,
    Greeted,
    Handshake,
    Kind,
    NodeIdentity,
    Refusal,
    State,
    check_name,
    refusal_frame,
    refused,
)
from quire.types import Buffer
from quire.v1 import peer_pb2

A, B = NodeIdentity("cluster", "a"), NodeIdentity("cluster", "b")
SESSION = bytes(range(16))


def accepting(local: NodeIdentity = A, **changes: Any) -> Handshake:
    settings: dict[str, Any] = {"session_id": SESSION, "admit": lambda node: None, "body_bytes_max": 1000}
    return Handshake.accepting(local, **settings | changes)


def dialing(local: NodeIdentity = B, **changes: Any) -> Handshake:
    settings: dict[str, Any] = {"wanted": "a", "body_bytes_max": 2000}
    return Handshake.dialing(local, **settings | changes)


def frame_of(buffers: list[Buffer]) -> Frame:
    """What the other side parses, within the limits for strangers."""
    parser = FrameParser(GREETING_LIMITS)
    data = b"".join(buffers)
    parser.free()[: len(data)] = data
    parser.filled(len(data))
    frame = parser.next_frame()
    assert frame is not None
    return frame


def greet(
    dialer: Handshake,
    acceptor: Handshake,
    *,
    dialers_certificate: NodeIdentity | None = None,
    acceptors_certificate: NodeIdentity | None = None,
) -> tuple[Greeted | None, Greeted | None]:
    assert acceptor.begin(dialers_certificate) == []
    answer = acceptor.on_frame(frame_of(dialer.begin(acceptors_certificate)))
    return dialer.on_frame(frame_of(answer.frame)).greeted, answer.greeted


def refusal_of(act: Callable[[], object]) -> str:
    with pytest.raises(PeerRefusedError) as caught:
        act()
    return caught.value.details["refusal"]


def hello(**changes: Any) -> Frame:
    fields: dict[str, Any] = {
        "cluster_id": "cluster",
        "node_id": "b",
        "wanted_node_id": "a",
        "version_min": 1,
        "version_max": 1,
        "body_bytes_max": 1,
    }
    return Frame(Kind.HELLO, peer_pb2.PeerHello(**fields | changes).SerializeToString(), b"")


def welcome(**changes: Any) -> Frame:
    fields: dict[str, Any] = {
        "cluster_id": "cluster",
        "node_id": "a",
        "version": 1,
        "session_id": SESSION,
        "body_bytes_max": 1,
    }
    return Frame(Kind.WELCOME, peer_pb2.PeerWelcome(**fields | changes).SerializeToString(), b"")


# --- agreement -----------------------------------------------------------------------------------------------------


def test_both_know_the_same_afterwards() -> None:
    dialer, acceptor = dialing(), accepting()
    assert greet(dialer, acceptor) == (Greeted("a", SESSION, 1, 1000), Greeted("b", SESSION, 1, 2000))
    assert dialer.state is acceptor.state is State.GREETED


@pytest.mark.parametrize(
    ("ours", "theirs", "version"),
    [((1, 1), (1, 1), 1), ((1, 3), (2, 5), 3), ((2, 5), (1, 3), 3), ((1, 9), (4, 4), 4), ((1, 2), (3, 4), None)],
)
def test_newest_common_version_is_spoken(ours: tuple[int, int], theirs: tuple[int, int], version: int | None) -> None:
    dialer, acceptor = dialing(versions=ours), accepting(versions=theirs)
    if version is None:
        assert refusal_of(lambda: greet(dialer, acceptor)) == Refusal.NO_COMMON_VERSION
        return
    for greeted in greet(dialer, acceptor):
        assert greeted is not None
        assert greeted.version == version


def test_certificates_that_agree_with_the_claims() -> None:
    assert all(greet(dialing(), accepting(), dialers_certificate=B, acceptors_certificate=A))


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "refusal"),
    [
        (hello(cluster_id="another"), Refusal.WRONG_CLUSTER),
        (hello(wanted_node_id="c"), Refusal.UNEXPECTED_NODE),
        (hello(wanted_node_id="A"), Refusal.UNEXPECTED_NODE),
        (hello(node_id="stranger"), Refusal.UNEXPECTED_NODE),
        (hello(node_id="a"), Refusal.SAME_NODE),
        (hello(version_min=2, version_max=3), Refusal.NO_COMMON_VERSION),
        (hello(version_min=0, version_max=1), Refusal.MALFORMED),
        (hello(version_min=2, version_max=1), Refusal.MALFORMED),
        (hello(body_bytes_max=0), Refusal.MALFORMED),
        (hello(node_id=""), Refusal.MALFORMED),
        (hello(node_id="../b"), Refusal.MALFORMED),
        (hello(node_id="b\n"), Refusal.MALFORMED),
        (hello(node_id="b" * 64), Refusal.MALFORMED),
        (hello(cluster_id="ä"), Refusal.MALFORMED),
        (Frame(Kind.HELLO, b"\xff", b""), Refusal.MALFORMED),
    ],
)
def test_acceptor_refuses(frame: Frame, refusal: Refusal) -> None:
    def admit(node: str) -> None:
        if node == "stranger":
            raise refused(Refusal.UNEXPECTED_NODE, "never heard of it")

    acceptor = accepting(admit=admit)
    acceptor.begin(None)
    assert refusal_of(lambda: acceptor.on_frame(frame)) == refusal
    assert acceptor.state is State.REFUSED
    with pytest.raises(MalformedFrameError):
        acceptor.on_frame(hello())


@pytest.mark.parametrize(
    ("frame", "refusal"),
    [
        (welcome(cluster_id="another"), Refusal.WRONG_CLUSTER),
        (welcome(node_id="c"), Refusal.UNEXPECTED_NODE),
        (welcome(node_id="b"), Refusal.SAME_NODE),
        (welcome(version=2), Refusal.NO_COMMON_VERSION),
        (welcome(version=0), Refusal.NO_COMMON_VERSION),
        (welcome(session_id=b"short"), Refusal.MALFORMED),
        (welcome(body_bytes_max=0), Refusal.MALFORMED),
        (Frame(Kind.WELCOME, b"\xff", b""), Refusal.MALFORMED),
        (Frame(Kind.REFUSAL, b"\xff", b""), Refusal.MALFORMED),
    ],
)
def test_dialer_refuses(frame: Frame, refusal: Refusal) -> None:
    dialer = dialing()
    dialer.begin(None)
    assert refusal_of(lambda: dialer.on_frame(frame)) == refusal
    assert dialer.state is State.REFUSED


def test_certificate_of_another_node_is_refused_by_either_side() -> None:
    other, elsewhere = NodeIdentity("cluster", "c"), NodeIdentity("another", "b")
    for certificate in (other, elsewhere):
        acceptor = accepting()
        acceptor.begin(certificate)
        assert refusal_of(partial(acceptor.on_frame, hello())) == Refusal.CERTIFICATE
    assert refusal_of(lambda: dialing().begin(other)) == Refusal.CERTIFICATE
    assert refusal_of(lambda: dialing().begin(NodeIdentity("another", "a"))) == Refusal.CERTIFICATE
    dialer = dialing()
    dialer.begin(A)
    assert refusal_of(lambda: dialer.on_frame(welcome(node_id="c"))) == Refusal.CERTIFICATE


@pytest.mark.parametrize("refusal", Refusal)
def test_refusal_reaches_the_other_side(refusal: Refusal) -> None:
    dialer = dialing()
    dialer.begin(None)
    frame = frame_of(refusal_frame(refused(refusal, "because")))
    with pytest.raises(PeerRefusedError, match="because") as caught:
        dialer.on_frame(frame)
    assert caught.value.details == {"refusal": refusal}
    assert dialer.refused_by_peer


def test_refusals_are_those_of_the_contract() -> None:
    listed = {name.removeprefix("PEER_REFUSAL_REASON_") for name in peer_pb2.PeerRefusalReason.keys()}  # noqa: SIM118  # no mapping
    assert listed - {"UNSPECIFIED"} == {refusal.name for refusal in Refusal}


def test_refusal_of_a_newer_peer_is_one_too() -> None:
    dialer = dialing()
    dialer.begin(None)
    newer = peer_pb2.PeerRefusal(message="m" * 5000).SerializeToString() + b"\x08\x63"
    with pytest.raises(PeerRefusedError) as caught:
        dialer.on_frame(Frame(Kind.REFUSAL, newer, b""))
    assert caught.value.details == {"refusal": "unknown"}
    assert len(caught.value.message) < 1000


# --- turns ---------------------------------------------------------------------------------------------------------


def in_state(state: State) -> Handshake:
    if state in (State.AWAITS_HELLO, State.GREETED):
        handshake = accepting()
        handshake.begin(None)
        if state is State.GREETED:
            handshake.on_frame(hello())
    else:
        handshake = dialing()
        if state is not State.START:
            handshake.begin(None)
        if state is State.REFUSED:
            refusal_of(lambda: handshake.on_frame(welcome(node_id="c")))
    assert handshake.state is state
    return handshake


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", [*Kind, 0, 15, 16, 0xFFFF])
def test_what_the_table_does_not_list_is_out_of_turn(state: State, kind: int) -> None:
    handshake = in_state(state)
    event = EVENTS.get(kind)
    if event is not None and (state, event) in TRANSITIONS:
        return
    with pytest.raises(MalformedFrameError, match=f"kind {kind}"):
        handshake.on_frame(Frame(kind, b"", b""))
    assert handshake.state is State.REFUSED


@given(st.sampled_from([Kind.HELLO, Kind.WELCOME, Kind.REFUSAL]), st.binary(max_size=300))
def test_arbitrary_headers_are_refused_in_a_typed_way(kind: Kind, header: bytes) -> None:
    handshake = accepting() if kind == Kind.HELLO else dialing()
    handshake.begin(None)
    with pytest.raises((PeerRefusedError, MalformedFrameError)):
        handshake.on_frame(Frame(kind, header, b""))


@pytest.mark.parametrize("name", ["", ".", "-a", "a b", "a/b", "a\n", "ä", "a" * 64])
def test_name_that_is_none(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is no node id"):
        check_name("node id", name)


@pytest.mark.parametrize("name", ["a", "0", "broker-1.eu_west", "a" * 63])
def test_name(name: str) -> None:
    assert check_name("node id", name) == name
