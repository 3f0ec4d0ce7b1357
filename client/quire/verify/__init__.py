"""Was anything lost, doubled or reordered? Checks of a history: what clients asked for and what they were told.

with HistoryWriter(open("history.jsonl", "wb")) as history: …
report = check(open("history.jsonl", "rb"))

docs/HISTORIES.md says what a history is, and what is checked.
"""

from quire.verify.anomalies import Anomaly, Kind, Report, Verdict
from quire.verify.check import check
from quire.verify.line import Type, UnreadableHistoryError
from quire.verify.writer import HistoryWriter

__all__ = ["Anomaly", "HistoryWriter", "Kind", "Report", "Type", "UnreadableHistoryError", "Verdict", "check"]
