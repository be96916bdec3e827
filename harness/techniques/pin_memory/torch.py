"""Page-locked batches in PyTorch."""

from __future__ import annotations

import dataclasses

import torch

from harness.backends.torch_plan import Plan
from harness.spec import Cell


def unavailable(level: str, _cell: Cell) -> str | None:
    """Without a GPU, ``pin_memory`` does nothing, silently."""
    if level == "on" and not torch.cuda.is_available():
        return "no device to copy to: pin_memory needs a CUDA GPU, and PyTorch sees none"
    return None


def loader(level: str, plan: Plan, _cell: Cell) -> Plan:
    """The DataLoader's own thread pins each batch."""
    return dataclasses.replace(plan, pinned=level == "on")
