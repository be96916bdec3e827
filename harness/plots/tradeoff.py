"""Memory against speedup: what a gain in time costs in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.plots import style
from harness.plots.style import NothingToDraw
from harness.spec import CONTROL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Ratio of an axis' ends from which on it is marked at powers of ten only, and up to which at 1.5 and 7 as well.
WIDE, NARROW = 300.0, 8.0


def pairs(effects: pd.DataFrame) -> pd.DataFrame:
    """Speedup and memory ratio of each treatment that has both: columns with suffixes ``_speed`` and ``_memory``."""
    keys = ["comparison", "study", "framework", "arm"]
    ratios = effects[(effects["kind"] == "ratio") & effects["estimate"].notna()]
    speed, memory = ratios[ratios["metric"] == "throughput"], ratios[ratios["metric"] == "memory"]
    return speed.merge(memory, on=keys, suffixes=("_speed", "_memory"))


def figures(effects: pd.DataFrame, caption: Sequence[str]) -> dict[str, Figure]:
    """One figure a study, the A/A twin left out."""
    both = pairs(effects)
    both = both[both["arm"] != CONTROL]
    if both.empty:
        raise NothingToDraw("memory against speedup: no arm has both a throughput and a memory ratio.")
    return {f"memory_speedup_{study}": figure(str(study), part, caption) for study, part in both.groupby("study")}


def figure(study: str, both: pd.DataFrame, caption: Sequence[str]) -> Figure:
    """One row a workload of the baseline, one column a framework; the baseline stands at (1, 1)."""
    both = both.assign(trained=both["comparison"].str.rsplit("/", n=1).str[-1])
    rows, columns = sorted(both["trained"].unique()), style.in_order(both["framework"])
    colours = style.colour_of(both["arm"])
    bases = ", ".join(sorted(both["baseline_speed"].unique()))
    n = style.counts([*both["n_speed"], *both["n_memory"]])
    note = (
        f"Points: treatment / baseline ({bases}), which stands at (1, 1); bars: 95% intervals over launches, {n}. "
        "Below 1 on the left axis is less memory."
    )
    drawn, axes = style.grid(
        [2.4] * len(rows), len(columns), title=f"Memory against speedup: {study}", caption=[note, *caption],
        legend=style.key(colours, line=False), sharex=True, sharey=True,
    )  # fmt: skip
    for r, trained in enumerate(rows):
        for c, framework in enumerate(columns):
            ax = axes[r][c]
            ax.set_title(f"{style.FRAMEWORK_TITLES.get(framework, framework)}, {trained}")
            _points(ax, both[(both["trained"] == trained) & (both["framework"] == framework)], colours)
            if r == len(rows) - 1:
                ax.set_xlabel("speedup")
        axes[r][0].set_ylabel("peak memory ratio")
    _limits(axes[0][0], both)
    for row in axes:
        for ax in row:
            _quadrants(ax)
    return drawn


def _points(ax: Axes, points: pd.DataFrame, colours: dict[str, tuple[str, str]]) -> None:
    for p in points.to_dict("records"):
        colour, marker = colours[p["arm"]]
        x, y = p["estimate_speed"], p["estimate_memory"]
        ax.plot([p["low_speed"], p["high_speed"]], [y, y], color=colour, linewidth=1.5)
        ax.plot([x, x], [p["low_memory"], p["high_memory"]], color=colour, linewidth=1.5)
        ax.plot([x], [y], color=colour, marker=marker, markersize=7, linestyle="none")
    ax.plot([1], [1], marker="+", markersize=12, markeredgewidth=2, color=style.BLACK, zorder=5)


def _limits(ax: Axes, both: pd.DataFrame) -> None:
    """Log axes around the data and (1, 1), with ticks at round factors."""
    for axis, suffix in ((ax.xaxis, "speed"), (ax.yaxis, "memory")):
        values = both[[f"estimate_{suffix}", f"low_{suffix}", f"high_{suffix}"]].to_numpy(dtype=float)
        low, high = min(float(np.nanmin(values)), 1.0), max(float(np.nanmax(values)), 1.0)
        room = max((high / low) ** 0.25, 1.1)  # for the words in the corners
        low, high = low / room, high * room
        set_scale, set_limits = (ax.set_xscale, ax.set_xlim) if suffix == "speed" else (ax.set_yscale, ax.set_ylim)
        set_scale("log")
        set_limits(low, high)
        axis.set_major_locator(LogLocator(base=10, subs=_subs(high / low)))
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}×"))
        axis.set_minor_locator(NullLocator())


def _subs(span: float) -> tuple[float, ...]:
    if span > WIDE:
        return (1.0,)
    return (1.0, 2.0, 5.0) if span > NARROW else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)


def _quadrants(ax: Axes) -> None:
    ax.axhline(1, color=style.GREY, linewidth=1, linestyle="--", zorder=1)
    ax.axvline(1, color=style.GREY, linewidth=1, linestyle="--", zorder=1)
    for x, ha, speed in ((0.99, "right", "faster"), (0.01, "left", "slower")):
        for y, va, memory in ((0.02, "bottom", "less"), (0.98, "top", "more")):
            ax.text(
            x, y, f"{speed}, {memory} memory", transform=ax.transAxes, ha=ha, va=va,
            fontsize=8, style="italic", color=style.GREY, zorder=1,
        )  # fmt: skip
