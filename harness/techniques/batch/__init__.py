"""The number of examples in a training step."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="batch",
    question="Does a larger batch train more examples a second, and what does it cost in memory and accuracy?",
)
