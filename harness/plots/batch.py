"""Throughput and speedup against the batch size, for each precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import pandas as pd

from harness.inference import ratio_interval
from harness.plots import style
from harness.plots.style import NothingToDraw
from harness.spec import CONTROL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST_SIZES = 3  # a curve, not a pair


def batch_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials of comparisons that sweep the batch: three sizes or more in one precision, the A/A twin left out."""
    steady = trials[(trials["mode"] == "steady") & (trials["arm"] != CONTROL)].copy()
    steady = steady[pd.to_numeric(steady["toggle_batch"], errors="coerce").notna()]
    steady = steady[steady["toggle_strategy"] == "single"]  # the batch of several devices is another question
    steady["batch"] = steady["toggle_batch"].astype(int)
    sizes = steady.groupby(["comparison", "toggle_precision"], observed=True)["batch"].transform("nunique")
    return steady[sizes >= FEWEST_SIZES]


def throughput(samples: pd.DataFrame) -> pd.DataFrame:
    """Examples a second for each cell: geometric mean over launches of the launch's median, and its 95% t interval.

    Columns comparison, arm, estimate, low, high, n; with one launch the interval is missing, not zero.
    """
    rate = samples.assign(rate=np.log(samples["items"] / samples["seconds"]))
    launches = rate.groupby(["comparison", "arm", "launch"], observed=True)["rate"].median()
    rows = []
    for key, y in launches.groupby(level=["comparison", "arm"], observed=True):
        found = ratio_interval(y.to_numpy())
        rows.append((*cast("tuple[str, str]", key), found.estimate, found.low, found.high, found.n))
    return pd.DataFrame(rows, columns=["comparison", "arm", "estimate", "low", "high", "n"])


def figures(
    samples: pd.DataFrame, trials: pd.DataFrame, effects: pd.DataFrame, caption: Sequence[str]
) -> dict[str, Figure]:
    """One figure a workload: frameworks side by side, throughput above, speedup against the study's own batch below."""
    swept = batch_trials(trials)
    if swept.empty:
        raise NothingToDraw("batch curves: no trial sweeps toggle_batch; run the batch studies (-k batch).")
    rates = throughput(samples[samples["comparison"].isin(swept["comparison"])])
    ratios = effects[(effects["metric"] == "throughput") & (effects["kind"] == "ratio")]
    return {
        f"batch_{workload}": figure(str(workload), part, rates, ratios, caption)
        for workload, part in swept.groupby("workload", observed=True)
    }


def figure(
    workload: str, trials: pd.DataFrame, rates: pd.DataFrame, ratios: pd.DataFrame, caption: Sequence[str]
) -> Figure:
    """Two rows (throughput, speedup) and one column a framework; bands are 95% intervals over launches."""
    frameworks = style.in_order(trials["framework"])
    colours = style.colour_of(trials["toggle_precision"])
    cells = trials.drop_duplicates(["comparison", "arm"])[
        ["comparison", "arm", "framework", "toggle_precision", "batch"]
    ]
    rate, ratio = cells.merge(rates, on=["comparison", "arm"]), cells.merge(ratios, on=["comparison", "arm"])
    ratio = pd.concat([ratio, _baseline_points(cells, ratios)], ignore_index=True)
    note = (
        "Points: geometric mean over launches; bands: 95% t interval over launches, "
        f"{style.counts(rate['n'])}. Speedup in time per example against the baseline batch, within a precision."
    )
    drawn, axes = style.grid(
        [2.1, 2.1], len(frameworks), title=f"Batch size: {workload}", caption=[note, *caption],
        legend=style.key(colours, line=True), sharex=True, sharey="row",
    )  # fmt: skip
    for column, framework in enumerate(frameworks):
        top, bottom = axes[0][column], axes[1][column]
        top.set_title(style.FRAMEWORK_TITLES.get(framework, framework))
        for precision, (colour, marker) in colours.items():
            chosen = (cells["framework"] == framework) & (cells["toggle_precision"] == precision)
            keys = cells[chosen][["comparison", "arm"]]
            _curve(top, rate.merge(keys), colour, marker, precision)
            _curve(bottom, ratio.merge(keys), colour, marker, precision)
        _baseline(bottom, trials, ratios, framework)
        _out_of_memory((top, bottom), trials[trials["framework"] == framework], colours)
        bottom.set_xlabel("batch size (examples)")
    axes[0][0].set_ylabel("examples / s")
    axes[1][0].set_ylabel("speedup")
    for row in axes:
        for ax in row:
            ax.set_xscale("log", base=2)
            ax.set_xticks(sorted(trials["batch"].unique()), [str(b) for b in sorted(trials["batch"].unique())])
            ax.minorticks_off()
    axes[0][0].set_ylim(bottom=0)
    axes[1][0].set_ylim(bottom=0)
    return drawn


def _baseline_points(cells: pd.DataFrame, ratios: pd.DataFrame) -> pd.DataFrame:
    """The baseline's own place on the speedup curve: 1 by definition, so without an interval."""
    baselines = ratios.drop_duplicates("comparison")[["comparison", "baseline"]]
    own = cells.merge(baselines, left_on=["comparison", "arm"], right_on=["comparison", "baseline"])
    return own.assign(estimate=1.0, low=1.0, high=1.0)


def _curve(ax: Axes, points: pd.DataFrame, colour: str, marker: str, label: str) -> None:
    points = points.dropna(subset=["estimate"]).sort_values("batch")
    if points.empty:
        return
    ax.fill_between(points["batch"], points["low"], points["high"], color=colour, alpha=0.25, linewidth=0)
    ax.plot(points["batch"], points["estimate"], color=colour, marker=marker, markersize=5, linewidth=1.4, label=label)


def _baseline(ax: Axes, trials: pd.DataFrame, ratios: pd.DataFrame, framework: str) -> None:
    """Mark the batch that every speedup of a panel divides by."""
    here = trials[trials["framework"] == framework]
    names = ratios[ratios["comparison"].isin(here["comparison"])]["baseline"].unique()
    ax.axhline(1, color=style.GREY, linewidth=1, linestyle="--")
    for batch in here[here["arm"].isin(names)]["batch"].unique():
        ax.plot([batch], [1], marker="o", markersize=9, markerfacecolor="none", markeredgecolor=style.BLACK, zorder=5)
        ax.annotate("baseline", (batch, 1), xytext=(0, -14), textcoords="offset points", ha="center", fontsize=8)


def _out_of_memory(axes: tuple[Axes, ...], trials: pd.DataFrame, colours: dict[str, tuple[str, str]]) -> None:
    gone = trials[trials["status"] == "oom"].drop_duplicates(["toggle_precision", "batch"])
    for ax in axes:
        for precision, batch in zip(gone["toggle_precision"], gone["batch"], strict=True):
            row = list(colours).index(precision)
            ax.plot(
                [batch], [0.06 + 0.09 * row], marker="x", markersize=8, markeredgewidth=2, color=colours[precision][0],
                transform=ax.get_xaxis_transform(), clip_on=False, linestyle="none",
            )  # fmt: skip
            ax.annotate(
                "out of memory", (batch, 0.06 + 0.09 * row), xycoords=ax.get_xaxis_transform(), xytext=(-7, 0),
                textcoords="offset points", ha="right", va="center", fontsize=8, color=colours[precision][0],
            )  # fmt: skip
