"""The small twin of the DistilBERT-size workload."""

from __future__ import annotations

from typing import Any

from harness.spec import Workload
from harness.workloads.text_distilbert.tensorflow import REQUIRES, classifier

__all__ = ["REQUIRES", "build"]


def build(_workload: Workload, size: int, classes: int) -> Any:
    """2 layers, 4 heads, width 256."""
    return classifier(size, classes, depth=2, heads=4, width=256, hidden=1024)
