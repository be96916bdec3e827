"""Verdicts and numbers in words, the same in figures, tables and the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import pandas as pd

from harness.metrics import METRICS, Kind, kind_of

DIFFER = "readings differ"
ORDER = (
    "supported", DIFFER, "below", "above", "inconclusive", "accuracy_unverified", "invalid", "out_of_scope", "not_run"
)  # fmt: skip
_SMALL, _LARGE = 1e-3, 1e4  # absolute values between them are written without an exponent
_MEASUREMENT = ["claim", "framework", "study", "workload", "arm", "metric"]
_WITHOUT_STUDY = [name for name in _MEASUREMENT if name != "study"]


def number(value: float) -> str:
    """Three significant digits, without an exponent between 0.001 and 10,000; "–" where there is none."""
    if pd.isna(value):
        return "–"
    plain = _SMALL <= abs(value) < _LARGE
    return f"{value:#.3g}".rstrip(".") if plain else f"{value:.3g}"


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts b8 before b16."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def unit_mark(metric: str) -> str:
    """What follows a number of this metric: "x" for a factor, " pp" for percentage points, "%" or nothing."""
    kind = kind_of(metric)
    if kind is Kind.RATIO:
        return "x"
    if kind is Kind.DIFFERENCE:
        return " pp" if METRICS[metric].unit == "percentage points" else "%"
    return ""


def signed(value: float, metric: str) -> str:
    """A number of a metric without its unit; differences carry their sign."""
    if kind_of(metric) is not Kind.DIFFERENCE:
        return number(value)
    return "–" if pd.isna(value) else f"{value:+.2f}"


def interval(estimate: float, low: float, high: float, metric: str) -> str:
    """``1.23x [1.20, 1.27]``; a missing interval is said, never left out."""
    if pd.isna(estimate):
        return "–"
    value = f"{signed(estimate, metric)}{unit_mark(metric)}"
    if pd.isna(low) or pd.isna(high):
        return f"{value} [no interval]"
    return f"{value} [{signed(low, metric)}, {signed(high, metric)}]"


def bounds(low: float, high: float, metric: str) -> str:
    """A claimed range: ``2–3x``, ``>1x``, ``≤0.5x``; an open side is missing or infinite."""
    unit = unit_mark(metric)
    no_low, no_high = pd.isna(low) or abs(low) == float("inf"), pd.isna(high) or abs(high) == float("inf")
    if no_low and no_high:
        return "no number"
    if no_high:
        return f"≥{low:g}{unit}"
    if no_low or (low == 0 and kind_of(metric) is Kind.RATIO):
        return f"≤{high:g}{unit}"
    return f"{low:g}{unit}" if low == high else f"{low:g} to {high:g}{unit}"


def measurements(verdicts: pd.DataFrame) -> pd.DataFrame:
    """One row a measurement, in the order of ``verdicts``.

    The verdicts on all readings stand in ``verdict`` ("below (literal), supported (loose)" where they differ) and as
    one of :data:`ORDER` in ``group``; ``readings`` holds (reading, low, high) of each; ``where`` names the study where
    a claim measures the same arm in several. Rows without an estimate are for :func:`not_run_lines`.
    """
    measured = verdicts[verdicts["estimate"].notna()]
    rows = []
    for _, same in measured.groupby(_MEASUREMENT, sort=False, dropna=False):
        words = [str(v) for v in same["verdict"]]
        group = words[0] if len(set(words)) == 1 else DIFFER
        text = group
        if group == DIFFER:
            text = ", ".join(f"{v} ({r})" for v, r in zip(words, same["reading"], strict=True))
        lows, highs = same["range_low"].fillna(-math.inf), same["range_high"].fillna(math.inf)
        readings = tuple(zip(same["reading"], lows, highs, strict=True))
        facts = {**same.iloc[0].to_dict(), "verdict": text.replace("_", " "), "group": group, "readings": readings}
        rows.append(facts)
    table = pd.DataFrame(rows, columns=[*verdicts.columns, "group", "readings"])
    several = table.groupby(_WITHOUT_STUDY, dropna=False)["study"].transform("nunique") > 1
    return table.assign(where=table["study"].where(several, ""))


def claimed(readings: Iterable[tuple[str, float, float]], metric: str) -> str:
    """The claimed range of each reading: ``3 to 4x (literal), 2 to 3x (loose)``; said once where all are the same."""
    texts = {reading: bounds(low, high, metric) for reading, low, high in readings}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{text} ({reading})" for reading, text in texts.items())


def not_run_lines(verdicts: pd.DataFrame, *, named: bool = True) -> list[str]:
    """Claims without any measurement, counted by reason and, unless ``named`` is false, named; none is left out."""
    silent = verdicts[~verdicts["claim"].isin(verdicts.loc[verdicts["estimate"].notna(), "claim"])]
    if silent.empty:
        return []
    reasons = silent.fillna({"reason": ""}).groupby("claim", sort=False)["reason"].agg(_joined)
    head = f"Without a measurement: {len(reasons)} of {verdicts['claim'].nunique()} claims."
    groups = sorted(reasons.groupby(reasons), key=lambda item: (-len(item[1]), item[0]))
    told = {str(reason) or "no reason recorded": list(claims.index) for reason, claims in groups}
    if named:
        return [head, *(f"{reason} ({len(claims)}): {', '.join(claims)}" for reason, claims in told.items())]
    return [f"{head} {' | '.join(f'{len(claims)}: {reason}' for reason, claims in told.items())}"]


def _joined(reasons: Iterable[object]) -> str:
    return "; ".join(dict.fromkeys(str(r) for r in reasons if str(r)))
