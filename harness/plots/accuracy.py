"""Accuracy against training time, every seed visible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.lines import Line2D

from harness.plots import style
from harness.plots.style import NothingToDraw
from harness.spec import CONTROL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figures(convergence: pd.DataFrame, caption: Sequence[str]) -> dict[str, Figure]:
    """One figure a convergence study."""
    if convergence.empty:
        raise NothingToDraw("accuracy against time: convergence.csv has no rows; run a convergence study.")
    return {
        f"accuracy_time_{study}": figure(str(study), rows, caption)
        for study, rows in convergence.groupby("study", observed=True)
    }


def figure(study: str, rows: pd.DataFrame, caption: Sequence[str]) -> Figure:
    """One column a framework, one row a workload of the baseline; a thin line a seed, a large mark their mean."""
    rows = rows[rows["arm"] != CONTROL].assign(trained=rows["comparison"].str.rsplit("/", n=1).str[-1])
    trained, frameworks = sorted(rows["trained"].unique()), style.in_order(rows["framework"])
    colours = style.colour_of(rows["arm"])
    target = Line2D([], [], color=style.GREY, linestyle="--", label="target")
    seeds = rows.groupby(["comparison", "arm"], observed=True)["seed"].nunique()
    note = (
        f"One thin line a seed, {style.counts(seeds)} seeds an arm, shared by the arms; large marks: mean over seeds "
        "after the last epoch, bars: the smallest and largest seed. Time is training time, evaluation left out."
    )
    drawn, axes = style.grid(
        [2.6] * len(trained), len(frameworks), title=f"Accuracy against training time: {study}",
        caption=[note, *caption], legend=[*style.key(colours, line=True), target], sharey="row",
    )  # fmt: skip
    for r, workload in enumerate(trained):
        for c, framework in enumerate(frameworks):
            ax = axes[r][c]
            ax.set_title(f"{style.FRAMEWORK_TITLES.get(framework, framework)}, {workload}")
            _panel(ax, rows[(rows["trained"] == workload) & (rows["framework"] == framework)], colours)
            if r == len(trained) - 1:
                ax.set_xlabel("training time (s)")
        axes[r][0].set_ylabel("test accuracy")
    return drawn


def _panel(ax: Axes, rows: pd.DataFrame, colours: dict[str, tuple[str, str]]) -> None:
    for arm, (colour, marker) in colours.items():
        of_arm = rows[rows["arm"] == arm].sort_values("epoch")
        if of_arm.empty:
            continue
        for _, line in of_arm.groupby("seed", observed=True):
            ax.plot(
                line["train_s"], line["accuracy"], color=colour, linewidth=0.8, alpha=0.75, marker=".", markersize=3
            )
        last = of_arm.groupby("seed", observed=True).tail(1)
        x, y = last["train_s"].mean(), last["accuracy"].mean()
        ax.plot([x, x], [last["accuracy"].min(), last["accuracy"].max()], color=colour, linewidth=1.6)
        ax.plot([last["train_s"].min(), last["train_s"].max()], [y, y], color=colour, linewidth=1.6)
        ax.plot(
            [x], [y], color=colour, marker=marker, markersize=8, markeredgecolor="white", linestyle="none", zorder=5
        )
    for target in sorted(rows["target_accuracy"].dropna().unique()):
        ax.axhline(target, color=style.GREY, linewidth=1.2, linestyle="--")
    ax.set_xlim(left=0)
    ax.margins(y=0.08)
