"""The toggle that changes nothing: the A/A control of every comparison."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="null",
    question="Does the harness see a difference where there is none?",
    levels=("off", "on"),
    default="off",
)
