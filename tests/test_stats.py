"""Intervals, tests and effects, against known distributions and hand-computed frames."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness import stats
from harness.errors import ResultsError
from harness.schema import EFFECT_COLUMNS, TRIALS

CMP = "precision/torch/cnn"
BASELINES = {CMP: "fp32"}


# --- intervals ---


def simulated_runs(runs: int, launches: int, rounds: int, effect: float) -> np.ndarray:
    """Log ratios [runs, launches, rounds]: each launch has its own luck (5%), each block a little noise (2%)."""
    rng = np.random.default_rng(7)
    luck = rng.normal(0, 0.05, (runs, launches, 1))
    return effect + luck + rng.normal(0, 0.02, (runs, launches, rounds))


def coverage(values: np.ndarray, truth: float) -> float:
    """Share of the runs [runs, replicates] whose 95% interval holds the true ratio."""
    intervals = [stats.ratio_interval(v) for v in values]
    return float(np.mean([i.low <= truth <= i.high for i in intervals]))


@pytest.mark.parametrize("launches", [3, 6, 10])
def test_interval_over_launches_covers_the_truth_in_95_of_100_runs(launches):
    blocks = simulated_runs(3000, launches, rounds=5, effect=math.log(1.1))
    assert coverage(np.median(blocks, axis=2), 1.1) == pytest.approx(0.95, abs=0.013)


def test_mutant_that_takes_blocks_for_replicates_undercovers_badly():
    blocks = simulated_runs(2000, 6, rounds=9, effect=math.log(1.1))
    assert coverage(blocks.reshape(2000, -1), 1.1) < 0.65


def test_order_interval_has_the_coverage_that_it_states():
    rng = np.random.default_rng(3)
    for n in (4, 6, 10, 16):
        x = rng.standard_cauchy((4000, n))  # median 0, no mean: the t interval would not do
        found = [stats.order_interval(row) for row in x]
        covers = np.mean([low <= 0 <= high for low, high, _ in found])
        assert covers == pytest.approx(found[0][2], abs=0.015)


def test_order_interval_of_six_is_their_range():
    low, high, covers = stats.order_interval([3, 1, 2, 6, 5, 4])
    assert (low, high) == (1, 6)
    assert covers == 1 - 2 * 0.5**6


def test_order_interval_of_ten_drops_the_extremes():
    low, high, covers = stats.order_interval(range(10))
    assert (low, high) == (1, 8)
    assert covers == pytest.approx(1 - 2 * 11 / 1024)


def test_order_interval_below_six_states_less_than_95_percent():
    assert stats.order_interval([1, 2, 3])[2] == 0.75


def test_ratio_interval_of_known_values():
    y = np.log([1.0, 2.0, 4.0])
    interval = stats.ratio_interval(y)
    half = 4.302653 * math.log(2) / math.sqrt(3)  # t quantile of 2 degrees of freedom
    assert interval.estimate == pytest.approx(2)
    assert interval.low == pytest.approx(2 * math.exp(-half))
    assert interval.high == pytest.approx(2 * math.exp(half))
    assert interval.n == 3


def test_one_launch_has_an_estimate_and_no_interval():
    interval = stats.ratio_interval([math.log(3)])
    assert interval.estimate == pytest.approx(3)
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert math.isnan(interval.order_coverage)


# --- widths and power ---


def test_half_width_is_relative():
    assert stats.half_width([0.0, 0.02]) == pytest.approx(math.expm1(12.7062 * 0.01), rel=1e-4)


def test_smallest_detectable_effect_is_found_with_the_stated_power():
    sd, n = 0.03, 10
    effect = math.log1p(stats.smallest_detectable_effect(sd, n, power=0.8))
    rng = np.random.default_rng(1)
    found = [stats.ratio_interval(rng.normal(effect, sd, n)).low > 1 for _ in range(3000)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.04)
    assert stats.smallest_detectable_effect(sd, 1) == math.inf


# --- tests ---


def test_holm_against_a_worked_example():
    np.testing.assert_allclose(stats.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(stats.holm([0.6, 0.7]), [1.0, 1.0])
    assert stats.holm([]).size == 0


def test_tost_accepts_small_differences_and_rejects_noise():
    assert stats.Summary.of([0.1, -0.1, 0.0, 0.2, -0.2, 0.05]).p_inside(-1, 1) <= 0.025
    assert stats.Summary.of([3.0, -3.0, 2.0, -2.0, 1.0, -1.0]).p_inside(-1, 1) > 0.025


def test_tost_is_wrong_at_most_1_in_40_at_the_margin():
    rng = np.random.default_rng(5)
    accepted = [stats.Summary.of(rng.normal(1.0, 0.4, 8)).p_inside(-1, 1) <= 0.025 for _ in range(4000)]
    assert np.mean(accepted) == pytest.approx(0.025, abs=0.008)


def test_tost_p_is_the_larger_of_the_two_sides():
    s = stats.Summary(mean=0.5, se=0.25, df=7)
    assert s.p_inside(-1, 1) == pytest.approx(s.p_below(1))
    assert s.p_inside(0.4, 1) == pytest.approx(s.p_above(0.4))
    assert s.p_inside(-math.inf, 1) == pytest.approx(s.p_below(1)), "an open bound asks nothing"


def test_a_spread_that_is_only_rounding_is_no_proof_either():
    differences = [100 * (0.600 - 0.606), 100 * (0.560 - 0.566)]  # both 0.6 points, but not the same float
    assert 0 < abs(differences[0] - differences[1]) < 1e-9
    assert stats.Summary.of(differences).p_below(0.0) == 0.25


def test_no_spread_in_few_seeds_is_no_proof():
    assert stats.Summary.of([1.0, 1.0]).p_above(0) == 0.25, "the sign test of two"


def test_summary_comes_back_from_its_interval():
    x = [1.0, 2.0, 4.0, 4.5]
    direct, back = stats.Summary.of(x), stats.Summary.from_interval(*stats.t_interval(x), 4)
    assert (back.mean, back.df) == (direct.mean, direct.df)
    assert back.se == pytest.approx(direct.se)


# --- effects ---


def trials_of(rows: Sequence[Mapping[Any, object]], *, mode: str = "steady") -> pd.DataFrame:
    """Trials with every column of the schema; what a row leaves out is that of an ok trial."""
    common = {
        "comparison": CMP,
        "study": "precision",
        "framework": "torch",
        "workload": "cnn",
        "mode": mode,
        "launch": 0,
        "status": "ok",
        "reason": None,
        "settled": True,
        "peak_bytes": 1000,
        "parameters": 10,
        "energy_j": np.nan,
        "observed_devices": 1,
        "oversubscribed": False,
        "toggle_gradient_sync": "overlap",
    }
    return pd.DataFrame([{**common, **row} for row in rows], columns=TRIALS.names)


def samples_of(rows: list[tuple[str, int, int, int, float]]) -> pd.DataFrame:
    """Samples from (arm, launch, round, items, seconds)."""
    return pd.DataFrame(rows, columns=["arm", "launch", "round", "items", "seconds"]).assign(comparison=CMP)


NOTHING = pd.DataFrame()


def effect(table: pd.DataFrame, arm: str, metric: str) -> pd.Series:
    """The one row of an arm and metric."""
    found = table[(table["arm"] == arm) & (table["metric"] == metric)]
    assert len(found) == 1
    return found.iloc[0]


def two_launches() -> tuple[pd.DataFrame, pd.DataFrame]:
    """fp16 takes batch 20 against 10; per item it is 2, 2, 9 times faster in launch 0 and 8 times in launch 1."""
    rows = [("fp32", 0, r, 10, 1.0) for r in range(3)] + [("fp32", 1, 0, 10, 4.0)]
    rows += [("fp16", 0, 0, 20, 1.0), ("fp16", 0, 1, 20, 1.0), ("fp16", 0, 2, 20, 2 / 9), ("fp16", 1, 0, 20, 1.0)]
    trials = [{"arm": a, "launch": n, "peak_bytes": b} for n in (0, 1) for a, b in (("fp32", 1000), ("fp16", 500))]
    return samples_of(rows), trials_of(trials)


def test_throughput_by_hand():
    samples, trials = two_launches()
    table = stats.effects(samples, trials, NOTHING, NOTHING, baselines=BASELINES)
    row = effect(table, "fp16", "throughput")
    assert row["estimate"] == pytest.approx(4), "medians of the launches are 2 and 8, their geometric mean is 4"
    assert row["n"] == 2
    assert (row["order_low"], row["order_high"]) == (pytest.approx(2), pytest.approx(8))
    assert row["baseline"] == "fp32"
    assert row["kind"] == "ratio"
    assert row["status"] == "ok"
    assert row["reason"] == ""


def test_effects_have_exactly_the_columns_of_the_schema():
    samples, trials = two_launches()
    table = stats.effects(samples, trials, NOTHING, NOTHING, baselines=BASELINES)
    assert tuple(table.columns) == EFFECT_COLUMNS
    assert not (table["arm"] == "fp32").any(), "a baseline has no ratio to itself"


def test_memory_and_parameters_are_treatment_over_baseline():
    samples, trials = two_launches()
    table = stats.effects(samples, trials, NOTHING, NOTHING, baselines=BASELINES)
    assert effect(table, "fp16", "memory")[["estimate", "low", "high"]].tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert effect(table, "fp16", "parameters")["estimate"] == 1


def test_step_time_is_throughput_upside_down():
    samples, trials = two_launches()
    table = stats.effects(samples, trials, NOTHING, NOTHING, baselines=BASELINES)
    row, speed = effect(table, "fp16", "step_time"), effect(table, "fp16", "throughput")
    assert row["estimate"] == pytest.approx(1 / 4)
    assert (row["low"], row["high"]) == (pytest.approx(1 / speed["high"]), pytest.approx(1 / speed["low"]))


def on_devices() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two devices train 1.8 and four 3 times as many examples a second as one; without exchange two train 2.4 times."""
    seconds = {"d1": 6.0, "d2": 6.0 / 1.8, "d4": 2.0, "silent": 2.5}
    rows = [(arm, launch, 0, 10, t) for launch in (0, 1) for arm, t in seconds.items()]
    devices = {"d1": 1, "d2": 2, "d4": 4, "silent": 2}
    trials = [
        {
            "arm": arm,
            "launch": launch,
            "observed_devices": n,
            "oversubscribed": n > 2,
            "toggle_gradient_sync": "none" if arm == "silent" else "overlap",
        }
        for launch in (0, 1)
        for arm, n in devices.items()
    ]
    return samples_of(rows), trials_of(trials)


