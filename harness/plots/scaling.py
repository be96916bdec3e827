"""Speedup and efficiency against the number of devices that train together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.lines import Line2D

from harness import projected
from harness.claim_file import Claim
from harness.plots import style
from harness.plots.style import NothingToDraw
from harness.spec import CONTROL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from harness.results_reader import RunData

_SCALES = {"weak": "weak scaling: a fixed batch for each device", "strong": "strong scaling: a fixed batch for all"}
_CLAIMED = re.compile(r"scale-(\d+)")


def figures(
    effects: pd.DataFrame,
    data: RunData,
    baselines: Mapping[str, str],
    claims: Sequence[Claim],
    caption: Sequence[str],
) -> dict[str, Figure]:
    """One figure a workload: weak and strong scaling side by side, speedup above, efficiency below.

    Dashed is what :mod:`harness.projected` makes of the same run's step on one device; it stands for DDP.
    """
    points = _points(effects, data.trials)
    if points.empty:
        raise NothingToDraw("scaling curves: no comparison varies the devices; run the device studies (-k ddp).")
    shown = sorted({*points["devices"], *_claimed(claims)})
    dashed = projected.curves(data.samples, data.trials, data.checks, baselines, shown)
    return {
        f"scaling_{w}": _figure(str(w), part, dashed[dashed["workload"] == w], claims, caption)
        for w, part in points.groupby("workload")
    }


def _points(effects: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """The speedup of each arm on several devices, with ``devices``, ``scale``, ``strategy`` and ``crowded``."""
    shown = trials[(trials["arm"] != CONTROL) & trials["observed_devices"].notna()]
    varied = shown.groupby("comparison", observed=True)["observed_devices"].transform("nunique") > 1
    shown = shown[varied & (shown["toggle_strategy"] != "pipeline")].drop_duplicates(["comparison", "arm"])
    cells = pd.DataFrame(
        {
            "comparison": shown["comparison"].astype(str),
            "arm": shown["arm"].astype(str),
            "devices": shown["observed_devices"].astype(int),
            "scale": shown["toggle_scale"].astype(str),
            "strategy": shown["toggle_strategy"].astype(str),
        }
    )
    speedups = effects[(effects["metric"] == "throughput") & effects["estimate"].notna()]
    return cells.merge(speedups, on=["comparison", "arm"]).assign(crowded=lambda t: t["unfit"] != "")


def _figure(
    workload: str, points: pd.DataFrame, dashed: pd.DataFrame, claims: Sequence[Claim], caption: Sequence[str]
) -> Figure:
    scales = [scale for scale in _SCALES if (points["scale"] == scale).any()]
    colours = style.colour_of(points["strategy"])
    claimed = _claimed(claims)
    legend = [
        *style.key(colours, line=True),
        Line2D([], [], color=style.GREY, linestyle=":", label="linear"),
        Line2D([], [], color=style.BLACK, marker="D", markersize=5, linewidth=0, label="claimed for GPUs"),
        Line2D([], [], color=style.GREY, marker="o", markerfacecolor="white", linewidth=0, label="oversubscribed"),
    ]
    if len(dashed):
        legend.insert(-2, Line2D([], [], color=style.BLACK, linestyle="--", label="projected (DDP)"))
    note = (
        "Points: geometric mean over launches, against one device with the same threads; bars: 95% t interval over "
        f"launches, {style.counts(points['n'])}. Hollow: more devices than cores, out of every verdict."
    )
    drawn, axes = style.grid(
        [2.4, 1.7], len(scales), title=f"Several devices: {workload}", caption=[note, *caption], legend=legend,
        sharex=True, sharey="row",
    )  # fmt: skip
    ticks = sorted({1, *points["devices"], *claimed})
    for column, scale in enumerate(scales):
        top, bottom = axes[0][column], axes[1][column]
        top.set_title(_SCALES[scale])
        top.plot(ticks, ticks, color=style.GREY, linestyle=":", linewidth=1)
        bottom.axhline(1, color=style.GREY, linestyle=":", linewidth=1)
        for _, curve in dashed[dashed["scale"] == scale].groupby("comparison"):
            for ax, name in ((top, "speedup"), (bottom, "efficiency")):
                ax.plot([1, *curve["devices"]], [1, *curve[name]], color=style.BLACK, linestyle="--", linewidth=1)
        top.plot(list(claimed), list(claimed.values()), color=style.BLACK, marker="D", markersize=5, linewidth=0)
        bottom.plot(
            list(claimed), [v / n for n, v in claimed.items()], color=style.BLACK, marker="D", markersize=5, linewidth=0
        )
        for strategy, (colour, marker) in colours.items():
            here = points[(points["scale"] == scale) & (points["strategy"] == strategy)].sort_values("devices")
            _curve(top, here, 1, colour, marker)
            _curve(bottom, here, here["devices"], colour, marker)
        bottom.set_xlabel("devices")
    axes[0][0].set_ylabel("speedup")
    axes[1][0].set_ylabel("speedup / devices")
    for row in axes:
        for ax in row:
            ax.set_xscale("log", base=2)
            ax.set_xticks(ticks, [str(n) for n in ticks])
            ax.minorticks_off()
    axes[0][0].set_yscale("log", base=2)
    axes[0][0].set_yticks(ticks, [f"{n}x" for n in ticks])
    axes[0][0].set_ylim(bottom=0.7)
    axes[1][0].set_ylim(bottom=0)
    return drawn


def _claimed(claims: Sequence[Claim]) -> Mapping[int, float]:
    """The documents' speedup by number of devices."""
    found = {}
    for claim in claims:
        if named := _CLAIMED.fullmatch(claim.id):
            (reading,) = claim.measures[0].readings.values()
            assert reading.low is not None
            found[int(named[1])] = reading.low
    return found


def _curve(ax: Axes, points: pd.DataFrame, over: pd.Series | int, colour: str, marker: str) -> None:
    """A line from one device through the points, each over its number of devices where efficiency is shown."""
    if points.empty:
        return
    value, low, high = (points[name] / over for name in ("estimate", "low", "high"))
    ax.plot([1, *points["devices"]], [1, *value], color=colour, linewidth=1.4)
    ax.vlines(points["devices"], low, high, color=colour, linewidth=3, alpha=0.45)
    full = points["crowded"].to_numpy() == False  # noqa: E712 - an array
    for mask, face in ((full, colour), (~full, "white")):
        ax.plot(
            points["devices"][mask], value[mask], color=colour, marker=marker, markersize=6, markerfacecolor=face,
            linewidth=0,
        )  # fmt: skip
