"""Messages as they travel: a protobuf header and a raw body. Checked here, so that the core need not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from quire.errors import MalformedFrameError
from quire.types import Buffer
from quire.v1 import raft_pb2
from quire_controller.raft.entry import NO_OP, REGULAR, Entry

FRAME_KIND: Final = 16

INDEX_MAX: Final = 1 << 62
"""Larger terms, indexes and rounds are lies: nobody counts so far."""

TERM_STEP_MAX: Final = 1 << 32
"""A term that is so far beyond a voter's own is a lie, too: it cannot have slept through so many elections. Else one
message could take the quorum to `INDEX_MAX`, behind which there is no election any more."""


_COUNTS: Final = {
    kind.name: [
        field.name
        for field in kind.message_type.fields
        if field.name
        in ("term", "round", "previous_index", "last_index", "commit_index", "index", "position", "size")
    ]
    for kind in raft_pb2.RaftMessage.DESCRIPTOR.oneofs_by_name["message"].fields
    if kind.message_type is not None
}
"""Of each kind of message the fields that are reached by counting."""


class Outgoing(NamedTuple):
    to: str
    header: raft_pb2.RaftMessage
    body: Sequence[Buffer] = ()


def decode(header: bytes) -> raft_pb2.RaftMessage:
    try:
        message = raft_pb2.RaftMessage.FromString(header)
    except DecodeError as error:
        raise MalformedFrameError("these bytes are no message of a controller quorum") from error
    name = message.WhichOneof("message")
    if name is None:
        raise MalformedFrameError("a message of a controller quorum says nothing that this version knows")
    inner = getattr(message, name)
    for field in _COUNTS[name]:
        if getattr(inner, field) > INDEX_MAX:
            raise MalformedFrameError(f"{name}.{field} is {getattr(inner, field)}, which nobody reaches by counting")
    return message


def encode_entries(append: raft_pb2.RaftAppend, entries: Sequence[Entry]) -> list[Buffer]:
    """Describe the entries in the message; their data is its body."""
    append.terms.extend([term for _, _, term in entries])
    append.sizes.extend([len(data) for data, _, _ in entries])
    return [data for data, _, _ in entries]


def decode_entries(append: raft_pb2.RaftAppend, body: Buffer) -> list[Entry]:
    """The entries of a message, contiguous, with terms that do not fall and are none beyond the leader's."""
    terms, sizes = append.terms, append.sizes
    if len(terms) != len(sizes) or sum(sizes) != len(body):
        raise MalformedFrameError("the entries of a message do not add up to its body")
    entries: list[Entry] = []
    position, index, lowest = 0, append.previous_index, append.previous_term
    for term, size in zip(terms, sizes, strict=True):
        if not lowest <= term <= append.term:
            raise MalformedFrameError(f"an entry of term {term} follows one of term {lowest} in term {append.term}")
        data = bytes(body[position : position + size])
        if data[:1] not in (REGULAR, NO_OP):
            raise MalformedFrameError(f"entry {index + 1} begins with {data[:1]!r}, which is no kind of entry")
        position, index, lowest = position + size, index + 1, term
        entries.append((data, index, term))
    return entries
