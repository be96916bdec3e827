"""Passes over a stored set in PyTorch, each batch looked at or trained on, and how they are observed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from harness.backends import Memory, ObservedLoading
from harness.backends.torch_photos import Batch
from harness.backends.torch_session import size_in_bytes
from harness.backends.torch_step import Step
from harness.data import page_cache
from harness.data.formats import StoredSet
from harness.errors import MeasurementError, SpeedproofError
from harness.measure.host_memory import HostMemoryWindow


class Loader(Protocol):
    """What makes the batches: a DataLoader, or DALI's pipeline."""

    def start(self, number: int) -> None:
        """Start what pass ``number`` needs, and read nothing."""

    def batches(self, number: int) -> Iterator[Batch]:
        """The batches of a pass."""

    def workers(self) -> int:
        """Processes or threads that load beside this process, right now."""

    def stop(self) -> None:
        """End them, and wait until they are gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What an end-to-end pass trains."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Step

    def run(self, batch: Batch) -> None:
        """One step. A pinned batch is copied to the GPU while the host goes on."""
        device = self.step.device
        images = batch.images.to(device, non_blocking=True).permute(0, 3, 1, 2)
        self.step.run(self.model, self.optimizer, images, batch.labels.to(device, non_blocking=True))


class _Seen:
    """What one pass showed."""

    def __init__(self) -> None:
        self._labels = hashlib.blake2b(digest_size=16)
        self.first: tuple[int, str, bool, int] | None = None  # batch, decoder, pinned, workers

    def add(self, batch: Batch, loader: Loader) -> None:
        self._labels.update(batch.labels.numpy().tobytes())
        if self.first is None:
            self.first = len(batch.images), batch.decoder, batch.images.is_pinned(), loader.workers()

    def order(self) -> str:
        return self._labels.hexdigest()


class _HostWait:
    """Seconds inside the request for the next batch: on a CPU, nothing else happens meanwhile."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._asked = 0.0

    def ask(self) -> None:
        self._asked = time.perf_counter()

    def got(self) -> None:
        self._seconds += time.perf_counter() - self._asked

    def seconds(self) -> float:
        return self._seconds


class _GpuWait:
    """Seconds that the GPU stood idle between the end of a step and the start of the next.

    The host runs ahead of the GPU, so the time that it waits for a batch costs nothing while queued steps still run.
    An event is recorded when a step has been queued and another when the next batch is there: the time between the two
    as the GPU passes them is what it waited. It is near zero where the GPU came to both of them late.
    """

    def __init__(self) -> None:
        self._gaps: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def ask(self) -> None:
        self._asked = self._event()

    def got(self) -> None:
        self._gaps.append((self._asked, self._event()))

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> float:
        torch.cuda.synchronize()
        return sum(asked.elapsed_time(got) for asked, got in self._gaps) / 1000


