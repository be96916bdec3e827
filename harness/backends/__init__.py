"""The seam between harness and framework: a session trains, the harness times it.

The seam lies at the level of a run, not of a tensor, so that nothing of the harness stands inside a training step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from harness.spec import Cell, Framework, Status


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes. ``peak`` since the last reset; a part is ``None`` where the framework cannot tell it apart."""

    peak: int
    parameters: int | None = None
    optimizer: int | None = None
    activations: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What a step really did, read from the running model, never copied from the request.

    ``dtype`` is the dtype that the first convolution or matrix product put out ("float32", "bfloat16", …; with
    "+tf32" where float32 products may be rounded to TF32), ``layout`` the memory order of that output ("nchw", "nhwc",
    "none"), ``batch`` the examples that reached the model in one step on all devices together, ``scaled`` whether the
    loss is scaled. ``devices`` took part in the step, each with ``threads`` compute threads (``None``: as configured);
    they are on ``hosts`` that have ``cores`` in all (``None``: those of this one).
    """

    device: str
    dtype: str
    layout: str
    batch: int
    scaled: bool
    learning_rate: float
    parameters: int
    devices: int = 1
    threads: int | None = None
    hosts: int = 1
    cores: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The quality of the model on the test set."""

    accuracy: float
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """A set on disk: its bytes, and the seconds that writing it took when it was made (it may be older than the run).

    ``sha256`` is that of the source's content: equal for every format of one set.
    """

    bytes: int
    seconds: float
    examples: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One named value of a check study, or one probe of a fit study."""

    name: str
    value: float
    unit: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedLoading:
    """What the last pass over the stored set really did, seen in the running loader, never copied from the request.

    ``batch`` is the examples in a delivered batch, ``order`` a hash of the labels in the order they came,
    ``workers`` the processes (or parallel calls) that loaded beside this process, ``decoder`` what made the pixels
    ("pillow", "torchvision", "tensorflow", "dali"; "none" where they were stored), ``cached`` the share of the set's
    bytes that the page cache held when the pass began (``None`` where the set is in this process's own memory),
    ``pinned`` whether a batch lay in page-locked memory, ``device`` where it was trained on (``None`` where it was
    not).
    """

    device: str | None
    format: str
    batch: int
    order: str
    workers: int
    decoder: str
    cached: float | None
    pinned: bool


class Loading(Protocol):
    """A stored set and the loader over it. A pass gives every example once, in the order of the seed and the pass.

    Its life under the clock is ``ready``, ``open`` (timed apart), ``run`` (timed), ``close``, again and again: what a
    loader does while other cells have their turn cannot count for its next block, because between two blocks it has
    no worker, thread or buffered batch at all.
    """

    items_per_step: int
    steps_per_pass: int
    trace_s: float | None  # as in Session, for the training step of an end-to-end cell

    def ready(self) -> None:
        """Bring the page cache to the level that the cell asks for. Untimed; before every block."""

    def open(self) -> None:
        """Start the loader's workers. They hold back until :meth:`run`, so that nothing is loaded unseen."""

    def run(self, passes: int) -> float:
        """Whole passes, each batch consumed (END_TO_END: trained on); the seconds spent waiting for a batch."""

    def synchronize(self) -> None:
        """Return when all enqueued work of the device is done."""

    def close(self) -> None:
        """End every worker and thread of the loader and drop what it had ready; wait until they are gone."""

    def observe(self) -> ObservedLoading:
        """What the last pass did."""

    def reset_memory(self) -> None:
        """Start a new window for :meth:`memory`."""

    def memory(self) -> Memory:
        """Peak of this process since the last reset; the loader's own processes are not in it."""


class Session(Protocol):
    """One model in training. Every method may raise the framework's own errors."""

    items_per_step: int
    trace_s: float | None  # seconds of tracing the step into a graph, None where the framework does not trace

    def steps(self, n: int) -> None:
        """Enqueue ``n`` training steps on resident data; must not wait for the device.

        ``n`` is a multiple of the cell's ``steps_per_call``.
        """

    def synchronize(self) -> None:
        """Return when all enqueued work of the device is done."""

    def fetch_loss(self) -> float:
        """The last step's loss as a host number.

        It depends on the step's result, so it cannot return before the device has computed it: the block's own
        check that :meth:`synchronize` did what it says.
        """

    def train_epoch(self, epoch: int) -> int:
        """Train one epoch in the order that ``(seed, epoch)`` fixes; return the examples seen. Need not wait."""

    def evaluate(self) -> Evaluation:
        """Test accuracy and loss over the whole test set, in evaluation mode."""

    def reset_memory(self) -> None:
        """Start a new window for :meth:`memory`."""

    def memory(self) -> Memory:
        """Peaks since the last reset."""

    def observe(self) -> Observed:
        """Run one step under observation and report what it did."""


class Backend(Protocol):
    """A module of this package: what a worker does with one framework."""

    # A module may also define ``clock() -> float`` in place of time.perf_counter: the fake backend's scripted one.
    PRELOAD: tuple[str, ...]  # modules that the nursery imports before it forks; importing them may run no operation

    def configure(self, threads: int) -> None:
        """Set the process's compute threads; called once, before anything else of the framework."""

    def describe(self) -> dict[str, object]:
        """What this installation is: ``version``, ``devices`` ({"cpu": name, "gpu": name or absent}), and the like."""

    def unavailable(self, cell: Cell) -> str | None:
        """Why this cell cannot run here, or ``None``."""

    def open_session(self, cell: Cell, *, seed: int, data_limit: tuple[int, int] | None) -> Session:
        """Build the session of a cell, traced but with no step taken.

        ``data_limit`` bounds the (training, test) examples of a convergence session. Outside convergence only the few
        resident batches that steps cycle through are prepared, and ``train_epoch`` and ``evaluate`` are not called.
        """

    def store(self, cell: Cell, examples: int | None) -> Stored:
        """Make the stored set of a cell in LOADING or END_TO_END mode, if it is not there yet.

        ``examples`` bounds the set. Called in a worker of its own before any launch, so that the conversion is timed
        alone.
        """

    def open_loading(self, cell: Cell, *, seed: int, examples: int | None) -> Loading:
        """Open the stored set of a cell; for END_TO_END also build the model and trace its step."""

    def checks(self, cell: Cell, name: str) -> list[Check]:
        """The values of a named check, from the ``CHECKS`` of the technique that the cell's study varies."""

    def classify(self, error: BaseException) -> Status:
        """``OOM`` for the framework's out-of-memory errors, else ``ERROR``."""


def backend_name(framework: Framework) -> str:
    """The module that implements :class:`Backend` for a framework."""
    return f"{__name__}.{framework.value}_backend"