def test_scaling_efficiency_is_the_speedup_over_the_devices():
    samples, trials = on_devices()
    table = stats.effects(samples, trials, NOTHING, NOTHING, baselines={CMP: "d1"})
    assert effect(table, "d2", "scaling_efficiency")["estimate"] == pytest.approx(0.9)
    assert effect(table, "d4", "scaling_efficiency")["estimate"] == pytest.approx(0.75)


def test_a_comparison_on_as_many_devices_has_no_scaling_efficiency():
    samples, trials = two_launches()
    table = stats.effects(samples, trials, NOTHING, NOTHING, baselines=BASELINES)
    assert not table["metric"].isin(["scaling_efficiency", "communication_share"]).any()


def test_more_devices_than_cores_keep_their_value_and_say_so():
    samples, trials = on_devices()
    table = stats.effects(samples, trials, NOTHING, NOTHING, baselines={CMP: "d1"})
    assert effect(table, "d2", "throughput")["unfit"] == ""
    assert effect(table, "d4", "throughput")["unfit"] == "oversubscribed: 4 devices on fewer cores"
    assert effect(table, "d4", "throughput")["estimate"] == pytest.approx(3)
    beside = stats.effects(samples, trials, NOTHING, NOTHING, baselines={CMP: "d4"})
    assert effect(beside, "d2", "throughput")["unfit"] == "oversubscribed: 4 devices on fewer cores"


