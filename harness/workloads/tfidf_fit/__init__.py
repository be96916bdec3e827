"""The second half of a TF-IDF classifier: a linear SVM fitted to the matrix."""

from harness.spec import Optimizer, Workload

WORKLOAD = Workload(
    name="tfidf_fit",
    title="TF-IDF, fitting, docstrings",
    task="text",
    data="docstrings",
    size={"cpu": 64, "gpu": 64},
    batch={"cpu": 2400, "gpu": 2400},
    optimizer=Optimizer(name="sgd", learning_rate=1.0),
    base_batch=2400,
    target_accuracy=0.5,
    differences="scikit-learn on the CPU; no framework's twin",
)
