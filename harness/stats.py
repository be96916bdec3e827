"""From raw rows to effects: ratios, differences and values with their intervals.

:func:`effects` is what claims, plots and tables read. The numbers behind it are in :mod:`harness.inference` and the
names in :mod:`harness.metrics`; both are offered here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from harness.errors import ResultsError
from harness.inference import (
    CONFIDENCE,
    Interval,
    Summary,
    difference_interval,
    half_width,
    holm,
    order_interval,
    range_interval,
    ratio_interval,
    smallest_detectable_effect,
    t_interval,
)
from harness.metrics import METRICS, Kind, Metric, kind_of, metrics_of
from harness.schema import EFFECT_COLUMNS, toggle_column
from harness.spec import CONTROL, Mode, Status

__all__ = [
    "CONFIDENCE",
    "METRICS",
    "Fastest",
    "Interval",
    "Kind",
    "Metric",
    "Summary",
    "block_log_ratio",
    "difference_interval",
    "effects",
    "fastest",
    "half_width",
    "holm",
    "kind_of",
    "launch_log_ratios",
    "metrics_of",
    "order_interval",
    "range_interval",
    "ratio_interval",
    "smallest_detectable_effect",
    "t_interval",
]

_WORST_FIRST = (Status.ERROR, Status.OOM, Status.TIMEOUT, Status.INTERRUPTED, Status.UNAVAILABLE)
_ARM = ["comparison", "arm"]
_TRIAL = ["comparison", "arm", "launch"]


def block_log_ratio(baseline_seconds_per_item: ArrayLike, treatment_seconds_per_item: ArrayLike) -> NDArray[np.float64]:
    """log(t_baseline / t_treatment) [blocks] of blocks paired by round, in time per item.

    Above 0 the treatment is faster.
    """
    baseline = np.asarray(baseline_seconds_per_item, dtype=float)
    return np.asarray(np.log(baseline / np.asarray(treatment_seconds_per_item, dtype=float)))


def _of_baseline(table: pd.DataFrame, baselines: Mapping[str, str]) -> pd.Series:
    """Which rows belong to the baseline arm; as objects, since categories of unequal sets cannot compare."""
    return table["arm"].astype(object) == table["comparison"].astype(object).map(baselines)


def launch_log_ratios(samples: pd.DataFrame, trials: pd.DataFrame, baselines: Mapping[str, str]) -> pd.DataFrame:
    """One row a launch of a treatment: ``comparison, arm, launch, y``; y is the median of its rounds' log ratios.

    A round without the baseline's block has no ratio. Samples of a trial that is not ok do not count: its launch was
    not finished. Linear in the rows of ``samples``. Raises ResultsError where a cell has two blocks in one round.
    """
    ok = trials.loc[trials["status"] == Status.OK, _TRIAL]
    rows = samples[[*_TRIAL, "round", "items", "seconds"]].merge(ok, on=_TRIAL)
    rows["t"] = rows["seconds"] / rows["items"]
    is_baseline = _of_baseline(rows, baselines)
    turn = ["comparison", "launch", "round"]
    twice = rows.duplicated([*turn, "arm"])
    if twice.any():
        first = rows[twice].iloc[0]
        raise ResultsError(
            f"samples.csv: two blocks of arm {first['arm']!r} in {first['comparison']}, launch {first['launch']}, "
            f"round {first['round']}; a cell has one block a round. Measure the launch again."
        )
    pairs = rows[~is_baseline].merge(rows.loc[is_baseline, [*turn, "t"]], on=turn, suffixes=("", "_baseline"))
    pairs["y"] = block_log_ratio(pairs["t_baseline"].to_numpy(), pairs["t"].to_numpy())
    return pairs.groupby(_TRIAL, sort=True, observed=True)["y"].median().reset_index()


def effects(
    samples: pd.DataFrame,
    trials: pd.DataFrame,
    convergence: pd.DataFrame,
    checks: pd.DataFrame,
    *,
    baselines: Mapping[str, str],
) -> pd.DataFrame:
    """A row for each comparison, treatment and metric, with exactly the columns of ``schema.EFFECT_COLUMNS``.

    The tables are those of ``harness.schema``, of one run; ``baselines`` names the baseline arm of each comparison.
    Every arm that has a trial has its rows, the control too; one without a value has a null estimate, and its
    status and reason say why.
    """
    arms = _arms(trials, baselines)
    pairs = _per_launch(samples, trials, convergence, checks, baselines)
    order = {name: i for i, name in enumerate(METRICS)}
    rows = [
        _row(arm, metric, values.get((arm.comparison, arm.arm)))
        for metric, values in sorted(pairs.items(), key=lambda item: order.get(item[0], len(order)))
        for arm in arms.values()
        if _has(arm, metric, values)
    ]
    table = pd.DataFrame(rows, columns=list(EFFECT_COLUMNS))
    return table.sort_values(["comparison", "arm"], kind="stable", ignore_index=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class _ArmFacts:
    comparison: str
    study: str
    framework: str
    workload: str
    arm: str
    baseline: str
    mode: Mode
    status: Status
    reason: str
    unfit: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Values:
    """One number a launch or seed: log ratios, differences or values, by the metric's kind."""

    numbers: NDArray[np.float64]
    note: str = ""
    estimate: float | None = None  # where it is not the middle of the numbers
    launches: int | None = None  # where the numbers are not one a launch


