"""When data-parallel gradients are exchanged.

``overlap`` sends bucket by bucket during the backward pass, ``after`` everything at its end, ``none`` nothing (a
diagnosis, not training: what is left of the step without communication).
"""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="gradient_sync",
    question="How much of a step is communication, and how much of that is hidden?",
    levels=("overlap", "after", "none"),
    default="overlap",
)
