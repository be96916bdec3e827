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
CHECK_S = 1.0  # between two looks at whether workers that have not arrived still live
END_S = 30.0  # longest wait for a worker to end before it is killed
AT_HAND = 2  # batches outside the workers' queues: the one that is trained on, and the next one

# More workers than cores is what some levels are about.
warnings.filterwarnings("ignore", "This DataLoader will create")


class _Gate:
    """Where workers wait before they read anything, until the clock runs.

    A pipe whose end of file is the signal: unlike an Event of multiprocessing, it bears that a waiting process is
    killed.
    """

    def __init__(self, context: ForkContext) -> None:
        self._parent = os.getpid()
        self._arrived = context.Semaphore(0)
        self._signal, self._held = os.pipe()
        self._open = False

    def pass_through(self, _worker: int) -> None:
        """In a worker, before it takes its first task."""
        die_with_parent(self._parent)
        if not self._open:
            os.close(self._held)  # the copy that the fork made
        self._arrived.release()
        os.read(self._signal, 1)

    def expect(self, workers: int) -> None:
        """Wait until so many have come."""
        for _ in range(workers):
            while not self._arrived.acquire(timeout=CHECK_S):
                if len(multiprocessing.active_children()) < workers:
                    raise MeasurementError("a loader process ended before it had started; see its message on stderr")

    def open(self) -> None:
        """Let everyone through, also who comes later."""
        if not self._open:
            self._open = True
            os.close(self._held)

    def close(self) -> None:
        """Open, and gone."""
        self.open()
        os.close(self._signal)


class WorkerLoader:
    """Passes over a stored set by a DataLoader with ``plan.workers`` processes, or none.

    ``start`` forks the workers, ``batches`` lets them read, ``stop`` ends them. Between ``stop`` and ``start`` there is
    no process, thread or batch.
    """

    def __init__(self, stored: StoredSet, plan: Plan, *, batch: int, seed: int) -> None:
        self._plan, self._n, self._batch, self._seed = plan, len(stored), batch, seed
        self._needed = (plan.workers * plan.prefetch + AT_HAND) * batch * 3 * stored.size**2
        self._sharded = bool(stored.shards)
        self._photos = (ShardedPhotos if self._sharded else IndexedPhotos)(stored, plan, seed)
        self._batches = ShuffledBatches(len(stored), batch, seed)
        self._gate: _Gate | None = None
        self._loader: DataLoader[Any] | None = None
        self._iterator: Any = None  # of the DataLoader
        self._started = False  # the iterator is of a pass that was not asked for yet

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
        self._iterate(number)
        self._started = True
        if self._gate is not None:
            self._gate.expect(plan.workers)

    def _iterate(self, number: int) -> None:
        assert self._loader is not None
        self._photos.number = self._batches.number = number
        self._iterator = iter(self._loader)

    def batches(self, number: int) -> Iterator[Batch]:
        """The batches of pass ``number``; the first call after :meth:`start` is for the pass named there."""
        if self._gate is not None:
            self._gate.open()
        if not self._started:
            self._iterate(number)
        self._started = False
        return whole_batches(self._iterator, self._batch, self._n) if self._sharded else self._iterator

    def workers(self) -> int:
        """Loader processes that live now."""
        return len(multiprocessing.active_children())

    def stop(self) -> None:
        """End the workers and wait until they are gone; one that does not go is killed."""
        if self._gate is not None:
            self._gate.close()  # those that still wait would not hear that they may end
        children = multiprocessing.active_children()
        # What an iterator does as it is dropped; but the traceback of an error may still hold it.
        if children and self._iterator is not None:
            self._iterator._shutdown_workers()
        self._iterator = self._loader = self._gate = None
        until = time.monotonic() + END_S
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
