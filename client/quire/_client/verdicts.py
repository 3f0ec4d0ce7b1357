"""What an error says of records: are they stored, may they be, is it worth sending them again?

| verdict | the records are | the producer |
|---|---|---|
| STORED | stored, earlier | reports them as stored |
| LATER | not stored by this attempt | sends them again |
| GAP | not stored by this attempt: one before them is missing | see `outbox` |
| UNKNOWN | perhaps stored | sends them again if they carry a sequence, else reports them as unknown |
| FAILED | not stored by this attempt, nor by any that is like it | reports that |
| FENCED | not stored: somebody else uses the producer id | stops |
"""

from __future__ import annotations

import enum

from quire.errors import (
    DiskIoError,
    DuplicateSequenceError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    QuireError,
)


class Verdict(enum.Enum):
    STORED = enum.auto()
    LATER = enum.auto()
    GAP = enum.auto()
    UNKNOWN = enum.auto()
    FAILED = enum.auto()
    FENCED = enum.auto()


def verdict_on(error: QuireError) -> Verdict:
    match error:
        case DuplicateSequenceError():
            return Verdict.STORED
        case OutOfOrderSequenceError():
            return Verdict.GAP
        case ProducerFencedError():
            return Verdict.FENCED
        case OutcomeUnknownError() | DiskIoError():
            return Verdict.UNKNOWN
    return Verdict.LATER if error.retriable or error.stale_metadata else Verdict.FAILED
