"""The linear scaling rule: the learning rate grows with the batch."""

from __future__ import annotations

import dataclasses

from harness import workloads
from harness.spec import Cell, Optimizer


def optimizer(level: str, optimizer: Optimizer, cell: Cell) -> Optimizer:
    """``linear`` multiplies by batch / base_batch of the workload."""
    if level != "linear":
        return optimizer
    factor = cell.batch / workloads.load(cell.workload).base_batch
    return dataclasses.replace(optimizer, learning_rate=optimizer.learning_rate * factor)
