"""How many batches each worker keeps ready in PyTorch."""

from __future__ import annotations

import dataclasses

from harness.backends.torch_plan import Plan
from harness.spec import Cell


def loader(level: str, plan: Plan, _cell: Cell) -> Plan:
    """``prefetch_factor``; there is none where there are no workers."""
    return dataclasses.replace(plan, prefetch=int(level))
