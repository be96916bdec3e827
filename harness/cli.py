"""The command ``speedproof``. What a command needs is imported when it runs, so that ``list`` answers at once."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import shutil
import sys
import warnings
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import data_cli
from harness.errors import SpeedproofError, unknown

if TYPE_CHECKING:
    from harness.report import Report

DEFAULT_RESULTS = Path("results")
MISSED = 1  # exit code for an audit that missed a target
FAILED = 2  # exit code for what the user is told in one line

app = typer.Typer(
    name="speedproof",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it reads the same in a pipe
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_cli.app, name="data")


class Format(StrEnum):
    """Formats of text and data."""

    TEXT = "text"
    JSON = "json"


class TableFormat(StrEnum):
    """Formats of a citable table."""

    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"
    TEXT = "text"


class TableOf(StrEnum):
    """What a table shows."""

    EFFECTS = "effects"
    VERDICTS = "verdicts"


Results = Annotated[Path, typer.Option("--results", help="Folder of the runs.", metavar="DIR")]
Run = Annotated[str, typer.Option("--run", help="Id of one run; without it, every run.", metavar="ID")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"speedproof {importlib.metadata.version('speedproof')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Which tricks for faster training work on this machine, by how much, and at what cost.

    Measure with: pytest benchmarks/ --benchmark-only
    """


@app.command("list", short_help="Studies, toggles and claims, and what runs here.")
def list_(
    claims: Annotated[bool, typer.Option("--claims", help="List every claim, not only their number.")] = False,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TEXT,
) -> None:
    """List studies, toggles and claims, with what can run here and why the rest cannot.

    Imports no framework: it asks which packages are installed and which GPUs the driver shows, so an arm can still turn
    out to be unavailable when it is measured.

    Example: speedproof list --claims
    """
    from harness import inventory

    found = inventory.take()
    if format is Format.JSON:
        _print_json(dataclasses.asdict(found))
        return
    for line in inventory.lines(found, with_claims=claims, width=_width()):
        typer.echo(line)


@app.command(short_help="This machine and its hazards.")
def doctor(format: Annotated[Format, typer.Option(help="How to print.")] = Format.TEXT) -> None:
    """Show this machine, and what would put a measurement on it in doubt.

    Example: speedproof doctor
    """
    from harness import machine

    facts = machine.fingerprint()
    hazards = machine.hazards(facts)
    if format is Format.JSON:
        found = [dataclasses.asdict(h) for h in hazards]
        _print_json({"machine": facts, "hazards": found, "versions": machine.versions()})
        return
    typer.echo(machine.one_line(facts, hazards))
    for package, version in machine.versions().items():
        typer.echo(f"  {package:<17}{version or 'not installed'}")
    if not hazards:
        typer.echo("No hazards: nothing here puts a measurement in doubt.")
    for hazard in hazards:
        typer.echo(f"{hazard.level}: {hazard.name}: {hazard.message}")


@app.command(short_help="Redraw every figure.")
def plot(
    results: Results = DEFAULT_RESULTS,
    out: Annotated[Path, typer.Option("--out", help="Folder of the figures.", metavar="DIR")] = Path("plots"),
    run: Run = "",
) -> None:
    """Redraw every figure from the rows in results/, as SVG and PNG, one folder a run.

    Example: speedproof plot --results results --out plots
    """
    from harness.plots import draw_all

    for report in _reports(results, run):
        for path in draw_all(report.data, report.effects, report.verdicts, report.claims, out):
            typer.echo(str(path))


@app.command(short_help="A citable table.")
def table(
    results: Results = DEFAULT_RESULTS,
    run: Run = "",
    study: Annotated[str, typer.Option("--study", help="Id of one study; without it, every study.", metavar="ID")] = "",
    of: Annotated[TableOf, typer.Option(help="Ratios of the studies, or verdicts on the claims.")] = TableOf.EFFECTS,
    format: Annotated[TableFormat, typer.Option(help="How to print; text is for verdicts.")] = TableFormat.MARKDOWN,
) -> None:
    """Print a table to cite: machine, versions, commit, n and the command that made it come with it.

    Example: speedproof table --study precision --format latex
    """
    from harness import tables

    if of is TableOf.EFFECTS and format is TableFormat.TEXT:
        raise typer.BadParameter("text is for --of verdicts; effects have markdown, latex, csv", param_hint="--format")
    printed_header = False
    for report in _reports(results, run):
        if format is TableFormat.TEXT:
            rows = _of_study(report, study, "verdicts")
            typer.echo(tables.terminal(rows, width=_width(), colour=_colour()), nl=False)
        elif format is TableFormat.CSV:
            text = tables.as_csv(_of_study(report, study, of.value), report.header)
            typer.echo(text.split("\n", 1)[1] if printed_header else text, nl=False)
            printed_header = True
        else:
            made = (
                tables.citable(report.effects, report.header, study=study)
                if of is TableOf.EFFECTS
                else [tables.citable_verdicts(_of_study(report, study, "verdicts"), report.header)]
            )
            write = tables.markdown if format is TableFormat.MARKDOWN else tables.latex
            typer.echo("\n".join(write(one) for one in made), nl=False)


