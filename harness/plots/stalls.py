"""The share of the training time in which the step waits for a batch, by format and by number of loader processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.lines import Line2D

from harness.plots import loads, style
from harness.plots.style import NothingToDraw
from harness.plots.workers import settings, with_settings
from harness.schema import toggle_column
from harness.spec import Mode
from harness.techniques import TOGGLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HELD = {"format": "workers", "workers": "format"}  # by the toggle of a panel: the other one, whose level is told
_ROW_INCHES = 0.3
_FRAMEWORK_COLOURS = {"torch": style.BLUE, "tensorflow": style.VERMILION}


def figures(effects: pd.DataFrame, trials: pd.DataFrame, caption: Sequence[str]) -> dict[str, Figure]:
    """One figure a workload."""
    shares = effects[(effects["metric"] == "stall_share") & effects["estimate"].notna()]
    shares = shares[["comparison", "arm", "estimate", "low", "high", "n"]].astype({"comparison": object, "arm": object})
    swept = {toggle: _trained(loads.sweep(trials, toggle)) for toggle in _HELD}
    points = {toggle: loads.cells(t).merge(shares, on=["comparison", "arm"]) for toggle, t in swept.items()}
    workloads = sorted({w for p in points.values() for w in p["workload"]})
    if not workloads:
        raise NothingToDraw("stall shares: no training end to end with a value sweeps toggle_format or toggle_workers.")
    return {
        f"stalls_{workload}": figure(workload, _of(points, workload), _of(swept, workload), caption)
        for workload in workloads
    }


def _trained(trials: pd.DataFrame) -> pd.DataFrame:
    return with_settings(trials[trials["mode"] == Mode.END_TO_END.value])


def _of(tables: dict[str, pd.DataFrame], workload: str) -> dict[str, pd.DataFrame]:
    """The rows of one workload; a toggle without any is left out."""
    chosen = {toggle: table[table["workload"] == workload] for toggle, table in tables.items()}
    return {toggle: table for toggle, table in chosen.items() if not table.empty}


def figure(
    workload: str, points: dict[str, pd.DataFrame], trials: dict[str, pd.DataFrame], caption: Sequence[str]
) -> Figure:
    """One panel a toggle, one line a level; points are means over launches with 95% intervals."""
    together = pd.concat(points.values())
    levels = {toggle: _levels(toggle, trials[toggle]) for toggle in points}
    series = {toggle: _series(toggle, p) for toggle, p in points.items()}
    note = (
        "Points: seconds spent waiting for a batch over all timed seconds of a launch, mean over launches; bars: 95% t "
        f"interval over launches, {style.counts(together['n'])}. 0 means that loading is hidden behind training."
    )
    labels = [text for own in levels.values() for text in own.values()]
    drawn, axes = style.grid(
        [_ROW_INCHES * len(own) for own in levels.values()], 1, title=f"Waiting for data: {workload}",
        caption=[note, *loads.not_drawn(pd.concat(trials.values())), *caption],
        legend=[Line2D([], [], color=c, marker=m, linewidth=1.8, label=n) for n, (c, m) in _key(series).items()],
        legend_columns=3, margins=(max(map(style.label_inches, labels)) + 0.35, 0.25), sharex=True,
    )  # fmt: skip
    for (ax,), toggle in zip(axes, points, strict=True):
        held = ", ".join(sorted(set(points[toggle][toggle_column(_HELD[toggle])])))
        ax.set_title(f"by {toggle} ({_HELD[toggle]}: {held})")
        _points(ax, points[toggle], toggle, list(levels[toggle]), series[toggle])
        ax.set_yticks([-i for i in range(len(levels[toggle]))], list(levels[toggle].values()))
        ax.set_ylim(-len(levels[toggle]) + 0.4, 0.6)
    axes[-1][0].set_xlabel("share of the training time spent waiting for a batch")
    axes[-1][0].set_xlim(-0.02, 1.02)
    return drawn


def _levels(toggle: str, trials: pd.DataFrame) -> dict[str, str]:
    """The levels that were tried, in the toggle's order, with their labels; one that did not run keeps its line."""
    column = toggle_column(toggle)
    there = [level for level in TOGGLES[toggle].levels if level in set(trials[column])]
    if toggle != "workers":
        return {level: level for level in there}
    seen = trials.groupby(column)["observed_workers"].max()
    return {level: level if pd.isna(seen[level]) else f"{level} ({int(seen[level])})" for level in there}


def _series(toggle: str, points: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Colour and marker of each framework, or of each setting of the loader."""
    if toggle == "format":
        titles = {f: style.FRAMEWORK_TITLES[f] for f in style.in_order(points["framework"])}
        return {t: (_FRAMEWORK_COLOURS.get(f, style.BLACK), style.FRAMEWORK_MARKERS[f]) for f, t in titles.items()}
    looks = ((style.GREEN, "^"), (style.PURPLE, "D"), (style.ORANGE, "v"), (style.SKY, "P"))
    return {name: looks[i % len(looks)] for i, name in enumerate(settings(points))}


def _key(series: dict[str, dict[str, tuple[str, str]]]) -> dict[str, tuple[str, str]]:
    return {name: look for own in series.values() for name, look in own.items()}


def _points(ax: Axes, points: pd.DataFrame, toggle: str, levels: list[str], series: dict[str, tuple[str, str]]) -> None:
    names = list(series)
    for p in points.to_dict("records"):
        name = style.FRAMEWORK_TITLES[p["framework"]] if toggle == "format" else p["setting"]
        colour, marker = series[name]
        y = 0.18 * ((len(names) - 1) / 2 - names.index(name)) - levels.index(p[toggle_column(toggle)])
        ax.plot([p["low"], p["high"]], [y, y], color=colour, linewidth=1.8)
        ax.plot([p["estimate"]], [y], color=colour, marker=marker, markersize=5.5, linestyle="none")
