"""The arithmetic of the forward and backward pass.

``fp32`` is strict IEEE float32; ``tf32`` lets float32 products round their inputs to TF32; ``bf16`` and ``fp16`` are
the framework's automatic mixed precision (float32 weights), fp16 with loss scaling.
"""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="precision",
    question="How much faster and smaller is training in TF32 or 16 bits, at what accuracy?",
    levels=("fp32", "tf32", "bf16", "fp16"),
    default="fp32",
)
