"""The projected scaling of data-parallel training: from one device's measured step and a link to many devices.

Everything here is computed and is called projected: it answers no claim and is no measurement. The parts:

- A message of n bytes takes ``latency + n / bandwidth`` (the alpha-beta model: R. W. Hockney, "The communication
  challenge for MPP", Parallel Computing 20(3), 1994).
- All-reduce as a ring or as a binomial tree (R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective
  communication operations in MPICH", Int. J. High Performance Computing Applications 19(1), 2005); over nodes of
  several devices, a reduce-scatter inside each node, rings across the nodes, an all-gather inside.
- Gradients travel in buckets during the backward pass, each as soon as it is complete, one at a time (S. Li et al.,
  "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 13(12), 2020).

Times are in seconds, sizes in bytes, bandwidths in bytes a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from harness.errors import ConfigError

DEVICES = tuple(2**n for n in range(1, 11))  # 2 to 1024


class Algorithm(StrEnum):
    """How an all-reduce travels."""

    RING = "ring"
    TREE = "tree"


class Scale(StrEnum):
    """What stays the same from one device to many: the batch of each (weak), or that of all together (strong)."""

    WEAK = "weak"
    STRONG = "strong"


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """Between two devices, or two nodes: seconds until a message arrives, and bytes a second in each direction."""

    latency_s: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (self.latency_s >= 0 and self.bandwidth > 0):
            raise ConfigError(f"{self}: the latency must be at least 0 s and the bandwidth over 0 bytes/s")

    def message_s(self, size: float) -> float:
        """Seconds of one message of ``size`` bytes."""
        return self.latency_s + size / self.bandwidth


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """The links of an all-reduce: one kind, or nodes of ``node`` devices joined inside by ``inside``."""

    link: Link
    algorithm: Algorithm = Algorithm.RING
    inside: Link | None = None
    node: int = 1

    def __post_init__(self) -> None:
        if (self.node > 1) != (self.inside is not None) or self.node < 1:
            raise ConfigError(f"nodes of {self.node} device(s): several devices, and only they, need the link inside")

    def all_reduce_s(self, size: float, devices: int) -> float:
        """Seconds until each of ``devices`` has the sum of all their ``size`` bytes."""
        _at_least_one(devices)
        if self.inside is None:
            return flat_s(size, devices, self.link, self.algorithm)
        if devices <= self.node:
            return flat_s(size, devices, self.inside, self.algorithm)
        nodes, rest = divmod(devices, self.node)
        if rest:
            raise ConfigError(f"{devices} devices do not fill nodes of {self.node}")
        # Every device takes its part of the sum across the nodes, all at once, and they share the node's link.
        return ring_s(size, self.node, self.inside) + flat_s(size, nodes, self.link, self.algorithm)


def _at_least_one(devices: int) -> None:
    if devices < 1:
        raise ConfigError(f"{devices} devices: there must be at least 1")


def ring_s(size: float, devices: int, link: Link) -> float:
    """A reduce-scatter and an all-gather around a ring: 2(N-1) messages of size/N bytes."""
    return 2 * (devices - 1) * link.message_s(size / devices)


def tree_s(size: float, devices: int, link: Link) -> float:
    """A reduction to one device and a broadcast from it, each in ceil(log2 N) rounds of the whole size."""
    return 2 * math.ceil(math.log2(devices)) * link.message_s(size)


def flat_s(size: float, devices: int, link: Link, algorithm: Algorithm) -> float:
    """Seconds of an all-reduce over links of one kind."""
    if devices == 1:
        return 0.0
    return ring_s(size, devices, link) if algorithm is Algorithm.RING else tree_s(size, devices, link)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Gradients that travel together: their bytes, and the share of the backward pass after which they are there."""

    size: float
    ready: float


def buckets(sizes: Sequence[float]) -> tuple[Bucket, ...]:
    """Buckets in the order in which the backward pass fills them, where only their sizes are known.

    A bucket is taken to be ready when its share of all bytes has been computed, as if each byte took the same time.
    """
    total = sum(sizes)
    if not total > 0 or min(sizes) < 0:
        raise ConfigError(f"bucket sizes {list(sizes)}: they must be at least 0 bytes, and some above")
    return tuple(
        Bucket(size=size, ready=float(done) / total) for size, done in zip(sizes, np.cumsum(sizes), strict=True)
    )


