"""The claims forest plot: what is claimed, what others published, what was measured here."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from harness.claim_file import Claim, Published
from harness.metrics import METRICS, Kind, kind_of
from harness.plots import style
from harness.plots.style import NothingToDraw
from harness.summary import ORDER, claimed, measurements, not_run_lines, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW_INCHES = 0.25
_WIDE = 300.0  # ratio of the axis' ends from which on it is marked at powers of ten only
_SPREAD = 100  # percentage points; beyond them the axis is linear only around zero
_USUAL = frozenset({"throughput", "accuracy"})  # the metric of most claims on their panel, not said again
# A claim has one reading or two: the literal one, or the only one, comes first.
_READING_COLOURS = (style.SKY, style.ORANGE)
_READING_LABELS = ("claimed: literal or only reading", "claimed: loose or second reading")


Readings = tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of a panel: a heading (no points), or a claim with its points, claimed ranges and published figures."""

    label: str
    points: pd.DataFrame | None = None
    readings: Readings = ()
    published: tuple[tuple[float, float], ...] = ()  # from, to; the same where one number is published


def figures(verdicts: pd.DataFrame, claims: Sequence[Claim], caption: Sequence[str]) -> dict[str, Figure]:
    """The one figure, under its file name."""
    points = measurements(verdicts)
    if points.empty:
        raise NothingToDraw("claims forest plot: no claim has a measurement; run the studies that the claims name.")
    return {"claims": figure(verdicts, points, claims, caption)}


def figure(verdicts: pd.DataFrame, points: pd.DataFrame, claims: Sequence[Claim], caption: Sequence[str]) -> Figure:
    """Factors on a log axis above, differences and shares below it, computed values in words in the caption."""
    kinds = points["metric"].map(kind_of)
    marks = {c.id: c.published for c in claims}
    drawable = (Kind.RATIO, Kind.DIFFERENCE, Kind.MEAN)
    panels = [(k, _rows(points[kinds == k], marks)) for k in drawable if (kinds == k).any()]
    n = style.counts(points.loc[kinds != Kind.VALUE, "n"])
    notes = [
        f"Points: estimate with 95% interval over launches or seeds, {n}. An arrow: the claimed range is open there.",
        *_values(points[kinds == Kind.VALUE]),
        *not_run_lines(verdicts, named=False),
    ]
    labels = [row.label for _, rows in panels for row in rows if row.points is not None]
    left = max(map(style.label_inches, labels), default=0) + 0.2
    drawn, axes = style.grid(
        [len(rows) * _ROW_INCHES for _, rows in panels] or [0.5], 1, title="Claims: claimed, published, measured",
        caption=[*notes, *caption], legend=_legend(points), legend_columns=4, margins=(left, 0.25),
    )  # fmt: skip
    for (kind, rows), (ax,) in zip(panels, axes, strict=False):
        _panel(ax, rows, kind)
    if not panels:
        axes[0][0].set_axis_off()
        axes[0][0].text(0, 0.5, "No factor, difference or share was measured; the values are below.")
    return drawn


def _rows(points: pd.DataFrame, published: Mapping[str, Sequence[Published]]) -> list[Row]:
    """Headings and claims, in order of the groups; the proxies of a claim share a line."""
    rows: list[Row] = []
    for group in ORDER:
        for heading, members in points[points["group"] == group].groupby("verdict", sort=True):
            proxies = group == "out_of_scope"
            rows.append(Row(label=f"{heading} (proxy, not judged)" if proxies else str(heading)))
            keys = ["claim", "metric"] if proxies else ["claim", "metric", "where", "workload", "arm"]
            rows += [_row(same, published, proxies=proxies) for _, same in members.groupby(keys, sort=False)]
    return rows


