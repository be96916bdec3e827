"""Judging claims against measured effects; pure. The claims file itself is read by :mod:`harness.claim_file`."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import pandas as pd

from harness.claim_file import Claim, Measure, Published, Range, Scope, load_claims
from harness.inference import CONFIDENCE, Summary, holm
from harness.metrics import METRICS, Kind, is_exact, kind_of
from harness.schema import VERDICT_COLUMNS
from harness.spec import CONTROL, Status

__all__ = ["Claim", "Measure", "Published", "Range", "RunFacts", "Scope", "Verdict", "judge", "load_claims"]

A_A_LIMIT = 0.02  # how far a control may exclude 1 before it condemns what was measured beside it
ALPHA = (1 - CONFIDENCE) / 2  # one side of the 95% interval


class Verdict(StrEnum):
    """What is said of one reading of a claim."""

    SUPPORTED = "supported"
    BELOW = "below"
    ABOVE = "above"
    INCONCLUSIVE = "inconclusive"
    OUT_OF_SCOPE = "out_of_scope"
    NOT_RUN = "not_run"
    INVALID = "invalid"
    ACCURACY_UNVERIFIED = "accuracy_unverified"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """The hardware of a run, as far as a claim's scope asks.

    ``kinds`` gives for each framework the kinds of device that it shows ("cpu", "gpu"): one may see a GPU that the
    other does not. ``capability`` is the CUDA compute capability, 9.0 for instance.
    """

    kinds: Mapping[str, frozenset[str]]
    gpu: str | None = None
    capability: float | None = None
    gpus: int = 0
    cores: int = 1
    tpu: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One line of the verdict table in the making; ``p`` is the p value of the verdict that the estimate proposes."""

    claim: str
    reading: str
    measure: Measure
    framework: str = ""
    workload: str = ""
    arm: str = ""
    estimate: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    verdict: Verdict
    p: float | None = None
    otherwise: Verdict = Verdict.INCONCLUSIVE
    notes: tuple[str, ...] = field(default=())


_Effect = dict[Hashable, Any]  # one row of the effects, by column
_ByArm = dict[tuple[str, str], list[_Effect]]  # by study and arm


def judge(claims: Sequence[Claim], effects: pd.DataFrame, run_facts: RunFacts) -> pd.DataFrame:
    """A row for each claim, reading, framework, workload and arm, with the columns of ``schema.VERDICT_COLUMNS``.

    The point estimate proposes supported, below or above; the proposal stands if its one-sided p value is at most
    2.5% after Holm's adjustment over all judged rows of the run, else the row is inconclusive (a claim of no loss:
    accuracy_unverified). ``range_low`` and ``range_high`` are the claimed range, without the tolerance.
    """
    records = effects.to_dict("records")
    by_arm: _ByArm = {}
    for effect in records:
        by_arm.setdefault((effect["study"], effect["arm"]), []).append(effect)
    controls = _Controls(records)
    rows = [row for claim in claims for row in _rows_of(claim, by_arm, run_facts, controls)]
    judged = [i for i, row in enumerate(rows) if row.p is not None]
    adjusted = holm([p for row in rows if (p := row.p) is not None])
    for i, p in zip(judged, adjusted, strict=True):
        rows[i] = _settle(rows[i], float(p), len(judged))
    return pd.DataFrame([_as_record(row) for row in rows], columns=list(VERDICT_COLUMNS))


def _settle(row: _Row, p: float, tests: int) -> _Row:
    keeps = p <= ALPHA
    note = f"p = {p:.2g} after Holm over {tests} tests"
    if not keeps and row.verdict is not row.otherwise:
        note = f"{row.verdict.value} is not shown: {note}"
    return replace(row, verdict=row.verdict if keeps else row.otherwise, notes=(*row.notes, note))


