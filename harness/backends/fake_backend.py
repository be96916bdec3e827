"""A backend without a framework and with a scripted clock, for the tests of everything around it.

Its device is asynchronous: ``steps`` only queues work, ``synchronize`` lets the clock run until the queue is empty.
Step times are known exactly: :data:`STEP_S` for a batch of 64, scaled by precision and batch, times a factor that
stays for a launch (as identical processes differ on real machines) and a small one for each block. An arm named in
:data:`FAULTS` goes wrong in that way.
"""

from __future__ import annotations

import os
import random
import signal
import time

from harness.backends import Check, Evaluation, Memory, Observed, ObservedLoading, Stored
from harness.spec import Cell, Mode, Status

PRELOAD: tuple[str, ...] = ()
STEP_S = 0.01
SPEED = {"fp32": 1.0, "tf32": 0.8, "bf16": 0.5, "fp16": 0.5}
DTYPE = {"fp32": "float32", "tf32": "float32+tf32", "bf16": "bfloat16", "fp16": "float16"}
LAUNCH_SD = 0.03
BLOCK_SD = 0.01
MEMORY_BATCH = 512  # a batch beyond this is out of memory
FAULTS = ("oom", "hang", "segfault", "killed", "no_effect", "unavailable", "raises", "unsynchronised", "miscounts")

_now = 0.0


def clock() -> float:
    """Seconds of the scripted clock."""
    return _now


def _advance(seconds: float) -> None:
    global _now  # noqa: PLW0603 - one process, one clock
    _now += seconds


def configure(threads: int) -> None:
    """Nothing to set."""


def describe() -> dict[str, object]:
    """A version and a CPU."""
    return {"version": "0", "devices": {"cpu": "scripted"}}


def unavailable(cell: Cell) -> str | None:
    """The arm named so, and any GPU."""
    if cell.arm == "unavailable" or cell.toggles["device"] == "gpu":
        return "the fake backend has no such device"
    return None


def classify(error: BaseException) -> Status:
    """A MemoryError is out of memory."""
    return Status.OOM if isinstance(error, MemoryError) else Status.ERROR


def checks(cell: Cell, name: str) -> list[Check]:
    """One value with the check's own name."""
    return [Check(name=name, value=1.0)]


