"""Every error that Quire raises on purpose, in one table.

An error class *is* its row in the table: a stable `reason` (what programs match on), the gRPC `status` it travels
as, whether trying the same call again can help (`retriable`), and whether the caller's picture of the cluster is
out of date (`stale_metadata`). `details` are strings that reach the other side of the wire unchanged.

The text is for a person: what happened, to what, and what to do next.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Self


class Status(enum.IntEnum):
    """The gRPC status codes of calls that did not succeed, by their number on the wire."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class QuireError(Exception):
    """The root of all of them. Catch this to catch whatever Quire raises on purpose."""

    # A class is a row. An instance differs from it only when a newer peer sent a reason that this version lacks.
    reason: str = "UNKNOWN"
    status: Status = Status.UNKNOWN
    retriable: bool = False
    stale_metadata: bool = False
    retry_after_ms: int | None = None
    """How long the one who refused asks the caller to wait; travels as google.rpc.RetryInfo."""

    def __init__(self, message: str, *, retry_after_ms: int | None = None, **details: object) -> None:
        super().__init__(message)
        self.message = message
        if retry_after_ms is not None:
            self.retry_after_ms = retry_after_ms
        self.details: dict[str, str] = {key: str(value) for key, value in details.items()}

    @classmethod
    def from_wire(cls, message: str, details: Mapping[str, str], *, retry_after_ms: int | None) -> Self:
        """The error again, on the other side of the wire.

        A class with arguments of its own reads them from the details, which are the peer's word: raises KeyError or
        ValueError where they do not hold what the class needs.
        """
        error = cls(message, retry_after_ms=retry_after_ms)
        # Not as keywords: a peer that names a detail `message` must not be able to break the call.
        error.details = dict(details)
        return error


# --- batches -------------------------------------------------------------------------------------------------------


class MalformedBatchError(QuireError):
    """The bytes are not a record batch, or contradict themselves, or break a limit."""

    reason = "MALFORMED_BATCH"
    status = Status.INVALID_ARGUMENT


class BatchTooLargeError(MalformedBatchError):
    """A batch, its record count or its decompressed size is over the limit."""

    reason = "BATCH_TOO_LARGE"


class ChecksumMismatchError(MalformedBatchError):
    """The CRC in the header is not that of the bytes: they were damaged on the way."""

    reason = "CHECKSUM_MISMATCH"
    status = Status.DATA_LOSS
    retriable = True


class PoisonBatchError(MalformedBatchError):
    """The CRC holds but the records do not decode: whoever wrote the batch wrote it wrong."""

    reason = "POISON_BATCH"


class UnsupportedBatchError(QuireError):
    """A well-formed batch asks for something that this log does not do."""

    reason = "UNSUPPORTED_BATCH"
    status = Status.FAILED_PRECONDITION


# --- idempotent producers ------------------------------------------------------------------------------------------


class OutOfOrderSequenceError(QuireError):
    """A batch before this one never arrived."""

    reason = "OUT_OF_ORDER_SEQUENCE"
    status = Status.FAILED_PRECONDITION


class DuplicateSequenceError(QuireError):
    """The batch was stored before, too long ago to tell at which offset."""

    reason = "DUPLICATE_SEQUENCE"
    status = Status.FAILED_PRECONDITION


class ProducerFencedError(QuireError):
    """A newer producer took over this producer id."""

    reason = "PRODUCER_FENCED"
    status = Status.FAILED_PRECONDITION


# --- the log -------------------------------------------------------------------------------------------------------


class OffsetOutOfRangeError(QuireError):
    """No record has, or will next have, this offset."""

    reason = "OFFSET_OUT_OF_RANGE"
    status = Status.OUT_OF_RANGE


