"""TensorFlow's strategies decide by themselves when gradients are exchanged."""

from __future__ import annotations

from harness.spec import Cell


def unavailable(level: str, _cell: Cell) -> str | None:
    """Only its own way."""
    return None if level == "overlap" else "TensorFlow's strategies have no switch for when gradients are exchanged"
