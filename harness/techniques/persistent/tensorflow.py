"""The persistent toggle in TensorFlow, which has no worker processes."""

from __future__ import annotations

from harness.spec import Cell


def unavailable(level: str, _cell: Cell) -> str | None:
    """The default is what every cell carries."""
    return None if level == "on" else "tf.data has no worker processes that could be started again for each pass"
