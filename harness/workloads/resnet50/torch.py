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


def layers(model: nn.Module) -> list[nn.Module]:
    """The layers in their order, a bottleneck block as one, where they can be cut."""
    *stem_and_groups, pool, head = model.children()
    blocks = [b for group in stem_and_groups for b in (group if isinstance(group, nn.Sequential) else [group])]
    return [*blocks, pool, nn.Flatten(), head]
