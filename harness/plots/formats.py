"""How fast each format loads, from the disk and from the page cache, and what training end to end makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.lines import Line2D

from harness.plots import loads, style
from harness.plots.batch import throughput
from harness.plots.style import NothingToDraw
from harness.spec import Mode
from harness.techniques import TOGGLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# By mode and page cache: label, colour, marker and place beside the line of the format.
_SERIES = {
    (Mode.LOADING.value, "cold"): ("loading alone, from the disk (cold)", style.SKY, "v", 0.27),
    (Mode.LOADING.value, "warm"): ("loading alone, from the page cache (warm)", style.BLUE, "o", 0.09),
    (Mode.END_TO_END.value, "warm"): ("training end to end (warm)", style.VERMILION, "s", -0.09),
    (Mode.END_TO_END.value, "cold"): ("training end to end, from the disk (cold)", style.ORANGE, "^", -0.27),
}
_ROW_INCHES = 0.42


def figures(samples: pd.DataFrame, trials: pd.DataFrame, caption: Sequence[str]) -> dict[str, Figure]:
    """One figure a workload."""
    swept = loads.sweep(trials, "format")
    if swept.empty:
        raise NothingToDraw("loading by format: no trial sweeps toggle_format; run the data studies (-k format).")
    rates = throughput(samples[samples["comparison"].isin(swept["comparison"])])
    if rates.empty:
        raise NothingToDraw(f"loading by format: no arm has a value. {' '.join(loads.not_drawn(swept))}")
    return {
        f"formats_{workload}": figure(str(workload), part, rates, caption)
        for workload, part in swept.groupby("workload")
    }


def figure(workload: str, trials: pd.DataFrame, rates: pd.DataFrame, caption: Sequence[str]) -> Figure:
    """One column a framework, one line a format; points are rates with 95% intervals over launches."""
    frameworks = style.in_order(trials["framework"])
    formats = [level for level in TOGGLES["format"].levels if level in set(trials["toggle_format"])]
    points = loads.cells(trials).merge(rates.astype({"comparison": object, "arm": object}), on=["comparison", "arm"])
    note = (
        "Points: images a second, geometric mean over launches; bars: 95% t interval over launches, "
        f"{style.counts(points['n'])}. The same pixels, batch and workers for each format; lmdb_decoded, npy "
        "and ram hold pixels, the others JPEG bytes; ram lies in the process's own memory."
    )
    left = max(map(style.label_inches, formats)) + 0.4
    drawn, axes = style.grid(
        [_ROW_INCHES * len(formats)], len(frameworks), title=f"Loading and training by format: {workload}",
        caption=[note, *loads.not_drawn(trials), *caption], legend=_legend(points), legend_columns=3,
        margins=(left, 0.25), sharex=True, sharey=True,
    )  # fmt: skip
    for ax, framework in zip(axes[0], frameworks, strict=True):
        ax.set_title(style.FRAMEWORK_TITLES.get(framework, framework))
        _points(ax, points[points["framework"] == framework], formats)
        loads.rates_axis(ax, "x")
        ax.set_xlabel("images / s (log axis)")
    axes[0][0].set_yticks([-i for i in range(len(formats))], formats)
    axes[0][0].set_ylim(-len(formats) + 0.4, 0.6)
    return drawn


def _points(ax: Axes, points: pd.DataFrame, formats: list[str]) -> None:
    for p in points.to_dict("records"):
        _, colour, marker, offset = _SERIES[p["mode"], p["toggle_page_cache"]]
        y = offset - formats.index(p["toggle_format"])
        ax.plot([p["low"], p["high"]], [y, y], color=colour, linewidth=1.8)
        ax.plot([p["estimate"]], [y], color=colour, marker=marker, markersize=6, linestyle="none")


def _legend(points: pd.DataFrame) -> list[Line2D]:
    there = set(zip(points["mode"], points["toggle_page_cache"], strict=True))
    return [
        Line2D([], [], color=colour, marker=marker, linewidth=1.8, label=label)
        for key, (label, colour, marker, _) in _SERIES.items()
        if key in there
    ]
