"""Seconds of training steps in the steady state.

The clock is a parameter, so that tests can script it. Nothing here knows a framework.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.backends import Observed, Session
from harness.errors import MeasurementError
from harness.spec import Cell

Clock = Callable[[], float]

AGREEMENT = 0.05  # two successive warm-up windows agree when their step times differ by less than this share
DRAIN_SHARE = 0.02  # a block whose last loss takes longer than this share of it to fetch was not synchronised
DRAIN_FLOOR_S = 0.002  # below this, fetching a number is all that the drain measures


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """How a cell came to its steady state; ``step_s`` is the step time of the last window."""

    first_step_s: float
    warmup_steps: int
    settled: bool
    step_s: float
    observed: Observed


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One timed block: ``items`` trained in ``seconds``; ``drain_s`` as in the results' schema."""

    steps: int
    items: int
    seconds: float
    drain_s: float


@contextmanager
def collector_off() -> Iterator[None]:
    """No garbage collection inside; what lives already is frozen, so that a later collection need not walk it.

    It stays frozen: thawing would have every block's collection walk all that the framework's import left behind, a
    third of a second each time.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _timed(session: Session, clock: Clock, steps: int) -> float:
    started = clock()
    session.steps(steps)
    session.synchronize()
    return clock() - started


def first_step(session: Session, clock: Clock, steps: int = 1) -> float:
    """Seconds of the first training step, or of the first call of so many."""
    return _timed(session, clock, steps)


def warm_up(
    session: Session, clock: Clock, first_step_s: float, *, window_s: float, limit_s: float, expect: Cell
) -> WarmUp:
    """Step until two successive windows of about ``window_s`` seconds agree, or ``limit_s`` has passed.

    Raises :class:`MeasurementError` when the step does not do what ``expect`` says: a level without effect is no level.
    """
    observed = session.observe()
    check_level(expect, observed, session.items_per_step)
    session.synchronize()
    session.reset_memory()  # the peak is that of training, from here to the last block
    call = expect.steps_per_call
    started, done = clock(), call
    step_s = _timed(session, clock, call) / call
    previous, settled = step_s, False
    done += call
    while not settled and clock() - started < limit_s:
        steps = call * max(1, round(window_s / max(step_s * call, 1e-9)))
        step_s = _timed(session, clock, steps) / steps
        done += steps
        settled = abs(step_s - previous) <= AGREEMENT * min(step_s, previous)
        previous = step_s
    return WarmUp(first_step_s=first_step_s, warmup_steps=done, settled=settled, step_s=step_s, observed=observed)


def timed_block(session: Session, clock: Clock, *, steps: int, extra: int = 0) -> Block:
    """Time ``steps`` steps, synchronised before and after and never inside.

    ``extra`` steps are run and not counted: the known slowdown of the suite's own audit. Raises
    :class:`MeasurementError` where the device was still computing when the block had ended.
    """
    session.synchronize()
    with collector_off():
        seconds = _timed(session, clock, steps + extra)
        ended = clock()
        session.fetch_loss()
        drain = clock() - ended
    if drain > max(DRAIN_FLOOR_S, DRAIN_SHARE * seconds):
        raise MeasurementError(
            f"the block of {seconds:.4g} s was not synchronised: its last loss took {drain:.4g} s more to arrive"
        )
    return Block(steps=steps, items=steps * session.items_per_step, seconds=seconds, drain_s=drain)


_COMPUTE_DTYPE = {"fp32": "float32", "tf32": "float32+tf32", "bf16": "bfloat16", "fp16": "float16"}


def check_level(cell: Cell, observed: Observed, items_per_step: int) -> None:
    """Raise :class:`MeasurementError` unless the observed step is the one that the cell's toggles ask for."""
    toggles = cell.toggles
    wanted: dict[str, tuple[object, object]] = {
        "device": (toggles["device"], observed.device),
        "precision": (_COMPUTE_DTYPE[toggles["precision"]], observed.dtype),
        "devices": (cell.devices, observed.devices),
        "batch": (cell.global_batch, observed.batch),
        "items counted in a step": (observed.batch, items_per_step),
        "scaling": (toggles["precision"] == "fp16" and toggles["scaling"] == "auto", observed.scaled),
    }
    if toggles["strategy"] == "tpu":
        # How many cores a TPU has is its own affair, and what a step returns lies on its host.
        wanted["device"] = ("tpu", "tpu" if "tpu" in observed.device.split("+") else observed.device)
        del wanted["devices"]
    if toggles["layout"] == "channels_last":
        wanted["layout"] = ("nhwc", observed.layout)
    for name, (asked, found) in wanted.items():
        if asked != found:
            raise MeasurementError(f"{name} had no effect: asked for {asked!r}, but the step shows {found!r}")
