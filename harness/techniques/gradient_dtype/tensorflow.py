"""TensorFlow's strategies send gradients in the dtype that they have."""

from __future__ import annotations

from harness.spec import Cell


def unavailable(level: str, _cell: Cell) -> str | None:
    """Only that dtype."""
    return None if level == "float32" else "TensorFlow's strategies have no hook that compresses gradients"
