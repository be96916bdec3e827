"""How the learning rate follows the batch size (linear scaling: Goyal et al., arXiv 1706.02677)."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="lr_rule",
    question="Does scaling the learning rate with the batch keep the accuracy?",
    levels=("fixed", "linear"),
    default="fixed",
)