def test_the_communication_share_is_what_is_gone_without_exchange():
    samples, trials = on_devices()
    table = stats.effects(samples, trials, NOTHING, NOTHING, baselines={CMP: "d2"})
    row = effect(table, "d2", "communication_share")
    assert row["estimate"] == pytest.approx(1 - 1.8 / 2.4)
    assert row["kind"] == "mean"
    assert row["n"] == 2


def test_energy_is_for_each_item_and_null_without_a_counter():
    samples, trials = two_launches()
    table = stats.effects(samples, trials, NOTHING, NOTHING, baselines=BASELINES)
    assert math.isnan(effect(table, "fp16", "energy")["estimate"])
    assert effect(table, "fp16", "energy")["reason"] == "no energy counter"
    trials["energy_j"] = 30.0
    table = stats.effects(samples, trials, NOTHING, NOTHING, baselines=BASELINES)
    assert effect(table, "fp16", "energy")["estimate"] == pytest.approx(0.5), "twice the items for the same energy"


def test_an_arm_that_ran_out_of_memory_keeps_its_row():
    samples, trials = two_launches()
    lost = trials_of([{"arm": "b1024", "launch": n, "status": "oom", "reason": "asked for 9 GB"} for n in (0, 1)])
    table = stats.effects(samples, pd.concat([trials, lost]), NOTHING, NOTHING, baselines=BASELINES)
    row = effect(table, "b1024", "throughput")
    assert math.isnan(row["estimate"])
    assert row["n"] == 0
    assert (row["status"], row["reason"]) == ("oom", "oom in 2 of 2: asked for 9 GB")


