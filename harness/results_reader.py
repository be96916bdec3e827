"""The only reader of results/: run folders as typed data frames, or one error that names file, place and value.

The C parser of pandas reads with the schema's types; only where it or a vectorised check objects are the rows gone
through one by one, to name the first fault.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness import results_header
from harness.errors import ResultsError
from harness.results_columns import LAUNCH_COLUMN, ResultsWarning, default_level, level_allowed, warn
from harness.results_files import existing_folder, header_of, rows, run_folders, whole_rows
from harness.schema import CHECKS, CONVERGENCE, SAMPLES, TABLES, TRIALS, Column, Table

# Floats must come back to the last bit; newer parsers of pandas do that by themselves and deprecate the option.
_OLD_PARSER = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
_EXACT_FLOATS: dict[str, Any] = {"float_precision": "round_trip"} if _OLD_PARSER else {}

__all__ = ["ResultsWarning", "RunData", "read", "read_all"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunData:
    """One or several runs. ``headers`` maps run_id to the content of run.yaml.

    Columns are those of :mod:`harness.schema`, in its order. Text is categorical (group with ``observed=True``),
    whole numbers are int64, or Int64 where they may be null, booleans likewise bool or boolean, numbers float64.
    """

    headers: dict[str, dict[str, Any]]
    samples: pd.DataFrame
    trials: pd.DataFrame
    convergence: pd.DataFrame
    checks: pd.DataFrame


def read_all(results_dir: str | Path) -> RunData:
    """Read every run folder of ``results_dir``, oldest first.

    Raises:
        ResultsError: there is no folder or no run, or a run cannot be read.
    """
    folders = run_folders(results_dir)
    if not folders:
        raise ResultsError(
            f"{results_dir}: holds no run yet; run `make bench` first, or name a folder with --results DIR."
        )
    return read(folders)


def read(paths: str | Path | Sequence[str | Path]) -> RunData:
    """Read one or several run folders.

    A half-written last row, and rows of a launch whose trials are missing (its writer was killed), are left out with a
    :class:`~harness.results_columns.ResultsWarning`.

    Raises:
        ResultsError: a file of another schema version, a missing or unknown column, a value that is not allowed, bytes
            that are not UTF-8; names file, place, value and what is allowed.
    """
    folders = [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    headers: dict[str, dict[str, Any]] = {}
    frames: dict[str, list[pd.DataFrame]] = {t.name: [] for t in TABLES}
    for folder in folders:
        existing_folder(folder)
        header = results_header.load(folder)
        run_id = header["run_id"]
        if run_id in headers:
            raise ResultsError(f"{folder}: run {run_id!r} is there twice; read each run once.")
        headers[run_id] = header
        for name, frame in _run(folder, run_id).items():
            frames[name].append(frame)
    whole = {t.name: _together(t, frames[t.name]) for t in TABLES}
    return RunData(headers=headers, **whole)


def _run(folder: Path, run_id: str) -> dict[str, pd.DataFrame]:
    frames = {t.name: _table(folder / t.file, t, run_id) for t in TABLES}
    trials = frames[TRIALS.name]
    twice = trials.duplicated(["comparison", "arm", "launch"])
    if twice.any():
        row = trials[twice].iloc[0]
        raise ResultsError(
            f"{folder / TRIALS.file}: {row['comparison']!r}, arm {row['arm']!r}, launch {row['launch']} is there "
            "twice; allowed: one row for each cell in each launch; remove one."
        )
    for table in (SAMPLES, CONVERGENCE, CHECKS):
        frames[table.name] = _with_trial(frames[table.name], trials, table, folder / table.file)
    return frames


def _table(path: Path, table: Table, run_id: str) -> pd.DataFrame:
    names = header_of(path, table) if path.exists() else []
    if not names:
        return _together(table, [])
    given = [c for c in table.columns if c.name in names]
    try:
        with whole_rows(path) as file, warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame: pd.DataFrame = pd.read_csv(
                file,
                engine="c",
                encoding="utf-8-sig",
                dtype={c.name: _dtype(c) for c in given},
                keep_default_na=False,  # an empty cell is null, and no word is
                na_values=[""],
                index_col=False,
                **_EXACT_FLOATS,
            )
        wrong = next((c.name for c in given if _breaks_rule(frame[c.name], c)), "")
    except (ValueError, TypeError, OverflowError, pd.errors.ParserWarning) as error:
        _check_each_row(path, table)
        raise ResultsError(f"{path}: cannot be read: {str(error).splitlines()[0]}.") from error
    if wrong:
        _check_each_row(path, table)
        raise ResultsError(f"{path}: column {wrong!r} holds a value that is not allowed.")
    if table.columns[-1].null_when and frame[names[-1]].isna().any():
        _check_each_row(path, table)  # a line with too few fields looks like one that ends in empty ones
    others = [c for c in frame["run_id"].cat.categories if c != run_id]
    if others:
        raise ResultsError(f"{path}: column 'run_id' holds {others[0]!r}; allowed: {run_id!r}, the run_id of run.yaml.")
    for column in table.columns:
        if column.name not in names:
            frame[column.name] = _absent(column, len(frame))
    return frame[table.names]


def _absent(column: Column, rows: int) -> Any:
    """What a column that an older file lacks reads as: a toggle's default level, else null."""
    if column.later:
        return pd.array([None] * rows, dtype=_dtype(column))  # type: ignore[call-overload]
    level = pd.Index([default_level(column)], dtype=str)
    return pd.Categorical.from_codes(np.zeros(rows, dtype=np.int8), level)


