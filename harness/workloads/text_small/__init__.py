"""A small transformer with DistilBERT's layout: 2 layers, 4 heads, width 256."""

from harness.spec import Optimizer, Workload

WORKLOAD = Workload(
    name="text_small",
    title="small transformer, docstrings",
    task="text",
    data="docstrings",
    size={"cpu": 32, "gpu": 128},
    batch={"cpu": 8, "gpu": 64},
    optimizer=Optimizer(name="adamw", learning_rate=5e-4, weight_decay=0.01),
    base_batch=8,
    target_accuracy=0.50,
    differences="to be stated",
)
