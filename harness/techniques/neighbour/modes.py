"""Where a second program is measured; the same in every framework."""

from __future__ import annotations

from harness.spec import Cell, Mode


def unavailable(level: str, cell: Cell) -> str | None:
    """Beside the plain step on one device."""
    if level == "none" or (cell.mode is Mode.STEADY and cell.toggles["strategy"] == "single"):
        return None
    return f"neighbour {level!r} is measured beside training steps on one device, not in mode {cell.mode.value!r}"
