"""The device toggle in PyTorch."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from harness.backends.torch_step import Data, Step
from harness.spec import Cell

_DEVICES = {"cpu": "cpu", "gpu": "cuda:0"}


def unavailable(level: str, _cell: Cell) -> str | None:
    """A GPU is one that CUDA shows to this process."""
    if level != "gpu" or torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA; install a CUDA build for the gpu level"
    return f"PyTorch {torch.__version__} sees no CUDA GPU (torch.cuda.is_available() is false)"


def environment(level: str, _cell: Cell) -> None:
    """Shapes never change within a cell, so cuDNN may try its algorithms once and keep the fastest."""
    if level == "gpu":
        torch.backends.cudnn.benchmark = True


def data(level: str, data: Data, _cell: Cell) -> Data:
    """Copy the examples once; no step copies from the host."""
    device = torch.device(_DEVICES[level])
    return data.each(lambda split: split.to(device))


def model(level: str, model: nn.Module, _cell: Cell) -> nn.Module:
    """Built on the host, so that one seed gives the same weights on every device; then moved."""
    return model.to(_DEVICES[level])


def step(level: str, step: Step, _cell: Cell) -> Step:
    """Autocast and loss scaling go by the step's device."""
    return dataclasses.replace(step, device=torch.device(_DEVICES[level]))
