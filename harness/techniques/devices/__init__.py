"""Several devices that train together.

They are GPUs, or on a CPU processes (PyTorch) or logical devices (TensorFlow) of one thread each. Every strategy but
"single" keeps to that, at one device too, so that only their number varies.
"""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="devices",
    question="How much faster do several devices train?",
    default="1",
)