@app.command(short_help="Each claim with its verdict.")
def claims(
    claim: Annotated[str, typer.Argument(help="Id of one claim; without it, every claim.", metavar="[ID]")] = "",
    results: Results = DEFAULT_RESULTS,
    run: Run = "",
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TEXT,
) -> None:
    """Print each claim with its document, readings, published figures, measurement and verdict.

    Example: speedproof claims amp-speed --format json
    """
    from harness import claim_cards, report

    known = {c.id: c for c in report.load_all_claims()}
    if claim and claim not in known:
        raise unknown("claim", claim, known)
    chosen = [known[claim]] if claim else list(known.values())
    # Claims can be read before anything is measured; a folder that was named must be there.
    measured = [] if results == DEFAULT_RESULTS and not results.exists() else _reports(results, run)
    if format is Format.JSON:
        _print_json([claim_cards.as_json(c, measured) for c in chosen])
        return
    for one in chosen:
        for line in claim_cards.lines(one, measured, width=_width()):
            typer.echo(line)
        typer.echo("")


@app.command(short_help="Audit the suite itself.")
def selfcheck(
    results: Results = DEFAULT_RESULTS,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="One check; repeat for more.", metavar="NAME")
    ] = None,
    decisions: Annotated[int, typer.Option(help="Decisions on null and injected effects, a framework.")] = 20,
) -> None:
    """Measure how far the suite itself can be trusted: its overhead, null and injected effects, broken variants.

    Ends with exit code 1 where a target is missed.

    Example: speedproof selfcheck --only mutants
    """
    from harness import selfcheck as audit
    from harness import tables

    def log(line: str) -> None:
        typer.echo(line, err=True)

    figures = audit.selfcheck(results, only=tuple(only or ()), decisions=decisions, log=log)
    typer.echo(tables.targets(figures, width=_width(), colour=_colour()), nl=False)
    if any(figure.passed is False for figure in figures):
        raise typer.Exit(MISSED)


@app.command(short_help="Train with another host's run.")
def join(
    rdzv_endpoint: Annotated[
        str, typer.Option("--rdzv-endpoint", help="Where the first host waits.", metavar="NAME:PORT")
    ],
) -> None:
    """Be a further host of a run that was started elsewhere with --nnodes and the same --rdzv-endpoint.

    Takes its share of the ranks of every cell that trains on several devices, until the run ends. The rows are written
    where the run was started. The address has no password: join in networks that are your own.

    Example: speedproof join --rdzv-endpoint node0:29400
    """
    from harness import meeting

    meeting.join(rdzv_endpoint, log=typer.echo)


@app.command(
    short_help="Measure on several hosts under Slurm.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def slurm(
    context: typer.Context,
    nodes: Annotated[int, typer.Option("--nodes", help="Hosts that train together.")] = 2,
    gpus_per_node: Annotated[int | None, typer.Option("--gpus-per-node", help="GPUs of each host.")] = None,
    cpus_per_task: Annotated[int | None, typer.Option("--cpus-per-task", help="CPU cores of each host.")] = None,
    minutes: Annotated[int, typer.Option("--minutes", help="Longest time that the job may take.")] = 240,
    partition: Annotated[str | None, typer.Option("--partition", help="Slurm's partition.", metavar="NAME")] = None,
    port: Annotated[int, typer.Option("--port", help="Port at which the hosts meet.")] = 29400,
    logs: Annotated[Path, typer.Option("--logs", help="Folder of the job's output.", metavar="DIR")] = Path("slurm"),
    cluster: Annotated[str, typer.Option("--cluster", help="slurm, or local: tasks on this machine.")] = "slurm",
) -> None:
    """Submit a run to Slurm, through submitit; what follows -- goes to pytest.

    The results land in the folder from which this was started, so it must be one that the hosts share.

    Example: speedproof slurm --nodes 2 --gpus-per-node 8 -- -k ddp-weak --profile full
    """
    from harness.slurm import submit

    limits: dict[str, Any] = {"timeout_min": minutes, "gpus_per_node": gpus_per_node, "cpus_per_task": cpus_per_task}
    limits |= {"slurm_partition": partition} if cluster == "slurm" else {}
    job = submit(context.args, nodes=nodes, folder=logs, cluster=cluster, port=port, **limits)
    typer.echo(f"job {job.job_id}, output in {logs}")


def _reports(results: Path, run: str) -> list[Report]:
    from harness import report

    made = report.reports(results)
    if not made:
        raise SpeedproofError(
            f"{results}: holds no run yet; run `pytest benchmarks/ --benchmark-only` first, "
            "or name a folder with --results DIR."
        )
    if not run:
        return made
    by_id = {r.run_id: r for r in made}
    if run not in by_id:
        raise unknown("run", run, by_id, where=str(results))
    return [by_id[run]]


def _of_study(report: Report, study: str, which: str) -> Any:
    rows = report.effects if which == "effects" else report.verdicts
    there = [s for s in dict.fromkeys(str(s) for s in rows["study"]) if s]
    if study and study not in there:
        raise unknown("study", study, there, where=f"run {report.run_id}")
    return rows[rows["study"] == study] if study else rows


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def _width() -> int:
    """The terminal's columns, at most 100; 80 in a pipe."""
    return min(shutil.get_terminal_size((80, 24)).columns, 100) if sys.stdout.isatty() else 80


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def main() -> None:
    """The console script: what the user can mend is one line on stderr and exit code 2, never a traceback."""
    warnings.showwarning = _one_line_warning
    try:
        app()
    except SpeedproofError as error:
        typer.echo(f"speedproof: {error}", err=True)
        sys.exit(FAILED)


def _one_line_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"speedproof: note: {message}", err=True)


if __name__ == "__main__":
    main()
