"""How a cell's tf.data pipeline is made, as its techniques settle it before anything is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

STORED_PIXELS = frozenset({"lmdb_decoded", "npy", "ram"})  # formats with nothing to decode: gathered batch by batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a pipeline does. A technique's ``loader`` stage returns a changed copy.

    ``parallel``: maps work on as many elements at a time as there are threads, the most that ``AUTOTUNE`` would choose;
    else on one, in order. ``prefetch``: batches are made ahead, as many as tf.data chooses; else when they are asked
    for. ``cache``: decoded images stay in memory after the first pass. ``read_delay_s`` is slept before each read of a
    file or record. ``prepare`` changes decoded pixels, uint8 [size, size, 3], in numpy, always in the same way;
    ``augment`` changes them as tensors by a random seed, int64 [2].
    """

    parallel: bool = True
    prefetch: bool = True
    cache: bool = False
    read_delay_s: float = 0.0
    prepare: Callable[[Pixels], Pixels] | None = None
    augment: Callable[[Any, Any], Any] | None = None
