"""The times and limits of a member. Every number has a default that suits a quorum in one data centre."""

from __future__ import annotations

from dataclasses import dataclass, fields

from quire.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class RaftConfig:
    election_ms_min: int = 300
    """The shortest time without a word from the leader after which a member asks whether it should take over."""
    election_ms_max: int = 600
    """The longest; each wait is drawn anew, lest two members ask in step."""
    heartbeat_ms: int = 60
    """How often a leader that has nothing to say gives a sign of life."""
    tick_ms: int = 10
    """How often a member looks at its clock."""
    snapshot_entries: int = 10_000
    """After how many entries the state is written down and the journal can be shortened."""
    snapshot_bytes: int = 64 * 1024 * 1024
    """The same for a journal of so many bytes."""
    command_bytes_max: int = 2 * 1024 * 1024
    """The largest command."""
    commands_max: int = 10_000
    """How many commands may wait to be committed."""
    commands_bytes_max: int = 64 * 1024 * 1024
    """How many bytes they may have together."""
    append_bytes_max: int = 1024 * 1024
    """How much one message carries."""
    append_entries_max: int = 1024
    """How many entries one message carries."""
    window_entries_max: int = 8192
    """How many entries may be on their way to a member."""
    chunk_bytes: int = 512 * 1024
    """The parts in which a snapshot is sent."""
    disk_retry_ms: int = 500
    """How long a member whose disk is full waits before it tries again."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise InvalidArgumentError(f"{field.name} is to be positive, not {getattr(self, field.name)}")
        if self.election_ms_min <= 3 * self.heartbeat_ms:
            raise InvalidArgumentError(
                f"election_ms_min ({self.election_ms_min}) is to be more than three times heartbeat_ms "
                f"({self.heartbeat_ms}): a lost message or two must not start an election"
            )
        if self.election_ms_max <= self.election_ms_min:
            raise InvalidArgumentError(
                f"election_ms_max ({self.election_ms_max}) is to be more than election_ms_min "
                f"({self.election_ms_min}): members that always wait equally long elect nobody"
            )
