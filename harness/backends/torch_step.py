"""A training step in PyTorch, as an expert writes it, and the data and optimizer it is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from harness import spec
from harness.errors import unknown

_HOST = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Examples on one device. ``x`` is held in the memory order it is trained in.

    Images are float32 [n, c, h, w], or with ``channels_last`` [n, h, w, c]; text is int32 [n, tokens].
    ``y`` is int64 [n].
    """

    x: Tensor
    y: Tensor
    channels_last: bool = False

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The examples at ``index`` (int64 [b]) as a batch; images are always [b, c, h, w] to the model."""
        x = self.x.index_select(0, index)
        return (x.permute(0, 3, 1, 2) if self.channels_last else x), self.y.index_select(0, index)

    def to_channels_last(self) -> Split:
        """The same images with the channels innermost in memory."""
        return dataclasses.replace(self, x=self.x.permute(0, 2, 3, 1).contiguous(), channels_last=True)

    def to(self, device: torch.device) -> Split:
        """The same examples on ``device``, through pinned memory where that is a GPU."""
        x, y = (t.pin_memory() if device.type == "cuda" else t for t in (self.x, self.y))
        return dataclasses.replace(self, x=x.to(device, non_blocking=True), y=y.to(device, non_blocking=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """What a session trains and is tested on. ``test`` is ``None`` where only resident batches are stepped through."""

    train: Split
    test: Split | None

    def each(self, change: Callable[[Split], Split]) -> Data:
        """Apply a change to both splits."""
        return Data(train=change(self.train), test=None if self.test is None else change(self.test))


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """How one training step is run. A technique returns a changed copy.

    ``autocast`` is the dtype of mixed precision; ``scaler`` scales the loss; ``exchange`` merges the gradients
    of several devices where the model does not do it by itself.
    """

    device: torch.device = _HOST
    autocast: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None
    exchange: Callable[[nn.Module], None] | None = None

    def precision(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, dtype=self.autocast)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross entropy of a batch, computed in float32: on a CPU, autocast would leave the softmax in 16 bits."""
        with self.precision():
            logits = model(x)
        return functional.cross_entropy(logits.float(), y)

    def update(self, loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Backward pass and optimizer step."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if self.exchange is not None:
            self.exchange(model)
        if self.scaler is None:
            optimizer.step()
            return
        self.scaler.step(optimizer)
        self.scaler.update()

    def run(self, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        """One training step; returns its loss, still on the device."""
        optimizer.zero_grad(set_to_none=True)
        loss = self.loss(model, x, y)
        self.update(loss, model, optimizer)
        return loss.detach()


def build_optimizer(recipe: spec.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a recipe, over all parameters alike.

    Fused, on a CPU as on a GPU: one pass over the memory, and the only form whose loss scaling waits for no host. For
    sharded parameters SGD has no fused form.
    """
    rate, parameters = recipe.learning_rate, list(model.parameters())
    if recipe.name == "sgd":
        fused = not any(isinstance(p, DTensor) for p in parameters)
        return torch.optim.SGD(
            parameters, lr=rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay, fused=fused
        )
    if recipe.name == "adamw":
        return torch.optim.AdamW(parameters, lr=rate, weight_decay=recipe.weight_decay, fused=True)
    raise unknown("optimizer", recipe.name, ("sgd", "adamw"))
