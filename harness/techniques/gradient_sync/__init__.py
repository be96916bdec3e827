"""When data-parallel gradients are exchanged: ``overlap`` bucket by bucket during the backward pass, ``after`` it in one
go, or ``none`` (a diagnosis, not training: what is left of the step without communication)."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="gradient_sync",
    question="How much of a step is communication, and how much of that is hidden?",
    levels=("overlap", "after", "none"),
    default="overlap",
)
