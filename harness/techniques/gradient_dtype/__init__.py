"""The dtype in which data-parallel gradients travel."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="gradient_dtype",
    question="Does sending gradients in half the bytes train faster?",
    levels=("float32", "bfloat16"),
    default="float32",
)
