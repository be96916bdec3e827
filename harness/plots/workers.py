"""Images a second against the number of loader processes, with the two numbers that the documents recommend."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.lines import Line2D

from harness.plots import loads, style
from harness.plots.batch import throughput
from harness.plots.style import NothingToDraw
from harness.stats import fastest, launch_log_ratios
from harness.techniques import TOGGLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RECOMMENDED = ((1, "cores", ":"), (2, "2 × cores", "--"))


def setting(sample: str, latency: str) -> str:
    """What the loader has to do, in words: the levels of toggles ``sample`` and ``storage_latency``."""
    work = {"decode": "decoding only", "augment": "costly augmentation"}.get(sample, sample)
    return work if latency == "none" else f"{work}, each read takes {latency.removesuffix('ms')} ms"


def with_settings(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials with a column ``setting``."""
    pairs = zip(trials["toggle_sample"], trials["toggle_storage_latency"], strict=True)
    return trials.assign(setting=[setting(str(sample), str(latency)) for sample, latency in pairs])


def settings(points: pd.DataFrame) -> list[str]:
    """The settings that there are, the cheapest kind of sample first."""
    pairs = itertools.product(TOGGLES["sample"].levels, TOGGLES["storage_latency"].levels)
    return [name for pair in pairs if (name := setting(*pair)) in set(points["setting"])]


def figures(
    samples: pd.DataFrame, trials: pd.DataFrame, baselines: Mapping[str, str], caption: Sequence[str]
) -> dict[str, Figure]:
    """One figure a workload."""
    swept = loads.sweep(trials, "workers")
    if swept.empty:
        raise NothingToDraw("loader workers: no trial sweeps toggle_workers; run the data studies (-k workers).")
    chosen = samples[samples["comparison"].isin(swept["comparison"])]
    points = with_settings(loads.cells(swept)).merge(_rates(chosen), on=["comparison", "arm"])
    if points.empty:
        raise NothingToDraw(f"loader workers: no arm has a value. {' '.join(loads.not_drawn(swept))}")
    ratios = launch_log_ratios(chosen, swept, baselines).astype({"comparison": object})
    marked = points.assign(mark=_marks(points, ratios, baselines))
    return {
        f"workers_{workload}": figure(str(workload), part, swept[swept["workload"] == workload], caption)
        for workload, part in marked.groupby("workload")
    }


def _rates(samples: pd.DataFrame) -> pd.DataFrame:
    return throughput(samples).astype({"comparison": object, "arm": object})


def _marks(points: pd.DataFrame, ratios: pd.DataFrame, baselines: Mapping[str, str]) -> list[str]:
    """Of each point: "fastest", "not slower", or nothing."""
    places = {c: fastest(ratios[ratios["comparison"] == c], baselines[c]) for c in points["comparison"].unique()}
    marks = []
    for comparison, arm in zip(points["comparison"], points["arm"], strict=True):
        place = places[comparison]
        if place is None:
            marks.append("")
        else:
            marks.append("fastest" if arm == place.best else "not slower" if arm in place.not_slower else "")
    return marks


def figure(workload: str, points: pd.DataFrame, trials: pd.DataFrame, caption: Sequence[str]) -> Figure:
    """One row a framework; loading alone on the left, training end to end on the right."""
    frameworks = style.in_order(points["framework"])
    modes = [mode for mode in loads.MODE_TITLES if mode in set(points["mode"])]
    colours = dict(zip(settings(points), zip(style.PALETTE, style.MARKERS, strict=True), strict=False))
    cores = int(points["threads"].max())
    note = (
        "Points: images a second, geometric mean over launches; bars: 95% t interval over launches, "
        f"{style.counts(points['n'])}. Rings: thick the fastest number of workers, thin those that are not slower (one-"
        f"sided t tests over launches at 2.5%, Holm). There are {cores} cores here; the documents recommend as many "
        "workers as cores (D0), or twice as many (D1)."
    )
    drawn, axes = style.grid(
        [2.6] * len(frameworks), len(modes), title=f"Loader workers: {workload}",
        caption=[note, *loads.not_drawn(trials), *caption],
        legend=[*style.key(colours, line=True), *_ring_key()], legend_columns=3, sharex=True, sharey="row",
    )  # fmt: skip
    ticks = sorted({int(w) for w in points["observed_workers"]} | {cores, 2 * cores})
    for r, framework in enumerate(frameworks):
        for c, mode in enumerate(modes):
            ax = axes[r][c]
            ax.set_title(f"{style.FRAMEWORK_TITLES.get(framework, framework)}, {loads.MODE_TITLES[mode]}")
            here = points[(points["framework"] == framework) & (points["mode"] == mode)]
            for name, (colour, marker) in colours.items():
                _line(ax, here[here["setting"] == name], colour, marker)
            loads.rates_axis(ax, "y")
            ax.set_xscale("symlog", base=2, linthresh=1, linscale=0.5)
            ax.set_xlim(-0.3, ticks[-1] * 1.3)
            ax.set_xticks(ticks, [str(t) for t in ticks])
            ax.minorticks_off()
            _recommended(ax, cores)
            if r == len(frameworks) - 1:
                ax.set_xlabel("loader processes beside the training process")
        axes[r][0].set_ylabel("images / s (log axis)")
    return drawn


def _line(ax: Axes, points: pd.DataFrame, colour: str, marker: str) -> None:
    points = points.astype({"observed_workers": int}).sort_values("observed_workers")
    ax.plot(points["observed_workers"], points["estimate"], color=colour, marker=marker, markersize=5, linewidth=1.3)
    for p in points.to_dict("records"):
        ax.plot([p["observed_workers"]] * 2, [p["low"], p["high"]], color=colour, linewidth=1.8)
        if p["mark"]:
            ax.plot([p["observed_workers"]], [p["estimate"]], **_ring(p["mark"]))


def _ring(mark: str) -> dict[str, Any]:
    return {
        "marker": "o", "markersize": 12, "markerfacecolor": "none", "markeredgecolor": style.BLACK,
        "markeredgewidth": 2.2 if mark == "fastest" else 0.9, "linestyle": "none", "zorder": 5,
    }  # fmt: skip


def _ring_key() -> list[Line2D]:
    return [Line2D([], [], label=f"{mark} in its line", **_ring(mark)) for mark in ("fastest", "not slower")]


def _recommended(ax: Axes, cores: int) -> None:
    for times, label, dashes in _RECOMMENDED:
        ax.axvline(times * cores, color=style.GREY, linewidth=1.2, linestyle=dashes, zorder=1)
        ax.annotate(
            label, (times * cores, 0.02), xycoords=ax.get_xaxis_transform(), xytext=(3, 0), textcoords="offset points",
            fontsize=8, color=style.GREY, va="bottom",
        )  # fmt: skip
