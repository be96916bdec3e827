"""What is done to each decoded image in PyTorch."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from harness.backends.torch_plan import Pixels, Plan
from harness.data import pixels
from harness.spec import Cell


def loader(level: str, plan: Plan, _cell: Cell) -> Plan:
    """``prepared`` is stored, so it is only decoded."""
    changes = {"augment": augment, "prepare": lambda image, _seed: pixels.prepare(image)}
    return dataclasses.replace(plan, change=changes.get(level))


@functools.cache
def _chain(size: int) -> Any:
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.RandomResizedCrop(size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
            v2.GaussianBlur(5),
        ]
    )


def augment(image: Pixels, seed: int) -> Pixels:
    """Random crop, flip, colours and blur of uint8 [size, size, 3]; the training's own random stream is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        changed = _chain(image.shape[0])(torch.from_numpy(image).permute(2, 0, 1))
    made: Pixels = changed.permute(1, 2, 0).contiguous().numpy()
    return made