_ByArm = dict[tuple[str, str], _Values]
_OF_BASELINE = {  # that a baseline has too
    "fits_at_baseline_oom",
    "stall_share",
    "best_workers_per_core",
    "communication_share",
}
_WHERE_FOUND = {"best_workers_per_core", "communication_share", "scaling_efficiency"}  # of comparisons that ask for it
_INTERVALS = {
    Kind.RATIO: ratio_interval,
    Kind.DIFFERENCE: difference_interval,
    Kind.MEAN: difference_interval,
    Kind.VALUE: range_interval,
}


def _has(arm: _ArmFacts, metric: str, values: _ByArm) -> bool:
    """Whether this arm has a row for this metric: one that it was measured for, or one that its mode would give."""
    found = (arm.comparison, arm.arm) in values
    if arm.mode is Mode.CHECK:
        return found
    if arm.arm == arm.baseline and metric not in _OF_BASELINE:
        return False
    if metric in _WHERE_FOUND:
        return found
    return metric in METRICS and arm.mode in METRICS[metric].modes


def _row(arm: _ArmFacts, metric: str, values: _Values | None) -> dict[str, object]:
    kind = kind_of(metric)
    numbers = values.numbers if values is not None else np.empty(0)
    interval = _INTERVALS[kind](numbers)
    if values is not None and values.estimate is not None:
        interval = replace(interval, estimate=values.estimate)
    if values is not None and values.launches is not None:
        interval = replace(interval, n=values.launches)
    low, high = interval.low, interval.high
    if interval.n == 1 and metric in {"parameters", "largest_batch", "stored_bytes"}:  # one count is enough
        low = high = interval.estimate
    reasons = [arm.reason, values.note if values is not None else ""]
    if interval.n == 0 and not any(reasons):
        reasons.append("no energy counter" if metric == "energy" else "no value was recorded")
    if interval.n == 1 and np.isnan(low):
        reasons.append("one launch or seed: no interval")
    return {
        **{name: getattr(arm, name) for name in ("comparison", "study", "framework", "workload", "arm", "baseline")},
        "metric": metric,
        "kind": kind.value,
        "estimate": interval.estimate,
        "low": low,
        "high": high,
        "order_low": interval.order_low,
        "order_high": interval.order_high,
        "order_coverage": interval.order_coverage,
        "n": interval.n,
        "status": arm.status.value,
        "reason": "; ".join(r for r in reasons if r),
        "unfit": arm.unfit,
    }


