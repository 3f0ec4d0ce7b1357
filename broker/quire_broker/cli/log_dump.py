"""`quire log dump`: the batches and records of a log, a line each, as they come off the disk."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from quire.cli.text import one_line, quoted
from quire.errors import MalformedBatchError, UnsupportedBatchError
from quire.records import Attributes, BatchHeader, Codec, Lane, Record, decode
from quire_broker.cli.log_picture import Picture
from quire_broker.cli.text import iso_time, span
from quire_broker.log.scan import Damage, Found

_FLAGS: Final = {
    "append-time": Attributes.LOG_APPEND_TIME,
    "transactional": Attributes.TRANSACTIONAL,
    "control": Attributes.CONTROL,
    "delete-horizon": Attributes.DELETE_HORIZON,
    "delayed": Attributes.DELAYED,
    "ttl": Attributes.HAS_TTL,
    "traced": Attributes.TRACED,
}


class Batch(NamedTuple):
    path: str
    position: int
    header: BatchHeader


class Undecodable(NamedTuple):
    """A batch that checks and whose records do not decode."""

    batch: Batch
    reason: str


class Lost(NamedTuple):
    """A stretch that is damaged; `torn` if no more than a write that was never acknowledged."""

    damage: Damage
    end_offset: int | None
    torn: bool

    @property
    def first_offset(self) -> int:
        return self.damage.first_offset


class Missing(NamedTuple):
    """Offsets that no file holds."""

    directory: str
    first_offset: int
    end_offset: int


class More(NamedTuple):
    """There is more than was asked for."""

    next_offset: int


Item = Batch | Record | Undecodable | Lost | Missing | More


def dump(picture: Picture, *, from_offset: int, count_max: int | None, records: bool) -> Iterator[Item]:
    """What the log holds from the batch with `from_offset` on: at most so many batches, or records if those count."""
    left = _Budget(count_max)
    for item in _walk(picture, from_offset):
        if left.is_spent:
            if not (isinstance(item, Lost) and item.torn):
                yield More(item.header.base_offset if isinstance(item, Batch) else item.first_offset)
            return
        yield item
        if isinstance(item, Batch):
            if not records:
                left.spend()
                continue
            for record in _records(picture, item):
                if isinstance(record, Undecodable):
                    yield record
                elif record.offset >= from_offset:
                    if left.is_spent:
                        yield More(record.offset)
                        return
                    yield record
                    left.spend()


def is_damage(item: Item) -> bool:
    return isinstance(item, Missing | Undecodable) or (isinstance(item, Lost) and not item.torn)


class _Budget:
    def __init__(self, count: int | None) -> None:
        self._left = count

    @property
    def is_spent(self) -> bool:
        return self._left == 0

    def spend(self) -> None:
        if self._left is not None:
            self._left -= 1


def _walk(picture: Picture, from_offset: int) -> Iterator[Batch | Lost | Missing]:
    """Batches from the one with `from_offset` on, and what is not to be had between them."""
    expected = max(picture.start_offset, from_offset)
    for segment in picture.segments:
        if segment.next_base_offset is not None and segment.next_base_offset <= from_offset:
            continue
        if expected < segment.base_offset:
            yield Missing(picture.directory, expected, segment.base_offset)
        begin, _ = picture.floor(segment, from_offset)
        for item in picture.scan(segment, begin):
            if isinstance(item, Found):
                if item.header.end_offset > from_offset:
                    yield Batch(segment.path, item.position, item.header)
                    expected = item.header.end_offset
            elif picture.is_torn(item, segment):
                yield Lost(item, None, torn=True)
                return
            elif (end := picture.lost_until(item, segment)) > from_offset:
                yield Lost(item, end, torn=False)
                expected = end
        if picture.ends_early(segment, expected):
            return
    if expected < picture.acknowledged:
        yield Missing(picture.directory, expected, picture.acknowledged)


def _records(picture: Picture, batch: Batch) -> Iterator[Record | Undecodable]:
    file = picture.disk.open(batch.path)
    try:
        data = file.read(batch.position, batch.header.size_bytes)
    finally:
        file.close()
    try:
        yield from decode(data)
    except (MalformedBatchError, UnsupportedBatchError) as error:
        yield Undecodable(batch, error.message)


# -- as JSON -------------------------------------------------------------------------------------------------------


def to_json(item: Item) -> str:
    return json.dumps(_body(item))


def _body(item: Item) -> dict[str, Any]:
    match item:
        case Batch(path, position, header):
            return {
                "type": "batch",
                "path": path,
                "position": position,
                "base_offset": header.base_offset,
                "end_offset": header.end_offset,
                "records": header.record_count,
                "size_bytes": header.size_bytes,
                "leader_epoch": header.leader_epoch,
                "crc": header.crc,
                "compression": _codec(header),
                "lane": _lane(header),
                "flags": _flags(header),
                "base_timestamp_ms": header.base_timestamp_ms,
                "max_timestamp_ms": header.max_timestamp_ms,
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "base_sequence": header.base_sequence,
            }
        case Undecodable(batch, reason):
            return {
                "type": "undecodable",
                "path": batch.path,
                "position": batch.position,
                "first_offset": batch.header.base_offset,
                "end_offset": batch.header.end_offset,
                "reason": reason,
            }
        case Lost(damage, end_offset, torn):
            return {
                "type": "torn_tail" if torn else "damage",
                "path": damage.path,
                "position": damage.position,
                "end_position": damage.end_position,
                "first_offset": damage.first_offset,
                "end_offset": end_offset,
                "reason": damage.reason,
            }
        case Missing(directory, first_offset, end_offset):
            return {"type": "missing", "path": directory, "first_offset": first_offset, "end_offset": end_offset}
        case More(next_offset):
            return {"type": "more", "next_offset": next_offset}
        case record:
            return {
                "type": "record",
                "offset": record.offset,
                "timestamp_ms": record.timestamp,
                **_bytes_body("key", record.key),
                **_bytes_body("value", record.value),
                "headers": [{"key": key, **_bytes_body("value", value)} for key, value in record.headers],
            }


def _bytes_body(name: str, data: bytes | None) -> dict[str, str | None]:
    """Text under its name; what is no text under another one, so that neither can be taken for the other."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


