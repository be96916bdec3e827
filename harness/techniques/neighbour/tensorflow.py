"""A second training on the same device, in TensorFlow."""

from harness.techniques.neighbour.modes import unavailable

__all__ = ["unavailable"]
