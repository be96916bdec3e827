"""The tfdata toggle in TensorFlow."""

from __future__ import annotations

import dataclasses

from harness.backends.tensorflow_plan import Plan
from harness.spec import Cell

# (maps in parallel, prefetch, cache)
_LEVELS = {
    "serial": (False, False, False),
    "parallel": (True, False, False),
    "prefetch": (False, True, False),
    "autotune": (True, True, False),
    "cache": (True, True, True),
}
_CACHED = ("files", "tfrecord", "webdataset")


def unavailable(level: str, cell: Cell) -> str | None:
    """A cache is shown to work by the bytes that are no longer read, which are not counted of a mapped file."""
    if level != "cache" or not cell.mode.loads or cell.toggles["format"] in _CACHED:
        return None
    return f"tfdata 'cache' is measured with the formats {', '.join(_CACHED)}: the others are mapped, or in memory"


def loader(level: str, plan: Plan, _cell: Cell) -> Plan:
    """Which of the three are on."""
    parallel, prefetch, cache = _LEVELS[level]
    return dataclasses.replace(plan, parallel=parallel, prefetch=prefetch, cache=cache)
