"""What of a log was ever acknowledged: the difference between a torn tail and damage."""

from __future__ import annotations

from typing import NamedTuple

from quire_broker.log.scan import Damage


class Promise(NamedTuple):
    """As far as the files tell. `following` is the base offset of the next segment, None after the last one."""

    acknowledged: int
    """Someone was told that everything below is stored."""
    trusted: bool
    """There is a checkpoint. Without one nothing is removed but an end that cannot be read."""

    def is_torn(self, damage: Damage, following: int | None) -> bool:
        """Whether damage is no more than a write that was never acknowledged and did not wholly arrive."""
        if damage.first_offset < self.acknowledged:
            return False
        nothing_follows = damage.end_offset is None and following is None
        return nothing_follows or (damage.never_written and self.trusted)

    def ends_early(self, end_offset: int, following: int | None) -> bool:
        """Whether the log ends where a segment does, though another one is there: it follows what never arrived."""
        return self.trusted and following is not None and self.acknowledged <= end_offset < following

    def lost_until(self, damage: Damage, following: int | None) -> int:
        """Where offsets go on behind damage that is no torn tail."""
        if damage.end_offset is not None and (following is None or damage.end_offset <= following):
            return damage.end_offset
        # Of the log's last bytes what was acknowledged is lost; the rest never was.
        return self.acknowledged if following is None else following
