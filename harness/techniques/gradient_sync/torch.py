"""When the gradients of data-parallel processes are exchanged in PyTorch."""

from __future__ import annotations

import dataclasses

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from harness.backends.torch_step import Step
from harness.spec import Cell


def unavailable(level: str, cell: Cell) -> str | None:
    """There is something to exchange between two processes or more."""
    if level == "overlap" or (cell.toggles["strategy"] == "ddp" and cell.devices > 1):
        return None
    return f"gradient_sync {level!r} is one of DistributedDataParallel on two devices or more"


def step(level: str, step: Step, _cell: Cell) -> Step:
    """``after``: one all-reduce of all gradients when the backward pass is done. ``none``: no process hears of another.

    In both the model is not wrapped (see the strategy), so nothing of the exchange runs inside the backward pass.
    """
    return dataclasses.replace(step, exchange=_all_at_once) if level == "after" else step


def _all_at_once(model: nn.Module) -> None:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = _flatten_dense_tensors(gradients)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    torch._foreach_copy_(gradients, _unflatten_dense_tensors(flat, gradients))
