"""The real workload, trained for some epochs: accuracy and time after each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from harness.backends import Session
from harness.measure.steady import Clock, collector_off


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """State after an epoch. ``train_s`` and ``items`` count from the start; evaluation is left out of the time."""

    epoch: int
    train_s: float
    items: int
    accuracy: float
    loss: float | None


def train(session: Session, clock: Clock, *, epochs: int) -> Iterator[Epoch]:
    """Train and evaluate ``epochs`` epochs, yielding after each. A loss that is not finite is reported as ``None``."""
    train_s, items = 0.0, 0
    session.synchronize()
    session.reset_memory()
    for epoch in range(1, epochs + 1):
        with collector_off():
            started = clock()
            items += session.train_epoch(epoch)
            session.synchronize()
            train_s += clock() - started
        result = session.evaluate()
        loss = result.loss if math.isfinite(result.loss) else None
        yield Epoch(epoch=epoch, train_s=train_s, items=items, accuracy=result.accuracy, loss=loss)