def _arms(trials: pd.DataFrame, baselines: Mapping[str, str]) -> dict[tuple[str, str], _ArmFacts]:
    """What befell every arm, its baseline's failure included."""
    groups = trials.groupby(_ARM, sort=True, observed=True)
    states = {key: _state(group) for key, group in groups}
    crowded = {key: _oversubscribed(group) for key, group in groups}
    arms = {}
    for row in trials.drop_duplicates(_ARM).to_dict("records"):
        comparison, arm = str(row["comparison"]), str(row["arm"])
        if comparison not in baselines:
            known = ", ".join(sorted(baselines)) or "none"
            raise ResultsError(f"trials.csv: comparison {comparison!r} has no baseline in run.yaml; known: {known}")
        baseline = baselines[comparison]
        status, reason, any_ok = states[comparison, arm]
        base_status, base_reason, base_ok = states.get(
            (comparison, baseline), (Status.INTERRUPTED, "it has no trial", False)
        )
        if any_ok and not base_ok:
            status, reason = base_status, f"the baseline {baseline} has no value: {base_reason}"
        arms[comparison, arm] = _ArmFacts(
            comparison=comparison,
            study=str(row["study"]),
            framework=str(row["framework"]),
            workload=str(row["workload"]),
            arm=arm,
            baseline=baseline,
            mode=Mode(row["mode"]),
            status=status,
            reason=reason,
            unfit=crowded[comparison, arm] or crowded.get((comparison, baseline), ""),
        )
    return dict(sorted(arms.items()))


def _state(group: pd.DataFrame) -> tuple[Status, str, bool]:
    """Worst status of an arm's trials, the reason, and whether any has a value (to a fit, running out is an answer)."""
    status = group["status"].to_numpy()
    worst = next((s for s in _WORST_FIRST if (status == s).any()), Status.OK)
    unsettled = int((group["settled"].map(_is_false) & (status == Status.OK)).sum())
    parts = []
    if worst is not Status.OK:
        bad = group.loc[status == worst, "reason"]
        often = f"{worst.value} in {len(bad)} of {len(group)}: " if len(group) > 1 else ""
        parts.append(f"{often}{bad.iloc[0]}")
    if unsettled:
        parts.append(f"warm-up did not settle in {unsettled} of {len(group)} launches")
    has_value = (status == Status.OK) | ((status == Status.OOM) & (group["mode"] == Mode.FIT).to_numpy())
    return worst, "; ".join(parts), bool(has_value.any())


def _oversubscribed(group: pd.DataFrame) -> str:
    """That the arm's devices outnumbered the cores, with their number; empty where they did not."""
    crowded = group[group["oversubscribed"].map(_is_true)]
    if crowded.empty:
        return ""
    return f"oversubscribed: {int(crowded['observed_devices'].iloc[0])} devices on fewer cores"


def _is_true(value: object) -> bool:
    return not pd.isna(value) and bool(value)  # type: ignore[call-overload]


def _is_false(value: object) -> bool:
    return not pd.isna(value) and not bool(value)  # type: ignore[call-overload]


