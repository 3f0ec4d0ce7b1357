"""Before each opening of the log in its state machine `quire log` is asked what it thinks of the files.

It must see what recovery will see: sound where nobody tampered with anything, damage where recovery finds some, the
same torn tail, the same end.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

from quire_broker.cli.log_dump import dump
from quire_broker.cli.log_picture import take
from quire_broker.cli.log_stat import stat
from quire_broker.cli.log_verify import verify_steadily
from quire_broker.log.log import Log
from tests.property.test_log_state_machine import DIRECTORY, LogMachine


class VerifiedLogMachine(LogMachine):
    def _open(self) -> Log:
        if not self.disk.names(DIRECTORY):
            return super()._open()
        verdict = verify_steadily(self.disk, DIRECTORY, lambda done, total: None)
        facts = stat(take(self.disk, DIRECTORY))
        for _ in dump(take(self.disk, DIRECTORY), from_offset=0, count_max=None, records=True):
            pass  # whatever state the files are in, it gets to their end
        assert verdict.sound or self.tampered, verdict
        log = super()._open()
        recovery = log.recovery
        if recovery.damaged or recovery.missing:
            assert not verdict.sound, (recovery, verdict)
        if verdict.sound:
            assert verdict.end_offset == facts.end_offset == log.end_offset
            tails = [(note.path, note.position, note.offset) for note in verdict.notes if note.kind == "torn_tail"]
            torn = recovery.torn
            assert torn is None or tails == [(torn.path, torn.position, torn.offset)]
        return log


VerifiedLogMachine.TestCase.settings = settings(
    max_examples=400,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestVerifiedLog = VerifiedLogMachine.TestCase
