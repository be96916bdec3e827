"""What both frameworks say of shards and the whole batch.

In float64, since equality is a statement about arithmetic, not about rounding; and with GroupNorm, which looks at one
example at a time. BatchNorm sees its shard only, so its difference is a value of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from harness.backends import Check
from harness.errors import MeasurementError

REPLICAS = (2, 4)
EXAMPLES, EDGE, CLASSES, STEPS = 32, 12, 10, 5
RATE, MOMENTUM = 0.1, 0.9
EQUAL = 1e-12  # relative; sums in another order differ by some 1e-16 a step in float64, never by this much
UNLIKE = 1e-6  # an update that forgets a shard differs by more

Weights = list[NDArray[np.float64]]


def examples() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Images float64 [n, edge, edge] and labels int64 [n], drawn once; only their arithmetic matters."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((EXAMPLES, EDGE, EDGE)), rng.integers(0, CLASSES, EXAMPLES)


def difference(one: Weights, other: Weights) -> float:
    """The largest difference of a parameter, relative to the largest of its tensor."""
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(one, other, strict=True))


def compare(
    whole: Weights, sharded: Mapping[int, Weights], forgotten: Weights, batchnorm: tuple[Weights, Weights]
) -> list[Check]:
    """The values of the check, from the weights after the same steps.

    ``sharded`` by number of replicas; ``forgotten`` left a shard out, which must show: else nothing was compared.
    """
    found = {n: difference(whole, weights) for n, weights in sharded.items()}
    forgot = difference(whole, forgotten)
    if forgot < UNLIKE:
        raise MeasurementError(f"leaving a shard out changed the weights by {forgot:.2g} only: the check is blind")
    worst = max(found.values())
    detail = ", ".join(f"{d:.2g} with {n} replicas" for n, d in found.items())
    detail = f"{detail}; float64, {STEPS} steps of SGD with momentum"
    return [
        Check(name="equality", value=float(worst < EQUAL), detail=f"{detail}; equal means below {EQUAL:g}"),
        Check(name="shards_difference", value=worst, detail=detail),
        Check(name="shards_difference_unmerged", value=forgot, detail="one shard left out"),
        Check(name="shards_difference_batchnorm", value=difference(*batchnorm), detail="statistics of the shard only"),
    ]