def split(total: float, limit: float) -> tuple[Bucket, ...]:
    """``total`` bytes in buckets of ``limit`` bytes, the last one smaller."""
    if not limit > 0:
        raise ConfigError(f"buckets of {limit:g} bytes: must be over 0")
    whole, rest = divmod(total, limit)
    return buckets([limit] * int(whole) + ([rest] if rest else []))


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What one device was measured at.

    ``step_s`` is its training step, ``backward`` the backward pass's share of it; ``fixed_s`` is the part that does not
    shrink with the batch (strong scaling). ``stolen`` is the share of a transfer's time that it takes from the
    device's own computing: 0 where a network card works alone, more where the same cores compute and send.
    """

    step_s: float
    backward: float
    buckets: tuple[Bucket, ...]
    fixed_s: float = 0.0
    stolen: float = 0.0

    def __post_init__(self) -> None:
        good = self.step_s > 0 and 0 <= self.backward <= 1 and 0 <= self.stolen < 1 and 0 <= self.fixed_s <= self.step_s
        if not good:
            raise ConfigError(
                f"step_s {self.step_s:g}, fixed_s {self.fixed_s:g}, backward {self.backward:g}, stolen {self.stolen:g}:"
                " the step must take over 0 s and hold its fixed part, the shares lie from 0 to 1 (stolen below 1)"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Projected:
    """One point of a projected curve: never a measurement, never a verdict.

    ``exchange_s`` is what all transfers of a step take, ``exposed_s`` what they add to it, ``speedup`` the examples a
    second over those of one device, ``efficiency`` that over the number of devices.
    """

    devices: int
    scale: Scale
    step_s: float
    exchange_s: float
    exposed_s: float
    speedup: float
    efficiency: float


def exposed_s(backward_s: float, transfers: Sequence[tuple[float, float]], stolen: float = 0.0) -> float:
    """How much later than without transfers the backward pass and the last of them are over.

    ``transfers`` are (ready, seconds): the share of the backward pass after which one can start, and its length. They
    run one after the other in this order; while one runs, the backward pass goes on at ``1 - stolen`` of its speed.
    """
    now = done = 0.0  # the time, and the seconds of the backward pass that are computed
    for ready, seconds in transfers:
        if done < ready * backward_s:  # the link is idle
            now += ready * backward_s - done
            done = ready * backward_s
        now += seconds
        done = min(backward_s, done + (1 - stolen) * seconds)
    return now - done  # what is left of the backward pass takes its own time


def project(training: Training, network: Network, devices: int, scale: Scale = Scale.WEAK) -> Projected:
    """The projected step of ``devices`` that train together."""
    _at_least_one(devices)
    parts = devices if scale is Scale.STRONG else 1
    alone_s = training.fixed_s + (training.step_s - training.fixed_s) / parts
    transfers = [(b.ready, network.all_reduce_s(b.size, devices)) for b in training.buckets]
    late_s = exposed_s(training.backward * alone_s, transfers, training.stolen)
    step_s = alone_s + late_s
    speedup = devices / parts * training.step_s / step_s
    return Projected(
        devices=devices,
        scale=scale,
        step_s=step_s,
        exchange_s=sum(seconds for _, seconds in transfers),
        exposed_s=late_s,
        speedup=speedup,
        efficiency=speedup / devices,
    )


def curve(
    training: Training, network: Network, *, scale: Scale = Scale.WEAK, devices: Sequence[int] = DEVICES
) -> list[Projected]:
    """The projected scaling curve."""
    return [project(training, network, n, scale) for n in devices]


def fit_link(times: Sequence[tuple[float, float]], devices: int) -> Link:
    """The link whose ring comes nearest to measured all-reduces: (bytes, seconds) each, by relative least squares.

    Raises :class:`ConfigError` where fewer than two sizes were timed, or larger ones took no longer.
    """
    if devices < 2 or len({size for size, _ in times}) < 2:  # noqa: PLR2004 - a line through two points
        raise ConfigError(f"{len(times)} all-reduce(s) on {devices} device(s): time two sizes on two devices at least")
    size, seconds = np.array(times, dtype=np.float64).T
    rows = np.stack([np.full_like(size, 2 * (devices - 1)), 2 * (devices - 1) / devices * size], axis=1)
    latency, byte_s = np.linalg.lstsq(rows / seconds[:, None], np.ones_like(size), rcond=None)[0]
    if byte_s <= 0:
        raise ConfigError("larger all-reduces took no longer than small ones: no bandwidth can be read from them")
    return Link(latency_s=max(0.0, float(latency)), bandwidth=1 / float(byte_s))