def _per_launch(
    samples: pd.DataFrame,
    trials: pd.DataFrame,
    convergence: pd.DataFrame,
    checks: pd.DataFrame,
    baselines: Mapping[str, str],
) -> dict[str, _ByArm]:
    """For every metric the numbers of each arm; a metric of a mode that the run has is there even without numbers."""
    ok = trials[trials["status"] == Status.OK]
    modes = {Mode(m) for m in trials["mode"].unique()}
    found: dict[str, _ByArm] = {name: {} for m in modes for name in metrics_of(m) if m is not Mode.CHECK}
    for mode, metric in ((Mode.LOADING, "load"), (Mode.END_TO_END, "throughput")):
        if mode in modes:
            stored = ok[ok["mode"] == mode]
            ratios = launch_log_ratios(samples, stored, baselines)
            found[metric] |= _collect(ratios)
            found["stored_bytes"] |= _collect(_log_of_pairs(stored, "stored_bytes", baselines))
            found["best_workers_per_core"] |= _best_workers(stored, ratios, baselines)
    if Mode.END_TO_END in modes:
        found["stall_share"] = _collect(_stall_shares(samples, ok[ok["mode"] == Mode.END_TO_END]))
    if Mode.STEADY in modes:
        steady = ok[ok["mode"] == Mode.STEADY]
        ratios = launch_log_ratios(samples, steady, baselines)
        found["throughput"] |= _collect(ratios)
        found["step_time"] = _collect(ratios.assign(y=-ratios["y"]))
        found["scaling_efficiency"] = _collect(_efficiencies(steady, ratios, baselines))
        found["communication_share"] = _collect(_communication(steady, ratios, baselines))
        items = samples.groupby(_TRIAL, observed=True)["items"].sum().rename("items").reset_index()
        steady = steady.merge(items, on=_TRIAL, how="left")
        steady["energy_per_item"] = steady["energy_j"].astype(float) / steady["items"]
        for metric, column in (("memory", "peak_bytes"), ("parameters", "parameters"), ("energy", "energy_per_item")):
            found[metric] = _collect(_log_of_pairs(steady, column, baselines))
    if Mode.CONVERGENCE in modes:
        found |= _convergence(convergence.merge(ok[_TRIAL].rename(columns={"launch": "seed"})), baselines)
    if Mode.FIT in modes:
        answered = trials[(trials["mode"] == Mode.FIT) & trials["status"].isin([Status.OK, Status.OOM])]
        fits = checks[checks["check"] == "fits"].merge(answered[_TRIAL])
        found |= _fits(fits, baselines)
    if Mode.CHECK in modes:
        named = checks.merge(trials.loc[trials["mode"] == Mode.CHECK, _TRIAL])
        for check, group in named.groupby("check", observed=True):
            found[str(check)] = _collect(group.rename(columns={"value": "y"}))
        silent = (
            trials[(trials["mode"] == Mode.CHECK)]
            .drop_duplicates(_ARM)
            .merge(named[_ARM].drop_duplicates(), how="left", indicator="seen", on=_ARM)
        )
        lost = silent.loc[silent["seen"] == "left_only", _ARM].itertuples(index=False)
        found["checks"] = {(c, a): _Values(numbers=np.empty(0)) for c, a in lost}
    return found


def _collect(table: pd.DataFrame) -> _ByArm:
    """Column ``y`` of ``table`` as numbers for each (comparison, arm)."""
    return {
        (str(c), str(a)): _Values(numbers=group["y"].to_numpy(dtype=float))
        for (c, a), group in table.groupby(_ARM, observed=True)
    }


def _pairs(table: pd.DataFrame, columns: list[str], baselines: Mapping[str, str], by: str) -> pd.DataFrame:
    """Each treatment's row beside its baseline's of the same launch or seed (suffix ``_baseline``)."""
    is_baseline = _of_baseline(table, baselines)
    base = table.loc[is_baseline, ["comparison", by, *columns]]
    treatment = table.loc[~is_baseline, [*_ARM, by, *columns]]
    return treatment.merge(base, on=["comparison", by], suffixes=("", "_baseline"), validate="many_to_one")


def _log_of_pairs(table: pd.DataFrame, column: str, baselines: Mapping[str, str], by: str = "launch") -> pd.DataFrame:
    """``y`` = log(treatment / baseline) of a column; a pair with a missing or zero side has none."""
    pairs = _pairs(table, [column], baselines, by)
    treatment, base = pairs[column].astype(float), pairs[f"{column}_baseline"].astype(float)
    pairs = pairs[(treatment > 0) & (base > 0)]
    return pairs.assign(y=np.log(treatment / base))


