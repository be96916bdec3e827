"""The classifier, and the step that times it on a matrix made beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sklearn.svm import LinearSVC

from harness.backends.sklearn_session import Fitted, Step
from harness.workloads.tfidf_vectorize.sklearn import vectorise


def classifier() -> LinearSVC:
    """A linear SVM, one class against the rest.

    The dual is asked for by name: "auto" chooses by the matrix's shape, so two arms could get two solvers. That solver
    draws the order of its examples from ``random_state``.
    """
    return LinearSVC(dual=True, random_state=0)


def build(texts: Sequence[str], labels: NDArray[np.int64], max_features: int) -> Step:
    """A step fits the classifier, from the start, to the matrix of ``texts`` that is made here."""
    made = vectorise(texts, max_features)
    return lambda: replace(made, classifier=classifier().fit(made.matrix, labels))


def train(texts: Sequence[str], labels: NDArray[np.int64], max_features: int) -> Fitted:
    """Both halves: vectorise, and fit."""
    made = vectorise(texts, max_features)
    return replace(made, classifier=classifier().fit(made.matrix, labels))
