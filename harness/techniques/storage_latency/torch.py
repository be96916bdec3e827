"""Slow storage in PyTorch: a sleep before each file or record is read."""

from __future__ import annotations

import dataclasses

from harness.backends.torch_plan import Plan
from harness.spec import Cell

_SECONDS = {"none": 0.0, "1ms": 0.001, "5ms": 0.005, "20ms": 0.020}


def loader(level: str, plan: Plan, _cell: Cell) -> Plan:
    """The delay."""
    return dataclasses.replace(plan, read_delay_s=_SECONDS[level])