# -- as lines ------------------------------------------------------------------------------------------------------


class Lines:
    """Turns items into lines with columns, without waiting for the last one to know their widths."""

    def __init__(self, *, records: bool, write: Callable[[str, str], None]) -> None:
        self._records = records
        self._write = write
        """Called with a line and its rich style."""
        self._path = ""

    def show(self, item: Item) -> None:
        match item:
            case Batch(path, _, _):
                if path != self._path:
                    self._path = path
                    self._write(one_line(path), "bold")
                    self._write(_columns(*_TITLES), "dim")
                self._write(_batch_line(item), "cyan" if self._records else "")
            case Undecodable(_, reason):
                self._write(f"{'':>16}  records do not decode: {one_line(reason)}", "bold red")
            case Lost(damage, end_offset, torn):
                what = "torn tail" if torn else "DAMAGED"
                where = f"bytes {damage.position}–{damage.end_position - 1} of {one_line(damage.path)}"
                offsets = (
                    f"offset {damage.first_offset} on" if torn else f"offsets {span(damage.first_offset, end_offset)}"
                )
                self._write(
                    f"{what}: {offsets}, {where}: {one_line(damage.reason)}", "yellow" if torn else "bold red"
                )
            case Missing(directory, first_offset, end_offset):
                self._write(f"MISSING: offsets {span(first_offset, end_offset)} of {one_line(directory)}", "bold red")
            case More(next_offset):
                self._write(f"more follows, --from {next_offset}", "dim")
            case record:
                headers = "".join(f"  {quoted(key.encode())}={quoted(value)}" for key, value in record.headers)
                time = iso_time(record.timestamp)
                self._write(f"{record.offset:>16}  {time}  {quoted(record.key)}: {quoted(record.value)}{headers}", "")


_TITLES: Final = ("offset", "count", "position", "bytes", "codec", "epoch", "largest timestamp", "producer", "")


def _columns(*cells: str) -> str:
    offset, records, position, size, codec, epoch, time, producer, rest = cells
    return (
        f"{offset:>10} {records:>5} {position:>10} {size:>7}  {codec:<6} {epoch:>5}  {time:<24}  {producer}  {rest}"
    ).rstrip()


def _batch_line(batch: Batch) -> str:
    header = batch.header
    producer = "-"
    if header.producer_id >= 0:
        producer = f"{header.producer_id}/{header.producer_epoch} seq {header.base_sequence}"
    rest = [] if header.lane == Lane.NORMAL else [f"lane={_lane(header)}"]
    return _columns(
        str(header.base_offset),
        str(header.record_count),
        str(batch.position),
        str(header.size_bytes),
        _codec(header),
        str(header.leader_epoch),
        iso_time(header.max_timestamp_ms) or "",
        producer,
        " ".join([*rest, *_flags(header)]),
    )


def _codec(header: BatchHeader) -> str:
    return Codec(header.codec).name.lower() if header.codec in list(Codec) else f"{header.codec}?"


def _lane(header: BatchHeader) -> str:
    return Lane(header.lane).name.lower() if header.lane in list(Lane) else f"{header.lane}?"


def _flags(header: BatchHeader) -> list[str]:
    return [name for name, bit in _FLAGS.items() if header.attributes & bit]
