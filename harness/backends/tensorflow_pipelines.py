"""The stored set as a tf.data pipeline: for each format, what is read and how, up to shuffled batches of pixels.

Every pipeline delivers uint8 [batch, size, size, 3] and int64 [batch], each example at most once in a pass. Each pass
shuffles the whole set: indices and names directly; TFRecord and WebDataset, which are read from front to back, through
a shuffle buffer that holds all their records (as image files, not as pixels) before it gives the first.
"""

from __future__ import annotations

import dataclasses
import mmap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from harness.backends.tensorflow_plan import Pixels, Plan
from harness.backends.tensorflow_records import jpeg_or_png, parse, read_tar, read_tfrecord, said, tar_records
from harness.backends.tensorflow_step import tf
from harness.data import pixels
from harness.data.formats import StoredSet, arrays, loose
from harness.data.formats.base import damaged
from harness.errors import MeasurementError


class Pipelines:
    """Makes pipelines of one stored set, and lets go of its files."""

    def __init__(self, stored: StoredSet, plan: Plan, *, batch: int) -> None:
        self.stored, self.plan, self.batch = stored, plan, batch
        self.calls: int | None = tf.config.threading.get_inter_op_parallelism_threads() if plan.parallel else None
        self._shape = (stored.size, stored.size, 3)
        self._mixed = stored.encoded and _has_others(stored)
        self._mapped = _map_npy(stored) if stored.format == "npy" else None
        self._everything: Any = None  # pixels of all examples, as one tensor
        with tf.device("/CPU:0"):
            self._labels = tf.constant(stored.labels)
            if self._mapped is not None:
                self._everything = tf.experimental.dlpack.from_dlpack(self._mapped.__dlpack__())  # makes no copy
            elif stored.format == "ram":
                self._everything = tf.constant(np.stack([stored.read(i) for i in range(len(stored))]))
                self.stored = dataclasses.replace(stored)  # without its handle, which is the pixels: one copy will do

    def make(self, seed: int) -> Any:
        """The pipeline with the shuffling of ``seed``; every iterator over it shuffles anew. Nothing is read yet."""
        plan, n = self.plan, len(self.stored)

        def shuffled(data: Any) -> Any:
            return data.shuffle(n, seed=seed)

        if not self.stored.encoded:
            data = shuffled(tf.data.Dataset.range(n)).batch(self.batch, drop_remainder=True)
            data = self._map(data, self._gathering())
        else:
            # What is kept is shuffled as it comes out of the memory: so each pass has an order of its own there too.
            data = shuffled(self._images(_as_it_is).cache()) if plan.cache else self._images(shuffled)
            if plan.augment is not None:
                seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).batch(2)
                data = self._map(tf.data.Dataset.zip(data, seeds), self._augment)
            data = data.batch(self.batch, drop_remainder=True)
        return (data.prefetch(tf.data.AUTOTUNE) if plan.prefetch else data).with_options(_options(plan))

    def _map(self, data: Any, function: Callable[..., Any]) -> Any:
        # AutoGraph would only rewrite what holds no Python control flow over tensors.
        return data.map(tf.autograph.experimental.do_not_convert(function), num_parallel_calls=self.calls)

    # --- image files ---

    def _images(self, shuffled: Callable[[Any], Any]) -> Any:
        """Decoded images and labels, one by one."""
        stored = self.stored
        fetch: Callable[..., Any]
        if stored.format == "files":
            names = [str(path) for path in _image_paths(stored)]
            data, fetch = tf.data.Dataset.from_tensor_slices((names, stored.labels)), self._read_file
        elif stored.format == "tfrecord":
            data, fetch = self._tfrecords(), parse
        elif stored.format == "webdataset":
            data, fetch = self._tar_members(), _as_they_are
        else:
            return self._map(self._indexed(shuffled), self._decoded)

        def load(*element: Any) -> Any:
            return self._decoded(*fetch(*element))

        return self._map(shuffled(data), load)

    def _decoded(self, data: Any, label: Any) -> Any:
        image = self.decode(data)
        if self.plan.prepare is not None:
            image = tf.numpy_function(self.plan.prepare, [image], tf.uint8, stateful=False)
        return tf.ensure_shape(image, self._shape), label

    def _tfrecords(self) -> Any:
        records = tf.data.TFRecordDataset([str(path) for path in self.stored.shards], num_parallel_reads=self.calls)
        return self._map(records, self._later) if self.plan.read_delay_s else records

    def _tar_members(self) -> Any:
        shards = tf.data.Dataset.from_tensor_slices([str(path) for path in self.stored.shards])
        if self.plan.parallel:
            return shards.interleave(tar_records, num_parallel_calls=self.calls)
        return shards.flat_map(tar_records)

    def _read_file(self, path: Any, label: Any) -> Any:
        return tf.io.read_file(self._later(path) if self.plan.read_delay_s else path), label

    def _later(self, element: Any) -> Any:
        """The same element, once the declared latency of a read has passed."""

        def wait(element: bytes) -> bytes:
            time.sleep(self.plan.read_delay_s)
            return element

        return tf.ensure_shape(tf.numpy_function(wait, [element], tf.string), ())

    def _indexed(self, shuffled: Callable[[Any], Any]) -> Any:
        """LMDB and Arrow: a call into Python reads a batch of records, which are then decoded one by one, in parallel.

        A call for each record took 0.79 ms of CPU an image, from_generator 0.95 ms, this 0.63 ms.
        """
        indices = shuffled(tf.data.Dataset.range(len(self.stored))).batch(self.batch)

        def read(indices: NDArray[np.int64]) -> NDArray[np.object_]:
            return np.array([self.stored.read(i) for i in indices.tolist()], object)

        def records(indices: Any) -> Any:
            data = tf.numpy_function(read, [indices], tf.string, stateful=False)
            return tf.ensure_shape(data, [None]), tf.gather(self._labels, indices)

        return self._map(indices, records).unbatch()

    def decode(self, data: Any) -> Any:
        """The bytes of an image file to uint8 [size, size, 3], equal to :func:`harness.data.pixels.decode`.

        Where all images are JPEG or PNG and of this size there is one operation. The user's own may not be: they are
        scaled by Pillow.
        """
        if not self._mixed:
            return tf.ensure_shape(jpeg_or_png(data), self._shape)
        image = tf.cond(
            tf.strings.substr(data, 0, 2) == b"BM",
            lambda: tf.io.decode_image(data, 3, expand_animations=False),
            lambda: jpeg_or_png(data),
        )
        fits = tf.reduce_all(tf.shape(image) == self._shape)
        image = tf.cond(fits, lambda: image, lambda: tf.numpy_function(self._fit, [image], tf.uint8, stateful=False))
        return tf.ensure_shape(image, self._shape)

    def _fit(self, image: Pixels) -> Pixels:
        return pixels.fit(image, self.stored.size)

    def _augment(self, example: Any, seed: Any) -> Any:
        assert self.plan.augment is not None
        image, label = example
        return tf.ensure_shape(self.plan.augment(image, seed), self._shape), label

    # --- stored pixels ---

    def _gathering(self) -> Any:
        """The function from the indices of a batch to its pixels and labels."""

        def read(indices: NDArray[np.int64]) -> Pixels:
            return np.stack([self.stored.read(i) for i in indices.tolist()])

        def gather(indices: Any) -> Any:
            if self._everything is not None:
                images = tf.gather(self._everything, indices)
            else:  # lmdb_decoded
                images = tf.numpy_function(read, [indices], tf.uint8, stateful=False)
            return tf.ensure_shape(images, (self.batch, *self._shape)), tf.gather(self._labels, indices)

        return gather

    def close(self) -> None:
        """Let go of every handle and mapped page, so that the page cache can be emptied. Reading takes them again."""
        self.stored.close()
        if self._mapped is not None:
            mapping = self._mapped.base
            assert isinstance(mapping, mmap.mmap)
            mapping.madvise(mmap.MADV_DONTNEED)

    # --- what went wrong ---

    def explain(self) -> None:
        """Read and decode every example again; raises :class:`~harness.errors.MeasurementError` that names the bad one.

        TensorFlow's own errors tell neither the file nor, of a record, the shard.
        """
        for name, data in self._examples():
            try:
                self.decode(data)
            except tf.errors.OpError as error:
                raise MeasurementError(
                    f"{name}: is not a readable image ({said(error)}); replace or remove it"
                ) from error

    def _examples(self) -> Iterator[tuple[str, bytes]]:
        stored = self.stored
        for shard in stored.shards:
            records = read_tar(str(shard).encode())[0] if stored.format == "webdataset" else read_tfrecord(shard)
            for i, data in enumerate(records):
                yield f"{shard}: record {i}", data
        for index in () if stored.shards else range(len(stored)):
            data = stored.read(index)  # names what it cannot read
            if isinstance(data, bytes):
                is_file = stored.format == "files"
                yield str(_image_paths(stored)[index]) if is_file else f"{stored.folder}: example {index}", data