def _as_record(row: _Row) -> dict[str, object]:
    claimed = row.measure.readings[row.reading]
    return {
        "claim": row.claim,
        "reading": row.reading,
        "framework": row.framework,
        "study": row.measure.study or "",
        "workload": row.workload,
        "arm": row.arm,
        "metric": row.measure.metric,
        "estimate": row.estimate,
        "low": row.low,
        "high": row.high,
        "n": row.n,
        "range_low": math.nan if claimed.low is None else claimed.low,
        "range_high": math.nan if claimed.high is None else claimed.high,
        "verdict": row.verdict.value,
        "reason": "; ".join(note for note in row.notes if note),
    }


class _Controls:
    """What the A/A arms of a run say of the comparisons, each of its own, or of the one that it shares."""

    def __init__(self, records: Sequence[_Effect]) -> None:
        self._own: dict[tuple[str, str], str] = {}
        self._shared: dict[tuple[str, str], str] = {}
        for e in records:
            if e["arm"] != CONTROL or e["kind"] != Kind.RATIO:
                continue
            bad = e["low"] > 1 + A_A_LIMIT or e["high"] < 1 - A_A_LIMIT
            said = f"the A/A arm shows {e['low']:.3f} to {e['high']:.3f} instead of 1" if bad else ""
            self._own[e["comparison"], e["metric"]] = said
            where = _without_study(e["comparison"])
            self._shared[where, e["metric"]] = self._shared.get((where, e["metric"]), "") or said

    def condemn(self, comparison: str, metrics: Sequence[str]) -> str:
        """Why nothing that rests on these metrics can be believed in this comparison; empty where it can."""
        for metric in metrics:
            shared = self._shared.get((_without_study(comparison), metric), "")
            if said := self._own.get((comparison, metric), shared):
                return said
        return ""


def _without_study(comparison: str) -> str:
    return comparison.partition("/")[2]


def _rows_of(claim: Claim, by_arm: _ByArm, facts: RunFacts, controls: _Controls) -> Iterator[_Row]:
    for measure in claim.measures:
        scope = measure.scope or claim.scope
        for reading in measure.readings:
            blank = _Row(claim=claim.id, reading=reading, measure=measure, verdict=Verdict.NOT_RUN)
            if scope.never:
                yield replace(blank, verdict=Verdict.OUT_OF_SCOPE, notes=(scope.never,))
            elif measure.study is None:
                yield replace(blank, notes=("no study yet",))
            else:
                yield from _measured(blank, by_arm, scope, facts, controls)


def _measured(blank: _Row, by_arm: _ByArm, scope: Scope, facts: RunFacts, controls: _Controls) -> Iterator[_Row]:
    """One row for each arm in each comparison of the measure's study; an arm without any still has one."""
    measure = blank.measure
    for arm in measure.arms:
        comparisons: dict[str, list[_Effect]] = {}
        for effect in by_arm.get((measure.study or "", arm), []):
            if measure.workloads and effect["workload"] not in measure.workloads:
                continue
            if measure.frameworks and effect["framework"] not in measure.frameworks:
                continue
            comparisons.setdefault(effect["comparison"], []).append(effect)
        if not comparisons:
            yield replace(blank, arm=arm, notes=(f"study {measure.study} is not part of this run",))
        for found in comparisons.values():
            row = replace(blank, arm=arm, framework=found[0]["framework"], workload=found[0]["workload"])
            named = next((e for e in found if e["metric"] == measure.metric), None)
            if named is None:
                why = found[0]["reason"] if found[0]["status"] != Status.OK else ""
                yield replace(row, notes=(f"no value {measure.metric} in this run", why))
            else:
                yield _judged(row, named, scope, facts, controls)


def _judged(
    row: _Row,
    effect: _Effect,
    scope: Scope,
    facts: RunFacts,
    controls: _Controls,
) -> _Row:
    status, reason = str(effect["status"]), str(effect["reason"])
    row = replace(row, **{name: effect[name] for name in ("estimate", "low", "high", "n")}, notes=(reason,))
    outside = _outside(scope, facts, row.framework) or str(effect.get("unfit") or "")
    if math.isnan(row.estimate):
        note = reason if status == Status.OK or reason.startswith(status) else f"{status}: {reason}"
        return replace(row, notes=(note, outside))
    if outside or row.measure.proxy:
        return replace(row, verdict=Verdict.OUT_OF_SCOPE, notes=(outside or row.measure.proxy, reason))
    metric = row.measure.metric
    asked = (metric, *(METRICS[metric].rests_on if metric in METRICS else ()))
    if control := controls.condemn(str(effect["comparison"]), asked):
        return replace(row, verdict=Verdict.INVALID, notes=(control, reason))
    return _propose(row)


