"""Batches that each loader process keeps ready (``prefetch_factor`` of a DataLoader)."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="prefetch",
    question="Does a deeper queue of ready batches load faster?",
    default="2",
)
