"""Loss scaling in Keras: ``mixed_float16`` brings it by itself, ``off`` tells ``compile`` not to."""

from __future__ import annotations

import dataclasses

from harness.backends.tensorflow_step import Step
from harness.spec import Cell


def step(level: str, step: Step, _cell: Cell) -> Step:
    """Decides only whether Keras may; that it does follows from the precision."""
    return dataclasses.replace(step, scale_loss=level == "auto")
