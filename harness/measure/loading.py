"""Seconds of whole passes over a stored set, from the first request to the last batch.

A block is a number of passes by a loader that was started for it and ended after it. So nothing that was loaded while
the cell waited for its turn counts, a pipeline's filling counts as it does in every epoch, and the start of its workers
is timed apart. The clock is a parameter, so that tests can script it. Nothing here knows a framework.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.backends import Loading, ObservedLoading
from harness.errors import MeasurementError
from harness.measure.steady import Clock, collector_off
from harness.spec import Cell, Mode

CACHED = 0.95  # at least this share of a warm set is in the page cache when a pass begins
UNCACHED = 0.05  # at most this share of a cold set is


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """One timed block; the names are those of the samples table."""

    steps: int
    items: int
    seconds: float
    drain_s: float
    loader_start_s: float
    wait_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """A pass before those that are timed, and its seconds."""

    first_step_s: float
    warmup_steps: int
    pass_s: float
    observed: ObservedLoading


def timed_passes(loading: Loading, clock: Clock, passes: int) -> Passes:
    """Time whole passes of a loader that is started for them and ended after them."""
    loading.ready()
    loading.synchronize()
    with collector_off():
        started = clock()
        loading.open()
        opened = clock()
        wait_s = loading.run(passes)
        loading.synchronize()
        ended = clock()
    loading.close()
    steps = passes * loading.steps_per_pass
    return Passes(
        steps=steps,
        items=steps * loading.items_per_step,
        seconds=ended - opened,
        drain_s=0.0,
        loader_start_s=opened - started,
        wait_s=wait_s,
    )


def warm_up(loading: Loading, clock: Clock, *, expect: Cell) -> WarmUp:
    """Make one pass: a loader is started anew for each block, so nothing but caches lasts from a pass to the next.

    Where a pipeline keeps its images, that pass fills the cache, and a second one says how long a pass takes.
    Raises :class:`MeasurementError` when a pass does not do what ``expect`` says: a level without effect is no level.
    """
    first = timed_passes(loading, clock, 1)
    observed = loading.observe()
    check_level(expect, observed, loading.items_per_step)
    loading.reset_memory()
    again = timed_passes(loading, clock, 1) if expect.toggles["tfdata"] == "cache" else None
    return WarmUp(
        first_step_s=first.seconds / first.steps,
        warmup_steps=first.steps + (again.steps if again else 0),
        pass_s=(again or first).seconds,
        observed=observed,
    )


_DECODED = ("lmdb_decoded", "npy", "ram")


def check_level(cell: Cell, observed: ObservedLoading, items_per_step: int) -> None:
    """Raise :class:`MeasurementError` unless the observed pass is the one that the cell's toggles ask for."""
    toggles = cell.toggles
    wanted: dict[str, tuple[object, object]] = {
        "format": (toggles["format"], observed.format),
        "batch": (cell.batch, observed.batch),
        "items counted in a step": (observed.batch, items_per_step),
        "device": (toggles["device"] if cell.mode is Mode.END_TO_END else None, observed.device),
        "pin_memory": (toggles["pin_memory"] == "on", observed.pinned),
    }
    if toggles["decoder"] != "native":
        wanted["decoder"] = (toggles["decoder"], observed.decoder)
    if toggles["format"] in _DECODED:
        wanted["decoder"] = ("none", observed.decoder)
    for name, (asked, found) in wanted.items():
        if asked != found:
            raise MeasurementError(f"{name} had no effect: asked for {asked!r}, but the pass shows {found!r}")
    if observed.cached is None:
        return
    cold = toggles["page_cache"] == "cold"
    if cold and observed.cached > UNCACHED:
        raise MeasurementError(
            f"page_cache had no effect: asked for 'cold', but {observed.cached:.0%} of the set was cached as the pass "
            "began; the file system may not let go of its pages (tmpfs does not): put the cache folder elsewhere"
        )
    if not cold and observed.cached < CACHED:
        raise MeasurementError(
            f"page_cache had no effect: asked for 'warm', but only {observed.cached:.0%} of the set was cached as the "
            "pass began; the set may not fit the free memory"
        )
