"""Features of a text corpus, computed or read back: token ids.

Computed by splitting the texts and looking the words up in a vocabulary that is there already; saved as one npy.
"""

from harness.spec import Optimizer, Workload

WORKLOAD = Workload(
    name="token_ids",
    title="token ids, docstrings",
    task="text",
    data="docstrings",
    size={"cpu": 64, "gpu": 64},
    batch={"cpu": 3600, "gpu": 3600},
    optimizer=Optimizer(name="sgd", learning_rate=1.0),
    base_batch=3600,
    target_accuracy=0.5,
    differences="plain Python, on one thread of the CPU; the texts and the vocabulary are in memory already",
)
