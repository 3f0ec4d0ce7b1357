"""The log's state machine with much more damage, most of which is mended, or a crash comes between.

And `quire log verify` must see what recovery then sees.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from quire_broker.cli.log_verify import verify_steadily
from quire_broker.log.log import Log
from tests.property.test_log_state_machine import DIRECTORY, EXAMPLES, LogMachine


class Round(NamedTuple):
    """Some bits are flipped, that is found out, and a range is mended or the process dies in it."""

    places: list[float]
    field: range | None
    bit: int
    which: int
    batches: int
    steps: int | None


ROUNDS: Final = st.builds(
    Round,
    places=st.lists(st.floats(0, 1, exclude_max=True), max_size=4),
    field=st.sampled_from([None, None, range(8), range(8, 12), range(16, 61)]),
    bit=st.integers(0, 7),
    which=st.integers(0, 9),
    batches=st.integers(1, 8),
    steps=st.sampled_from([None, None, *range(0, 80, 2)]),
)


class MendedLogMachine(LogMachine):
    def _open(self) -> Log:
        if not self.disk.names(DIRECTORY):
            return super()._open()
        verdict = verify_steadily(self.disk, DIRECTORY, lambda done, total: None)
        assert verdict.sound or self.tampered, verdict
        log = super()._open()
        assert not verdict.sound or not (log.recovery.damaged or log.recovery.missing), (log.recovery, verdict)
        assert not verdict.sound or verdict.end_offset == log.end_offset, verdict
        return log

    @precondition(lambda self: self.entries and self.log.offline is None)
    @rule(rounds=st.lists(ROUNDS, min_size=1, max_size=8))
    def harm_and_mend(self, rounds: list[Round]) -> None:
        for one in rounds:
            if self.log.offline is not None or self.plan is not None or self.books is not None:
                return
            for n, at in enumerate(one.places):
                self.flip(".log", at, one.field, (one.bit + n) % 8)
            self.disk.crash_after(1 << 30 if one.steps is None else one.steps)
            self.mend(one.which, one.batches, look=True)

    @precondition(lambda self: self.flips and self.plan is None and self.books is None and self.log.offline is None)
    @rule()
    def mend_everything(self) -> None:
        """Until nothing is left, or something goes wrong."""
        self._check_everything()
        log = self.log
        for turn in range(40):
            if self.log is log and log.offline is None:
                self.mend(2 * turn, 8, look=False)


MendedLogMachine.TestCase.settings = settings(
    max_examples=max(300, EXAMPLES // 4),
    stateful_step_count=40,
    deadline=None,
    derandomize="QUIRE_LOG_EXAMPLES" not in os.environ,
    phases=[Phase.generate],
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestMendedLog = MendedLogMachine.TestCase