class DamagedRangeError(QuireError):
    """The log once held these offsets and can no longer prove what they were."""

    reason = "DAMAGED_RANGE"
    status = Status.DATA_LOSS

    def __init__(
        self,
        message: str,
        *,
        first_offset: int,
        end_offset: int,
        retry_after_ms: int | None = None,
        **details: object,
    ) -> None:
        super().__init__(
            message,
            retry_after_ms=retry_after_ms,
            first_offset=first_offset,
            end_offset=end_offset,
            **details,
        )
        self.first_offset = first_offset
        self.end_offset = end_offset

    @classmethod
    def from_wire(cls, message: str, details: Mapping[str, str], *, retry_after_ms: int | None) -> Self:
        error = cls(
            message,
            first_offset=int(details["first_offset"]),
            end_offset=int(details["end_offset"]),
            retry_after_ms=retry_after_ms,
        )
        error.details = dict(details)
        return error


class DamagedFileError(QuireError):
    """A file other than a log segment is damaged and cannot be rebuilt."""

    reason = "DAMAGED_FILE"
    status = Status.DATA_LOSS


class StaleEpochError(QuireError):
    """The write comes from a leadership that has ended."""

    reason = "STALE_EPOCH"
    status = Status.FAILED_PRECONDITION
    stale_metadata = True


class LogBusyError(QuireError):
    """More is waiting to be written than may wait."""

    reason = "LOG_BUSY"
    status = Status.RESOURCE_EXHAUSTED
    retriable = True
    retry_after_ms = 100


class DiskFullError(QuireError):
    """No room: nothing was written. Appending goes on by itself once there is room."""

    reason = "DISK_FULL"
    status = Status.RESOURCE_EXHAUSTED
    retriable = True
    retry_after_ms = 5_000


class DiskIoError(QuireError):
    """The operating system refused a read or a write."""

    reason = "DISK_IO"
    status = Status.INTERNAL


class SyncFailedError(DiskIoError):
    """`fdatasync` failed. What was written may be gone and a second call would lie, so it is never retried."""

    reason = "SYNC_FAILED"


class LogOfflineError(QuireError):
    """The log stopped after a disk error and serves nothing until it is opened anew."""

    reason = "LOG_OFFLINE"
    status = Status.UNAVAILABLE
    retriable = True
    stale_metadata = True


class InvalidArgumentError(QuireError):
    """The caller asked for something that makes no sense."""

    reason = "INVALID_ARGUMENT"
    status = Status.INVALID_ARGUMENT


# --- calls ---------------------------------------------------------------------------------------------------------


class UnavailableError(QuireError):
    """Whoever should answer cannot be reached, or is not serving. Nothing was done."""

    reason = "UNAVAILABLE"
    status = Status.UNAVAILABLE
    retriable = True
    stale_metadata = True


class OutcomeUnknownError(QuireError):
    """The call ended without an answer: it was carried out, or will be, or not. Repeat only what may happen twice."""

    reason = "OUTCOME_UNKNOWN"
    status = Status.DEADLINE_EXCEEDED
    stale_metadata = True


# --- the peer link -------------------------------------------------------------------------------------------------


class MalformedFrameError(QuireError):
    """What a peer sent is not a frame, comes out of turn, or breaks a limit. Its connection is closed."""

    reason = "MALFORMED_FRAME"
    status = Status.INVALID_ARGUMENT


class PeerRefusedError(QuireError):
    """Two nodes do not talk to each other; the detail `refusal` says why (`quire.v1.PeerRefusalReason`)."""

    reason = "PEER_REFUSED"
    status = Status.FAILED_PRECONDITION


class LinkBusyError(QuireError):
    """More is waiting to be sent to a peer than may wait. This frame was not taken."""

    reason = "LINK_BUSY"
    status = Status.RESOURCE_EXHAUSTED
    retriable = True
    retry_after_ms = 100


# --- the controller ------------------------------------------------------------------------------------------------


class TopicAlreadyExistsError(QuireError):
    """The tenant has a topic of this name."""

    reason = "TOPIC_ALREADY_EXISTS"
    status = Status.ALREADY_EXISTS


class UnknownTopicError(QuireError):
    """There is no topic of this name or id."""

    reason = "UNKNOWN_TOPIC"
    status = Status.NOT_FOUND
    stale_metadata = True


class UnknownPartitionError(QuireError):
    """The topic has no such partition."""

    reason = "UNKNOWN_PARTITION"
    status = Status.NOT_FOUND
    stale_metadata = True


