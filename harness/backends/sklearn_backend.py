"""scikit-learn: what a worker does with it. Implements :class:`harness.backends.Backend`."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from functools import partial

import numpy as np
import scipy
import sklearn
import threadpoolctl

from harness import data as datasets
from harness import techniques, workloads
from harness.backends import Check, Stored, sklearn_loading
from harness.backends.sklearn_loading import FeatureLoading
from harness.backends.sklearn_session import SklearnSession, Step, Texts
from harness.data import docstrings
from harness.errors import ConfigError, MeasurementError, unknown
from harness.measure.host_memory import HostMemoryWindow
from harness.spec import Cell, Framework, Mode, Status

PRELOAD = ("sklearn.feature_extraction.text", "sklearn.svm")

INSTALL = "pip install 'speedproof[data]'"

_host_memory: list[HostMemoryWindow] = []  # made when the process is configured, before anything is built


def configure(threads: int) -> None:
    """Limit the threads of OpenMP and BLAS, and take this process's memory now as the zero of ``memory()``.

    The vectoriser and liblinear use one thread whatever the limit.
    """
    threadpoolctl.threadpool_limits(threads)
    _host_memory.append(HostMemoryWindow())


def _memory() -> HostMemoryWindow:
    if not _host_memory:
        raise ConfigError("the scikit-learn backend is not configured; call configure(threads) first")
    return _host_memory[0]


def describe() -> dict[str, object]:
    """Versions, the one device, and the threads of the libraries underneath."""
    return {
        "version": sklearn.__version__,
        "devices": {"cpu": platform.machine()},
        "threads": max((pool["num_threads"] for pool in threadpoolctl.threadpool_info()), default=1),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def unavailable(cell: Cell) -> str | None:
    """Why this cell cannot run here: the device, a package of the workload, or a level of a technique."""
    if cell.toggles["device"] != "cpu":
        return f"device {cell.toggles['device']}: scikit-learn computes on the CPU only"
    return workloads.missing(cell.workload, Framework.SKLEARN, INSTALL) or techniques.unavailable(cell)


def open_session(cell: Cell, *, seed: int, data_limit: tuple[int, int] | None) -> SklearnSession:
    """Build the session of a cell; see :class:`harness.backends.Backend`.

    The seed draws the texts: in convergence a split of the whole corpus into training and test, else ``batch`` of the
    training texts. All arms of a launch see the same ones.
    """
    host_memory = _memory()
    part = workloads.part(cell.workload, Framework.SKLEARN)
    max_features = int(cell.toggles["max_features"])
    test: Texts | None
    step: Step
    if cell.mode is Mode.CONVERGENCE:
        train, test = _split(cell, seed, data_limit)
        step = partial(part.train, train.texts, train.labels, max_features)
    else:
        corpus = docstrings.texts().train
        train, test = _take(corpus, datasets.epoch_order(len(corpus), cell.batch, seed, 0)[0]), None
        step = part.build(train.texts, train.labels, max_features)
    return SklearnSession(
        step=step, texts=len(train.texts), max_features=max_features, test=test, host_memory=host_memory
    )


def _split(cell: Cell, seed: int, limit: tuple[int, int] | None) -> tuple[Texts, Texts]:
    """A random split. Seeds differ in their split alone, so an interval over them speaks of this one corpus."""
    corpus = docstrings.texts()
    pool = (*corpus.train, *corpus.test)
    train_n, test_n = limit or (len(corpus.train), len(corpus.test))
    if train_n != cell.batch:
        raise ConfigError(
            f"{cell.workload} trains on all its texts in one step, so the profile's training ({train_n} texts) and "
            f"batch ({cell.batch}) must agree; set batches: {{{cell.study}/{cell.workload}: {train_n}}}"
        )
    if train_n + test_n > len(pool):
        raise MeasurementError(
            f"{cell.workload}: {train_n} training and {test_n} test texts are asked for, there are {len(pool)} in all; "
            "lower train or test in the profile"
        )
    order = np.random.default_rng(seed).permutation(len(pool))
    return _take(pool, order[:train_n]), _take(pool, order[train_n : train_n + test_n])


def _take(texts: tuple[tuple[str, int], ...], rows: Iterable[int]) -> Texts:
    chosen = [texts[row] for row in rows]
    return Texts(texts=[text for text, _ in chosen], labels=np.array([label for _, label in chosen], np.int64))


def store(cell: Cell, examples: int | None) -> Stored:
    """Make the saved features of a cell; see :func:`harness.backends.sklearn_loading.store`."""
    return sklearn_loading.store(cell, examples)


def open_loading(cell: Cell, *, seed: int, examples: int | None) -> FeatureLoading:
    """The features of a fixed set of texts, in their own order: ``seed`` changes nothing."""
    return sklearn_loading.open_loading(cell, examples=examples, host_memory=_memory())


def checks(cell: Cell, name: str) -> list[Check]:
    """There is no check of scikit-learn."""
    raise unknown("check", name, ())


def classify(error: BaseException) -> Status:
    """``OOM`` where the host's allocator refused."""
    return Status.OOM if isinstance(error, MemoryError) else Status.ERROR
