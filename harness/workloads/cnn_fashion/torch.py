"""The two-convolution network in PyTorch."""

from __future__ import annotations

from torch import nn

from harness.spec import Workload


def build(workload: Workload, size: int, classes: int) -> nn.Module:
    """Images [n, channels, size, size] to logits [n, classes]; Glorot uniform weights and zero biases, as in Keras."""
    edge = size // 2 // 2
    model = nn.Sequential(
        nn.Conv2d(workload.channels, 32, 3, padding=1),
        # The larger of two values is the same before and after ReLU, which costs a quarter as much on the pooled image.
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(64 * edge * edge, classes),
    )
    for module in model:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight)
            assert module.bias is not None
            nn.init.zeros_(module.bias)
    return model


def layers(model: nn.Module) -> list[nn.Module]:
    """The layers in their order, where they can be cut."""
    return list(model.children())
