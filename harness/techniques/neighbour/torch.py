"""A second training on the same device, in PyTorch."""

from harness.techniques.neighbour.modes import unavailable

__all__ = ["unavailable"]
