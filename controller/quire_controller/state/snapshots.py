"""The state as pieces of bytes, and back. The same state gives the same bytes, whatever led to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from quire.errors import DamagedFileError, InvariantViolation
from quire.v1 import state_pb2
from quire_controller.state import limits
from quire_controller.state.codec import has_unknown_fields, read_state_record, state_record
from quire_controller.state.tables import Tables

FORMAT_VERSION: Final = 1
_PIECE_OVERHEAD_BYTES: Final = 16
"""Tags and lengths around the records of a piece, and around each of them."""


class Restored(NamedTuple):
    tables: Tables
    version: int
    published_version: int


def pieces(picture: Tables, *, version: int, published_version: int) -> Iterator[bytes]:
    """A header, then records, then an end. Made one by one, as they are asked for."""
    level = 0 if picture.cluster is None else picture.cluster.feature_level
    header = state_pb2.SnapshotHeader(
        format_version=FORMAT_VERSION, feature_level=level, version=version, published_version=published_version
    )
    yield _bytes(state_pb2.SnapshotPiece(header=header))
    count = 0
    waiting: list[state_pb2.StateRecord] = []
    waiting_bytes = 0
    for value in picture.everything():
        record = state_record(value)
        record_bytes = record.ByteSize() + _PIECE_OVERHEAD_BYTES
        if waiting and waiting_bytes + record_bytes + _PIECE_OVERHEAD_BYTES > limits.PIECE_BYTES_MAX:
            yield _bytes(state_pb2.SnapshotPiece(records=state_pb2.StateRecords(records=waiting)))
            waiting, waiting_bytes = [], 0
        waiting.append(record)
        waiting_bytes += record_bytes
        count += 1
    yield _bytes(state_pb2.SnapshotPiece(records=state_pb2.StateRecords(records=waiting)))
    yield _bytes(state_pb2.SnapshotPiece(end=state_pb2.SnapshotEnd(record_count=count)))


def restored(data: Iterable[bytes]) -> Restored:
    """The state that pieces hold. Raises DamagedFileError for what it does not understand in full."""
    tables = Tables()
    header: state_pb2.SnapshotHeader | None = None
    ended = False
    count = 0
    for number, encoded in enumerate(data):
        piece = _parsed(number, encoded)
        kind = piece.WhichOneof("piece")
        if ended or kind is None or (kind == "header") != (header is None):
            raise _damaged(f"piece {number} is out of place, or of a kind that this version does not know")
        if kind == "header":
            header = piece.header
            _check_header(header)
        elif kind == "records":
            count += len(piece.records.records)
            _replay(tables, number, piece.records)
        else:
            ended = True
            if piece.end.record_count != count:
                raise _damaged(f"{count} records instead of {piece.end.record_count}")
    if header is None or not ended:
        raise _damaged("its end is missing")
    _check_partitions(tables)
    return Restored(tables, header.version, header.published_version)


def _check_partitions(tables: Tables) -> None:
    """That topics have the partitions that they say, counted before anything is made as large as they say."""
    counted = sum(topic.partition_count for topic in tables.topics.values())
    whole = counted == len(tables.partitions) and all(
        key in tables.partitions for topic in tables.topics.values() for key in topic.partition_keys()
    )
    if not whole or any(topic.partition_count < 1 for topic in tables.topics.values()):
        raise _damaged("topics and partitions do not agree")


def _replay(tables: Tables, number: int, records: state_pb2.StateRecords) -> None:
    try:
        tables.replay(map(read_state_record, records.records))
    except (ValueError, LookupError, InvariantViolation) as error:
        raise _damaged(f"piece {number}: {error}") from error


def _parsed(number: int, encoded: bytes) -> state_pb2.SnapshotPiece:
    try:
        piece = state_pb2.SnapshotPiece.FromString(encoded)
    except DecodeError as error:
        raise _damaged(f"piece {number} does not parse") from error
    if has_unknown_fields(piece):
        raise _damaged(f"piece {number} has fields that this version does not know: it was written by a newer one")
    return piece


def _check_header(header: state_pb2.SnapshotHeader) -> None:
    if header.format_version != FORMAT_VERSION:
        raise _damaged(f"it has format {header.format_version}, this version reads {FORMAT_VERSION}")
    if header.feature_level > limits.FEATURE_LEVEL_MAX:
        raise _damaged(
            f"the cluster is at feature level {header.feature_level}, this version can work up to "
            f"{limits.FEATURE_LEVEL_MAX}; upgrade this controller"
        )


def _bytes(piece: state_pb2.SnapshotPiece) -> bytes:
    return piece.SerializeToString(deterministic=True)


def _damaged(what: str) -> DamagedFileError:
    return DamagedFileError(f"the controller's snapshot is not readable: {what}")
