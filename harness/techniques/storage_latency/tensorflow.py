"""Slow storage in TensorFlow: a sleep before each file or record is read."""

from __future__ import annotations

import dataclasses

from harness.backends.tensorflow_plan import Plan
from harness.spec import Cell

_SECONDS = {"none": 0.0, "1ms": 0.001, "5ms": 0.005, "20ms": 0.020}
_FORMATS = ("files", "tfrecord")


def unavailable(level: str, cell: Cell) -> str | None:
    """Where records are read one by one by tf.data itself."""
    if level == "none" or cell.toggles["format"] in _FORMATS:
        return None
    return f"a delay is put before the reads of {' and '.join(_FORMATS)} only: the other formats are read in batches"


def loader(level: str, plan: Plan, _cell: Cell) -> Plan:
    """The delay."""
    return dataclasses.replace(plan, read_delay_s=_SECONDS[level])
