"""The small twin of the DistilBERT-size workload."""

from __future__ import annotations

from torch import nn

from harness.spec import Workload
from harness.workloads.text_distilbert.torch import REQUIRES, classifier

__all__ = ["REQUIRES", "build"]


def build(_workload: Workload, _size: int, classes: int) -> nn.Module:
    """2 layers, 4 heads, width 256."""
    return classifier(classes, layers=2, heads=4, width=256, hidden=1024)
