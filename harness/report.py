"""From the rows of a run to its effects and verdicts: what the terminal, the figures and the tables all show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.claim_file import Claim, load_claims
from harness.claims import RunFacts, judge
from harness.results_reader import RunData
from harness.spec import Status
from harness.stats import effects
from harness.store import read, run_folders
from harness.studies import benchmarks_folder, load_studies


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One run, its effects (``schema.EFFECT_COLUMNS``), its verdicts (``schema.VERDICT_COLUMNS``), and the claims."""

    run_id: str
    header: Mapping[str, Any]
    data: RunData
    effects: pd.DataFrame
    verdicts: pd.DataFrame
    claims: tuple[Claim, ...]


def load_all_claims() -> tuple[Claim, ...]:
    """The claims file of the checkout, checked against its studies."""
    return load_claims(benchmarks_folder() / "claims.yaml", load_studies())


def facts_of(header: Mapping[str, Any], trials: pd.DataFrame) -> RunFacts:
    """What the judge needs to know of the hardware, from run.yaml, and whether a TPU trained, from the trials."""
    machine = header["machine"]
    gpus = machine.get("gpus") or []
    capability = gpus[0].get("compute_capability") if gpus else None
    kinds = {
        framework: frozenset(kind for kind, name in facts["devices"].items() if name)
        for framework, facts in machine.get("frameworks", {}).items()
    }
    return RunFacts(
        kinds=kinds,
        gpu=gpus[0].get("name") if gpus else None,
        capability=float(capability) if capability else None,
        gpus=len(gpus),
        cores=int(machine.get("cores") or 1),
        tpu=bool(((trials["toggle_strategy"] == "tpu") & (trials["status"] == Status.OK)).any()),
    )


def report(data: RunData, claims: tuple[Claim, ...] | None = None) -> Report:
    """Derive effects and verdicts of one run; nothing of it is ever stored."""
    claims = load_all_claims() if claims is None else claims
    (header,) = data.headers.values()
    derived = effects(data.samples, data.trials, data.convergence, data.checks, baselines=header["baselines"])
    verdicts = judge(claims, derived, facts_of(header, data.trials))
    return Report(run_id=header["run_id"], header=header, data=data, effects=derived, verdicts=verdicts, claims=claims)


def report_of(run: Path) -> Report:
    """The report of a run folder."""
    return report(read(run))


def reports(results: Path) -> list[Report]:
    """One report for each run of a results folder, oldest first."""
    claims = load_all_claims()
    return [report(read(run), claims) for run in run_folders(results)]
