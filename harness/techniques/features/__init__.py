"""Whether the features of the texts are computed in every run or loaded from the disk."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="features",
    question="Does a saved array of features save doing the preprocessing again?",
    levels=("computed", "saved"),
    default="computed",
)
