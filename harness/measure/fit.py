"""Whether a batch trains under the memory there is."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from harness.backends import Session
from harness.measure.steady import Clock, check_level
from harness.spec import Cell


def probe(session: Session, cell: Cell, clock: Clock, steps: int) -> dict[str, Any]:
    """Train ``steps`` steps and report the time and what they did; running out of memory is the caller's answer."""
    started = clock()
    session.reset_memory()
    session.steps(steps)
    session.synchronize()
    loss = session.fetch_loss()
    seconds = clock() - started
    memory = session.memory()
    observed = session.observe()
    check_level(cell, observed, session.items_per_step)
    return {
        "seconds": seconds,
        "loss": loss if math.isfinite(loss) else None,
        "memory": dataclasses.asdict(memory),
        "observed": dataclasses.asdict(observed),
    }
