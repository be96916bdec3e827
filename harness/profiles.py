"""How much is measured: launches, blocks, sizes, epochs, seeds, for a CPU and for a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from harness.errors import ConfigError, unknown
from harness.spec import Cell

T = TypeVar("T")


def own(entries: Mapping[str, T], comparison: str) -> T | None:
    """What a profile holds for a comparison ("study/…/workload"): the study's own entry, else the workload's."""
    study, *_, workload = comparison.split("/")
    return entries.get(f"{study}/{workload}", entries.get(workload))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Training(_Strict):
    """A convergence run: ``train`` and ``test`` bound the examples."""

    epochs: int = Field(ge=1)
    seeds: int = Field(ge=1)
    train: int = Field(ge=1)
    test: int = Field(ge=1)


class Hardware(_Strict):
    """What is measured on one kind of device.

    ``looks`` are the numbers of launches after which a comparison may stop: when every ratio's 95% half width is at
    most ``half_width``, or its ``budget_s`` is spent. The keys of ``blocks`` (seconds in place of ``block_s``),
    ``turns`` (in place of ``rounds``), ``sizes``, ``batches``, ``examples`` (in the stored set of a study that loads)
    and ``training`` are a workload, or "study/workload" where one study needs its own; what is missing from
    ``training`` has no convergence in this profile. ``skip`` names comparisons ("study/workload") or single arms
    ("study/workload/arm") that the profile leaves out. ``memory_cap_mb`` is what a fit study's worker may allocate
    beyond its start on a CPU, where there is no other limit that it could meet and survive.
    """

    looks: tuple[int, ...] = Field(min_length=1, strict=False)
    half_width: float = Field(gt=0)
    rounds: int = Field(ge=1)
    block_s: float = Field(gt=0)
    window_s: float = Field(gt=0)
    warm_up_s: float = Field(gt=0)
    budget_s: float = Field(gt=0)
    timeout_s: float = Field(gt=0)
    blocks: dict[str, float] = {}
    turns: dict[str, int] = {}
    sizes: dict[str, int] = {}
    examples: dict[str, int] = {}
    batches: dict[str, int] = {}
    skip: tuple[str, ...] = Field(default=(), strict=False)
    training: dict[str, Training] = {}
    largest_batch: int = Field(ge=8)
    memory_cap_mb: int | None = None

    def block_of(self, cell: Cell) -> float:
        """Seconds of a timed block of a cell; one for all cells of a comparison."""
        return own(self.blocks, cell.comparison) or self.block_s

    def rounds_of(self, comparison: str) -> int:
        """Rounds of turns in a launch of a comparison."""
        return own(self.turns, comparison) or self.rounds

    def examples_of(self, cell: Cell) -> int | None:
        """Examples in the stored set that a cell reads; ``None`` for all there are."""
        return own(self.examples, cell.comparison)

    def training_of(self, study: str, workload: str) -> Training | None:
        """The convergence run of a study on a workload, or ``None`` where the profile has none."""
        return own(self.training, f"{study}/{workload}")

    @field_validator("looks")
    @classmethod
    def _growing(cls, looks: tuple[int, ...]) -> tuple[int, ...]:
        if any(n < 1 for n in looks) or list(looks) != sorted(set(looks)):
            raise ValueError("must be growing whole numbers of at least 1")
        return looks


class Profile(_Strict):
    """A named amount of measurement.

    ``controls`` says whether each comparison has an A/A arm, or each framework, workload and mode has one for all.
    """

    name: str
    controls: Literal["each", "once"] = "each"
    cpu: Hardware
    gpu: Hardware

    @property
    def controls_once(self) -> bool:
        """Whether comparisons of one workload share an A/A arm."""
        return self.controls == "once"

    def on(self, device: Literal["cpu", "gpu"]) -> Hardware:
        """The part for a kind of device."""
        return self.gpu if device == "gpu" else self.cpu


def load_profile(name_or_file: str, folder: Path, *, launches: int | None = None) -> Profile:
    """A profile of ``folder/profiles.yaml`` by name, or a file that holds one such entry.

    ``launches`` replaces the looks by one fixed number. Raises :class:`ConfigError` naming file, place and value.
    """
    own = Path(name_or_file)
    fields: Any
    is_file = own.suffix in {".yaml", ".yml"}
    path = own if is_file else folder / "profiles.yaml"
    found = _read(path)
    if is_file:
        name, fields = own.stem, found
    else:
        if name_or_file not in found:
            raise unknown("profile", name_or_file, map(str, found), where=path.name)
        name, fields = name_or_file, found[name_or_file]
    if not isinstance(fields, dict):
        raise ConfigError(f"{path.name}: {name}: must be a mapping with the keys cpu and gpu, not {fields!r}")
    if launches is not None:
        fields = {k: {**v, "looks": [launches]} if isinstance(v, dict) else v for k, v in fields.items()}
    try:
        return Profile(name=name, **fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in (name, *first["loc"]))
        raise ConfigError(f"{path.name}: {place}: {first['msg']}, found {first['input']!r}") from None
    except TypeError as error:
        raise ConfigError(f"{path.name}: {name}: {error}; allowed keys: cpu, gpu, controls") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the profile file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path.name}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path.name}: must be a mapping, not {found!r}")
    return found
