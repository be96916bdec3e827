"""The projected scaling: cost models against numbers worked out by hand, and what they must always obey."""

from __future__ import annotations

import math

import pytest

from harness import projection, projection_published
from harness.errors import ConfigError
from harness.projection import Algorithm, Bucket, Link, Network, Scale, Training

LINK = Link(latency_s=0.001, bandwidth=1e6)


def test_a_ring_by_hand() -> None:
    # 4 devices: 6 messages of a quarter of 4,000,000 bytes, each 1 ms + 1 s
    assert projection.ring_s(4e6, 4, LINK) == pytest.approx(6 * 1.001)
    # 2(N-1)/N bytes over the bandwidth, 2(N-1) latencies
    for n in (2, 3, 8, 1024):
        by_formula = 2 * (n - 1) / n * 5e6 / LINK.bandwidth + 2 * (n - 1) * LINK.latency_s
        assert projection.ring_s(5e6, n, LINK) == pytest.approx(by_formula)


def test_a_tree_by_hand() -> None:
    # 8 devices: 3 rounds up, 3 down, each 1 ms + 4 s
    assert projection.tree_s(4e6, 8, LINK) == pytest.approx(6 * 4.001)
    assert projection.tree_s(4e6, 5, LINK) == projection.tree_s(4e6, 8, LINK)  # the third round is not full


def test_a_tree_wins_where_latency_rules_and_a_ring_where_bytes_do() -> None:
    assert projection.tree_s(100, 64, LINK) < projection.ring_s(100, 64, LINK)
    assert projection.ring_s(1e8, 64, LINK) < projection.tree_s(1e8, 64, LINK)


def test_nodes_by_hand() -> None:
    # 4 nodes of 2: inside, 2 messages of 1,000,000 bytes at 1e7/s; across, 6 of 500,000 (2 parts of 250,000 at once)
    network = Network(link=LINK, inside=Link(latency_s=0.0, bandwidth=1e7), node=2)
    assert network.all_reduce_s(2e6, 8) == pytest.approx(2 * 0.1 + 6 * 0.501)
    assert network.all_reduce_s(2e6, 2) == pytest.approx(2 * 0.1)
    with pytest.raises(ConfigError, match="9 devices do not fill nodes of 2"):
        network.all_reduce_s(2e6, 9)


def test_alone_nothing_is_sent() -> None:
    for algorithm in Algorithm:
        assert Network(link=LINK, algorithm=algorithm).all_reduce_s(1e9, 1) == 0


@pytest.mark.parametrize(
    ("transfers", "stolen", "late"),
    [
        ([(1.0, 3.0)], 0.0, 3.0),  # all at the end: nothing is hidden
        ([(0.5, 3.0)], 0.0, 0.0),  # 5 s in, 3 s long, 10 s of backward pass: all hidden
        ([(0.5, 6.0)], 0.0, 1.0),
        ([(0.5, 6.0), (1.0, 2.0)], 0.0, 3.0),  # 5 to 11, then 11 to 13: the second waits for the first
        ([(0.2, 1.0), (0.9, 0.5), (1.0, 2.0)], 0.0, 2.0),  # the link idles between
        ([(0.5, 4.0)], 0.5, 2.0),  # 5 s, then 4 s at half speed make 7 s of the pass by 9 s, 3 s are left
        ([(0.5, 20.0)], 0.5, 15.0),  # the pass ends meanwhile; only the transfer counts from there
        ([(0.0, 2.0), (0.1, 1.0)], 0.5, 1.5),  # both late starts: 3 s at half speed
        ([], 0.0, 0.0),
    ],
)
def test_what_the_backward_pass_hides(transfers: list[tuple[float, float]], stolen: float, late: float) -> None:
    assert projection.exposed_s(10.0, transfers, stolen) == pytest.approx(late)


def test_buckets_are_ready_when_their_bytes_are() -> None:
    assert projection.buckets([1, 2, 1]) == (
        Bucket(size=1, ready=0.25),
        Bucket(size=2, ready=0.75),
        Bucket(size=1, ready=1.0),
    )
    assert [b.size for b in projection.split(60e6, 25e6)] == [25e6, 25e6, 10e6]
    assert [b.size for b in projection.split(50e6, 25e6)] == [25e6, 25e6]


def training(**changed: float) -> Training:
    fields = {"step_s": 0.3, "backward": 0.5, **changed}
    return Training(buckets=(Bucket(size=1e5, ready=1.0),), **fields)


