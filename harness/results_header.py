"""run.yaml: what a run was, where and of what it was made. Loaded safely and checked field by field."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import ResultsError
from harness.results_columns import nearest, without_paths
from harness.results_files import HEADER_FILE
from harness.schema import SCHEMA_VERSION
from harness.spec import Comparison


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Profile(_Model):
    """The profile's name and its whole content, as it was in force."""

    name: str
    content: dict[str, Any] = {}


class HazardEntry(_Model):
    """One hazard of the machine, as :class:`harness.machine.Hazard` says it."""

    level: str
    name: str
    message: str


class Git(_Model):
    """Commit of the checkout and whether code differed from it; null outside a checkout."""

    commit: str | None = None
    dirty: bool | None = None


class PlannedComparison(_Model):
    """The arms that take turns, by label, and which of them is the baseline."""

    comparison: str
    baseline: str
    arms: list[str]


class Spent(_Model):
    """Wall seconds of one comparison, and those of them in timed blocks."""

    wall_s: float
    measured_s: float


class Timing(_Model):
    """Seconds, bytes, and the share of wall time spent in timed blocks; ``comparisons`` is what each one took."""

    wall_s: float | None = None
    measured_s: float | None = None
    measured_share: float | None = Field(default=None, ge=0, le=1.001)
    parent_peak_bytes: int | None = None
    comparisons: dict[str, Spent] = {}


class RunHeader(_Model):
    """Everything that run.yaml may hold."""

    schema_version: int
    run_id: str
    command: str
    profile: Profile
    started: str
    ended: str | None = None
    state: Literal["running", "finished", "interrupted"]
    machine: dict[str, Any] = {}
    hazards: list[HazardEntry] = []
    versions: dict[str, str | None] = {}
    git: Git = Git()
    plan: list[PlannedComparison] = []
    baselines: dict[str, str] = {}
    timing: Timing = Timing()


def plan_of(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """The header's ``plan`` for what a run is going to compare."""
    return [
        {"comparison": c.id, "baseline": c.baseline.arm, "arms": list(dict.fromkeys(cell.arm for cell in c))}
        for c in comparisons
    ]


def checked(fields: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """``fields`` as plain data, all fields present.

    Raises:
        ResultsError: a field is unknown, missing or of the wrong type; ``where`` names the file.
    """
    version = fields.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ResultsError(
            f"{where}: schema_version is {version!r}; this speedproof reads {SCHEMA_VERSION}. "
            "Read the run with the speedproof that wrote it (see 'versions' in that file), or measure again."
        )
    try:
        header = RunHeader.model_validate(_plain(dict(fields))).model_dump(mode="json")
    except ValidationError as error:
        raise ResultsError(f"{where}: {_first_fault(error)}") from None
    header["baselines"] = {p["comparison"]: p["baseline"] for p in header["plan"]} | header["baselines"]
    return header


def _plain(value: Any) -> Any:
    """Dataclasses, enums, tuples, paths and numpy scalars as what YAML holds."""
    match value:
        case Enum():
            return value.value
        case PurePath():
            return str(value)
        case Mapping():
            return {str(k): _plain(v) for k, v in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value.item() if hasattr(value, "item") else value


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        names = list(_fields_at(first["loc"][:-1]))
        return f"unknown field {place!r}; allowed: {', '.join(names)}.{nearest(str(first['loc'][-1]), names)}"
    if first["type"] == "missing":
        return f"field {place!r} is missing; add it, or measure again."
    return f"field {place!r} is {first['input']!r}; {first['msg']}."


def _fields_at(loc: tuple[int | str, ...]) -> Iterable[str]:
    models: dict[str, type[_Model]] = {
        "profile": Profile,
        "hazards": HazardEntry,
        "git": Git,
        "plan": PlannedComparison,
        "timing": Timing,
    }
    return models.get(str(loc[0]), RunHeader).model_fields if loc else RunHeader.model_fields


def load(run_dir: Path) -> dict[str, Any]:
    """Read and check a run folder's run.yaml.

    Raises:
        ResultsError: the file is missing, not UTF-8, not YAML, of another schema version, or breaks the model.
    """
    path = run_dir / HEADER_FILE
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultsError(f"{path}: there is no such file, so {run_dir} is not a run folder of speedproof.") from None
    except UnicodeDecodeError as error:
        place = f"byte {error.object[error.start]:#04x} at position {error.start}"
        raise ResultsError(f"{path}: {place} is not UTF-8 text; save the file as UTF-8.") from None
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ResultsError(f"{path}: {place}not plain YAML: {problem}.") from None
    if not isinstance(fields, dict):
        raise ResultsError(
            f"{path}: holds {type(fields).__name__}; allowed: a mapping with {', '.join(_fields_at(()))}."
        )
    return checked({str(k): v for k, v in fields.items()}, where=str(path))


def dump(header: Mapping[str, Any]) -> str:
    """The YAML text of a checked header. Paths of the user's machine are shortened; the command stays as typed."""
    public = {k: v if k == "command" else _shortened(v) for k, v in header.items()}
    return yaml.safe_dump(public, sort_keys=False, allow_unicode=True, width=120)


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return without_paths(value)
    if isinstance(value, dict):
        return {k: _shortened(v) for k, v in value.items()}
    return [_shortened(v) for v in value] if isinstance(value, list) else value
