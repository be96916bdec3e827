"""The claims file: its models, and reading it with errors that name file, line, value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.errors import ConfigError, unknown
from harness.metrics import METRICS, Kind, kind_of, metrics_of
from harness.spec import Mode, Study

Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Range(_Strict):
    """A claimed range; ``None`` is unbounded."""

    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low is None and self.high is None:
            raise ValueError("a range needs low, high or both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:g} lies above high {self.high:g}")
        return self

    def bounds(self) -> tuple[float, float]:
        """Low and high, infinite where unbounded."""
        return (-math.inf if self.low is None else self.low, math.inf if self.high is None else self.high)


class Scope(_Strict):
    """The hardware that a claim speaks of; ``never`` is the reason why no program can judge it at all."""

    device: Literal["any", "cpu", "gpu"] = "any"
    devices: int = Field(default=1, ge=1)
    tpu: bool = False
    gpu: str = ""  # part of the device's name
    capability_from: float | None = None  # CUDA compute capability, inclusive
    capability_below: float | None = None  # exclusive
    never: str = ""


class Measure(_Strict):
    """One metric by which a claim is judged, with its readings as ranges.

    ``tolerance`` widens a range before it is judged: relative for a ratio, in the metric's unit otherwise. ``no_loss``
    asks for equivalence over at least ``minimum_seeds`` shared seeds. ``proxy`` says why the value is shown but not
    judged. Without a study there is nothing to measure yet. Empty ``workloads`` or ``frameworks`` mean all that the
    study has.
    """

    metric: Text
    readings: dict[str, Range] = Field(min_length=1)
    baseline: str = ""
    treatment: str = ""
    study: str | None = None
    arms: list[Text] = []
    workloads: list[Text] = []
    frameworks: list[Text] = []
    tolerance: float = Field(default=0.0, ge=0)
    no_loss: bool = False
    minimum_seeds: int = Field(default=5, ge=2)
    proxy: str = ""
    scope: Scope | None = None  # where it differs from the claim's

    def widened(self, reading: str) -> tuple[float, float]:
        """The range that is judged: the reading's, widened by the tolerance."""
        low, high = self.readings[reading].bounds()
        if kind_of(self.metric) is Kind.RATIO:
            return low / (1 + self.tolerance), high * (1 + self.tolerance)
        return low - self.tolerance, high + self.tolerance


class Published(_Strict):
    """What others measured: ``value`` (to ``value_high``) in the metric's unit, or a ``finding`` in words.

    ``mark``: V read in the source, C computed from the source's figures.
    """

    metric: Text
    value: float | None = None
    value_high: float | None = None
    finding: str = ""
    hardware: str = ""
    setting: str
    source: Text
    mark: Literal["V", "C"]
    note: str = ""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.value is None and not self.finding:
            raise ValueError("a published entry needs a value or a finding")
        return self


class Claim(_Strict):
    """One claim of the documents, in our words, with the numbers that it states reduced to ranges."""

    id: Text
    documents: list[Literal["D0", "D1", "D4"]] = Field(min_length=1)
    says: Text
    stated: str = ""  # the figure as the document gives it
    needs: str = ""
    scope: Scope = Scope()
    measures: list[Measure] = Field(min_length=1)
    published: list[Published] = []
    published_errors: list[Text] = []  # what the published tables themselves have wrong
    documents_wrong: list[Text] = []


class _ClaimsFile(_Strict):
    # Metrics that no study produces yet, with their meaning; studies that answer no claim, with what they are for;
    # anchors holds what several claims share.
    planned_metrics: dict[str, Text] = {}
    studies_beside: dict[str, Text] = {}
    anchors: dict[str, Any] = {}
    claims: list[Claim] = Field(min_length=1)


_MODEL_AT: dict[str, type[BaseModel]] = {
    "claims": Claim,
    "measures": Measure,
    "readings": Range,
    "scope": Scope,
    "published": Published,
}