def _options(plan: Plan) -> Any:
    """What tf.data may do of its own accord: nothing, so that a pipeline runs as it is written, and ends when dropped.

    By default tf.data makes a serial map parallel, makes a batch ahead where no prefetch is asked for, holds a second
    copy of a tensor that a map uses, and tunes parallelism and buffers while it runs, by a thread that outlives its
    iterator by up to the time the pass took. None of it made a pass faster.
    """
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.map_parallelization = False
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    options.deterministic = not plan.parallel  # else whichever element is ready first may go first
    return options


def _has_others(stored: StoredSet) -> bool:
    """Whether an image is neither JPEG nor PNG, or not of the set's size; only heads are looked at."""

    def is_other(path: Path) -> bool:
        try:
            with Image.open(path) as image:
                return image.format not in ("JPEG", "PNG") or image.size != (stored.size, stored.size)
        except OSError:
            return True  # decoding it will tell

    return any(is_other(path) for path in _image_paths(stored))


def _image_paths(stored: StoredSet) -> tuple[Path, ...]:
    """The loose files in the order of the labels: those that were stored prepared, else the source's."""
    if stored.format != "files" or stored.folder == stored.source.folder:
        return stored.source.paths
    return loose.prepared_paths(stored.source, stored.folder)


def _map_npy(stored: StoredSet) -> NDArray[np.uint8]:
    """The pixels mapped from their file, as a tensor can be laid over them.

    So npy and ram differ in where the pixels lie, and in nothing else: indexing a memmap in a numpy_function took 1.6
    times as long, all of it in Python. The mapping is private, hence writable: DLPack takes no other.
    """
    file, shape = stored.folder / arrays.PIXELS, (len(stored), stored.size, stored.size, 3)
    mapped: NDArray[np.uint8] = np.load(file, mmap_mode="c", allow_pickle=False)
    if mapped.shape != shape or mapped.dtype != np.uint8:
        raise damaged(file, f"holds {mapped.dtype} {mapped.shape}, not uint8 {shape}")
    return mapped


def _as_it_is(data: Any) -> Any:
    return data


def _as_they_are(*element: Any) -> Any:
    return element
