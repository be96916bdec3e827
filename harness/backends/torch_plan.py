"""How a cell's loader is made in PyTorch, as its techniques settle it before anything is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.data import pixels

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """Turns the bytes of an image file, its size and its name into uint8 [size, size, 3]; ``name`` as observed."""

    name: str
    decode: Callable[[bytes, int, str], Pixels]


PILLOW = Decoder(name="pillow", decode=lambda data, size, name: pixels.decode(data, size, name=name))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a loader does. A technique's ``loader`` stage returns a changed copy.

    ``workers`` processes load beside this one; ``prefetch`` batches are kept ready by each. ``read_delay_s`` is slept
    before each read of a file or record. ``change`` is applied to the decoded pixels with a seed of their own.
    """

    workers: int = 0
    persistent: bool = True
    prefetch: int = 2
    pinned: bool = False
    read_delay_s: float = 0.0
    decoder: Decoder = PILLOW
    change: Callable[[Pixels, int], Pixels] | None = None
