"""A TF-IDF classifier in scikit-learn: one half of it timed again and again, or both trained and scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import hinge_loss
from sklearn.svm import LinearSVC

from harness.backends import Evaluation, Memory, Observed
from harness.errors import ConfigError, MeasurementError
from harness.measure.host_memory import HostMemoryWindow


@dataclass(frozen=True, kw_only=True, slots=True)
class Texts:
    """Labelled texts; ``labels`` int64 [n]."""

    texts: Sequence[str]
    labels: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """What a step came to: the TF-IDF matrix [texts, columns], and the classifier where one was fitted to it."""

    vectorizer: TfidfVectorizer
    matrix: sparse.csr_matrix
    classifier: LinearSVC | None = None


Step = Callable[[], Fitted]


def check_columns(matrix: Any, max_features: int) -> None:
    """Raise :class:`MeasurementError` where the texts have fewer terms than ``max_features`` would keep."""
    columns = matrix.shape[1]
    if columns != max_features:
        raise MeasurementError(
            f"max_features had no effect: asked for {max_features}, but the {matrix.shape[0]} texts hold only "
            f"{columns} different terms; take more texts (the workload's batch in the profile)"
        )


class SklearnSession:
    """See :class:`harness.backends.Session`. Every call returns when its work is done, so nothing is ever queued.

    A step handles all the texts at once. ``test`` is there in convergence only, where a step is both halves.
    """

    trace_s: float | None = None

    def __init__(
        self, *, step: Step, texts: int, max_features: int, test: Texts | None, host_memory: HostMemoryWindow
    ) -> None:
        self.items_per_step = texts
        self._step = step
        self._max_features = max_features
        self._test = test
        self._host_memory = host_memory
        self._fitted: Fitted | None = None

    @property
    def _last(self) -> Fitted:
        if self._fitted is None:
            raise ConfigError("the session has taken no step yet")
        return self._fitted

    def steps(self, n: int) -> None:
        """Vectorise, or fit, ``n`` times from the start."""
        for _ in range(n):
            self._fitted = self._step()

    def synchronize(self) -> None:
        """Nothing is outstanding."""

    def fetch_loss(self) -> float:
        """A number of the last step's result in place of a loss: the mean of its weights."""
        last = self._last
        weights = last.matrix.data if last.classifier is None else last.classifier.coef_
        return float(weights.mean())

    def train_epoch(self, epoch: int) -> int:
        """Vectorise and fit, from the start: there is no second epoch that would go on."""
        self.steps(1)
        return self.items_per_step

    def evaluate(self) -> Evaluation:
        """Accuracy and mean multiclass hinge loss over the test texts, vectorised with the training's terms."""
        last, test = self._last, self._test
        if test is None or last.classifier is None:
            raise ConfigError("this session holds no test set; open it in convergence mode to evaluate it")
        classifier = last.classifier
        scores = classifier.decision_function(last.vectorizer.transform(test.texts))
        guesses = classifier.classes_[scores.argmax(axis=1)]
        return Evaluation(
            accuracy=float((guesses == test.labels).mean()),
            loss=float(hinge_loss(test.labels, scores, labels=classifier.classes_)),
        )

    def reset_memory(self) -> None:
        """Start a new window for :meth:`memory`."""
        self._host_memory.open()

    def memory(self) -> Memory:
        """Peak since the reset; the parameters are the classifier's weights, or the terms' where none is fitted."""
        last = self._last
        return Memory(peak=self._host_memory.peak(), parameters=sum(p.nbytes for p in _parameters(last)))

    def observe(self) -> Observed:
        """Take a step, and look at the matrix that it made or was fitted to.

        Raises :class:`MeasurementError` where ``max_features`` cut nothing off.
        """
        self.steps(1)
        last = self._last
        check_columns(last.matrix, self._max_features)
        return Observed(
            device="cpu",
            dtype=str(last.matrix.dtype),
            layout="none",
            batch=last.matrix.shape[0],
            scaled=False,
            learning_rate=0.0,  # neither half has one
            parameters=sum(p.size for p in _parameters(last)),
        )


def _parameters(fitted: Fitted) -> tuple[NDArray[np.floating[Any]], ...]:
    if fitted.classifier is None:
        return (fitted.vectorizer.idf_,)
    return (fitted.classifier.coef_, fitted.classifier.intercept_)
