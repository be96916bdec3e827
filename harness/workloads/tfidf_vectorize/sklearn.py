"""The vectoriser, and the step that times it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer

from harness.backends.sklearn_session import Fitted, Step


def vectorizer(max_features: int) -> TfidfVectorizer:
    """TF-IDF of words and of pairs of neighbouring words, float32, the ``max_features`` most frequent terms kept."""
    return TfidfVectorizer(ngram_range=(1, 2), max_features=max_features, dtype=np.float32)


def vectorise(texts: Sequence[str], max_features: int) -> Fitted:
    """The matrix of the texts, with the vectoriser that learned its terms from them."""
    learned = vectorizer(max_features)
    return Fitted(vectorizer=learned, matrix=learned.fit_transform(texts))


def build(texts: Sequence[str], labels: NDArray[np.int64], max_features: int) -> Step:
    """A step learns the terms of ``texts`` and makes their matrix; it needs no labels."""
    return lambda: vectorise(texts, max_features)
