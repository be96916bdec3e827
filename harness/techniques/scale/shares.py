"""Whether a global batch can be shared out; the same in every framework."""

from __future__ import annotations

from harness.spec import Cell


def unavailable(level: str, cell: Cell) -> str | None:
    """Each device gets as many examples as the next."""
    if level == "strong" and cell.batch % cell.devices:
        return f"a global batch of {cell.batch} cannot be shared out evenly among {cell.devices} devices"
    return None
