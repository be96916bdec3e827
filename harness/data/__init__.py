"""The data sets of the workloads, as numpy arrays; nothing here knows a framework."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrays:
    """A labelled set.

    Images: ``x`` uint8 [n, 28, 28]. Text: ``x`` int32 [n, tokens], 0 is padding, 1 the unknown word, 2 the start
    token at position 0 of each row. ``y`` int64 [n]. ``sha256`` is the hash of the content the set was made from.
    """

    train_x: NDArray[np.generic]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.generic]
    test_y: NDArray[np.int64]
    classes: int
    sha256: str
