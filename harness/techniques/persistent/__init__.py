"""Whether the loader's processes live on from one pass over the set to the next (``persistent_workers``)."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="persistent",
    question="What does starting the loader's processes again for every epoch cost?",
    levels=("on", "off"),
    default="on",
)
