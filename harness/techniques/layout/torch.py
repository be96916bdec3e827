"""Channels-last convolutions in PyTorch: images and convolution weights; activations follow."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from harness import workloads
from harness.backends.torch_step import Data, Split
from harness.spec import Cell


def unavailable(level: str, cell: Cell) -> str | None:
    """The layout is one of images."""
    if level == "channels_last" and workloads.load(cell.workload).task != "image":
        return f"{cell.workload} has no convolution, so no channels-last layout"
    return None


def data(level: str, data: Data, _cell: Cell) -> Data:
    """Held as [n, h, w, c], so that a gathered batch is channels-last with no copy of its own."""
    return data.each(Split.to_channels_last) if level == "channels_last" else data


def model(level: str, model: nn.Module, _cell: Cell) -> nn.Module:
    """Reorders the 4-D weights."""
    if level != "channels_last":
        return model
    return cast(nn.Module, model.to(memory_format=torch.channels_last))