def test_samples_of_a_launch_that_failed_do_not_count():
    samples, trials = two_launches()
    trials.loc[(trials["arm"] == "fp16") & (trials["launch"] == 1), ["status", "reason"]] = ["timeout", "no answer"]
    row = effect(stats.effects(samples, trials, NOTHING, NOTHING, baselines=BASELINES), "fp16", "throughput")
    assert row["estimate"] == pytest.approx(2)
    assert row["n"] == 1
    assert row["status"] == "timeout"
    assert "1 of 2" in row["reason"]


def test_without_its_baseline_an_arm_has_no_value_and_says_so():
    samples, trials = two_launches()
    trials.loc[trials["arm"] == "fp32", ["status", "reason"]] = ["unavailable", "no torch"]
    row = effect(stats.effects(samples, trials, NOTHING, NOTHING, baselines=BASELINES), "fp16", "throughput")
    assert math.isnan(row["estimate"])
    assert row["status"] == "unavailable"
    assert "the baseline fp32 has no value" in row["reason"]


def test_a_trial_that_never_settled_counts_and_is_named():
    samples, trials = two_launches()
    trials.loc[(trials["arm"] == "fp16") & (trials["launch"] == 1), "settled"] = False
    row = effect(stats.effects(samples, trials, NOTHING, NOTHING, baselines=BASELINES), "fp16", "throughput")
    assert row["n"] == 2
    assert row["reason"] == "warm-up did not settle in 1 of 2 launches"


def test_the_null_arm_is_an_arm_like_any_other():
    samples, trials = two_launches()
    twin = samples[samples["arm"] == "fp32"].assign(arm="control")
    trials = pd.concat([trials, trials_of([{"arm": "control", "launch": n} for n in (0, 1)])])
    table = stats.effects(pd.concat([samples, twin]), trials, NOTHING, NOTHING, baselines=BASELINES)
    assert effect(table, "control", "throughput")["estimate"] == pytest.approx(1)


def test_two_blocks_of_a_cell_in_one_round_are_an_error():
    samples, trials = two_launches()
    with pytest.raises(ResultsError, match=r"two blocks of arm 'fp32' in precision/torch/cnn, launch 0, round 0"):
        stats.effects(pd.concat([samples, samples.head(1)]), trials, NOTHING, NOTHING, baselines=BASELINES)


def test_a_comparison_without_a_baseline_is_an_error():
    samples, trials = two_launches()
    with pytest.raises(ResultsError, match=r"has no baseline in run\.yaml"):
        stats.effects(samples, trials, NOTHING, NOTHING, baselines={"other": "x"})


