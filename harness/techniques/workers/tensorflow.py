"""The workers toggle in TensorFlow, which has threads in their place."""

from __future__ import annotations

from harness.spec import Cell


def unavailable(level: str, _cell: Cell) -> str | None:
    """The default is what every cell carries: tf.data's threads, as many as there are cores."""
    if level == "cores":
        return None
    return f"workers '{level}' is about the processes of a DataLoader; tf.data has threads: its levels are of tfdata"
