"""The prefetch toggle in TensorFlow, where the level ``prefetch`` of tfdata is meant."""

from __future__ import annotations

from harness.spec import Cell


def unavailable(level: str, _cell: Cell) -> str | None:
    """The default is what every cell carries."""
    if level == "2":
        return None
    return "prefetch counts the batches of a DataLoader's worker; tf.data chooses how many it keeps: see tfdata"
