"""torchvision's MobileNetV2."""

from __future__ import annotations

from torch import nn

from harness.spec import Workload

REQUIRES = ("torchvision",)


def build(_workload: Workload, _size: int, classes: int) -> nn.Module:
    """Images [n, 3, h, w] to logits [n, classes], with torchvision's own initialisation and its dropout of 0.2."""
    from torchvision.models import mobilenet_v2

    model: nn.Module = mobilenet_v2(num_classes=classes)
    return model