# --- loading


def loaded(
    times: Mapping[str, Sequence[float]],
    *,
    mode: str = "loading",
    waits: Mapping[str, Sequence[float]] | None = None,
    **of_arm: Mapping[str, object],
) -> pd.DataFrame:
    """Effects of arms whose launches took these seconds (one block each) and waited those; against the arm "none".

    ``of_arm`` gives columns of the trials by arm; of cores there are 4.
    """
    samples = samples_of([(arm, i, 0, 10, t) for arm, own in times.items() for i, t in enumerate(own)])
    shares = waits or times
    samples["wait_s"] = [w for arm in times for w in shares[arm]]
    cells = [
        {"arm": arm, "launch": i, "threads": 4, **{column: by_arm[arm] for column, by_arm in of_arm.items()}}
        for arm, own in times.items()
        for i, _ in enumerate(own)
    ]
    trials = trials_of(cells, mode=mode)
    return stats.effects(samples, trials, NOTHING, NOTHING, baselines={CMP: "none"})


def workers_of(times: Mapping[str, Sequence[float]], **more: Any) -> pd.DataFrame:
    """:func:`loaded` where the arms are levels of the toggle workers, on 4 cores."""
    number = {"none": 0, "one": 1, "half": 2, "cores": 4, "double": 8, "control": 0}
    level = {arm: "none" if arm == "control" else arm for arm in times}
    return loaded(times, observed_workers={a: number[a] for a in times}, toggle_workers=level, **more)


def noisy(seconds: float, n: int = 6, seed: int = 0) -> list[float]:
    """Launches of 1% noise."""
    return [seconds * math.exp(e) for e in np.random.default_rng(seed).normal(0, 0.01, n)]


def test_load_is_examples_loaded_a_second():
    row = effect(loaded({"none": [2.0, 2.0], "lmdb": [1.0, 0.5]}), "lmdb", "load")
    assert row["estimate"] == pytest.approx(math.sqrt(8))
    assert (row["kind"], row["n"]) == ("ratio", 2)


def test_stall_share_is_waiting_over_all_seconds_of_a_launch_with_a_t_interval_over_launches():
    table = loaded({"none": [2.0, 4.0, 1.0]}, mode="end_to_end", waits={"none": [1.0, 1.0, 0.75]})
    row = effect(table, "none", "stall_share")
    assert row["estimate"] == pytest.approx(0.5), "of the baseline too: shares 0.5, 0.25 and 0.75"
    assert row["high"] - row["estimate"] == pytest.approx(4.302653 * 0.25 / math.sqrt(3))
    assert (row["kind"], row["n"]) == ("mean", 3)


def test_a_launch_counts_its_blocks_by_their_length():
    samples = samples_of([("none", 0, 0, 10, 1.0), ("none", 0, 1, 10, 3.0)]).assign(wait_s=[1.0, 0.0])
    trials = trials_of([{"arm": "none", "threads": 4}], mode="end_to_end")
    table = stats.effects(samples, trials, NOTHING, NOTHING, baselines={CMP: "none"})
    row = effect(table, "none", "stall_share")
    assert row["estimate"] == 0.25
    assert math.isnan(row["low"]), "one launch has no interval"


def test_loading_alone_has_no_stall_share():
    table = loaded({"none": [1.0, 1.0], "lmdb": [1.0, 1.0]})
    assert not (table["metric"] == "stall_share").any()


def test_stored_bytes_are_a_ratio_that_one_launch_can_tell():
    table = loaded({"none": [1.0], "npy": [1.0]}, stored_bytes={"none": 1000, "npy": 8000})
    row = effect(table, "npy", "stored_bytes")
    assert row[["estimate", "low", "high"]].tolist() == pytest.approx([8, 8, 8])


def test_the_optimum_of_the_workers_is_given_once_at_the_baseline_for_each_core():
    table = workers_of({"none": noisy(4.0), "one": noisy(4.0, seed=1), "cores": noisy(1.0, seed=2)})
    row = effect(table, "none", "best_workers_per_core")
    assert row[["estimate", "low", "high", "n"]].tolist() == [1, 1, 1, 6]
    assert row["reason"] == "fastest: cores; not slower: none"
    assert (table["metric"] == "best_workers_per_core").sum() == 1