def _check_each_row(path: Path, table: Table) -> None:
    """Raise ResultsError for the first row with a fault."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResultsWarning)  # the fast reader has said it
        for _ in rows(path, table):
            pass


def _dtype(column: Column) -> str:
    null = bool(column.null_when)
    match column.kind:
        case "string":
            return "category"
        case "integer":
            return "Int64" if null else "int64"
        case "boolean":
            return "boolean" if null else "bool"
        case "number":
            return "float64"


def _breaks_rule(values: pd.Series, column: Column) -> bool:
    if not column.null_when and values.isna().any():
        return True
    if column.kind == "number":
        return bool(np.isinf(values.to_numpy()).any())
    if column.kind == "string":
        return not all(level_allowed(column, str(v)) for v in values.cat.categories)
    return False


def _with_trial(frame: pd.DataFrame, trials: pd.DataFrame, table: Table, path: Path) -> pd.DataFrame:
    """The rows whose cell and launch have a trial."""
    kept = np.isin(
        _cell_launch(frame, frame, LAUNCH_COLUMN.get(table.name, "launch")), _cell_launch(trials, frame, "launch")
    )
    if kept.all():
        return frame
    warn(f"{path}: left out {int((~kept).sum())} rows of launches that have no trial; their run was cut short")
    return frame[kept].reset_index(drop=True)


def _cell_launch(frame: pd.DataFrame, like: pd.DataFrame, launch: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """One number for each (comparison, arm, launch), with the category codes of ``like``; -1 where it has none."""
    comparisons, arms = like["comparison"].cat.categories, like["arm"].cat.categories
    comparison = frame["comparison"].cat.set_categories(comparisons).cat.codes.to_numpy(np.int64)
    arm = frame["arm"].cat.set_categories(arms).cat.codes.to_numpy(np.int64)
    key = (frame[launch].to_numpy(np.int64) * len(comparisons) + comparison) * len(arms) + arm
    return np.where((comparison < 0) | (arm < 0), -1, key)


def _together(table: Table, frames: list[pd.DataFrame]) -> pd.DataFrame:
    """One frame of several, text still categorical; with no frame, one without rows."""
    if len(frames) == 1:
        return frames[0]
    columns = {}
    for column in table.columns:
        parts = [f[column.name] for f in frames]
        if column.kind == "string":
            levels = pd.Index(list(dict.fromkeys(str(v) for p in parts for v in p.cat.categories)), dtype=str)
            codes = [p.cat.set_categories(levels).cat.codes.to_numpy() for p in parts]
            joined = np.concatenate([np.empty(0, dtype=np.int8), *codes])
            columns[column.name] = pd.Series(pd.Categorical.from_codes(joined, levels))
        else:
            columns[column.name] = pd.concat(parts or [pd.Series(dtype=_dtype(column))], ignore_index=True)
    return pd.DataFrame(columns)
