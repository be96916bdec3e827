"""What the figures of the data path share: which trials vary a toggle of it, and what of them cannot be drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.plots import style
from harness.schema import toggle_column
from harness.spec import CONTROL, Mode, Status

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST_LEVELS = 3  # a pair is a comparison, not a sweep
MODE_TITLES = {Mode.LOADING.value: "loading alone", Mode.END_TO_END.value: "training end to end"}


def sweep(trials: pd.DataFrame, toggle: str) -> pd.DataFrame:
    """The trials that load, of comparisons with three levels or more of ``toggle``; the A/A twin left out."""
    column = toggle_column(toggle)
    chosen = trials[trials["mode"].isin(list(MODE_TITLES)) & (trials["arm"] != CONTROL)]
    chosen = chosen.astype(dict.fromkeys(("comparison", "arm", "mode", "framework", "workload", column), object))
    return chosen[chosen.groupby("comparison")[column].transform("nunique") >= FEWEST_LEVELS]


def cells(trials: pd.DataFrame) -> pd.DataFrame:
    """One row a cell: what its trials say of it, from one that is ok where there is one."""
    first = trials.assign(failed=trials["status"] != Status.OK).sort_values("failed", kind="stable")
    return first.drop_duplicates(["comparison", "arm"])


def not_drawn(trials: pd.DataFrame) -> list[str]:
    """A line of the caption for each reason why an arm has no mark, with the arms that it befell.

    Where an arm has a mark of another study, the line says in which it has none.
    """
    told: dict[str, dict[str, None]] = {}
    found = cells(trials)
    drawn = {(c["framework"], c["arm"]) for c in found[~found["failed"]].to_dict("records")}
    for cell in found[found["failed"]].to_dict("records"):
        name = f"{style.FRAMEWORK_TITLES.get(cell['framework'], cell['framework'])} {cell['arm']}"
        if (cell["framework"], cell["arm"]) in drawn:
            name += f" in {cell['study']}"
        told.setdefault(f"{cell['status']}: {cell['reason']}", {})[name] = None
    return [f"Not drawn: {', '.join(arms)} ({why})." for why, arms in told.items()]


def rates_axis(ax: Axes, axis: str) -> None:
    """A log axis of images a second, in plain numbers."""
    (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    scaled = ax.xaxis if axis == "x" else ax.yaxis
    scaled.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    scaled.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}"))
    scaled.set_minor_locator(NullLocator())