def test_arms_that_are_not_shown_to_be_slower_widen_the_optimum():
    table = workers_of({"none": noisy(4.0), "half": noisy(1.001, seed=1), "double": noisy(1.0, seed=2)})
    row = effect(table, "none", "best_workers_per_core")
    assert (row["low"], row["high"]) == (0.5, 2)
    assert row["estimate"] in (0.5, 2)
    assert row["n"] == 6


def test_the_baseline_itself_can_be_the_optimum_and_the_control_never_is():
    table = workers_of({"none": noisy(1.0), "one": noisy(2.0, seed=1), "control": noisy(0.5, seed=2)})
    row = effect(table, "none", "best_workers_per_core")
    assert row[["estimate", "low", "high"]].tolist() == [0, 0, 0]


def test_one_launch_has_no_place_of_the_optimum():
    row = effect(workers_of({"none": [4.0], "one": [1.0]}), "none", "best_workers_per_core")
    assert math.isnan(row["estimate"])
    assert row["n"] == 0
    assert "fewer than two launches" in row["reason"]


def test_an_arm_with_one_launch_is_left_out_of_the_optimum_and_named():
    table = workers_of({"none": noisy(4.0), "one": noisy(2.0, seed=1), "cores": [0.5]})
    row = effect(table, "none", "best_workers_per_core")
    assert (row["estimate"], row["n"]) == (0.25, 6)
    assert row["reason"].endswith("too few launches: cores")


def test_comparisons_that_do_not_vary_the_workers_have_no_optimum():
    table = loaded({"none": noisy(1.0), "lmdb": noisy(2.0)}, toggle_workers={"none": "cores", "lmdb": "cores"})
    assert not (table["metric"] == "best_workers_per_core").any()


def test_of_arms_that_are_equally_fast_hardly_any_is_called_slower():
    rng = np.random.default_rng(6)
    dropped = 0
    for _ in range(300):
        y = rng.normal(0, 0.02, (6, 3))
        rows = [("a", i, y[i, 0]) for i in range(6)] + [("b", i, y[i, 1]) for i in range(6)]
        found = stats.fastest(pd.DataFrame(rows, columns=["arm", "launch", "y"]), "none")
        assert found is not None
        dropped += len(found.not_slower) < 2
    assert dropped / 300 < 0.1


def test_categories_give_the_same_optimum_as_text():
    rows = pd.DataFrame([("one", i, 0.5 + 0.01 * i) for i in range(4)], columns=["arm", "launch", "y"])
    assert stats.fastest(rows.astype({"arm": "category"}), "none") == stats.fastest(rows, "none")


def convergence_of(curves: dict[tuple[str, int], list[float]], epoch_s: dict[str, float]) -> pd.DataFrame:
    """Accuracies of each (arm, seed) by epoch; an epoch of an arm takes ``epoch_s``."""
    return pd.DataFrame(
        [
            {
                "comparison": CMP,
                "arm": arm,
                "seed": seed,
                "epoch": i + 1,
                "train_s": (i + 1) * epoch_s[arm],
                "accuracy": accuracy,
                "target_accuracy": 0.7,
            }
            for (arm, seed), curve in curves.items()
            for i, accuracy in enumerate(curve)
        ]
    )


@pytest.fixture
def converged() -> pd.DataFrame:
    curves = {("fp32", 0): [0.5, 0.8], ("fp32", 1): [0.7, 0.9], ("fp16", 0): [0.7, 0.7], ("fp16", 1): [0.5, 0.6]}
    trials = trials_of([{"arm": a, "launch": s, "settled": None} for a, s in curves], mode="convergence")
    table = convergence_of(curves, {"fp32": 4.0, "fp16": 2.0})
    return stats.effects(samples_of([]), trials, table, NOTHING, baselines=BASELINES)


