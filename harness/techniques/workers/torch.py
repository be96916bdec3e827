"""The workers toggle in PyTorch: num_workers of a DataLoader."""

from __future__ import annotations

import dataclasses

import torch

from harness.backends.torch_plan import Plan
from harness.spec import Cell

# Of two levels with the same number the earlier one here is measured: the default first, which every study needs.
_ORDER = ("cores", "none", "one", "half", "double", "quadruple")


def count(level: str) -> int:
    """Processes of a level; a core is a compute thread that this process was given."""
    cores = torch.get_num_threads()
    return {"none": 0, "one": 1, "half": cores // 2, "cores": cores, "double": 2 * cores, "quadruple": 4 * cores}[level]


def unavailable(level: str, cell: Cell) -> str | None:
    """Two levels that come out at one number are one level."""
    if not cell.mode.loads:
        return None
    earlier = next((e for e in _ORDER[: _ORDER.index(level)] if count(e) == count(level)), None)
    if earlier is None:
        return None
    cores = torch.get_num_threads()
    return f"workers '{level}' comes to {count(level)} with {cores} core(s), the same as '{earlier}'"


def loader(level: str, plan: Plan, _cell: Cell) -> Plan:
    """The number of processes."""
    return dataclasses.replace(plan, workers=count(level))
