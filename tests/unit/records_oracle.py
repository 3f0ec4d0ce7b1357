"""kafka-python's record codec, which shares no code with ours nor with the one that we wrap."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # It reads its own schemas by a call that Python has deprecated; our tests take any warning for an error.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

__all__ = ["DefaultRecordBatch", "DefaultRecordBatchBuilder"]
