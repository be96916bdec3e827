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
    differences=(
        "the same network and initialisation (outputs agree on copied weights); the embedding of padding starts at 0 "
        "in PyTorch and not in Keras, where no output depends on it; attention is a fused operation in PyTorch and "
        "separate products in Keras; AdamW adds epsilon before the bias correction in Keras and after it in PyTorch; "
        "in 16 bits Keras computes embeddings, sums and softmax in them too, PyTorch's autocast leaves them in "
        "float32; fp16 loss scaling starts at 2^15 in Keras and 2^16 in PyTorch"
    ),
)
