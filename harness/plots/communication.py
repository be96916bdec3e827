"""How much of a data-parallel step is the exchange of gradients, and how much of that is hidden."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.ticker import PercentFormatter

from harness.plots import style
from harness.plots.style import NothingToDraw
from harness.spec import CONTROL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STUDY = "gradient-exchange"
_MEANING = {
    "overlap": "overlapped with the backward pass",
    "after": "after the backward pass",
    "none": "no exchange at all",
    "bf16": "overlapped, in 16 bits",
}


def figures(effects: pd.DataFrame, caption: Sequence[str]) -> dict[str, Figure]:
    """One figure: the communication share of each workload, and the speedup of each way of exchanging."""
    shares = effects[(effects["metric"] == "communication_share") & effects["estimate"].notna()]
    if shares.empty:
        raise NothingToDraw(f"communication share: no run of study {STUDY}; measure it (-k {STUDY}).")
    ways = effects[
        (effects["study"] == STUDY)
        & (effects["metric"] == "throughput")
        & (effects["arm"] != CONTROL)
        & effects["estimate"].notna()
    ]
    workloads = sorted(shares["workload"].astype(str).unique())
    colours = style.colour_of(workloads)
    note = (
        "Left: what of a step is gone when nothing is exchanged. Right: examples a second over those with overlap. "
        f"Bars: 95% t interval over launches, {style.counts(shares['n'])}."
    )
    labels = [arm for arm in _MEANING if arm in set(ways["arm"].astype(str))]
    drawn, axes = style.grid(
        [0.4 + 0.5 * max(len(workloads), len(labels))], 2, title="Exchange of gradients on two devices",
        caption=[note, *caption], legend=style.key(colours, line=False), margins=(1.2, 2.1),
    )  # fmt: skip
    left, right = axes[0]
    for place, workload in enumerate(workloads):
        _point(left, shares[shares["workload"] == workload], place, *colours[workload])
    left.set_yticks(range(len(workloads)), workloads)
    left.set_xlim(min(0.0, float(shares["low"].min())), max(0.1, 1.1 * float(shares["high"].max())))
    left.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    left.set_xlabel("communication share of a step")
    offset = {w: 0.18 * (i - (len(workloads) - 1) / 2) for i, w in enumerate(workloads)}
    for place, arm in enumerate(labels):
        for workload in workloads:
            here = ways[(ways["arm"] == arm) & (ways["workload"] == workload)]
            _point(right, here, place + offset[workload], *colours[workload])
    right.axvline(1, color=style.GREY, linewidth=1)
    right.set_yticks(range(len(labels)), [f"{arm}\n{_MEANING[arm]}" for arm in labels], fontsize=8)
    right.yaxis.tick_right()
    right.set_xlabel("speedup over overlap")
    for ax, count in ((left, len(workloads)), (right, len(labels))):
        ax.set_ylim(count - 0.5, -0.5)
        ax.grid(axis="y", visible=False)
    return {"communication": drawn}


def _point(ax: Axes, rows: pd.DataFrame, y: float, colour: str, marker: str) -> None:
    """An estimate and its interval."""
    for estimate, low, high in rows[["estimate", "low", "high"]].to_numpy(dtype=float).tolist():
        ax.hlines(y, low, high, color=colour, linewidth=3, alpha=0.45)
        ax.plot(estimate, y, color=colour, marker=marker, markersize=6, linewidth=0)