def test_accuracy_is_paired_over_seeds_in_points_and_in_percent(converged):
    assert effect(converged, "fp16", "accuracy")["estimate"] == pytest.approx((-10 - 30) / 2)
    assert effect(converged, "fp16", "accuracy")["kind"] == "difference"
    assert effect(converged, "fp16", "accuracy_relative")["estimate"] == pytest.approx((-12.5 - 100 / 3) / 2)


def test_time_to_target_counts_the_seeds_that_never_reach_it(converged):
    row = effect(converged, "fp16", "time_to_target")
    assert row["n"] == 1
    assert row["estimate"] == pytest.approx(2 / 8), "seed 0: after one epoch of 2 s, not two of 4 s"
    assert "fp16 reached it on 1 of 2 seeds" in row["reason"]


def test_epoch_time_is_a_ratio_of_epochs(converged):
    assert effect(converged, "fp16", "epoch_time")["estimate"] == pytest.approx(0.5)


def fits_of(largest: dict[str, int], top: int = 64) -> pd.DataFrame:
    """Probes of a search from 8 in powers of two: 1 up to ``largest``, then one 0."""
    rows = []
    for arm, limit in largest.items():
        batch = 8
        while batch <= top:
            rows.append((CMP, arm, 0, "fits", float(batch <= limit), str(batch)))
            if batch > limit:
                break
            batch *= 2
    return pd.DataFrame(rows, columns=["comparison", "arm", "launch", "check", "value", "toggle_batch"])


def fit_effects(largest: dict[str, int]) -> pd.DataFrame:
    """Effects of one search."""
    trials = trials_of([{"arm": arm} for arm in largest], mode="fit")
    return stats.effects(samples_of([]), trials, NOTHING, fits_of(largest), baselines=BASELINES)


def test_largest_batch_and_what_trains_where_the_baseline_does_not():
    table = fit_effects({"fp32": 16, "fp16": 32, "bf16": 16})
    assert effect(table, "fp16", "largest_batch")[["estimate", "low", "high"]].tolist() == pytest.approx([2, 2, 2])
    assert effect(table, "bf16", "largest_batch")["estimate"] == 1
    assert effect(table, "fp16", "fits_at_baseline_oom")["estimate"] == 1
    assert effect(table, "bf16", "fits_at_baseline_oom")["estimate"] == 0
    assert effect(table, "fp32", "fits_at_baseline_oom")["estimate"] == 1, "half and quarter of 32 train"


def test_a_baseline_that_never_runs_out_leaves_the_question_open():
    row = effect(fit_effects({"fp32": 64, "fp16": 64}), "fp16", "fits_at_baseline_oom")
    assert math.isnan(row["estimate"])
    assert row["reason"] == "the baseline fp32 trained at every batch that was tried"


def test_a_baseline_out_of_memory_at_once_still_answers_for_the_others():
    trials = trials_of([{"arm": "fp32", "status": "oom", "reason": "8 is too much"}, {"arm": "fp16"}], mode="fit")
    table = stats.effects(samples_of([]), trials, NOTHING, fits_of({"fp32": 4, "fp16": 8}), baselines=BASELINES)
    row = effect(table, "fp16", "fits_at_baseline_oom")
    assert (row["estimate"], row["status"], row["reason"]) == (1, "ok", "")
    assert effect(table, "fp16", "largest_batch")["n"] == 0
    assert effect(table, "fp32", "fits_at_baseline_oom")["reason"].endswith("smallest batch that was tried")


def test_checks_are_values_and_a_silent_check_keeps_a_row():
    trials = trials_of(
        [{"arm": "float_eps"}, {"arm": "mixed_policy", "status": "error", "reason": "raised"}], mode="check"
    )
    checks = pd.DataFrame([{"comparison": CMP, "arm": "float_eps", "launch": 0, "check": "eps_float16", "value": 9e-4}])
    table = stats.effects(samples_of([]), trials, NOTHING, checks, baselines={CMP: "float_eps"})
    row = effect(table, "float_eps", "eps_float16")
    assert (row["kind"], row["estimate"], row["low"], row["n"]) == ("value", 9e-4, 9e-4, 1)
    lost = effect(table, "mixed_policy", "checks")
    assert (lost["status"], lost["reason"], lost["n"]) == ("error", "raised", 0)