def _convergence(rows: pd.DataFrame, baselines: Mapping[str, str]) -> dict[str, _ByArm]:
    """Accuracy after the last epoch, time to the target and time of an epoch, paired over seeds."""
    seed = [*_ARM, "seed"]
    rows = rows.sort_values([*seed, "epoch"])
    last = rows.drop_duplicates(seed, keep="last")
    accuracy = _pairs(last, ["accuracy"], baselines, "seed")
    points = 100 * (accuracy["accuracy"] - accuracy["accuracy_baseline"])
    base = accuracy["accuracy_baseline"]
    relative = accuracy.assign(y=points / base)[base > 0]
    rows = rows.assign(epoch_s=rows.groupby(seed, observed=True)["train_s"].diff().fillna(rows["train_s"]))
    epoch = rows.groupby(seed, observed=True)["epoch_s"].median().reset_index()
    reached = rows[rows["accuracy"] >= rows["target_accuracy"]].drop_duplicates(seed, keep="first")
    return {
        "accuracy": _collect(accuracy.assign(y=points)),
        "accuracy_relative": _collect(relative),
        "time_to_target": _reached(last, reached, baselines),
        "epoch_time": _collect(_log_of_pairs(epoch, "epoch_s", baselines, "seed")),
    }


def _reached(last: pd.DataFrame, reached: pd.DataFrame, baselines: Mapping[str, str]) -> _ByArm:
    """Time to the target where both sides reach it; the note counts the seeds that did not."""
    seeds, hits = last.groupby(_ARM, observed=True).size(), reached.groupby(_ARM, observed=True).size()
    values = _collect(_log_of_pairs(reached, "train_s", baselines, "seed"))
    for key in seeds.index:
        comparison, arm = key
        sides = ((arm, key), (baselines[comparison], (comparison, baselines[comparison])))
        short = [
            f"{name} reached it on {hits.get(k, 0)} of {seeds.get(k, 0)} seeds"
            for name, k in sides
            if hits.get(k, 0) < seeds.get(k, 0)
        ]
        numbers = values[key].numbers if key in values else np.empty(0)
        values[key] = _Values(numbers=numbers, note=", ".join(short))
    return values


