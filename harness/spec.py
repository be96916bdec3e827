"""The words of a measurement: toggle, workload, arm, cell, study. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

IMAGES = "SPEEDPROOF_IMAGES"  # environment variable: a folder of images, one subfolder a class, for studies that load
SPLIT_MODEL = frozenset({"pipeline"})  # strategies whose devices hold parts of the model, and share one batch
CONTROL = "control"  # the arm that repeats the baseline's setting; its interval must cover 1


class Framework(StrEnum):
    """Who trains; scikit-learn what is no network. ``FAKE`` is the scripted backend of the tests; no study names it."""

    TORCH = "torch"
    TENSORFLOW = "tensorflow"
    SKLEARN = "sklearn"
    FAKE = "fake"


class Status(StrEnum):
    """How one trial ended. Everything but ``OK`` carries a reason."""

    OK = "ok"
    UNAVAILABLE = "unavailable"
    OOM = "oom"
    TIMEOUT = "timeout"
    ERROR = "error"
    INTERRUPTED = "interrupted"


class Mode(StrEnum):
    """What a study measures."""

    STEADY = "steady"  # seconds of training steps, arms taking turns
    LOADING = "loading"  # seconds of passes over a stored set, nothing trained, arms taking turns
    END_TO_END = "end_to_end"  # the same passes, each batch trained on
    CONVERGENCE = "convergence"  # test accuracy and time for each epoch, on shared seeds
    FIT = "fit"  # the largest batch that trains under the memory there is
    CHECK = "check"  # named values computed in the worker (numerics, behaviour of an API)

    @property
    def loads(self) -> bool:
        """Whether the cells read their examples from storage."""
        return self in {Mode.LOADING, Mode.END_TO_END}

    @property
    def takes_turns(self) -> bool:
        """Whether the cells of a launch are timed block by block, a control among them."""
        return self is Mode.STEADY or self.loads


@dataclass(frozen=True, kw_only=True, slots=True)
class Toggle:
    """A controlled variable.

    ``levels`` empty means any positive whole number. ``default`` is the level in every cell whose study does
    not say otherwise; empty where it depends on the workload and the machine (device, batch).
    """

    name: str
    question: str
    levels: tuple[str, ...] = ()
    default: str = ""

    def allows(self, level: str) -> bool:
        """Whether ``level`` is one that this toggle can take."""
        return level in self.levels if self.levels else level.isdecimal() and int(level) > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """One optimizer, as both frameworks build it: ``sgd`` (momentum) or ``adamw``."""

    name: str
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A model with its data and recipe, the same in both frameworks.

    ``size`` is the image edge in pixels or the sequence length in tokens, ``batch`` the default batch; both by kind of
    device ("cpu", "gpu"). ``optimizer.learning_rate`` belongs to ``base_batch``. ``differences`` states what still
    differs between the twins.
    """

    name: str
    title: str
    task: str  # "image" or "text"
    data: str  # a name of harness.data
    channels: int = 1
    size: Mapping[str, int]
    batch: Mapping[str, int]
    optimizer: Optimizer
    base_batch: int
    target_accuracy: float
    differences: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One side of a comparison: a short label, what it sets, and its workload where that is the variable."""

    name: str
    sets: Mapping[str, str] = field(default_factory=dict)
    workload: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A declared comparison: one baseline, its treatments, on each workload and framework.

    ``accuracy`` names the convergence study that answers whether the gain costs accuracy; ``axis`` the toggle that the
    arms vary ("workload" where the model itself is the variable). ``checks`` are the named values of a check study.
    """

    id: str
    title: str
    question: str
    mode: Mode
    axis: str
    workloads: tuple[str, ...]
    baseline: Arm
    treatments: tuple[Arm, ...] = ()
    frameworks: tuple[Framework, ...] = (Framework.TORCH, Framework.TENSORFLOW)
    accuracy: str = ""
    checks: tuple[str, ...] = ()

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The baseline, then the treatments."""
        return (self.baseline, *self.treatments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A workload, a framework and a value for every toggle: what one worker process runs."""

    study: str
    mode: Mode
    comparison: str  # "study/framework/workload": what takes turns with this cell
    arm: str
    framework: Framework
    workload: str
    size: int
    toggles: Mapping[str, str]

    @property
    def batch(self) -> int:
        """Examples in one training step: of each device in weak scaling, of all together in strong scaling."""
        return int(self.toggles["batch"])

    @property
    def devices(self) -> int:
        """Devices that train together."""
        return int(self.toggles["devices"])

    @property
    def steps_per_call(self) -> int:
        """Training steps in one call of the framework's train function: steps are asked for in multiples of it."""
        return int(self.toggles["steps_per_execution"])

    @property
    def global_batch(self) -> int:
        """Examples in one training step of all devices together."""
        splits = self.toggles["strategy"] in SPLIT_MODEL or self.toggles["scale"] == "strong"
        return self.batch if splits else self.batch * self.devices

    def as_json(self) -> dict[str, object]:
        """The message form, read back by :meth:`from_json`."""
        return {
            "study": self.study,
            "mode": self.mode.value,
            "comparison": self.comparison,
            "arm": self.arm,
            "framework": self.framework.value,
            "workload": self.workload,
            "size": self.size,
            "toggles": dict(self.toggles),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> Cell:
        """Rebuild a cell from :meth:`as_json`."""
        toggles = fields["toggles"]
        assert isinstance(toggles, Mapping)
        return cls(
            study=str(fields["study"]),
            mode=Mode(str(fields["mode"])),
            comparison=str(fields["comparison"]),
            arm=str(fields["arm"]),
            framework=Framework(str(fields["framework"])),
            workload=str(fields["workload"]),
            size=int(str(fields["size"])),
            toggles={str(k): str(v) for k, v in toggles.items()},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Cells that take turns: the baseline first, then the treatments, then the A/A twin of a steady study."""

    id: str
    study: Study
    framework: Framework
    cells: tuple[Cell, ...]

    @property
    def baseline(self) -> Cell:
        """The cell that every ratio of this comparison divides by."""
        return self.cells[0]

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.cells)
