"""torchvision's ResNet-50."""

from __future__ import annotations

from torch import nn

from harness.spec import Workload

REQUIRES = ("torchvision",)


def build(_workload: Workload, _size: int, classes: int) -> nn.Module:
    """Images [n, 3, h, w] to logits [n, classes], with torchvision's own initialisation."""
    from torchvision.models import resnet50

    model: nn.Module = resnet50(num_classes=classes)
    return model
