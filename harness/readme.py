"""Fill the README's marked blocks from results/, so that they cannot drift: ``python -m harness.readme``.

A block lies between ``<!-- NAME -->`` and ``<!-- /NAME -->``; everything between the two is replaced. The numbers come
from the newest finished run of the whole suite in the quick profile, of several devices from the newest that measured
them, and, figure by figure, from the newest selfcheck that measured it.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable
from pathlib import Path

from harness import machine, projection_published, selfcheck, tables
from harness.claims import Verdict
from harness.errors import ResultsError, unknown
from harness.provenance import provenance
from harness.report import Report, report_of
from harness.store import RunStore, run_folders
from harness.studies import studies_in

PROFILE = "quick"
DEVICES = "ddp-weak"  # a study that every run of several devices has
WHOLE = "pytest benchmarks/ --benchmark-only"  # the command of a run that leaves nothing out


def newest_run(results: Path, *, device: str = "cpu", study: str = "") -> Path:
    """The newest finished run of the quick profile on a kind of device: of the whole suite, or of a named study.

    Raises :class:`ResultsError` without one.
    """
    found = []
    for folder in run_folders(results):
        header = RunStore.open(folder).header
        on_gpu = any(facts["devices"].get("gpu") for facts in header["machine"].get("frameworks", {}).values())
        asked = any(c.startswith(f"{study}/") for c in header["baselines"]) if study else header["command"] == WHOLE
        finished = header["state"] == "finished" and header["profile"]["name"] == PROFILE
        if finished and asked and on_gpu == (device == "gpu"):
            found.append(folder)
    if not found:
        what = f"with the study {study}" if study else "of the whole suite"
        raise ResultsError(f"{results}: no finished {PROFILE} run {what} on a {device}; `make bench` makes one")
    return found[-1]


def _opening(report: Report, _: Path) -> str:
    header, timing = report.header, report.header["timing"]
    hazards = [machine.Hazard(**{**h, "level": machine.Level(h["level"])}) for h in header["hazards"]]
    lines = [
        f"$ {header['command']}",
        machine.one_line(header["machine"], hazards),
        f"{timing['measured_share']:.0%} of {timing['wall_s'] / 60:.1f} min was measured",
    ]
    return "```text\n" + "\n".join(lines) + "\n```"


def _figure(report: Report, root: Path) -> str:
    path = Path("plots") / report.run_id / "claims.png"
    if not (root / path).exists():
        raise ResultsError(f"{root / path} is not there; draw it with `speedproof plot`")
    return f"![What the documents claim, what others published, what this machine measured]({path.as_posix()})"


def _data(report: Report, root: Path) -> str:
    """The figures of the data path that the run has."""
    alt = {"formats": "Loading rate by format beside training", "workers": "Rate against loader processes"}
    found = [
        (kind, path.relative_to(root).as_posix())
        for kind in ("formats", "workers", "stalls")
        for path in sorted((root / "plots" / report.run_id).glob(f"{kind}_*.png"))
    ]
    if not found:
        raise ResultsError(f"plots/{report.run_id} has no figure of the data path; draw it with `speedproof plot`")
    return "\n".join(f"![{alt.get(kind, 'Share of training spent waiting for data')}]({path})" for kind, path in found)


def _devices(_: Report, root: Path) -> str:
    """What several devices gave, from the newest run that measured them, with their figures."""
    report = report_of(newest_run(root / "results", study=DEVICES))
    folder = Path("plots") / report.run_id
    figures = [*sorted((root / folder).glob("scaling_*.png")), *(root / folder).glob("communication.png")]
    if not figures:
        raise ResultsError(f"{folder} has no figure of several devices; draw it with `speedproof plot`")
    with_value = report.verdicts[report.verdicts["estimate"].notna()]
    studies = {study.id for study in studies_in(root / "benchmarks" / "test_devices.py")}
    of_devices = with_value[with_value["study"].isin(studies)]
    table = tables.terminal(of_devices, width=80).rstrip()
    shown = "\n".join(f"![{_alt(p)}]({p.relative_to(root).as_posix()})" for p in figures)
    source = "\n".join(provenance(report.header).lines)
    return f"{shown}\n\n```text\n{table}\n```\n\n{source}"


def _alt(figure: Path) -> str:
    exchange = figure.stem == "communication"
    return "Communication share, and ways to exchange" if exchange else "Speedup and efficiency against devices"


def _projected(_: Report, __: Path) -> str:
    """The projection beside the published scaling that it can be held against."""
    lines = ["| model | devices | setting | published | projected | error | why |", "|---|---|---|---|---|---|---|"]
    for r in projection_published.rows():
        figures = f"{r.published:.2f}x | {r.projected:.2f}x | {r.error:+.0%}"
        lines.append(f"| {r.model} | {r.devices} | {r.setting} | {figures} | {r.why} |")
    return "\n".join(lines)


def _verdicts(report: Report, _: Path) -> str:
    """The verdicts that were reached, then the rest folded away: a page of it says what this machine cannot judge."""
    verdicts = report.verdicts
    unjudged = verdicts["verdict"].isin([Verdict.OUT_OF_SCOPE, Verdict.NOT_RUN])
    shown, folded = (tables.terminal(rows, width=80).rstrip() for rows in (verdicts[~unjudged], verdicts[unjudged]))
    count = verdicts.loc[unjudged, "claim"].nunique()
    source = "\n".join(provenance(report.header).lines)
    return (
        f"```text\n{shown}\n```\n\n{source}\n\n"
        f"<details><summary>Out of this machine's scope or not run: {count} claims, each with its value or reason"
        f"</summary>\n\n```text\n{folded}\n```\n\n</details>"
    )


def _selfcheck(_: Report, root: Path) -> str:
    found = sorted((root / "results" / selfcheck.FOLDER).glob(f"*/{selfcheck.FILE}"))
    if not found:
        raise ResultsError("results/selfcheck holds no selfcheck; `speedproof selfcheck` makes one")
    newest: dict[str, dict[str, str]] = {}  # by figure: a selfcheck may measure some of them only
    for path in found:
        with path.open(encoding="utf-8", newline="") as file:
            newest |= {row["name"]: row for row in csv.DictReader(file)}
    words = {"True": "yes", "False": "**no**", "": "not measured"}
    lines = ["| figure | target | measured | reached |", "|---|---|---|---|"]
    lines += [f"| {r['name']} | {r['target']} | {r['measured']} | {words[r['passed']]} |" for r in newest.values()]
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[Report, Path], str]] = {
    "opening": _opening,
    "figure": _figure,
    "data": _data,
    "verdicts": _verdicts,
    "devices": _devices,
    "projected": _projected,
    "selfcheck": _selfcheck,
}


def filled(text: str, root: Path) -> str:
    """``text`` with every block made anew from ``root``/results. Raises :class:`ConfigError` for an unknown block."""
    report = report_of(newest_run(root / "results"))

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in BLOCKS:
            raise unknown("block", name, BLOCKS, where="README.md")
        return f"<!-- {name} -->\n{BLOCKS[name](report, root)}\n<!-- /{name} -->"

    return re.sub(r"<!-- (?P<name>\w+) -->.*?<!-- /(?P=name) -->", replace, text, flags=re.DOTALL)


def main(root: Path) -> None:
    """Rewrite README.md in place."""
    path = root / "README.md"
    path.write_text(filled(path.read_text(encoding="utf-8"), root), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
