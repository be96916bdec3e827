"""Training steps in one call of Keras' train function."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="steps_per_execution",
    question="Does running several steps in one call keep a device busier?",
    default="1",
)
