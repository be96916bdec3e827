"""Where the training step runs."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="device",
    question="How much faster is an accelerator than this machine's CPU?",
    levels=("cpu", "gpu"),
)
