"""What stays fixed as devices are added, in TensorFlow."""

from harness.techniques.scale.shares import unavailable

__all__ = ["unavailable"]
