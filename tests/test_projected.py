"""What a run's own rows make of the projection: known numbers in, known curves out."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from harness import projected, selfcheck_projection
from harness.projection import Link, ring_s

COSTS = {
    "link_latency": 0.001, "link_bandwidth": 1e8, "stolen_share": 0.0, "backward_share": 0.0, "beside_ratio": 1.0,
}  # fmt: skip
PARAMETERS = 250_000  # a million bytes: one bucket


def rows(**changes: object) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    common = {
        "comparison": "ddp-weak/torch/cnn", "workload": "cnn", "status": "ok", "toggle_strategy": "ddp",
        "toggle_scale": "weak", "parameters": PARAMETERS, **changes,
    }  # fmt: skip
    trials = pd.DataFrame([{**common, "arm": f"d{n}", "observed_devices": n} for n in (1, 2)])
    samples = pd.DataFrame(
        [{"comparison": common["comparison"], "arm": "d1", "seconds": s, "steps": 10} for s in (0.9, 1.0, 9.0)]
    )
    checks = pd.DataFrame([{"workload": "cnn", "check": name, "value": value} for name, value in COSTS.items()])
    return samples, trials, checks


BASELINES = {"ddp-weak/torch/cnn": "d1"}


def speedups(
    samples: pd.DataFrame, trials: pd.DataFrame, checks: pd.DataFrame, *, devices: list[int]
) -> dict[int, float]:
    curve = projected.curves(samples, trials, checks, BASELINES, devices)
    assert list(curve["efficiency"] * curve["devices"]) == pytest.approx(list(curve["speedup"]))
    return dict(zip(curve["devices"], curve["speedup"], strict=True))


def test_the_step_of_one_device_and_its_gradients_make_the_curve() -> None:
    curve = speedups(*rows(), devices=[2, 8])
    link = Link(latency_s=0.001, bandwidth=1e8)
    for n in (2, 8):  # nothing is hidden: a step of 0.1 s, then the ring
        assert curve[n] == pytest.approx(n * 0.1 / (0.1 + ring_s(4 * PARAMETERS, n, link)))


def test_strong_scaling_shares_the_step_out() -> None:
    curve = speedups(*rows(toggle_scale="strong"), devices=[4])
    ring = ring_s(4 * PARAMETERS, 4, Link(latency_s=0.001, bandwidth=1e8))
    assert curve[4] == pytest.approx(0.1 / (0.1 / 4 + ring))


def test_what_a_step_loses_beside_another_is_not_the_link_s_fault() -> None:
    samples, trials, checks = rows()
    checks.loc[checks["check"] == "beside_ratio", "value"] = 1.25
    checks.loc[checks["check"] == "link_bandwidth", "value"] = 1e15
    checks.loc[checks["check"] == "link_latency", "value"] = 0.0
    assert speedups(samples, trials, checks, devices=[2])[2] == pytest.approx(2 / 1.25)


@pytest.mark.parametrize(
    "change",
    [{"toggle_strategy": "mirrored"}, {"workload": "other"}, {"status": "error"}],
    ids=lambda change: next(iter(change)),
)
def test_what_was_not_measured_is_not_projected(change: dict[str, object]) -> None:
    assert projected.curves(*rows(**change), BASELINES, [2]).empty


def test_a_cost_that_is_missing_leaves_no_curve() -> None:
    samples, trials, checks = rows()
    assert projected.curves(samples, trials, checks[checks["check"] != "stolen_share"], BASELINES, [2]).empty
    assert projected.curves(samples, trials, checks.iloc[:0], BASELINES, [2]).empty


def test_buckets_are_those_of_distributeddataparallel() -> None:
    mib = 1 << 20
    assert [b.size for b in projected.buckets(0.5 * mib)] == [0.5 * mib]
    assert [b.size for b in projected.buckets(60 * mib)] == [mib, 25 * mib, 25 * mib, 9 * mib]


def test_the_error_against_two_ranks_by_hand() -> None:
    reduced = [[size, ring_s(size, 2, Link(latency_s=0.0005, bandwidth=2e8))] for size in (1e4, 1e6, 1e7)]
    model = {"model": "m", "step_s": 0.2, "backward": 0.0, "beside": 1.0, "buckets": [2e6], "ddp_s": 0.2}
    model |= {"all_reduces": reduced, "stolen": 0.0}
    lines = [model]
    # The exchange of 2 MB takes 2 * 0.5 ms + 10 ms, all of it exposed, where none was measured.
    assert selfcheck_projection.errors(lines)["m"] == pytest.approx(0.011 / 0.2)
    figure = selfcheck_projection._figure("somewhere", lines)
    assert figure.passed
    assert "m +5.5%" in figure.measured
    assert not selfcheck_projection._figure("somewhere", [model, {**model, "model": "n", "ddp_s": 0.3}]).passed


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_two_ranks_say_what_a_projection_needs() -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "harness.backends.torch_exchange", "cnn_fashion"]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=240,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (model,) = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    seconds = [s for _, s in model["all_reduces"]]
    assert seconds[-1] > seconds[0] > 0, "32 MB take longer than 16 KB"
    assert 0 <= model["stolen"] < 1
    assert sum(model["buckets"]) == 4 * 50_186, "the gradients of every parameter, once"
    assert 0.2 < model["backward"] < 0.9
    assert model["ddp_s"] > 0.5 * model["step_s"] > 0
    assert set(selfcheck_projection.errors([model])) == {"cnn_fashion"}
