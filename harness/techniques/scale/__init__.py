"""What stays fixed as devices are added: ``weak`` the batch of each device, ``strong`` the global batch."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="scale",
    question="Does the work of a step grow with the devices, or is it divided among them?",
    levels=("weak", "strong"),
    default="weak",
)
