"""Several steps in one call of Keras' train function."""

from __future__ import annotations

import dataclasses

from harness.backends.tensorflow_step import Step
from harness.spec import Cell, Mode


def unavailable(level: str, cell: Cell) -> str | None:
    """It belongs to steps on resident data: an epoch or a pass need not be a multiple of a call."""
    if level == "1" or cell.mode is Mode.STEADY:
        return None
    return (
        f"steps_per_execution {level} is measured in training steps on resident data, not in mode {cell.mode.value!r}"
    )


def step(level: str, step: Step, _cell: Cell) -> Step:
    """The argument of ``compile``."""
    return dataclasses.replace(step, steps_per_execution=int(level))
