"""Token ids as a set of features: how they are computed, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.data import docstrings
from harness.spec import Cell

FILE = "token_ids.npy"


def computer(texts: Sequence[str], cell: Cell) -> Callable[[], NDArray[np.int32]]:
    """Splits the texts and looks their words up, int32 [texts, size].

    The vocabulary is made beforehand, as that of a tokeniser is.
    """
    vocabulary = docstrings.build_vocabulary(docstrings.words(text) for text in texts)
    return lambda: docstrings.tokenise(texts, vocabulary, cell.size)


def save(file: Path, ids: NDArray[np.int32]) -> None:
    """One npy file."""
    np.save(file, ids)


def load(file: Path) -> NDArray[np.int32]:
    """The ids as they were saved, in memory."""
    ids: NDArray[np.int32] = np.load(file)
    return ids
