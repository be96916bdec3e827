"""The second half of a TF-IDF classifier: a linear SVM fitted to the matrix.

The matrix is that of ``tfidf_vectorize``. In convergence a step is both halves, and each seed splits the corpus anew.
"""

from harness.spec import Optimizer, Workload

WORKLOAD = Workload(
    name="tfidf_fit",
    title="TF-IDF, fitting, docstrings",
    task="text",
    data="docstrings",
    size={"cpu": 64, "gpu": 64},
    batch={"cpu": 3600, "gpu": 3600},
    optimizer=Optimizer(name="sgd", learning_rate=1.0),
    base_batch=3600,
    target_accuracy=0.7,
    differences="scikit-learn alone, on one thread of the CPU; the matrix is float32, liblinear computes in float64",
)
