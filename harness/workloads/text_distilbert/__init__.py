"""A transformer of DistilBERT's size, from scratch: 6 layers, 12 heads, width 768."""

from harness.spec import Optimizer, Workload

WORKLOAD = Workload(
    name="text_distilbert",
    title="DistilBERT-size transformer, docstrings",
    task="text",
    data="docstrings",
    size={"cpu": 32, "gpu": 128},
    batch={"cpu": 8, "gpu": 64},
    optimizer=Optimizer(name="adamw", learning_rate=1e-4, weight_decay=0.01),
    base_batch=8,
    target_accuracy=0.50,
    differences="to be stated",
)
