"""Tables: the verdicts for the terminal, and citable ones as Markdown, LaTeX or CSV with all that a citation needs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.errors import ResultsError, unknown
from harness.metrics import METRICS, Kind, kind_of
from harness.provenance import Provenance, provenance
from harness.spec import CONTROL
from harness.summary import claimed, interval, measurements, natural, not_run_lines

if TYPE_CHECKING:
    from harness.selfcheck import Figure

_STYLES = {"supported": "green", "below": "red", "above": "magenta", "invalid": "bold red", "out_of_scope": "dim"}
_WIDEST = 4  # metrics side by side; a study with more has one row for each
_ARM = ["framework", "workload", "arm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Citable:
    """A table ready to be printed: every cell is text, ``notes`` say where the numbers come from."""

    label: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def terminal(verdicts: pd.DataFrame, *, width: int = 80, colour: bool = False) -> str:
    """The verdicts for a terminal of ``width`` columns: each claim with its claimed range, and its measurements below.

    Claims without a measurement follow, one line a reason; ``colour`` adds the escape codes of a terminal.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), width=width, show_edge=False)
    table.add_column("claim", ratio=5, min_width=24, overflow="fold")
    table.add_column("claimed, measured [95%]", ratio=5, overflow="fold")
    table.add_column("n", justify="right", min_width=2)
    table.add_column("verdict", ratio=4, overflow="fold")
    points = measurements(verdicts)
    for (claim, metric), rows in points.groupby(["claim", "metric"], sort=False):
        readings = dict.fromkeys(r for own in rows["readings"] for r in own)
        named = str(claim) if metric == "throughput" else f"{claim}: {str(metric).replace('_', ' ')}"
        table.add_row(f"[bold]{escape(named)}[/]", f"[bold]{escape(claimed(readings, str(metric)))}[/]", "", "")
        for row in rows.to_dict("records"):
            measured = interval(row["estimate"], row["low"], row["high"], row["metric"])
            verdict = f"[{_STYLES.get(row['group'], 'yellow')}]{escape(row['verdict'])}[/]"
            table.add_row(f" {_side(row)}", escape(measured), str(int(row["n"])), verdict)
    shown = _printed(table, width=width, colour=colour) if not points.empty else ""
    return "\n".join([shown.rstrip("\n"), *not_run_lines(verdicts)]).lstrip("\n") + "\n"


