"""Intervals, tests and combinations of log ratios: numbers in, numbers out.

The launch is the unit of replication. Blocks inside one launch share a process and its luck (address layout, core,
neighbours), so they are summarised to one number a launch and never counted as replicates.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special  # type: ignore[import-untyped, unused-ignore]

CONFIDENCE = 0.95
POWER = 0.8
NO_SPREAD = 1e-9  # a standard error below this share of the mean is rounding: differences of equal shares are not exact
_PAIR = 2  # fewer values have no spread


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate from ``n`` replicates with its 95% t interval and its order-statistic interval.

    On the scale of the caller: ratios are already exponentiated. Bounds are NaN where ``n`` is too small for one.
    ``order_coverage`` is the exact coverage of ``order_low`` to ``order_high`` for the median.
    """

    estimate: float
    low: float
    high: float
    n: int
    order_low: float
    order_high: float
    order_coverage: float


def t_interval(values: ArrayLike) -> tuple[float, float, float]:
    """Mean and 95% Student t interval of independent ``values`` [n]; bounds are NaN for fewer than two.

    Source: Student (1908), "The probable error of a mean".
    """
    x = np.asarray(values, dtype=float)
    if x.size == 0:
        return math.nan, math.nan, math.nan
    mean = float(x.mean())
    if x.size == 1:
        return mean, math.nan, math.nan
    half = t_critical(x.size - 1) * standard_error(x)
    return mean, mean - half, mean + half


def order_interval(values: ArrayLike) -> tuple[float, float, float]:
    """Distribution-free interval of the median of ``values`` [n], and its exact coverage.

    The narrowest symmetric pair of order statistics that covers at least 95%; below six values no pair does, so
    minimum to maximum with the coverage that it has (0.5 for two). Source: the inverted sign test, Conover,
    "Practical Nonparametric Statistics", 3rd ed., section 3.2.
    """
    x = np.sort(np.asarray(values, dtype=float))
    if x.size < _PAIR:
        return math.nan, math.nan, math.nan
    rank, coverage = _order_rank(x.size)
    return float(x[rank]), float(x[-1 - rank]), coverage


@functools.cache
def _order_rank(n: int) -> tuple[int, float]:
    """How many values to drop at each end of ``n``, and the coverage that is left."""
    coverage = 1 - 2 * special.bdtr(np.arange(n // 2), n, 0.5)
    wide_enough = np.flatnonzero(coverage >= CONFIDENCE)
    rank = int(wide_enough[-1]) if wide_enough.size else 0
    return rank, float(coverage[rank])


def ratio_interval(y: ArrayLike) -> Interval:
    """Geometric mean of the ratios exp(``y``) over launches: ``y`` [n] holds one log ratio a launch, never a block."""
    mean, low, high = t_interval(y)
    order_low, order_high, coverage = order_interval(y)
    return Interval(
        estimate=float(np.exp(mean)),
        low=float(np.exp(low)),
        high=float(np.exp(high)),
        n=int(np.size(y)),
        order_low=float(np.exp(order_low)),
        order_high=float(np.exp(order_high)),
        order_coverage=coverage,
    )


def difference_interval(d: ArrayLike) -> Interval:
    """Mean of paired differences ``d`` [n], one a seed, in the unit of ``d``."""
    mean, low, high = t_interval(d)
    order_low, order_high, coverage = order_interval(d)
    return Interval(
        estimate=mean,
        low=low,
        high=high,
        n=int(np.size(d)),
        order_low=order_low,
        order_high=order_high,
        order_coverage=coverage,
    )


def range_interval(values: ArrayLike) -> Interval:
    """Median of computed values [n] with the smallest and largest as bounds: nothing is sampled, so there is no t."""
    x = np.asarray(values, dtype=float)
    if x.size == 0:
        return difference_interval(x)
    return Interval(
        estimate=float(np.median(x)),
        low=float(x.min()),
        high=float(x.max()),
        n=int(x.size),
        order_low=math.nan,
        order_high=math.nan,
        order_coverage=math.nan,
    )


def standard_error(values: ArrayLike) -> float:
    """Standard error of the mean of ``values`` [n >= 2]."""
    x = np.asarray(values, dtype=float)
    return float(x.std(ddof=1) / math.sqrt(x.size))


@functools.lru_cache(maxsize=1024)
def t_critical(df: float) -> float:
    """Two-sided 95% quantile of Student's t."""
    return float(special.stdtrit(df, 0.5 + CONFIDENCE / 2))


def half_width(y: ArrayLike) -> float:
    """Relative half width of the 95% interval of exp(mean ``y``): 0.02 means about ±2%. Infinite below two launches."""
    _, low, high = t_interval(y)
    return math.inf if math.isnan(low) else math.expm1((high - low) / 2)


def smallest_detectable_effect(sd: float, n: int, power: float = POWER) -> float:
    """Relative effect that ``n`` launches of log-ratio spread ``sd`` find with ``power`` at the two-sided 5% level.

    0.04 means a change of 4%. Source: the normal-theory sample-size formula with t quantiles (Cohen, "Statistical
    Power Analysis", section 2.4). Infinite below two launches.
    """
    if n < _PAIR:
        return math.inf
    quantiles = t_critical(n - 1) + float(special.stdtrit(n - 1, power))
    return math.expm1(quantiles * sd / math.sqrt(n))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjusted p values [m] that keep the family-wise error rate. Source: Holm (1979), Scand. J. Statist. 6:65-70."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    scaled = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(scaled, 1.0)
    return adjusted


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a test needs of a sample: its mean, the standard error of it, and the degrees of freedom."""

    mean: float
    se: float
    df: float

    @classmethod
    def of(cls, values: ArrayLike) -> Summary:
        """Of independent ``values`` [n >= 2]."""
        x = np.asarray(values, dtype=float)
        return cls(mean=float(x.mean()), se=standard_error(x), df=x.size - 1)

    @classmethod
    def from_interval(cls, estimate: float, low: float, high: float, n: int) -> Summary:
        """Back from a 95% t interval over ``n`` >= 2 replicates, on the scale where the interval is symmetric."""
        return cls(mean=estimate, se=(high - low) / 2 / t_critical(n - 1), df=n - 1)

    def p_above(self, bound: float) -> float:
        """One-sided p value of the null hypothesis "the true mean is at most ``bound``"."""
        return self._tail(self.mean - bound)

    def p_below(self, bound: float) -> float:
        """One-sided p value of the null hypothesis "the true mean is at least ``bound``"."""
        return self._tail(bound - self.mean)

    def p_inside(self, low: float, high: float) -> float:
        """p value of two one-sided tests: the null hypothesis is "the true mean lies outside ``low`` to ``high``".

        Source: Schuirmann (1987), J. Pharmacokinet. Biopharm. 15:657-680. A bound may be infinite.
        """
        return max(self.p_above(low), self.p_below(high))

    def _tail(self, distance: float) -> float:
        if math.isinf(distance):
            return 0.0 if distance > 0 else 1.0
        if self.se <= NO_SPREAD * max(1.0, abs(self.mean)):
            # No spread is no proof of no noise (accuracy on a small test set is coarse): the sign test still holds.
            return float(0.5 ** (self.df + 1)) if distance > 0 else 1.0
        return float(special.stdtr(self.df, -distance / self.se))
