"""tf.data is TensorFlow's."""

from __future__ import annotations

from harness.spec import Cell


def unavailable(level: str, _cell: Cell) -> str | None:
    """The default is what every cell carries."""
    return None if level == "autotune" else f"tfdata '{level}' is about tf.data; PyTorch loads with a DataLoader"