def test_a_weak_and_a_strong_point_by_hand() -> None:
    network = Network(link=Link(latency_s=0.0, bandwidth=1e6))
    weak = projection.project(training(), network, 2)
    assert (weak.exchange_s, weak.exposed_s, weak.step_s) == pytest.approx((0.1, 0.1, 0.4))
    assert (weak.speedup, weak.efficiency) == pytest.approx((1.5, 0.75))
    strong = projection.project(training(fixed_s=0.1), network, 2, Scale.STRONG)
    assert strong.step_s == pytest.approx(0.1 + 0.1 + 0.1)
    assert (strong.speedup, strong.efficiency) == pytest.approx((1.0, 0.5))


def test_a_curve_has_every_power_of_two_up_to_1024_and_never_beats_the_ideal() -> None:
    for scale in Scale:
        for algorithm in Algorithm:
            points = projection.curve(training(), Network(link=LINK, algorithm=algorithm), scale=scale)
            assert [p.devices for p in points] == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
            efficiency = [p.efficiency for p in points]
            assert efficiency == sorted(efficiency, reverse=True)
            assert all(0 < e < 1 for e in efficiency)
            assert all(p.scale is scale for p in points)


def test_without_bytes_or_latency_scaling_is_ideal() -> None:
    free = Network(link=Link(latency_s=0.0, bandwidth=math.inf))
    for point in projection.curve(training(), free):
        assert point.speedup == pytest.approx(point.devices)


def test_the_link_is_read_back_from_its_own_times() -> None:
    link = Link(latency_s=3e-5, bandwidth=2.5e9)
    for devices in (2, 4):
        times = [(n, projection.ring_s(n, devices, link)) for n in (4096, 2**18, 2**22, 2**25)]
        found = projection.fit_link(times, devices)
        assert found.latency_s == pytest.approx(link.latency_s)
        assert found.bandwidth == pytest.approx(link.bandwidth)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Link(latency_s=-1.0, bandwidth=1.0), "latency must be at least 0"),
        (lambda: Link(latency_s=0.0, bandwidth=0.0), "bandwidth over 0"),
        (lambda: Link(latency_s=math.nan, bandwidth=1.0), "latency must be at least 0"),
        (lambda: Network(link=LINK, node=4), "need the link inside"),
        (lambda: Network(link=LINK, inside=LINK), "need the link inside"),
        (lambda: training(stolen=1.0), "stolen below 1"),
        (lambda: training(fixed_s=1.0), "hold its fixed part"),
        (lambda: projection.buckets([]), "must be at least 0 bytes"),
        (lambda: projection.split(1e6, 0), "must be over 0"),
        (lambda: projection.project(training(), Network(link=LINK), 0), "at least 1"),
        (lambda: projection.fit_link([(1.0, 1.0)], 2), "two sizes"),
        (lambda: projection.fit_link([(1.0, 1.0), (2.0, 0.5)], 2), "no bandwidth"),
    ],
)
def test_what_cannot_be_is_refused(make, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_every_published_scaling_has_its_projection_beside_it() -> None:
    rows = projection_published.rows()
    assert {(row.model, row.devices) for row in rows} == {
        ("ResNet-50", 8),
        ("BERT-large", 4),
        ("BERT-large", 8),
        *((model, devices) for model in ("Inception V3", "ResNet-101", "VGG-16") for devices in (16, 512)),
    }
    for row in rows:
        assert 0 < row.projected <= row.devices
        assert row.error == pytest.approx(row.projected / row.published - 1)
        assert row.source
        assert bool(row.why) == (abs(row.error) > 0.10)


@pytest.mark.parametrize(
    ("model", "devices", "published"),
    [("BERT-large", 8, 7.56), ("VGG-16", 16, 13.7), ("ResNet-101", 512, 460.8)],
)
def test_published_speedups_are_those_of_the_sources(model: str, devices: int, published: float) -> None:
    (row,) = (r for r in projection_published.rows() if (r.model, r.devices) == (model, devices))
    assert row.published == pytest.approx(published, abs=0.06)


def test_a_published_row_by_hand() -> None:
    # 138 million gradients to 16 devices at 25 Gbit/s: 2 x 15/16 x 553 MB / 3.125 GB/s = 332 ms, and 90 hops of 14 us
    row = next(p for p in projection_published.PUBLISHED if p.model == "VGG-16" and p.devices == 16)
    exchange = sum(row.network.all_reduce_s(b.size, 16) for b in row.gradients)
    assert exchange == pytest.approx(2 * 15 / 16 * 4 * 138_357_544 / 3.125e9 + 90 * 14e-6)