class FakeSession:
    """A queue of work on the scripted clock."""

    trace_s: float | None = None

    def __init__(self, cell: Cell, seed: int) -> None:
        self.cell = cell
        self.items_per_step = cell.batch + (1 if cell.arm == "miscounts" else 0)
        self._random = random.Random(f"{cell.arm}/{seed}")
        self._launch = self._random.gauss(1.0, LAUNCH_SD)
        self._queued = 0.0
        self._epochs = 0
        if cell.batch > MEMORY_BATCH:
            raise MemoryError(f"batch {cell.batch}")

    @property
    def step_s(self) -> float:
        """Seconds of one step, before noise."""
        return STEP_S * SPEED[self.cell.toggles["precision"]] * self.cell.batch / 64

    def steps(self, n: int) -> None:
        """Queue steps, or go wrong as the arm is named."""
        if self.cell.arm == "hang":
            time.sleep(3600)
        if self.cell.arm == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.cell.arm == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.cell.arm == "oom":
            raise MemoryError("scripted")
        if self.cell.arm == "raises":
            raise ValueError("scripted\nsecond line")
        self._queued += n * self.step_s * self._launch * self._random.gauss(1.0, BLOCK_SD)
        _advance(n * 1e-6)

    def synchronize(self) -> None:
        """Let the clock run until the queue is empty; the arm "unsynchronised" forgets to."""
        if self.cell.arm != "unsynchronised":
            _advance(self._queued)
            self._queued = 0.0

    def fetch_loss(self) -> float:
        """Waits for the queue, as a real loss does."""
        _advance(self._queued + 1e-6)
        self._queued = 0.0
        return 1.0

    def train_epoch(self, epoch: int) -> int:
        """Ten steps."""
        self.steps(10)
        self._epochs = epoch
        return 10 * self.items_per_step

    def evaluate(self) -> Evaluation:
        """Accuracy that rises by epoch, with noise of the seed."""
        accuracy = 0.9 - 0.3 / (self._epochs + 1) + self._random.gauss(0.0, 0.002)
        return Evaluation(accuracy=accuracy, loss=1.0 - accuracy)

    def reset_memory(self) -> None:
        """Nothing to reset."""

    def memory(self) -> Memory:
        """A megabyte an example, half in 16 bits."""
        half = self.cell.toggles["precision"] in {"bf16", "fp16"}
        return Memory(peak=self.cell.batch * 1_000_000 // (2 if half else 1), parameters=1000, optimizer=1000)

    def observe(self) -> Observed:
        """What was asked for, except on the arm "no_effect"."""
        toggles = self.cell.toggles
        dtype = "float32" if self.cell.arm == "no_effect" else DTYPE[toggles["precision"]]
        return Observed(
            device="cpu",
            dtype=dtype,
            layout="nhwc" if toggles["layout"] == "channels_last" else "nchw",
            batch=self.cell.batch,
            scaled=toggles["precision"] == "fp16" and toggles["scaling"] == "auto",
            learning_rate=0.1,
            parameters=1000,
        )


READ_S = {"files": 0.004, "lmdb": 0.002}  # seconds of loading one batch, where the arm's workers are "none"
PASS_STEPS = 8
WORKERS = {"none": 0, "one": 1, "half": 1, "cores": 2, "double": 4, "quadruple": 8}
CONVERT_S = 1.5


class FakeLoading:
    """A loader on the scripted clock: batches take the format's time over the workers, and training a step's."""

    trace_s: float | None = None
    steps_per_pass = PASS_STEPS

    def __init__(self, cell: Cell, seed: int) -> None:
        self.cell = cell
        self.items_per_step = cell.batch
        self._random = random.Random(f"{cell.arm}/{seed}")
        self._launch = self._random.gauss(1.0, LAUNCH_SD)
        self._open = False
        self.workers = WORKERS[cell.toggles["workers"]]

    def ready(self) -> None:
        """A warm pass leaves the cache as it is, a cold one empties it."""

    def open(self) -> None:
        """A hundredth of a second a worker."""
        if self.cell.arm == "raises":
            raise OSError("scripted: the shard train-000.tar is truncated")
        self._open = True
        _advance(0.01 * self.workers)

    def run(self, passes: int) -> float:
        """Waits for every batch, then trains on it."""
        assert self._open
        each = READ_S[self.cell.toggles["format"]] / max(1, min(self.workers, 2))
        waited = passes * PASS_STEPS * each * self._launch * self._random.gauss(1.0, BLOCK_SD)
        _advance(waited)
        if self.cell.mode is Mode.END_TO_END:
            _advance(passes * PASS_STEPS * STEP_S * self._launch)
        return waited

    def synchronize(self) -> None:
        """Nothing is queued."""

    def close(self) -> None:
        """Nothing is left."""
        self._open = False

    def observe(self) -> ObservedLoading:
        """What was asked for, except on the arm "no_effect"."""
        toggles = self.cell.toggles
        cold = toggles["page_cache"] == "cold" and self.cell.arm != "no_effect"
        return ObservedLoading(
            device="cpu" if self.cell.mode is Mode.END_TO_END else None,
            format=toggles["format"],
            batch=self.cell.batch,
            order="scripted",
            workers=self.workers,
            decoder="pillow",
            cached=0.0 if cold else 1.0,
            pinned=False,
        )

    def reset_memory(self) -> None:
        """Nothing to reset."""

    def memory(self) -> Memory:
        """A megabyte."""
        return Memory(peak=1_000_000)


def store(cell: Cell, examples: int | None) -> Stored:
    """A set of a thousand bytes an example; the arm "unwritable" cannot write it."""
    if cell.arm == "unwritable":
        raise OSError(28, "No space left on device", "fake-set")
    n = examples or PASS_STEPS * cell.batch
    return Stored(bytes=1000 * n, seconds=CONVERT_S, examples=n, sha256="scripted")


def open_loading(cell: Cell, *, seed: int, examples: int | None) -> FakeLoading:
    """A loader of the scripted clock."""
    return FakeLoading(cell, seed)


def open_session(cell: Cell, *, seed: int, data_limit: tuple[int, int] | None) -> FakeSession:
    """A session of the scripted clock."""
    return FakeSession(cell, seed)