class TorchLoading:
    """A stored set and the loader over it; see :class:`harness.backends.Loading`."""

    trace_s: float | None = None

    def __init__(
        self,
        *,
        stored: StoredSet,
        loader: Loader,
        training: Training | None,
        batch: int,
        cold: bool,
        host_memory: HostMemoryWindow,
    ) -> None:
        self.items_per_step = batch
        self.steps_per_pass = len(stored) // batch
        if not self.steps_per_pass:
            raise MeasurementError(
                f"a batch of {batch} cannot be filled from {len(stored)} stored examples; store more"
            )
        self._stored = stored
        self._loader = loader
        self._training = training
        self._cold = cold
        self._host_memory = host_memory
        self._on_gpu = training is not None and training.step.device.type == "cuda"
        self._number = 0  # of the next pass
        self._cached: float | None = None
        self._seen = _Seen()

    def ready(self) -> None:
        """Empty the page cache of the set, or fill it where it is not full."""
        files = self._stored.files
        if not files:
            return
        self._stored.close()  # a mapped page cannot be dropped
        self._cached = page_cache.bring(files, cold=self._cold)

    def open(self) -> None:
        """Start the loader's workers; they wait."""
        self._loader.start(self._number)

    def run(self, passes: int) -> float:
        """Whole passes; the seconds spent waiting, of the host or, end to end on a GPU, of the GPU.

        A worker's error is raised here as it was there. Raises :class:`~harness.errors.MeasurementError` where a pass
        delivers more or fewer batches than it should.
        """
        wait = _GpuWait() if self._on_gpu else _HostWait()
        for _ in range(passes):
            self._seen = _Seen()
            try:
                self._pass(wait)
            except Exception as error:
                if plain := _as_raised(error):
                    raise plain from error
                raise
            self._number += 1
        return wait.seconds()

    def _pass(self, wait: _HostWait | _GpuWait) -> None:
        wait.ask()
        batches = self._loader.batches(self._number)
        for done in range(self.steps_per_pass):
            batch = next(batches, None)
            wait.got()
            if batch is None:
                raise MeasurementError(f"the pass ended after {done} of {self.steps_per_pass} batches: {self._short()}")
            self._seen.add(batch, self._loader)
            if self._training is None:
                _look_at(batch)
            else:
                self._training.run(batch)
            wait.ask()
        more = next(batches, None)
        wait.got()
        if more is not None:
            raise MeasurementError(f"the pass went on after {self.steps_per_pass} batches: the set holds too much")

    def _short(self) -> str:
        return f"{self._stored.folder} holds fewer examples than it should; remove it, and it is made again"

    def synchronize(self) -> None:
        """Wait for the GPU; a CPU has nothing outstanding."""
        if self._on_gpu:
            torch.cuda.synchronize()

    def close(self) -> None:
        """End the loader's workers, and let go of the set's files."""
        self._loader.stop()
        self._stored.close()

    def observe(self) -> ObservedLoading:
        """What the last pass showed; raises :class:`~harness.errors.MeasurementError` before the first."""
        if self._seen.first is None:
            raise MeasurementError("there was no pass yet: run one before observing it")
        batch, decoder, pinned, workers = self._seen.first
        kind = None if self._training is None else "gpu" if self._on_gpu else "cpu"
        return ObservedLoading(
            device=kind,
            format=self._stored.format,
            batch=batch,
            order=self._seen.order(),
            workers=workers,
            decoder=decoder,
            cached=self._cached,
            pinned=pinned,
        )

    def reset_memory(self) -> None:
        """Start a new window for :meth:`memory`."""
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        else:
            self._host_memory.open()

    def memory(self) -> Memory:
        """Peak of the device that trains, else of this process; batches that workers hand over are in it."""
        peak = torch.cuda.max_memory_allocated() if self._on_gpu else self._host_memory.peak()
        if self._training is None:
            return Memory(peak=peak)
        states = self._training.optimizer.state.values()
        return Memory(
            peak=peak,
            parameters=size_in_bytes(self._training.model.parameters()),
            optimizer=size_in_bytes(v for state in states for v in state.values() if isinstance(v, Tensor)),
        )


def _look_at(batch: Batch) -> None:
    """Read a byte of each image, so that a batch that was never written would fault here, inside the time."""
    if len(batch.images) != len(batch.labels):
        raise MeasurementError(f"{len(batch.images)} images came with {len(batch.labels)} labels")
    batch.images[:, 0, 0, 0].sum().item()


def _as_raised(error: Exception) -> Exception | None:
    """A worker's error arrives as its whole traceback, of which the last line is what it said; ``None`` for others."""
    text = str(error)
    if not text.startswith("Caught "):
        return None
    said = text.rstrip().rsplit("\n", 1)[-1]
    kind = type(error)
    if issubclass(kind, (SpeedproofError, MemoryError)):
        return kind(said.removeprefix(f"{kind.__module__}.").removeprefix(f"{kind.__qualname__}: "))
    return MeasurementError(f"a loader process failed: {said}")
