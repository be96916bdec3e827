"""The figures of a run, SVG and PNG, redrawn from its rows; each function draws one kind and nothing is kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from harness.claim_file import Claim
from harness.errors import ResultsError
from harness.plots import accuracy, batch, communication, forest, formats, scaling, stalls, style, tradeoff, workers
from harness.plots.style import NothingToDraw
from harness.provenance import provenance
from harness.results_columns import warn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from harness.results_reader import RunData

__all__ = ["NothingToDraw", "draw_all"]

_OURS = (
    "claims",
    "batch_*",
    "memory_speedup_*",
    "accuracy_time_*",
    "formats_*",
    "workers_*",
    "stalls_*",
    "scaling_*",
    "communication",
)


def draw_all(
    data: RunData, effects: pd.DataFrame, verdicts: pd.DataFrame, claims: Sequence[Claim], out_dir: Path
) -> list[Path]:
    """Draw every figure of one run into ``out_dir``/<run_id>/; return the files, SVG before PNG.

    A figure whose rows the run does not have is left out with a warning that names what is missing; the files of an
    earlier set that are not drawn again are removed, so that no figure outlives its data. Raises
    :class:`~harness.errors.ResultsError` where there is not one run, nothing at all to draw, or no way to write.
    """
    if len(data.headers) != 1:
        raise ResultsError(
            f"figures are drawn for one run at a time; this holds {len(data.headers)}: {', '.join(data.headers)}."
        )
    ((run_id, header),) = data.headers.items()
    caption = provenance(header).lines
    makers: tuple[Callable[[], dict[str, Figure]], ...] = (
        functools.partial(forest.figures, verdicts, claims, caption),
        functools.partial(batch.figures, data.samples, data.trials, effects, caption),
        functools.partial(tradeoff.figures, effects, caption),
        functools.partial(accuracy.figures, data.convergence, caption),
        functools.partial(formats.figures, data.samples, data.trials, caption),
        functools.partial(workers.figures, data.samples, data.trials, header["baselines"], caption),
        functools.partial(stalls.figures, effects, data.trials, caption),
        functools.partial(scaling.figures, effects, data, header["baselines"], claims, caption),
        functools.partial(communication.figures, effects, caption),
    )
    folder, written, missing = out_dir / run_id, [], []
    with style.styled():
        for make in makers:
            try:
                drawn = make()
            except NothingToDraw as error:
                missing.append(str(error))
                continue
            for name, figure in drawn.items():
                written += style.save(figure, folder, name)
    if not written:
        raise ResultsError(f"run {run_id}: nothing to draw. " + " ".join(missing))
    for reason in missing:
        warn(f"run {run_id}: left out {reason}")
    _remove_stale(folder, set(written))
    return written


def _remove_stale(folder: Path, written: set[Path]) -> None:
    for pattern in _OURS:
        for suffix in ("svg", "png"):
            for path in folder.glob(f"{pattern}.{suffix}"):
                if path not in written:
                    path.unlink()
