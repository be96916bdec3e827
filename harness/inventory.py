"""What ``speedproof list`` shows: studies, toggles, claims, and what of it can run here. Imports no framework."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from harness.claim_file import Claim, load_claims
from harness.nvml import handles, nvml
from harness.spec import Framework, Study
from harness.studies import benchmarks_folder, load_studies
from harness.techniques import TOGGLES
from harness.workers import missing

NO_GPU = "the driver shows no NVIDIA GPU here"
NO_STUDY = "no study yet"


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyEntry:
    """A study: ``runs`` names the frameworks that can measure it here, ``not_here`` what cannot run, and why."""

    id: str
    title: str
    mode: str
    arms: tuple[str, ...]
    workloads: tuple[str, ...]
    runs: tuple[str, ...]
    not_here: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToggleEntry:
    """A toggle; no levels means any positive whole number."""

    name: str
    question: str
    levels: tuple[str, ...]
    default: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimEntry:
    """A claim: its studies, and why it cannot be judged here (empty where it can)."""

    id: str
    documents: tuple[str, ...]
    says: str
    studies: tuple[str, ...]
    not_here: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Everything there is, and the machine as far as it decides what runs.

    ``frameworks`` are those that a study names, ``missing`` says why one of them cannot be imported here.
    """

    gpus: int
    frameworks: tuple[str, ...]
    missing: dict[str, str]
    studies: tuple[StudyEntry, ...]
    toggles: tuple[ToggleEntry, ...]
    claims: tuple[ClaimEntry, ...]


def take() -> Inventory:
    """Look at the declarations and at this machine."""
    studies = load_studies()
    gpus = len(handles(nvml()))
    frameworks = [f for f in Framework if any(f in study.frameworks for study in studies)]
    absent = {f.value: reason for f in frameworks if (reason := missing(f))}
    return Inventory(
        gpus=gpus,
        frameworks=tuple(f.value for f in frameworks),
        missing=absent,
        studies=tuple(_study(s, absent, gpus) for s in studies),
        toggles=tuple(
            ToggleEntry(name=t.name, question=t.question, levels=t.levels, default=t.default) for t in TOGGLES.values()
        ),
        claims=tuple(_claim(c, gpus) for c in load_claims(benchmarks_folder() / "claims.yaml", studies)),
    )


def _study(study: Study, absent: dict[str, str], gpus: int) -> StudyEntry:
    not_here: dict[str, str] = {f.value: absent[f.value] for f in study.frameworks if f.value in absent}
    if not gpus:
        not_here |= {arm.name: NO_GPU for arm in study.arms if arm.sets.get("device") == "gpu"}
    return StudyEntry(
        id=study.id,
        title=study.title,
        mode=study.mode.value,
        arms=tuple(arm.name for arm in study.arms),
        workloads=study.workloads,
        runs=tuple(f.value for f in study.frameworks if f.value not in absent),
        not_here=not_here,
    )


def _claim(claim: Claim, gpus: int) -> ClaimEntry:
    studies = tuple(dict.fromkeys(m.study for m in claim.measures if m.study))
    reasons = [_outside(claim, gpus, i) for i in range(len(claim.measures))]
    not_here = "" if not all(reasons) else "; ".join(dict.fromkeys(reasons))
    return ClaimEntry(
        id=claim.id, documents=tuple(claim.documents), says=claim.says, studies=studies, not_here=not_here
    )


def _outside(claim: Claim, gpus: int, index: int) -> str:
    """Why a measure of a claim cannot be judged here, as far as that shows without a measurement."""
    measure = claim.measures[index]
    scope = measure.scope or claim.scope
    if scope.never:
        return scope.never
    if measure.study is None:
        return NO_STUDY
    if scope.tpu:
        return "speaks of a TPU"
    needed = max(scope.devices, 1 if scope.device == "gpu" or scope.gpu else 0)
    if needed > max(gpus, 1 if scope.device != "gpu" and not scope.gpu else 0):
        return f"speaks of {needed} GPU{'s' if needed > 1 else ''}, {gpus or 'none'} here: shown, not judged"
    return measure.proxy


def lines(found: Inventory, *, with_claims: bool, width: int) -> Iterator[str]:
    """The inventory as text of at most ``width`` columns."""
    yield f"GPUs: {found.gpus or 'none'}"
    for framework in found.frameworks:
        yield from _wrapped(f"{framework}: {found.missing.get(framework, 'installed')}", width, "")
    yield f"\nStudies ({len(found.studies)})"
    for s in found.studies:
        yield from _wrapped(f"{s.id:<21} {s.title}", width, " " * 22)
        yield from _wrapped(f"{s.mode}: {' '.join(s.arms)} | on {' '.join(s.workloads)}", width, " " * 24, first=22)
        yield from _wrapped(f"runs here: {' '.join(s.runs) or 'nothing'}", width, " " * 24, first=22)
        for what, reason in s.not_here.items():
            yield from _wrapped(f"not here: {what}: {reason}", width, " " * 24, first=22)
    yield f"\nToggles ({len(found.toggles)})"
    for t in found.toggles:
        marked = [f"{level} (default)" if level == t.default else level for level in t.levels]
        yield from _wrapped(f"{t.name:<21} {', '.join(marked) or 'a positive whole number'}", width, " " * 22)
        yield from _wrapped(t.question, width, " " * 22, first=22)
    yield ""
    yield from _claim_lines(found, width, with_claims=with_claims)


def _claim_lines(found: Inventory, width: int, *, with_claims: bool) -> Iterator[str]:
    with_study = sum(1 for c in found.claims if c.studies)
    judged = sum(1 for c in found.claims if c.studies and not c.not_here)
    yield from _wrapped(
        f"Claims ({len(found.claims)}): {with_study} have a study, {judged} of these can be judged here"
        + ("" if with_claims else "; --claims lists them all"),
        width,
        "",
    )
    if with_claims:
        for c in found.claims:
            yield from _wrapped(f"{c.id:<21} {', '.join(c.documents)}: {c.says}", width, " " * 22)
            yield from _wrapped(f"study: {', '.join(c.studies) or '-'}", width, " " * 24, first=22)
            if c.not_here:
                yield from _wrapped(f"not judged here: {c.not_here}", width, " " * 24, first=22)


def _wrapped(text: str, width: int, indent: str, *, first: int = 0) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=" " * first, subsequent_indent=indent)
