"""When the gradients of data-parallel processes are exchanged in PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.launcher.api import elastic_launch

from harness import projection
from harness.backends import Check, torch_exchange
from harness.backends.torch_group import one_host, see_one_gpu
from harness.backends.torch_step import Step
from harness.errors import Unavailable
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


def _ranks(cell: Cell) -> dict[str, Any]:
    """What rank 0 measures of the link between two ranks, and of the step that they train."""
    gpu = cell.toggles["device"] == "gpu"
    if gpu:
        see_one_gpu()
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if gpu else "gloo")
    try:
        reduced, stolen = torch_exchange.link()
        parts = torch_exchange.parts(*torch_exchange.workload(cell.workload, cell.size, cell.batch))
        return {"reduced": reduced, "stolen": stolen, **dataclasses.asdict(parts)}
    finally:
        dist.destroy_process_group()


def exchange_cost(cell: Cell) -> list[Check]:
    """What a projection of data-parallel training stands on: the link of two ranks, and the parts of their step."""
    if cell.toggles["device"] == "gpu" and torch.cuda.device_count() < 2:  # noqa: PLR2004 - an exchange is between two
        raise Unavailable("the link between two GPUs needs two, and PyTorch sees one")
    found = elastic_launch(one_host(2), _ranks)(cell)[0]
    link = projection.fit_link(found["reduced"], 2)
    timed = ", ".join(f"{size / 1e6:.3g} MB in {1e3 * seconds:.3g} ms" for size, seconds in found["reduced"])
    return [
        Check(name="link_latency", value=link.latency_s, unit="s", detail=f"a ring through all-reduces: {timed}"),
        Check(name="link_bandwidth", value=link.bandwidth, unit="B/s", detail="of the same fit"),
        Check(name="stolen_share", value=found["stolen"], detail="what computing beside a transfer loses to it"),
        Check(name="backward_share", value=found["backward"], detail=f"of a step of {found['step_s']:.4g} s"),
        Check(name="beside_ratio", value=found["beside"], detail="step beside another rank's, over that of one alone"),
    ]


CHECKS: dict[str, Callable[[Cell], list[Check]]] = {"exchange_cost": exchange_cost}
