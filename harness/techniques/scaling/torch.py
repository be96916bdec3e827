"""Loss scaling in PyTorch: fp16 brings a GradScaler, ``off`` takes it away."""

from __future__ import annotations

import dataclasses

from harness.backends.torch_step import Step
from harness.spec import Cell


def step(level: str, step: Step, _cell: Cell) -> Step:
    """The precision before this one has put the scaler in."""
    return dataclasses.replace(step, scaler=None) if level == "off" else step
