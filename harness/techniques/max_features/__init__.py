"""Columns of a TF-IDF matrix: the most frequent words that are kept."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="max_features",
    question="Does half the number of TF-IDF features halve the computation, and at what accuracy?",
    default="10000",
)
