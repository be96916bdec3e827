"""What ``speedproof claims`` shows: one claim with all that is claimed, published and measured of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from harness.claim_file import Claim, Measure, Published
from harness.report import Report
from harness.summary import bounds, interval, signed, unit_mark


def as_json(claim: Claim, reports: Sequence[Report]) -> dict[str, Any]:
    """The claim's entry and, for each run, its rows of the verdict table; what is missing is null."""
    return {
        **claim.model_dump(mode="json"),
        "runs": [{"run_id": r.run_id, "verdicts": _records(_rows(claim, r))} for r in reports],
    }


def _rows(claim: Claim, report: Report) -> pd.DataFrame:
    return report.verdicts[report.verdicts["claim"] == claim.id]


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(k): None if pd.isna(v) else v for k, v in row.items()} for row in rows.astype(object).to_dict("records")
    ]


def lines(claim: Claim, reports: Sequence[Report], *, width: int) -> Iterator[str]:
    """The claim as text of at most ``width`` columns."""
    yield from _wrapped(f"{claim.id} ({', '.join(claim.documents)}): {claim.says}", width, 2)
    if claim.stated:
        yield from _wrapped(f"stated: {claim.stated}", width, 4, first=2)
    for measure in claim.measures:
        yield from _wrapped(_claimed(measure), width, 4, first=2)
    for published in claim.published:
        yield from _wrapped(_published(published), width, 4, first=2)
    for wrong in claim.documents_wrong:
        yield from _wrapped(f"in the documents: {wrong}", width, 4, first=2)
    if not reports:
        yield "  no run yet: nothing is measured"
    for report in reports:
        yield f"  run {report.run_id}"
        for row in _rows(claim, report).to_dict("records"):
            yield from _wrapped(_verdict(row), width, 6, first=4)


def _claimed(measure: Measure) -> str:
    texts = []
    for name, reading in measure.readings.items():
        low, high = reading.bounds()
        texts.append(f"{name} {bounds(low, high, measure.metric)}")
    side = f" ({measure.baseline} to {measure.treatment})" if measure.baseline and measure.treatment else ""
    return f"claimed, {measure.metric.replace('_', ' ')}{side}: {'; '.join(texts)}"


def _published(published: Published) -> str:
    how = {"V": "read in the source", "C": "computed from the source's figures"}[published.mark]
    ends = [v for v in (published.value, published.value_high) if v is not None]
    numbers = " to ".join(signed(v, published.metric) for v in ends)
    value = "; ".join(p for p in (f"{numbers}{unit_mark(published.metric)}" if ends else "", published.finding) if p)
    parts = [p for p in (published.hardware, published.setting) if p]
    note = f"; {published.note}" if published.note else ""
    where = f"{', '.join(parts) or '-'} ({published.source}; {how}{note})"
    return f"published, {published.metric.replace('_', ' ')}: {value} on {where}"


def _verdict(row: dict[Any, Any]) -> str:
    verdict = str(row["verdict"]).replace("_", " ")
    reason = f" ({row['reason']})" if row["reason"] else ""
    side = " ".join(str(row[c]) for c in ("framework", "workload", "arm", "metric") if row[c])
    if pd.isna(row["estimate"]):
        return f"{row['reading']}: {verdict}: {side}{reason}"
    measured = interval(row["estimate"], row["low"], row["high"], str(row["metric"]))
    return f"{row['reading']}: {verdict}: {side} {measured}, n = {int(row['n'])}{reason}"


def _wrapped(text: str, width: int, indent: int, *, first: int = 0) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=" " * first, subsequent_indent=" " * indent)