def _row(same: pd.DataFrame, published: Mapping[str, Sequence[Published]], *, proxies: bool) -> Row:
    first = same.iloc[0]
    claim, metric = str(first["claim"]), str(first["metric"])
    side = [claim, *([] if metric in _USUAL else [metric.replace("_", " ")])]
    side += [] if proxies else dict.fromkeys((str(first["where"] or first["workload"]), str(first["arm"])))
    return Row(
        label="  ".join(side),
        points=same,
        readings=tuple(dict.fromkeys(r for own in same["readings"] for r in own)),
        published=_ends(p for p in published.get(claim, ()) if p.metric == metric),
    )


def _ends(published: Iterable[Published]) -> tuple[tuple[float, float], ...]:
    """The numbers of published figures; a finding in words cannot be drawn."""
    return tuple((p.value, p.value if p.value_high is None else p.value_high) for p in published if p.value is not None)


def _panel(ax: Axes, rows: list[Row], kind: Kind) -> None:
    limits = _limits(rows, kind)
    if kind is Kind.RATIO:
        ax.set_xscale("log")
        ax.set_xlabel("factor: treatment / baseline (log axis)")
        span = limits[1] / limits[0]
        ax.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0,) if span > _WIDE else (1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}×"))
        ax.xaxis.set_minor_locator(NullLocator())
    elif kind is Kind.DIFFERENCE:
        ax.set_xlabel("difference: treatment − baseline (percentage points; relative: % of the baseline)")
        if limits[1] - limits[0] > _SPREAD:  # an interval over two seeds can be a hundred times as wide as the rest
            ax.set_xscale("symlog", linthresh=10)
            ax.xaxis.set_major_locator(FixedLocator([-1000, -100, -10, -5, 0, 5, 10, 100, 1000]))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
            ax.xaxis.set_minor_locator(NullLocator())
    else:
        own = [m for row in rows if row.points is not None for m in row.points["metric"]]
        ax.set_xlabel("; ".join(METRICS[m].meaning for m in dict.fromkeys(own)))
    ax.set_xlim(*limits)
    ax.axvline(1.0 if kind is Kind.RATIO else 0.0, color=style.GREY, linewidth=1, linestyle="--", zorder=1)
    for i, row in enumerate(rows):
        if row.points is None:
            ax.text(
                0.004, -i, row.label, transform=ax.get_yaxis_transform(), fontsize=8.5, fontweight="bold", va="center"
            )
            continue
        _ranges(ax, -i, row.readings, limits)
        for low, high in row.published:
            ax.plot(
                [low, high], [-i, -i], marker="d", markersize=5.5, markerfacecolor="white", color=style.BLACK,
                linewidth=0.8, zorder=3,
            )  # fmt: skip
        _points(ax, -i, row.points)
    ax.set_ylim(-len(rows) + 0.4, 0.6)
    ax.set_yticks([-i for i in range(len(rows))], ["" if r.points is None else r.label for r in rows], fontsize=8.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")


def _limits(rows: list[Row], kind: Kind) -> tuple[float, float]:
    """Everything that is drawn and finite, and the factor 1, the difference 0 or the whole share, with some room."""
    found: list[float] = []
    for row in rows:
        found += [
            *(end for ends in row.published for end in ends),
            *(bound for _, low, high in row.readings for bound in (low, high)),
        ]
        if row.points is not None:
            found += row.points[["estimate", "low", "high"]].to_numpy(dtype=float).ravel().tolist()
    values = np.array(found)
    values = values[np.isfinite(values)]
    if kind is Kind.RATIO:
        values = values[values > 0]
        return float(min(values.min(), 1) / 1.3), float(max(values.max(), 1) * 1.3)
    if kind is Kind.MEAN:
        return float(min(values.min(), 0.0) - 0.02), float(max(values.max(), 1.0) + 0.02)
    reach = max(float(np.abs(values).max()), 1.0) * 1.15
    return -reach, reach


def _ranges(ax: Axes, y: float, readings: Readings, limits: tuple[float, float]) -> None:
    """The claimed range of each reading as a bar, one above the other; an open end runs to the edge with an arrow."""
    height = 0.8 / max(len(readings), 1)
    for k, (_, low, high) in enumerate(readings):
        left = max(low, limits[0]) if np.isfinite(low) else limits[0]
        right = min(high, limits[1]) if np.isfinite(high) else limits[1]
        bottom = y + 0.4 - (k + 1) * height
        colour = _READING_COLOURS[min(k, 1)]
        if low == high:  # a claim of one number has no width to fill
            ax.plot(
                [left, left], [bottom, bottom + height], color=colour, linewidth=3.5, solid_capstyle="butt", zorder=1.5
            )
            continue
        ax.add_patch(Rectangle((left, bottom), right - left, height, color=colour, alpha=0.45, linewidth=0, zorder=1.5))
        for end, bound, marker in ((left, low, "<"), (right, high, ">")):
            if not np.isfinite(bound):
                ax.plot(
                    [end], [bottom + height / 2], marker=marker, color=colour, markersize=5, clip_on=False, zorder=2
                )


def _points(ax: Axes, y: float, points: pd.DataFrame) -> None:
    offsets = {f: 0.17 * (1 if i == 0 else -1) for i, f in enumerate(("torch", "tensorflow"))}
    for p in points.to_dict("records"):
        proxy = p["group"] == "out_of_scope"
        colour = style.GREY if proxy else _framework_colour(p["framework"])
        at = y + offsets.get(p["framework"], 0.0)
        ax.plot([p["low"], p["high"]], [at, at], color=colour, linewidth=1.5, zorder=4)
        ax.plot(
            [p["estimate"]], [at], marker=style.FRAMEWORK_MARKERS.get(p["framework"], "^"), markersize=5.5,
            color=colour, markerfacecolor="white" if proxy else colour, linestyle="none", zorder=5,
        )  # fmt: skip


def _framework_colour(framework: str) -> str:
    return {"torch": style.BLUE, "tensorflow": style.VERMILION}.get(framework, style.GREEN)


def _values(points: pd.DataFrame) -> list[str]:
    """What is neither a factor nor a difference, in words: an axis of factors cannot carry it."""
    told: dict[tuple[str, str, str], list[str]] = {}
    for p in points.to_dict("records"):
        key = (p["claim"], p["metric"], f"claimed {claimed(p['readings'], p['metric'])}: {p['verdict']}")
        at = f"{p['framework']}, {p['where']}" if p["where"] else p["framework"]
        told.setdefault(key, []).append(f"{number(p['estimate'])}{_spread(p)} ({at})")
    return [f"{claim}, {metric}: {', '.join(seen)}, {rest}" for (claim, metric, rest), seen in told.items()]


def _spread(point: Mapping[Hashable, Any]) -> str:
    """From the smallest to the largest value, where they differ."""
    if point["low"] == point["high"] or pd.isna(point["low"]):
        return ""
    return f" [{number(point['low'])}, {number(point['high'])}]"


def _legend(points: pd.DataFrame) -> list[Patch | Line2D]:
    most = max(len(readings) for readings in points["readings"])
    handles: list[Patch | Line2D] = [
        Patch(color=colour, alpha=0.45, label=label)
        for colour, label in list(zip(_READING_COLOURS, _READING_LABELS, strict=True))[:most]
    ]
    handles.append(
        Line2D([], [], marker="d", markerfacecolor="white", color=style.BLACK, linestyle="none", label="published")
    )
    for framework in style.in_order(points["framework"]):
        handles.append(
            Line2D(
                [],
                [],
                marker=style.FRAMEWORK_MARKERS.get(framework, "^"),
                color=_framework_colour(framework),
                linewidth=1.5,
                label=f"measured, {style.FRAMEWORK_TITLES.get(framework, framework)}",
            )
        )
    if (points["group"] == "out_of_scope").any():
        handles.append(
            Line2D(
                [], [], marker="o", markerfacecolor="white", color=style.GREY, linewidth=1.5, label="proxy, not judged"
            )
        )
    return handles
