"""A declared delay added to each read of the storage, for disks that this machine does not have."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="storage_latency",
    question="Do more loader processes hide the latency of slow storage?",
    levels=("none", "1ms", "5ms", "20ms"),
    default="none",
)
