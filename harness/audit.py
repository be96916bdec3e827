"""The audit's checks of the measurement itself, and the mutants that each of them has to catch.

A check returns ``None`` when all is well and a sentence when it is not. A mutant is the same measurement with one rule
broken; the audit is worth something only if it then fails. All of it runs on the fake backend's asynchronous device,
since a CPU that computes synchronously cannot show a missing synchronisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.backends import fake_backend
from harness.errors import MeasurementError
from harness.inference import Interval, ratio_interval
from harness.measure import steady
from harness.spec import Cell, Framework, Mode
from harness.techniques import TOGGLES

INJECTED = 1.10  # time ratio of the arm with a tenth more work
COVERAGE_FLOOR = 0.92  # of a nominal 95% interval, over SIMULATIONS: more than four standard errors below 0.95
SIMULATIONS = 2000
LAUNCHES, BLOCKS = 6, 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """A broken rule, and what the audit says of the whole and of the broken measurement."""

    name: str
    sound: str | None
    broken: str | None

    @property
    def caught(self) -> bool:
        """Whether the sound measurement passes and the broken one does not."""
        return self.sound is None and self.broken is not None


def _cell(arm: str) -> Cell:
    toggles = {name: toggle.default for name, toggle in TOGGLES.items()} | {"device": "cpu", "batch": "64"}
    return Cell(
        study="audit",
        mode=Mode.STEADY,
        comparison="audit/fake/cnn_fashion",
        arm=arm,
        framework=Framework.FAKE,
        workload="cnn_fashion",
        size=28,
        toggles=toggles,
    )


def check_block(arm: str) -> str | None:
    """Warm up and time a block of the fake arm; the harness's own guards speak as MeasurementError."""
    session = fake_backend.open_session(_cell(arm), seed=0, data_limit=None)
    try:
        first = steady.first_step(session, fake_backend.clock)
        steady.warm_up(session, fake_backend.clock, first, window_s=0.1, limit_s=5.0, expect=_cell(arm))
        steady.timed_block(session, fake_backend.clock, steps=20)
    except MeasurementError as error:
        return str(error)
    return None


def check_injection(interval: Interval) -> str | None:
    """Whether a time ratio (treatment / baseline) finds the injected tenth: covers 1.10 and excludes 1."""
    if not interval.low <= INJECTED <= interval.high:
        return f"the interval {interval.low:.3f} to {interval.high:.3f} does not cover {INJECTED}"
    if interval.low <= 1.0 <= interval.high:
        return f"the interval {interval.low:.3f} to {interval.high:.3f} does not exclude 1"
    return None


def check_null(interval: Interval) -> str | None:
    """Whether a ratio of two equal arms covers 1."""
    if interval.low <= 1.0 <= interval.high:
        return None
    return f"the interval {interval.low:.3f} to {interval.high:.3f} does not cover 1"


def coverage(replicates: Callable[[NDArray[np.float64]], NDArray[np.float64]], *, seed: int = 0) -> float:
    """Share of simulated decisions whose 95% interval covers the true ratio of 1.

    Log ratios [launches, blocks] get a launch effect of 3% and a block effect of 1%, as seen on shared machines;
    ``replicates`` turns them into the values that are taken for independent.
    """
    rng = np.random.default_rng(seed)
    covered = 0
    for _ in range(SIMULATIONS):
        y = rng.normal(0, 0.03, (LAUNCHES, 1)) + rng.normal(0, 0.01, (LAUNCHES, BLOCKS))
        interval = ratio_interval(replicates(y))
        covered += interval.low <= 1.0 <= interval.high
    return covered / SIMULATIONS


def check_coverage(replicates: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> str | None:
    """Whether intervals over ``replicates`` cover as they promise."""
    found = coverage(replicates)
    return None if found >= COVERAGE_FLOOR else f"95% intervals cover the truth in {found:.0%} of simulated decisions"


def medians_of_launches(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rule: one value a launch."""
    return np.asarray(np.median(y, axis=1))


def blocks_as_launches(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mutant: every block taken for a launch."""
    return y.ravel()


def mutants(injected: Iterable[float]) -> list[Mutant]:
    """Break each rule once. ``injected`` are real log time ratios of the arm with a tenth more work, one a launch."""
    logs = np.asarray(list(injected), dtype=float)
    found = ratio_interval(logs)
    swapped = ratio_interval(-logs)  # the arms' labels exchanged
    assert math.isclose(found.estimate * swapped.estimate, 1.0)
    return [
        Mutant(name="missing synchronisation", sound=check_block("sound"), broken=check_block("unsynchronised")),
        Mutant(name="wrong item count", sound=check_block("sound"), broken=check_block("miscounts")),
        Mutant(name="level without effect", sound=check_block("sound"), broken=_without_effect()),
        Mutant(name="swapped arms", sound=check_injection(found), broken=check_injection(swapped)),
        Mutant(
            name="blocks resampled instead of launches",
            sound=check_coverage(medians_of_launches),
            broken=check_coverage(blocks_as_launches),
        ),
    ]


def _without_effect() -> str | None:
    asked = _cell("no_effect")
    asked = Cell(
        **{**{f: getattr(asked, f) for f in Cell.__slots__}, "toggles": {**asked.toggles, "precision": "bf16"}}
    )
    session = fake_backend.open_session(asked, seed=0, data_limit=None)
    try:
        steady.check_level(asked, session.observe(), session.items_per_step)
    except MeasurementError as error:
        return str(error)
    return None
