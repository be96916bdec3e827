"""A known amount of real extra work, for the suite's own audit: ``tenth`` runs 11 steps where it counts 10."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="extra_work",
    question="Does the harness find a slowdown of exactly 10% that was put there on purpose?",
    levels=("none", "tenth"),
    default="none",
)
