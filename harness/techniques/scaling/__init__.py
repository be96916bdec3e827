"""Loss scaling in fp16 training: ``auto`` is what the framework does (dynamic scaling with fp16), ``off`` none."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="scaling",
    question="Does loss scaling keep small fp16 gradients from vanishing?",
    levels=("auto", "off"),
    default="auto",
)
