"""Whether batches are staged in page-locked host memory and copied to the GPU without waiting."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="pin_memory",
    question="Does page-locked memory make the copies to the GPU faster?",
    levels=("off", "on"),
    default="off",
)
