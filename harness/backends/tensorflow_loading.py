"""Passes over a stored set by tf.data, each batch taken or trained on, and how they are observed."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import numpy as np
import psutil

from harness.backends import Memory, ObservedLoading
from harness.backends.tensorflow_pipelines import Pipelines
from harness.backends.tensorflow_plan import Plan
from harness.backends.tensorflow_session import device_kind, size_in_bytes
from harness.backends.tensorflow_step import tf
from harness.data import page_cache
from harness.data.formats import StoredSet
from harness.errors import MeasurementError
from harness.measure.host_memory import HostMemoryWindow

UNREAD = 0.01  # a pass that reads at most this share of the set's bytes got its images from memory


class Training:
    """A compiled Keras model's own train step on batches that are handed over, so that waiting for them is told apart.

    It trains bit for bit what ``fit`` trains. Building it traces the step, and takes none.
    """

    def __init__(self, model: Any, *, batch: int, size: int, device: str) -> None:
        self.model, self.on_gpu = model, device == "gpu"
        model.optimizer.build(model.trainable_variables)
        train_step = model.train_step

        def step(images: Any, labels: Any) -> Any:
            return train_step((images, labels))

        given = tf.TensorSpec((batch, size, size, 3), tf.uint8), tf.TensorSpec((batch,), tf.int64)
        self._step = tf.function(step, input_signature=given, jit_compile=model.jit_compile)
        started = time.perf_counter()
        self._step.get_concrete_function()
        self.trace_s = time.perf_counter() - started
        self._loss: Any = None

    def start(self) -> None:
        """Begin an epoch: Keras reports the mean loss since the last reset."""
        self.model.reset_metrics()

    def run(self, images: Any, labels: Any) -> None:
        """Enqueue one step."""
        self._loss = self._step(images, labels)["loss"]

    def device(self) -> str:
        """Where the last step ran and the weights are."""
        return device_kind(self._loss.device, self.model.trainable_variables[0].value.device)


class KerasLoading:
    """A stored set and the tf.data pipeline over it; see :class:`harness.backends.Loading`.

    ``open`` makes the iterator of the first pass, which starts no thread and reads nothing before it is asked for a
    batch; each further pass gets an iterator of its own, as each epoch of ``fit`` does. ``close`` drops it, which ends
    its threads and its buffers.
    """

    def __init__(
        self,
        *,
        stored: StoredSet,
        plan: Plan,
        training: Training | None,
        batch: int,
        seed: int,
        cold: bool,
        host_memory: HostMemoryWindow,
    ) -> None:
        self.items_per_step = batch
        self.steps_per_pass = len(stored) // batch
        if not self.steps_per_pass:
            raise MeasurementError(
                f"a batch of {batch} cannot be filled from {len(stored)} stored examples; store more"
            )
        self.trace_s = None if training is None else training.trace_s
        self._pipelines = Pipelines(stored, plan, batch=batch)
        self._stored, self._plan, self._training = self._pipelines.stored, plan, training
        self._pipeline = self._pipelines.make(seed)
        self._cold, self._host_memory = cold, host_memory
        self._iterator: Any = None
        self._cached: float | None = None
        self._labels: list[Any] = []  # of the last pass, by batch
        self._shape: tuple[int, ...] = ()
        self._read: int | None = None  # bytes that the last pass read, where the pipeline keeps images

    def ready(self) -> None:
        """Empty the page cache of the set, or fill it where it is not full."""
        if files := self._stored.files:
            self._cached = page_cache.bring(files, cold=self._cold)

    def open(self) -> None:
        """Make the iterator of the first pass."""
        self._iterator = iter(self._pipeline)

    def run(self, passes: int) -> float:
        """Whole passes; the seconds inside the requests for a batch, on a GPU an upper bound of its waiting.

        (There, what is still queued runs on while the host waits; TensorFlow gives no event to tell it by.) Raises
        :class:`~harness.errors.MeasurementError` that names the file where one cannot be read or decoded, or where a
        pass delivers more or fewer batches than it should.
        """
        return sum(self._pass(first=number == 0) for number in range(passes))

    def _pass(self, *, first: bool) -> float:
        read = _bytes_read() if self._plan.cache else 0
        self._labels = []
        if self._training is not None:
            self._training.start()
        asked = time.perf_counter()
        if not first:
            self._iterator = iter(self._pipeline)
        batch = self._next()
        waited = time.perf_counter() - asked
        while batch is not None:
            images, labels = batch
            self._shape = tuple(images.shape)
            self._labels.append(labels)
            if self._training is not None:
                self._training.run(images, labels)
            asked = time.perf_counter()
            batch = self._next()
            waited += time.perf_counter() - asked
        if len(self._labels) != self.steps_per_pass:
            raise MeasurementError(
                f"the pass ended after {len(self._labels)} batches, not {self.steps_per_pass}: {self._stored.folder} "
                "does not hold what it should; remove it, and it is made again"
            )
        self._read = _bytes_read() - read if self._plan.cache else None
        return waited

    def _next(self) -> Any:
        try:
            return next(self._iterator, None)
        except tf.errors.ResourceExhaustedError:
            raise
        except tf.errors.OpError:
            self._pipelines.explain()
            raise

    def synchronize(self) -> None:
        """Wait for every device of this process."""
        tf.test.experimental.sync_devices()

    def close(self) -> None:
        """Drop the iterator, which joins its threads, and let go of the set's files.

        What a pipeline with a cache keeps stays: it is what the level is about.
        """
        self._iterator = None
        self._pipelines.close()

    def observe(self) -> ObservedLoading:
        """What the last pass showed; raises :class:`~harness.errors.MeasurementError` before the first.

        ``workers`` is what a map does at a time, in the threads that tf.data shares with the training.
        """
        if not self._labels:
            raise MeasurementError("there was no pass yet: run one before observing it")
        order = np.concatenate([labels.numpy() for labels in self._labels])
        return ObservedLoading(
            device=None if self._training is None else self._training.device(),
            format=self._stored.format,
            batch=self._shape[0],
            order=hashlib.blake2b(order.tobytes(), digest_size=16).hexdigest(),
            workers=self._pipelines.calls or 1,
            decoder="tensorflow" if self._stored.encoded else "none",
            cached=None if self._from_memory() else self._cached,
            pinned=False,
        )

    def _from_memory(self) -> bool:
        """Whether the last pass took its images from what the pipeline keeps, by the bytes that it read."""
        total = sum(file.stat().st_size for file in self._stored.files)
        return self._read is not None and self._read <= UNREAD * total

    def reset_memory(self) -> None:
        """Start a new window for :meth:`memory`."""
        if self._training is not None and self._training.on_gpu:
            tf.config.experimental.reset_memory_stats("GPU:0")
        else:
            self._host_memory.open()

    def memory(self) -> Memory:
        """Peak of the device that trains, else of this process."""
        training = self._training
        if training is None:
            return Memory(peak=self._host_memory.peak())
        on_gpu = training.on_gpu
        peak = tf.config.experimental.get_memory_info("GPU:0")["peak"] if on_gpu else self._host_memory.peak()
        state = [v for v in training.model.optimizer.variables if len(v.shape)]  # the scalars are counters and rates
        return Memory(
            peak=int(peak), parameters=size_in_bytes(training.model.trainable_variables), optimizer=size_in_bytes(state)
        )


def _bytes_read() -> int:
    """Bytes that this process has read from files, cached or not."""
    return int(psutil.Process().io_counters().read_chars)
