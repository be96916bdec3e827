"""Page-locked batches in TensorFlow."""

from __future__ import annotations

from harness.spec import Cell


def unavailable(level: str, _cell: Cell) -> str | None:
    """TensorFlow stages copies by itself."""
    return None if level == "off" else "tf.data has no such switch: TensorFlow stages its copies to a GPU by itself"
