"""The memory order of image activations and convolution weights."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="layout",
    question="Do channels-last activations speed up convolutions?",
    levels=("native", "channels_last"),
    default="native",
)