def _outside(scope: Scope, facts: RunFacts, framework: str) -> str:
    """Why this hardware is not what the claim speaks of; empty where it is."""
    kinds = facts.kinds.get(framework, frozenset())
    capability = -math.inf if facts.capability is None else facts.capability
    asks_capability = scope.capability_from is not None or scope.capability_below is not None
    checks = (
        (scope.tpu and not facts.tpu, "the claim speaks of a TPU, and this run had none"),
        (
            scope.device == "gpu" and "gpu" not in kinds,
            f"the claim speaks of a GPU, and {framework or 'the framework'} shows none here",
        ),
        (scope.device == "cpu" and "cpu" not in kinds, "the claim speaks of a CPU"),
        (scope.devices > max(1, facts.gpus), f"the claim speaks of {scope.devices} GPUs, this run had {facts.gpus}"),
        (
            bool(scope.gpu) and scope.gpu.lower() not in (facts.gpu or "").lower(),
            f"the claim speaks of {scope.gpu}, this run had {facts.gpu or 'no GPU'}",
        ),
        (asks_capability and facts.capability is None, "the claim speaks of CUDA GPUs, this run had none"),
        (
            scope.capability_from is not None and capability < scope.capability_from,
            f"the claim speaks of compute capability {scope.capability_from} and up, this GPU has {capability}",
        ),
        (
            scope.capability_below is not None and capability >= scope.capability_below,
            f"the claim speaks of compute capability below {scope.capability_below}, this GPU has {capability}",
        ),
    )
    return next((reason for applies, reason in checks if applies), "")


def _propose(row: _Row) -> _Row:
    """The verdict that the estimate proposes and its p value; without an interval there is nothing to propose."""
    measure = row.measure
    low, high = measure.widened(row.reading)
    if is_exact(measure.metric, row.low, row.high):
        return replace(row, verdict=_plain(row, low, high))
    otherwise = Verdict.ACCURACY_UNVERIFIED if measure.no_loss else Verdict.INCONCLUSIVE
    if math.isnan(row.low):
        return replace(row, verdict=otherwise)
    scale = _log if kind_of(measure.metric) is Kind.RATIO else float
    mean, low, high = scale(row.estimate), scale(low), scale(high)
    summary = Summary.from_interval(mean, scale(row.low), scale(row.high), row.n)
    if mean < low:
        return replace(row, verdict=Verdict.BELOW, p=summary.p_below(low), otherwise=otherwise)
    if mean > high:
        return replace(row, verdict=Verdict.ABOVE, p=summary.p_above(high), otherwise=otherwise)
    if measure.no_loss and row.n < measure.minimum_seeds:
        short = f"{row.n} shared seeds, at least {measure.minimum_seeds} are needed"
        return replace(row, verdict=otherwise, notes=(*row.notes, short))
    return replace(row, verdict=Verdict.SUPPORTED, p=summary.p_inside(low, high), otherwise=otherwise)


def _plain(row: _Row, low: float, high: float) -> Verdict:
    """The verdict on values that were computed or counted, not sampled: a comparison, no test."""
    if math.isnan(row.low) or math.isnan(row.high):
        return Verdict.INCONCLUSIVE
    if low <= row.low and row.high <= high:
        return Verdict.SUPPORTED
    if row.high < low:
        return Verdict.BELOW
    return Verdict.ABOVE if row.low > high else Verdict.INCONCLUSIVE


def _log(value: float) -> float:
    if value <= 0:
        return -math.inf
    return math.inf if math.isinf(value) else math.log(value)
