"""Whether the operating system still holds the stored set in memory when a pass over it begins."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="page_cache",
    question="How much of a format's gain is the disk, and how much is left when the set is cached?",
    levels=("warm", "cold"),
    default="warm",
)