class InvalidTopicNameError(QuireError):
    """The name cannot be a topic's."""

    reason = "INVALID_TOPIC_NAME"
    status = Status.INVALID_ARGUMENT


class NotEnoughBrokersError(QuireError):
    """Fewer brokers can take replicas than are asked for."""

    reason = "NOT_ENOUGH_BROKERS"
    status = Status.FAILED_PRECONDITION
    retriable = True


class UnknownBrokerError(QuireError):
    """No broker with this id is registered."""

    reason = "UNKNOWN_BROKER"
    status = Status.NOT_FOUND


class StaleBrokerEpochError(QuireError):
    """The broker has registered anew since."""

    reason = "STALE_BROKER_EPOCH"
    status = Status.FAILED_PRECONDITION
    stale_metadata = True


class BrokerFencedError(QuireError):
    """The broker is shut out, or not ready yet."""

    reason = "BROKER_FENCED"
    status = Status.FAILED_PRECONDITION
    stale_metadata = True


class BrokerNotEmptyError(QuireError):
    """The broker still has replicas."""

    reason = "BROKER_NOT_EMPTY"
    status = Status.FAILED_PRECONDITION


class StalePartitionEpochError(QuireError):
    """The partition has changed since it was looked at."""

    reason = "STALE_PARTITION_EPOCH"
    status = Status.ABORTED
    stale_metadata = True


class NoEligibleLeaderError(QuireError):
    """Nobody can lead the partition without losing records."""

    reason = "NO_ELIGIBLE_LEADER"
    status = Status.FAILED_PRECONDITION


class ReassignmentInProgressError(QuireError):
    """The partition's replicas are being moved."""

    reason = "REASSIGNMENT_IN_PROGRESS"
    status = Status.FAILED_PRECONDITION


class NoReassignmentInProgressError(QuireError):
    """The partition's replicas are not being moved."""

    reason = "NO_REASSIGNMENT_IN_PROGRESS"
    status = Status.FAILED_PRECONDITION


class LimitExceededError(QuireError):
    """There would be more of something than there may be."""

    reason = "LIMIT_EXCEEDED"
    status = Status.FAILED_PRECONDITION


class UnsupportedFeatureError(QuireError):
    """Not every node can do this yet."""

    reason = "UNSUPPORTED_FEATURE"
    status = Status.FAILED_PRECONDITION


class ClusterIdMismatchError(QuireError):
    """The node, or its data, belongs to another cluster."""

    reason = "CLUSTER_ID_MISMATCH"
    status = Status.FAILED_PRECONDITION


class NotControllerError(QuireError):
    """This controller does not lead, or no longer. Nothing was done."""

    reason = "NOT_CONTROLLER"
    status = Status.UNAVAILABLE
    retriable = True
    stale_metadata = True


class DuplicateCommandError(QuireError):
    """The command may have been carried out before, too long ago to say with what result."""

    reason = "DUPLICATE_COMMAND"
    status = Status.FAILED_PRECONDITION
    stale_metadata = True


# --- brokers -------------------------------------------------------------------------------------------------------


class NotLeaderError(QuireError):
    """This broker does not lead the partition, or no longer. Nothing was done."""

    reason = "NOT_LEADER"
    status = Status.UNAVAILABLE
    retriable = True
    stale_metadata = True


class NotEnoughReplicasError(QuireError):
    """Fewer replicas are in sync than the topic demands for acks=all. Nothing was written."""

    reason = "NOT_ENOUGH_REPLICAS"
    status = Status.UNAVAILABLE
    retriable = True


# --- the table -----------------------------------------------------------------------------------------------------

ERRORS_BY_REASON: Final[Mapping[str, type[QuireError]]] = {
    row.reason: row for row in list(globals().values()) if isinstance(row, type) and issubclass(row, QuireError)
}


# --- bugs ----------------------------------------------------------------------------------------------------------


class InvariantViolation(BaseException):
    """A bug in Quire. Derived from BaseException so that no handler of expected errors keeps the process alive."""


def invariant(holds: bool, what: str) -> None:
    """Stop when something that must be true is not. Unlike `assert`, stays under `python -O`."""
    if not holds:
        raise InvariantViolation(what)