def targets(figures: Sequence[Figure], *, width: int = 80, colour: bool = False) -> str:
    """The figures of the suite's own audit beside their targets."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), width=width, show_edge=False)
    for name, share in (("figure", 5), ("target", 2), ("measured", 4)):
        table.add_column(name, ratio=share, overflow="fold")
    table.add_column("", min_width=6)
    for figure in figures:
        mark = {True: "[green]ok[/]", False: "[bold red]MISSED[/]", None: "-"}[figure.passed]
        measured = figure.measured if figure.passed is not None else figure.detail
        table.add_row(*(escape(text) for text in (figure.name, figure.target, measured)), mark)
    return _printed(table, width=width, colour=colour)


def _printed(table: Table, *, width: int, colour: bool) -> str:
    with io.StringIO() as text:
        system: Literal["standard"] | None = "standard" if colour else None
        Console(file=text, width=width, force_terminal=colour, color_system=system, highlight=False).print(table)
        return text.getvalue()


def _side(row: Mapping[Any, Any]) -> str:
    short = {"tensorflow": "tf"}.get(str(row["framework"]), str(row["framework"]))
    # The study says more than the workload where both the arm and the workload are the same in several studies.
    place = str(row["where"] or row["workload"])
    return escape(" ".join(dict.fromkeys((short, place, str(row["arm"])))))


def citable(effects: pd.DataFrame, header: Mapping[str, Any], *, study: str = "") -> list[Citable]:
    """One table a study of a run, or of ``study`` alone; the A/A twin is in it, as the noise that the rest stands in.

    Raises :class:`~harness.errors.SpeedproofError` for a study that the run does not have, or a run with no effect.
    """
    source = provenance(header)
    if effects.empty:
        raise ResultsError(f"run {source.run_id}: there is nothing to tabulate; it has no trial of a treatment yet.")
    there = list(dict.fromkeys(str(s) for s in effects["study"]))
    if study and study not in there:
        raise unknown("study", study, there, where=f"run {source.run_id}")
    ordered = sorted(effects.to_dict("records"), key=_place)
    effects = pd.DataFrame(ordered, columns=effects.columns)
    return [_of_study(effects[effects["study"] == name], name, source) for name in there if study in ("", name)]


def _place(effect: Mapping[Any, Any]) -> tuple[Any, ...]:
    """PyTorch first, then by comparison; within it the arms in natural order, the A/A twin last."""
    arm = str(effect["arm"])
    return effect["framework"] != "torch", str(effect["comparison"]), arm == CONTROL, natural(arm)


def _of_study(effects: pd.DataFrame, study: str, source: Provenance) -> Citable:
    present = set(effects.loc[effects["estimate"].notna(), "metric"])
    if "throughput" in present:  # which is the step time upside down
        effects, present = effects[effects["metric"] != "step_time"], present - {"step_time"}
    metrics = [m for m in METRICS if m in present] + sorted(present - set(METRICS))
    bases = ", ".join(sorted(effects["baseline"].astype(str).unique()))
    values = all(kind_of(m) is Kind.VALUE for m in metrics)
    compared = "" if values and metrics else f" against the baseline {bases}"
    notes = (
        "Brackets: 95% interval over launches, or over seeds in training to convergence; n counts them."
        + _meanings(metrics),
        *([f"{CONTROL}: the baseline against itself."] if (effects["arm"] == CONTROL).any() else []),
        *source.lines,
        *_reasons(effects),
    )
    wide = len(metrics) <= _WIDEST and not values
    columns = ("framework", "workload", "arm", "n", *(m.replace("_", " ") for m in metrics))
    return Citable(
        label=study,
        title=f"Study {study}{compared}",
        columns=columns if wide else ("framework", "workload", "arm", "n", "metric", "value"),
        rows=tuple(_wide_rows(effects, metrics) if wide else _long_rows(effects)),
        notes=notes,
    )


def _reasons(effects: pd.DataFrame) -> list[str]:
    """Why values are missing, each reason once with the arms that it befell."""
    silent = effects[effects["estimate"].isna() & (effects["reason"] != "")]
    arms: dict[str, dict[str, None]] = {}
    for e in silent.to_dict("records"):
        metric = "" if e["status"] != "ok" else f"{str(e['metric']).replace('_', ' ')}: "
        arms.setdefault(f"{metric}{e['reason']}", {})[" ".join(str(e[c]) for c in _ARM)] = None
    return [f"{reason} ({'; '.join(befallen)})" for reason, befallen in arms.items()]


def _meanings(metrics: Iterable[str]) -> str:
    known = [m for m in metrics if m in METRICS]
    return "".join(f" {m.replace('_', ' ')}: {METRICS[m].meaning}." for m in known)


def _wide_rows(effects: pd.DataFrame, metrics: Sequence[str]) -> Iterable[tuple[str, ...]]:
    for key, arm in effects.groupby(["comparison", *_ARM], sort=False, observed=True):
        cells = {str(e["metric"]): e for e in arm.to_dict("records")}
        counts = sorted({int(e["n"]) for e in cells.values() if e["n"] > 0})
        n = "–".join(dict.fromkeys(str(c) for c in (counts[0], counts[-1]))) if counts else "0"
        yield (*map(str, key[1:]), n, *(_cell(cells.get(m)) for m in metrics))


def _long_rows(effects: pd.DataFrame) -> Iterable[tuple[str, ...]]:
    for e in effects.to_dict("records"):
        yield (*(str(e[c]) for c in _ARM), str(int(e["n"])), str(e["metric"]).replace("_", " "), _cell(e))


def _cell(effect: Mapping[Any, Any] | None) -> str:
    if effect is None:
        return "–"
    if pd.isna(effect["estimate"]):
        return "–" if effect["status"] == "ok" else str(effect["status"])
    return interval(effect["estimate"], effect["low"], effect["high"], str(effect["metric"]))


def citable_verdicts(verdicts: pd.DataFrame, header: Mapping[str, Any]) -> Citable:
    """The verdict table of a run in a form to cite; claims without a measurement are counted in its notes."""
    rows = tuple(
        (
            str(p["claim"]), claimed(p["readings"], p["metric"]), str(p["study"]), *(str(p[c]) for c in _ARM),
            str(p["metric"]).replace("_", " "), interval(p["estimate"], p["low"], p["high"], p["metric"]),
            str(int(p["n"])), str(p["verdict"]),
        )
        for p in measurements(verdicts).to_dict("records")
    )  # fmt: skip
    return Citable(
        label="verdicts",
        title="Claims and verdicts",
        columns=("claim", "claimed", "study", "framework", "workload", "arm", "metric", "measured", "n", "verdict"),
        rows=rows,
        notes=("Brackets: 95% interval.", *provenance(header).lines, *not_run_lines(verdicts)),
    )


def markdown(table: Citable) -> str:
    """GitHub-flavoured Markdown; the notes follow as a list."""
    lines = [f"**{_md(table.title)}**", "", _md_row(table.columns), _md_row("---" for _ in table.columns)]
    lines += [_md_row(_md(cell) for cell in row) for row in table.rows]
    return "\n".join([*lines, "", *(f"- {_md(note)}" for note in table.notes)]) + "\n"


def _md(text: str) -> str:
    return re.sub(r"([\\|*_`<\[\]#])", r"\\\1", text)


def _md_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "–": "--", "−": r"$-$", "≤": r"$\leq$", "≥": r"$\geq$", "×": r"$\times$", "±": r"$\pm$", '"': "''",
}  # fmt: skip


def tex(text: str) -> str:
    """Text for LaTeX, each special character escaped."""
    return "".join(_TEX.get(character, character) for character in text)


def latex(table: Citable) -> str:
    """A ``table`` environment with booktabs rules (``\\usepackage{booktabs}``); the notes stand below the rules."""
    rows = [" & ".join(tex(cell) for cell in row) + r" \\" for row in (table.columns, *table.rows)]
    notes = [rf"\par\footnotesize {tex(note)}" for note in table.notes]
    return "\n".join(
        [
            r"\begin{table}", r"\centering", rf"\caption{{{tex(table.title)}}}",
            rf"\label{{tab:{_label(table.label)}}}", rf"\begin{{tabular}}{{{'l' * len(table.columns)}}}",
            r"\toprule", rows[0], r"\midrule", *rows[1:],
            r"\bottomrule", r"\end{tabular}", *notes, r"\end{table}", "",
        ]
    )  # fmt: skip


def _label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", text)


def as_csv(rows: pd.DataFrame, header: Mapping[str, Any]) -> str:
    """``rows`` (effects or verdicts), the run's provenance in columns of its own: each row stands alone."""
    source = provenance(header)
    facts = {
        "run_id": source.run_id, "machine": source.machine, "versions": source.versions, "commit": source.commit,
        "profile": source.profile, "command": source.command,
    }  # fmt: skip
    return rows.assign(**facts).to_csv(index=False, quoting=csv.QUOTE_MINIMAL, lineterminator="\n")
