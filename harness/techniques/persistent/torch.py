"""Worker processes that live from pass to pass in PyTorch."""

from __future__ import annotations

import dataclasses

from harness.backends.torch_plan import Plan
from harness.spec import Cell


def unavailable(level: str, cell: Cell) -> str | None:
    """Without workers there is nothing to keep."""
    if level == "off" and cell.mode.loads and cell.toggles["workers"] == "none":
        return "there are no worker processes that could be started again for each pass"
    return None


def loader(level: str, plan: Plan, _cell: Cell) -> Plan:
    """``persistent_workers``."""
    return dataclasses.replace(plan, persistent=level == "on")
