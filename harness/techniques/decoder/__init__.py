"""What turns JPEG bytes into pixels: ``native`` is Pillow in PyTorch and tf.io in TensorFlow."""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="decoder",
    question="Does another JPEG decoder load faster?",
    levels=("native", "torchvision", "dali"),
    default="native",
)