class _Loader(yaml.SafeLoader):
    """The safe loader, except that a key given twice is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            line = key.start_mark.line + 1
            if key.value in seen:
                first = seen[key.value]
                raise _DuplicateKey(line, f"the key {key.value!r} is given twice, first on line {first}; keep one")
            seen[key.value] = line
        return super().construct_mapping(node, deep=deep)


class _DuplicateKey(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def load_claims(path: Path, studies: Iterable[Study]) -> tuple[Claim, ...]:
    """Read and check a claims file against the declared studies.

    Raises :class:`ConfigError` with one message that names the file, line, claim, value, what is allowed, and the
    nearest name: for YAML and UTF-8 errors, duplicate keys and ids, wrong types, and names that no study has.
    """
    data, node = _parse(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1: the file must be a mapping with the key 'claims', found {type(data).__name__}")
    try:
        file = _ClaimsFile.model_validate(data)
    except ValidationError as error:
        raise _explain(path, data, node, error) from None
    by_id = {s.id: s for s in studies}
    for name in file.studies_beside:
        if name not in by_id:
            line = _line(node, ("studies_beside", name))
            raise unknown("study", name, by_id, where=f"{path}:{line}: studies_beside")
    first_line: dict[str, int] = {}
    for i, claim in enumerate(file.claims):
        line = _line(node, ("claims", i, "id"))
        if claim.id in first_line:
            first = first_line[claim.id]
            raise ConfigError(
                f"{path}:{line}: claim id {claim.id!r} is given twice, first on line {first}; ids are unique"
            )
        first_line[claim.id] = line
        for j, measure in enumerate(claim.measures):
            where = f"{path}:{_line(node, ('claims', i, 'measures', j))}: claim {claim.id!r}"
            _check_names(measure, by_id, file.planned_metrics, where)
        for k, published in enumerate(claim.published):
            if published.metric not in METRICS and published.metric not in file.planned_metrics:
                line = _line(node, ("claims", i, "published", k))
                where = f"{path}:{line}: claim {claim.id!r}, published"
                raise unknown("metric", published.metric, [*METRICS, *file.planned_metrics], where=where)
    return tuple(file.claims)


def _parse(path: Path) -> tuple[Any, yaml.Node | None]:
    """The file's plain data, and the node tree that knows the lines."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the claims file: {error.strerror}") from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: byte {raw[error.start]:#04x} is not UTF-8; save the file as UTF-8") from None
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return (None if node is None else loader.construct_document(node)), node
    except _DuplicateKey as error:
        raise ConfigError(f"{path}:{error.line}: {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        raise ConfigError(f"{place}: not valid YAML: {error.problem or error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    finally:
        loader.dispose()


def _line(node: yaml.Node | None, place: tuple[int | str, ...]) -> int:
    """The line of a place in the document, or of the nearest enclosing one that the document has."""
    line = 1
    for part in place:
        found: yaml.Node | None = None
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = node.value[part]
        elif isinstance(node, yaml.MappingNode):
            found = next((value for key, value in node.value if key.value == str(part)), None)
            line = next((key.start_mark.line + 1 for key, _ in node.value if key.value == str(part)), line)
        if found is None:
            return line
        node = found
        if isinstance(part, int):
            line = node.start_mark.line + 1
    return line


def _explain(path: Path, data: Mapping[str, Any], node: yaml.Node | None, error: ValidationError) -> ConfigError:
    """The first problem of a validation, in one message."""
    # A misspelt key is also a missing one: name the misspelling.
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    place: tuple[int | str, ...] = first["loc"]
    where = f"{path}:{_line(node, place)}"
    named = place
    if len(place) > 1 and place[0] == "claims" and isinstance(place[1], int):
        claim = data["claims"][place[1]]
        id_ = claim.get("id") if isinstance(claim, dict) else None
        where += f": claim {id_!r}" if id_ else f": claim number {place[1] + 1}"
        named = place[2:]
    field = ".".join(str(part) for part in named)
    if first["type"] == "extra_forbidden":
        holder = next((p for p in reversed(place[:-1]) if p in _MODEL_AT), None)
        model = _MODEL_AT[str(holder)] if holder is not None else _ClaimsFile
        return unknown("key", str(place[-1]), model.model_fields, where=where)
    if first["type"] == "missing":
        return ConfigError(f"{where}: the key {field!r} is missing; add it")
    message = first["msg"].removeprefix("Value error, ")
    return ConfigError(f"{where}: {field}: {first['input']!r} cannot be used: {message[:1].lower()}{message[1:]}")


def _check_names(measure: Measure, by_id: Mapping[str, Study], planned: Mapping[str, str], where: str) -> None:
    """Every name that a measure gives must be one that its study has."""
    if measure.no_loss and measure.metric not in {"accuracy", "accuracy_relative"}:
        raise ConfigError(f"{where}: no_loss is for the metrics accuracy and accuracy_relative, not {measure.metric!r}")
    if measure.study is None:
        if measure.metric not in METRICS and measure.metric not in planned:
            raise unknown("metric", measure.metric, [*METRICS, *planned], where=where)
        for field in ("arms", "workloads", "frameworks"):
            if names := getattr(measure, field):
                raise ConfigError(f"{where}: {field} {names} need a study; name it, or leave them out")
        return
    if measure.study not in by_id:
        raise unknown("study", measure.study, by_id, where=where)
    study = by_id[measure.study]
    where = f"{where}, study {study.id!r}"
    if not measure.arms:
        raise ConfigError(f"{where}: name the arms that are judged; allowed: {', '.join(_arms(study))}")
    allowed = {
        "arm": (measure.arms, _arms(study)),
        "workload": (measure.workloads, [*study.workloads, *(a.workload for a in study.arms if a.workload)]),
        "framework": (measure.frameworks, [f.value for f in study.frameworks]),
        "metric": ([measure.metric], metrics_of(study.mode)),
    }
    for kind, (names, known) in allowed.items():
        for name in names:
            if name not in known:
                raise unknown(kind, name, known, where=where)


def _arms(study: Study) -> tuple[str, ...]:
    """The arms of a study that can have an effect: of a check study its checks, where a metric is of the baseline alone
    (what fits, what stalls) the baseline too.
    """
    if study.mode is Mode.CHECK:
        return study.checks
    arms = study.arms if study.mode is Mode.FIT or study.mode.loads else study.treatments
    return tuple(arm.name for arm in arms)
