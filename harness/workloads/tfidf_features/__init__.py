"""Features of a text corpus, computed or read back: a TF-IDF matrix.

Computed as in ``tfidf_vectorize``, terms learned in every pass; saved as an uncompressed npz of a CSR matrix.
"""

from harness.spec import Optimizer, Workload

WORKLOAD = Workload(
    name="tfidf_features",
    title="TF-IDF features, docstrings",
    task="text",
    data="docstrings",
    size={"cpu": 64, "gpu": 64},
    batch={"cpu": 3600, "gpu": 3600},
    optimizer=Optimizer(name="sgd", learning_rate=1.0),
    base_batch=3600,
    target_accuracy=0.5,
    differences="scikit-learn alone, on one thread of the CPU; the texts are in memory already",
)
