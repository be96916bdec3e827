"""Features of a text corpus, computed or read back: a TF-IDF matrix."""

from harness.spec import Optimizer, Workload

WORKLOAD = Workload(
    name="tfidf_features",
    title="TF-IDF features, docstrings",
    task="text",
    data="docstrings",
    size={"cpu": 64, "gpu": 64},
    batch={"cpu": 2400, "gpu": 2400},
    optimizer=Optimizer(name="sgd", learning_rate=1.0),
    base_batch=2400,
    target_accuracy=0.5,
    differences="scikit-learn on the CPU; no framework's twin",
)
