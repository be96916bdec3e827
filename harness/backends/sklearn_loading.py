"""Features of texts, computed in every pass or read back from the cache folder.

A pass is one step: all the texts at once. Both arms end with the same arrays in memory, bit for bit; the texts that
``computed`` starts from are in memory already, so it is not charged for reading them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray
from scipy import sparse

from harness import workloads
from harness.backends import Memory, ObservedLoading, Stored
from harness.backends.sklearn_session import check_columns
from harness.data import cache, docstrings, page_cache
from harness.errors import ConfigError, MeasurementError
from harness.measure.host_memory import HostMemoryWindow
from harness.spec import Cell, Framework

RECIPE = 1  # raise it when the same texts would give other features: it is part of the folder's name


def source(cell: Cell, examples: int | None) -> list[tuple[str, int]]:
    """The labelled texts of a cell's set: the first ``batch`` of the training texts."""
    available = docstrings.texts().train
    if examples not in (None, cell.batch):
        raise ConfigError(
            f"the set of {cell.workload} is one batch of {cell.batch} texts, not {examples}; "
            "set the profile's batches, and leave it out of examples"
        )
    if cell.batch > len(available):
        raise MeasurementError(f"{cell.workload}: a batch of {cell.batch}; there are {len(available)} training texts")
    return list(available[: cell.batch])


def _digest(texts: Sequence[tuple[str, int]]) -> str:
    return docstrings.Corpus(train=tuple(texts), test=()).sha256()


def _folder(cell: Cell, digest: str) -> Path:
    key = cache.digest(RECIPE, digest, cell.size, cell.toggles["max_features"], sklearn.__version__, np.__version__)
    return cache.cache_folder() / "features" / f"{cell.workload}-{key}"


def _part(cell: Cell) -> ModuleType:
    return workloads.part(cell.workload, Framework.SKLEARN)


def store(cell: Cell, examples: int | None) -> Stored:
    """Compute the features and write them, once; an arm that computes them stores nothing."""
    texts = source(cell, examples)
    digest = _digest(texts)
    if cell.toggles["features"] == "computed":
        return Stored(bytes=0, seconds=0.0, examples=len(texts), sha256=digest)
    part = _part(cell)

    def build(job: cache.Job) -> str:
        compute = part.computer([text for text, _ in texts], cell)
        part.save(job.folder / part.FILE, compute())
        return digest

    made = cache.make_once(
        _folder(cell, digest),
        build,
        format="features",
        examples=len(texts),
        size=cell.size,
        packages=("scikit-learn", "scipy"),
    )
    return Stored(bytes=made.bytes, seconds=made.seconds, examples=made.examples, sha256=made.sha256)


def open_loading(cell: Cell, *, examples: int | None, host_memory: HostMemoryWindow) -> FeatureLoading:
    """The loader of a cell; raises :class:`MeasurementError` where saved features are asked for and none are there."""
    texts = source(cell, examples)
    part = _part(cell)
    if cell.toggles["features"] == "computed":
        compute = part.computer([text for text, _ in texts], cell)
        return FeatureLoading(cell=cell, get=compute, files=(), host_memory=host_memory)
    folder = _folder(cell, _digest(texts))
    file = folder / part.FILE
    if not folder.exists():
        raise MeasurementError(f"{file}: the features are not stored; call store() first")
    cache.read_manifest(folder)  # the sizes must be those that were written
    return FeatureLoading(cell=cell, get=lambda: part.load(file), files=(file,), host_memory=host_memory)


class FeatureLoading:
    """See :class:`harness.backends.Loading`. It has no worker: the pass computes or reads in this process.

    ``get`` gives the features, ``files`` are those that it reads.
    """

    steps_per_pass = 1
    trace_s: float | None = None

    def __init__(
        self, *, cell: Cell, get: Callable[[], Any], files: tuple[Path, ...], host_memory: HostMemoryWindow
    ) -> None:
        self.items_per_step = cell.batch
        self._cell = cell
        self._get = get
        self._files = files
        self._host_memory = host_memory
        self._cached: float | None = None
        self.features: Any = None

    def ready(self) -> None:
        """Warm or empty the page cache for the saved file, and note what it then holds."""
        if self._files:
            self._cached = page_cache.bring(self._files, cold=self._cell.toggles["page_cache"] == "cold")

    def open(self) -> None:
        """There is nothing to start."""

    def run(self, passes: int) -> float:
        """Get the features; all of it is waiting, since nothing is trained on them."""
        started = time.perf_counter()
        for _ in range(passes):
            self.features = self._get()
        return time.perf_counter() - started

    def synchronize(self) -> None:
        """Nothing is outstanding."""

    def close(self) -> None:
        """Nothing runs on. The features stay for :meth:`observe`; no later pass makes use of them."""

    def observe(self) -> ObservedLoading:
        """Look at the features of the last pass; ``order`` is the hash of their content, rows in their order.

        Raises :class:`MeasurementError` where ``max_features`` cut nothing off.
        """
        if sparse.issparse(self.features):
            check_columns(self.features, int(self._cell.toggles["max_features"]))
        return ObservedLoading(
            device=None,
            format="resident",
            batch=self.features.shape[0],
            order=content_hash(self.features),
            workers=0,
            decoder="none",
            cached=self._cached,
            pinned=False,
        )

    def reset_memory(self) -> None:
        """Start a new window for :meth:`memory`."""
        self._host_memory.open()

    def memory(self) -> Memory:
        """Peak since the reset."""
        return Memory(peak=self._host_memory.peak())


def content_hash(features: Any) -> str:
    """SHA-256 of an array, or of the three arrays of a CSR matrix, with their dtypes and shapes."""
    arrays: tuple[NDArray[Any], ...] = (features,)
    if sparse.issparse(features):
        arrays = (features.data, features.indices, features.indptr)
    seen = hashlib.sha256(repr(features.shape).encode())
    for array in arrays:
        seen.update(f"{array.dtype} {array.shape}".encode())
        seen.update(np.ascontiguousarray(array).data)
    return seen.hexdigest()
