"""PyTorch's loop is the user's own: there is no call that holds several steps."""

from __future__ import annotations

from harness.spec import Cell


def unavailable(level: str, _cell: Cell) -> str | None:
    """Only one step a call."""
    return None if level == "1" else "steps_per_execution belongs to Keras; PyTorch's counterpart is a CUDA graph"