def as_the_store_reads(table: pd.DataFrame) -> pd.DataFrame:
    """Text as categories, each column with its own."""
    text = [c for c in table.columns if pd.api.types.is_string_dtype(table[c])]
    return table.astype(dict.fromkeys(text, "category"))


def test_categories_give_the_same_effects_as_text():
    samples, trials = two_launches()
    plain = stats.effects(samples, trials, NOTHING, NOTHING, baselines=BASELINES)
    stored = stats.effects(
        as_the_store_reads(samples), as_the_store_reads(trials), NOTHING, NOTHING, baselines=BASELINES
    )
    pd.testing.assert_frame_equal(stored, plain)
    both = [
        as_the_store_reads(pd.concat([t, t.assign(comparison="model/torch/cnn").replace({"arm": {"fp32": "heavy"}})]))
        for t in (samples, trials)
    ]
    two = BASELINES | {"model/torch/cnn": "heavy"}
    table = stats.effects(both[0], both[1], NOTHING, NOTHING, baselines=two)
    assert table.loc[table["metric"] == "throughput", "estimate"].tolist() == pytest.approx([4, 4])
    curves = {("fp32", 0): [0.5, 0.8], ("fp16", 0): [0.7, 0.7]}
    seeds = as_the_store_reads(trials_of([{"arm": a, "launch": s} for a, s in curves], mode="convergence"))
    epochs = as_the_store_reads(convergence_of(curves, {"fp32": 4.0, "fp16": 2.0}))
    table = stats.effects(samples_of([]), seeds, epochs, NOTHING, baselines=BASELINES)
    assert effect(table, "fp16", "accuracy")["estimate"] == pytest.approx(-10)
    largest = {"fp32": 16, "fp16": 32}
    searches = as_the_store_reads(trials_of([{"arm": arm} for arm in largest], mode="fit"))
    probes = as_the_store_reads(fits_of(largest))
    pd.testing.assert_frame_equal(
        stats.effects(samples_of([]), searches, NOTHING, probes, baselines=BASELINES), fit_effects(largest)
    )


def test_an_empty_run_has_no_effects():
    table = stats.effects(samples_of([]), trials_of([]), NOTHING, NOTHING, baselines={})
    assert table.empty
    assert tuple(table.columns) == EFFECT_COLUMNS


# --- size ---


def large(n: int) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, str]]:
    """n samples of 10 comparisons with 10 arms and 10 launches each; arm k is k + 1 times as fast as arm 0."""
    shape = (10, 10, n // 1000, 10)
    c, launch, turn, arm = (x.ravel() for x in np.indices(shape))
    noise = np.random.default_rng(0).normal(0, 0.02, c.size)
    samples = pd.DataFrame(
        {
            "comparison": np.array([f"s/torch/w{i}" for i in range(10)])[c],
            "arm": np.array([f"a{i}" for i in range(10)])[arm],
            "launch": launch,
            "round": turn,
            "items": 64,
            "seconds": np.exp(noise) / (1 + arm),
        }
    )
    keys = samples[["comparison", "arm", "launch"]].drop_duplicates().to_dict("records")
    return samples, trials_of(keys), {f"s/torch/w{i}": "a0" for i in range(10)}


def seconds_for(n: int) -> tuple[float, pd.DataFrame]:
    """CPU time and effects of n samples."""
    samples, trials, baselines = large(n)
    start = time.process_time()
    table = stats.effects(samples, trials, NOTHING, NOTHING, baselines=baselines)
    return time.process_time() - start, table


def test_a_million_rows_take_seconds_and_time_is_linear():
    small, _ = seconds_for(250_000)
    big, table = seconds_for(1_000_000)
    assert big < 10
    assert big < 4 * small * 2, "four times the rows in not much more than four times the time"
    assert effect(table[table["comparison"] == "s/torch/w3"], "a4", "throughput")["estimate"] == pytest.approx(
        5, rel=0.01
    )