def _stall_shares(samples: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """``y`` = share of its timed seconds that each launch of an arm spent waiting for a batch."""
    sums = samples.merge(trials[_TRIAL]).groupby(_TRIAL, observed=True)[["wait_s", "seconds"]].sum().reset_index()
    return sums.assign(y=sums["wait_s"] / sums["seconds"])


def _efficiencies(trials: pd.DataFrame, ratios: pd.DataFrame, baselines: Mapping[str, str]) -> pd.DataFrame:
    """``y`` = log of throughput ratio over ratio of devices, for arms that have more of them than their baseline."""
    devices = _log_of_pairs(trials, "observed_devices", baselines).rename(columns={"y": "log_devices"})
    both = ratios.merge(devices[[*_TRIAL, "log_devices"]], on=_TRIAL)
    both = both[both["log_devices"] > 0]
    return both.assign(y=both["y"] - both["log_devices"])


def _communication(trials: pd.DataFrame, ratios: pd.DataFrame, baselines: Mapping[str, str]) -> pd.DataFrame:
    """``y`` = the share of the baseline's step that is gone without exchange, given at the baseline of each launch."""
    silent = trials.loc[trials[toggle_column("gradient_sync")] == "none", _TRIAL]
    left = ratios.merge(silent, on=_TRIAL)
    baseline = left["comparison"].astype(object).map(baselines)
    return left.assign(arm=baseline, y=1 - np.exp(-left["y"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fastest:
    """The ``best`` arm of a comparison, those ``not_slower`` (shown to be), and those with too few launches to say.

    ``launches`` counts the launches in which every arm that was compared has a value.
    """

    best: str
    not_slower: tuple[str, ...]
    left_out: tuple[str, ...]
    launches: int


def fastest(ratios: pd.DataFrame, baseline: str) -> Fastest | None:
    """Which arms of one comparison are fastest; ``None`` with fewer than two launches to compare them in.

    ``ratios`` are rows of :func:`launch_log_ratios`, the control among them or not. An arm is slower than the best
    where a one-sided t test over launches shows it at 2.5%, Holm-adjusted over the arms.
    """
    table = ratios.astype({"arm": object}).pivot(index="launch", columns="arm", values="y")
    table = table.drop(columns=CONTROL, errors="ignore").assign(**{baseline: 0.0})
    enough = table.count() >= 2  # noqa: PLR2004 - one launch has no spread
    left_out = tuple(str(arm) for arm in table.columns[~enough])
    table = table.loc[:, enough].dropna()
    if len(table) < 2 or len(table.columns) < 2:  # noqa: PLR2004
        return None
    best = str(table.mean().idxmax())
    others = [str(arm) for arm in table.columns if arm != best]
    slower = holm([Summary.of(table[arm] - table[best]).p_below(0.0) for arm in others])
    tied = tuple(arm for arm, p in zip(others, slower, strict=True) if p > (1 - CONFIDENCE) / 2)
    return Fastest(best=best, not_slower=tied, left_out=left_out, launches=len(table))


def _best_workers(trials: pd.DataFrame, ratios: pd.DataFrame, baselines: Mapping[str, str]) -> _ByArm:
    """Of each comparison that varies the workers, given at its baseline: the workers a core that load fastest.

    The numbers are those of the :func:`fastest` arm and of every arm that is not slower; the estimate is the first.
    """
    found: _ByArm = {}
    level = toggle_column("workers")
    for comparison, group in trials.groupby("comparison", observed=True):
        if group.loc[group["arm"].astype(object) != CONTROL, level].nunique() < 2:  # noqa: PLR2004
            continue
        baseline = baselines[str(comparison)]
        per_core = (group["observed_workers"] / group["threads"]).groupby(group["arm"].astype(object)).first()
        places = fastest(ratios[ratios["comparison"] == comparison], baseline)
        if places is None:
            note = "fewer than two launches of two arms: no place of the optimum"
            found[str(comparison), baseline] = _Values(numbers=np.empty(0), note=note)
            continue
        notes = [f"fastest: {places.best}", f"not slower: {', '.join(places.not_slower) or 'none'}"]
        if places.left_out:
            notes.append(f"too few launches: {', '.join(places.left_out)}")
        found[str(comparison), baseline] = _Values(
            numbers=per_core[[places.best, *places.not_slower]].to_numpy(dtype=float),
            estimate=float(per_core[places.best]),
            launches=places.launches,
            note="; ".join(notes),
        )
    return found


def _fits(fits: pd.DataFrame, baselines: Mapping[str, str]) -> dict[str, _ByArm]:
    """Largest batch that trained, and what happens where the baseline first runs out of memory."""
    fits = fits.assign(batch=fits[toggle_column("batch")].astype(int))
    trained, failed = fits[fits["value"] > 0], fits[fits["value"] == 0]
    largest = trained.groupby(_TRIAL, observed=True)["batch"].max().reset_index()
    searches = fits.groupby(_TRIAL, observed=True)["batch"].min().rename("smallest").reset_index()
    searches = searches.merge(largest, on=_TRIAL, how="left").fillna({"batch": 0})
    is_baseline = _of_baseline(failed, baselines)
    limit = failed[is_baseline].groupby(["comparison", "launch"], observed=True)["batch"].min().rename("limit")
    searches = searches.merge(limit.reset_index(), on=["comparison", "launch"], how="left")
    at_oom: _ByArm = {}
    for key, group in searches.groupby(_ARM, observed=True):
        comparison, arm = map(str, key)
        baseline, known = baselines[comparison], group[group["limit"].notna()]
        # A search goes up until it fails, so whoever trained at a batch trained at every smaller one that it tried.
        wanted = known["limit"] if arm != baseline else known["limit"] // 2
        tried = known["smallest"] <= wanted if arm == baseline else wanted.notna()
        note = ""
        if known.empty:
            note = f"the baseline {baseline} trained at every batch that was tried"
        elif not tried.any():
            note = f"{baseline} did not train at the smallest batch that was tried"
        reached = known.loc[tried, "batch"] >= wanted[tried]
        at_oom[comparison, arm] = _Values(numbers=np.asarray(reached, dtype=np.float64), note=note)
    return {"largest_batch": _collect(_log_of_pairs(largest, "batch", baselines)), "fits_at_baseline_oom": at_oom}
