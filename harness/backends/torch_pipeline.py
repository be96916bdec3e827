"""A model whose layers are spread over processes, trained by PyTorch's pipeline schedule (GPipe)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional

from harness.backends import Observed
from harness.backends.torch_session import TorchSession
from harness.backends.torch_step import Step

MICRO_BATCHES = 4  # of a batch: enough that two stages overlap for most of a step, as in GPipe's own experiments


def stage_of(layers: list[nn.Module], stage: int, stages: int) -> nn.Sequential:
    """The consecutive layers of one stage, as many as of the others within one."""
    start, end = (round(len(layers) * i / stages) for i in (stage, stage + 1))
    return nn.Sequential(*layers[start:end])


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineStep(Step):
    """A step of one stage: ``schedule`` runs its forward and backward passes, micro-batch by micro-batch.

    Batch normalisation therefore sees a micro-batch at a time, which is the one thing that differs from the plain step.
    """

    schedule: Any = None

    def run(self, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of the batch on the last stage, NaN on the others."""
        optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        rank, last = dist.get_rank(), dist.get_world_size() - 1
        given = (x,) if rank == 0 else ()
        self.schedule.step(*given, **({"target": y, "losses": losses} if rank == last else {}))
        optimizer.step()
        return torch.stack(losses).mean().detach() if losses else torch.full((), math.nan)


def pipelined(step: Step, model: nn.Module) -> PipelineStep:
    """The step of this process's stage, ``model``."""
    rank, stages = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(model, rank, stages, step.device)
    schedule = ScheduleGPipe(
        stage, MICRO_BATCHES, loss_fn=lambda logits, y: functional.cross_entropy(logits.float(), y)
    )
    return PipelineStep(device=step.device, schedule=schedule)


class PipelineSession(TorchSession):
    """One stage in training. Every stage holds the resident batches, of which the first reads x and the last y."""

    loss_is_on_last_rank = True

    def fetch_loss(self) -> float:
        """The last step's loss, sent from the last stage to the first."""
        loss = self._loss.detach().clone().to(self._step.device)
        dist.broadcast(loss, dist.get_world_size() - 1)
        return float(loss)

    def observe(self) -> Observed:
        """What this stage did in a step; the examples of a batch are counted on the last stage only."""
        with self._watching() as seen:
            self.steps(1)
        last = dist.get_rank() == dist.get_world_size() - 1
        parameters = torch.tensor(sum(p.numel() for p in self._model.parameters()), device=self._step.device)
        dist.all_reduce(parameters)
        return replace(self._observed(seen), batch=seen.examples if last else 0, parameters=int(parameters))
