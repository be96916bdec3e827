"""The TF-IDF matrix as a set of features: how it is computed, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from scipy import sparse

from harness.spec import Cell
from harness.workloads.tfidf_vectorize.sklearn import vectorise

FILE = "tfidf.npz"


def computer(texts: Sequence[str], cell: Cell) -> Callable[[], sparse.csr_matrix]:
    """Learns the terms of the texts and makes their matrix, float32 [texts, max_features]."""
    max_features = int(cell.toggles["max_features"])
    return lambda: vectorise(texts, max_features).matrix


def save(file: Path, matrix: sparse.csr_matrix) -> None:
    """Three npy arrays in one file, uncompressed."""
    sparse.save_npz(file, matrix, compressed=False)


def load(file: Path) -> sparse.csr_matrix:
    """The matrix as it was saved, in memory."""
    return sparse.load_npz(file)
