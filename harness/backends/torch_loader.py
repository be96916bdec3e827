"""A DataLoader that is started for one timed block and is gone after it."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator
from multiprocessing.context import ForkContext
from typing import Any

import torch
from torch.utils.data import DataLoader

from harness.backends.torch_photos import Batch, IndexedPhotos, ShardedPhotos, ShuffledBatches, collate, whole_batches
from harness.backends.torch_plan import Plan
from harness.data.formats import StoredSet
from harness.errors import MeasurementError
from harness.measure.parent import die_with_parent

SHARED_MEMORY = "/dev/shm"  # where torch puts the batches that a worker process hands over
START_S = 60.0  # longest wait for the workers to start, and to end
AT_HAND = 2  # batches outside the workers' queues: the one that is trained on, and the next one

# More workers than cores is what some levels are about.
warnings.filterwarnings("ignore", "This DataLoader will create")


class _Gate:
    """Where workers wait before they read anything, until the clock runs."""

    def __init__(self, context: ForkContext) -> None:
        self._parent = os.getpid()
        self._arrived = context.Semaphore(0)
        self._opened = context.Event()

    def pass_through(self, _worker: int) -> None:
        """In a worker, before it takes its first task."""
        die_with_parent(self._parent)
        self._arrived.release()
        self._opened.wait()

    def expect(self, workers: int) -> None:
        """Wait until so many have come."""
        until = time.monotonic() + START_S
        for _ in range(workers):
            if not self._arrived.acquire(timeout=max(0.0, until - time.monotonic())):
                raise MeasurementError(f"not all of {workers} loader processes started within {START_S:g} s")

    def open(self) -> None:
        self._opened.set()


class WorkerLoader:
    """Passes over a stored set by a DataLoader with ``plan.workers`` processes, or none.

    ``start`` forks the workers, ``batches`` lets them read, ``stop`` ends them. Between ``stop`` and ``start`` there is
    no process, thread or batch.
    """

    def __init__(self, stored: StoredSet, plan: Plan, *, batch: int, seed: int) -> None:
        self._plan, self._batch, self._seed = plan, batch, seed
        self._needed = (plan.workers * plan.prefetch + AT_HAND) * batch * 3 * stored.size**2
        self._sharded = bool(stored.shards)
        self._photos = (ShardedPhotos if self._sharded else IndexedPhotos)(stored, plan, seed)
        self._batches = ShuffledBatches(len(stored), batch, seed)
        self._gate: _Gate | None = None
        self._loader: DataLoader[Any] | None = None
        self._first: Iterator[Batch] | None = None

    def start(self, number: int) -> None:
        """Fork the workers for pass ``number`` and wait until each of them waits at the gate.

        Raises :class:`~harness.errors.MeasurementError` where the shared memory cannot hold the batches in flight.
        """
        plan, options = self._plan, dict[str, Any]()
        if plan.workers:
            _check_shared_memory(self._needed)
            context = multiprocessing.get_context("fork")
            self._gate = _Gate(context)
            options = {
                "multiprocessing_context": context,
                "prefetch_factor": plan.prefetch,
                "persistent_workers": plan.persistent,
                "worker_init_fn": self._gate.pass_through,
            }
        # The sharded formats have an order of their own; every worker ends on a short batch (see whole_batches).
        if self._sharded:
            options["batch_size"] = self._batch
        else:
            options["batch_sampler"] = self._batches
        self._loader = DataLoader(
            self._photos,
            num_workers=plan.workers,
            collate_fn=collate,
            pin_memory=plan.pinned,
            generator=torch.Generator().manual_seed(self._seed),  # else it would draw from the training's own
            **options,
        )
        self._first = self._iterate(number)
        if self._gate is not None:
            self._gate.expect(plan.workers)

    def _iterate(self, number: int) -> Iterator[Batch]:
        assert self._loader is not None
        self._photos.number = self._batches.number = number
        batches: Iterator[Batch] = iter(self._loader)
        return whole_batches(batches, self._batch) if self._sharded else batches

    def batches(self, number: int) -> Iterator[Batch]:
        """The batches of pass ``number``; the first call after :meth:`start` is for the pass named there."""
        if self._gate is not None:
            self._gate.open()
        first, self._first = self._first, None
        return self._iterate(number) if first is None else first

    def workers(self) -> int:
        """Loader processes that live now."""
        return len(multiprocessing.active_children())

    def stop(self) -> None:
        """End the workers and wait until they are gone; one that does not go is killed."""
        if self._gate is not None:
            self._gate.open()  # those that still wait would not hear that they may end
        children = multiprocessing.active_children()
        self._first = self._loader = self._gate = None  # a DataLoader's iterator ends its workers as it is dropped
        until = time.monotonic() + START_S
        for child in children:
            child.join(max(0.0, until - time.monotonic()))
            if child.is_alive():
                child.kill()
                child.join()


def _check_shared_memory(needed: int) -> None:
    status = os.statvfs(SHARED_MEMORY)
    free = status.f_bavail * status.f_frsize
    if free < needed:
        raise MeasurementError(
            f"{SHARED_MEMORY} has {free / 1e6:,.0f} MB free, but the loader's batches in flight need "
            f"{needed / 1e6:,.0f} MB: enlarge it (docker run --shm-size=…), or take fewer workers, a smaller batch or "
            "a shorter queue"
        )
