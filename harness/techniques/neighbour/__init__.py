"""Whether another process trains on the same device (or cores) meanwhile."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="neighbour",
    question="How much does another program on the same device cost?",
    levels=("none", "training"),
    default="none",
)
