"""The stored set as PyTorch datasets: one by index, one by shards, and the batches that both are collated to."""

from __future__ import annotations

import importlib
import random
import tarfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from harness import data as datasets
from harness.backends.torch_plan import Pixels, Plan
from harness.data.formats import StoredSet
from harness.data.formats.base import damaged
from harness.errors import MeasurementError

NO_DECODER = "none"  # the pixels themselves were stored

# Stored pixels are read-only, and are only copied from.
warnings.filterwarnings("ignore", "The given NumPy array is not writable")


class Sample(NamedTuple):
    """One example: uint8 [size, size, 3], its class, and the name of what decoded it."""

    pixels: Pixels
    label: int
    decoder: str


class Batch(NamedTuple):
    """What a loader delivers: uint8 [b, size, size, 3], int64 [b], and the name of what decoded it."""

    images: Tensor
    labels: Tensor
    decoder: str


def collate(samples: list[Sample]) -> Batch:
    """Stack samples; in a worker process straight into shared memory, the only copy made after decoding."""
    images = default_collate([torch.from_numpy(sample.pixels) for sample in samples])
    return Batch(images, default_collate([sample.label for sample in samples]), samples[0].decoder)


def whole_batches(batches: Iterator[Batch], size: int, n: int) -> Iterator[Batch]:
    """Full batches as they come. Each worker that reads its own shards ends on a short one: these are joined.

    So a pass delivers ``n`` // ``size`` batches however many workers there are, and this process copies at most one
    batch a worker. Raises :class:`~harness.errors.MeasurementError` where not all ``n`` examples of the set came.
    """
    rest: list[Batch] = []
    came = 0
    for batch in batches:
        came += len(batch.labels)
        if len(batch.labels) == size:
            yield batch
            continue
        rest.append(batch)
        if sum(len(short.labels) for short in rest) >= size:
            images, labels = torch.cat([b.images for b in rest]), torch.cat([b.labels for b in rest])
            rest = [Batch(images[size:], labels[size:], batch.decoder)]
            pinned = batch.images.is_pinned()
            yield Batch(images[:size].pin_memory() if pinned else images[:size], labels[:size], batch.decoder)
    if came != n:
        raise MeasurementError(f"{came} of {n} stored examples came in a pass; remove the set, and it is made again")


class _Reader:
    """From what is stored of one example to its sample."""

    def __init__(self, stored: StoredSet, plan: Plan, seed: int) -> None:
        self.stored = stored
        self.plan = plan
        self.seed = seed

    def import_all(self, example: bytes | Pixels) -> None:
        """Make a sample, so that what libraries import at their first use is there before a worker is forked."""
        self.sample(example, 0, str(self.stored.folder), (0,))

    def wait(self) -> None:
        """The declared latency of a read."""
        if self.plan.read_delay_s:
            time.sleep(self.plan.read_delay_s)

    def sample(self, stored: bytes | Pixels, label: int, name: str, draw: tuple[int, ...]) -> Sample:
        """Decode where bytes were stored, and change the pixels where the plan does, seeded by ``(seed, *draw)``."""
        if isinstance(stored, bytes):
            pixels = self.plan.decoder.decode(stored, self.stored.size, name)
            decoder = self.plan.decoder.name
        else:
            pixels, decoder = stored, NO_DECODER
        if self.plan.change is not None:
            seed = np.random.SeedSequence((self.seed, *draw)).generate_state(1, np.uint64)[0]
            pixels = self.plan.change(pixels, int(seed >> np.uint64(1)))
        return Sample(pixels, label, decoder)


class IndexedPhotos(Dataset[Sample]):
    """The formats that give any example by its index. A key is (pass, index), from :class:`ShuffledBatches`."""

    def __init__(self, stored: StoredSet, plan: Plan, seed: int) -> None:
        self._reader = _Reader(stored, plan, seed)
        self._reader.import_all(stored.read(0))
        stored.close()  # a handle may not be shared with a forked process

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        number, index = key
        reader, stored = self._reader, self._reader.stored
        reader.wait()
        loose = stored.folder == stored.source.folder
        name = str(stored.source.paths[index]) if loose else f"{stored.folder}: example {index}"
        return reader.sample(stored.read(index), int(stored.labels[index]), name, (number, index))


class ShuffledBatches:
    """The batch sampler: keys of whole batches in the order that the seed and :attr:`number`, the pass, fix."""

    def __init__(self, n: int, batch: int, seed: int) -> None:
        self._n, self._batch, self._seed = n, batch, seed
        self.number = 0

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for indices in datasets.epoch_order(self._n, self._batch, self._seed, self.number):
            yield [(self.number, index) for index in indices.tolist()]

    def __len__(self) -> int:
        return self._n // self._batch


class ShardedPhotos(IterableDataset[Sample]):
    """The formats that are read from front to back: TFRecord and WebDataset, by the readers of those packages.

    In each pass the shards are shuffled and dealt to the workers; a worker reads its own into a shuffle buffer that
    holds them all before it gives the first example, so that its order is uniform, as that of an index is. What stays
    different: a batch mixes the shards of one worker only.
    """

    def __init__(self, stored: StoredSet, plan: Plan, seed: int) -> None:
        self._reader = _Reader(stored, plan, seed)
        self._reader.import_all(stored.source.paths[0].read_bytes())
        self._records = _webdataset if stored.format == "webdataset" else _tfrecord
        importlib.import_module(stored.format)  # the package has the format's name
        self.number = 0  # of the pass that is read next; a worker that lives on counts for itself

    def __iter__(self) -> Iterator[Sample]:
        number, self.number = self.number, self.number + 1
        reader, stored = self._reader, self._reader.stored
        info = get_worker_info()
        worker = 0 if info is None else info.id
        order = np.random.default_rng((reader.seed, number)).permutation(len(stored.shards))
        shards = [stored.shards[i] for i in order]
        rng = random.Random(f"{reader.seed}/{number}/{worker}")
        for k, (data, label, name) in enumerate(self._records(shards, len(stored), rng)):
            reader.wait()
            yield reader.sample(data, label, name, (number, worker, k))


def _webdataset(shards: list[Path], n: int, rng: random.Random) -> Iterator[tuple[bytes, int, str]]:
    import webdataset

    records: Any = webdataset.WebDataset(
        [str(shard) for shard in shards],
        shardshuffle=False,  # they are shuffled already, by the seed and the pass
        workersplitter=webdataset.split_by_worker,
        empty_check=False,
    ).shuffle(n, initial=n, rng=rng)
    try:
        for record in records:
            yield record["jpg"], int(record["cls"]), f"{record['__url__']}: {record['__key__']}"
    except (OSError, tarfile.TarError, KeyError, ValueError) as error:
        named = error.args[-1] if len(error.args) > 1 else shards[0].parent  # the reader appends the shard
        raise damaged(Path(named), error.args[0]) from error


def _tfrecord(shards: list[Path], n: int, rng: random.Random) -> Iterator[tuple[bytes, int, str]]:
    from tfrecord import reader

    info = get_worker_info()
    mine = shards if info is None else shards[info.id :: info.num_workers]
    wanted = {"image/encoded": "byte", "image/class/label": "int"}
    records: list[tuple[bytes, int, str]] = []
    for shard in mine:
        try:
            for i, record in enumerate(reader.tfrecord_loader(str(shard), None, wanted)):
                label: NDArray[np.int64] = record["image/class/label"]
                records.append((record["image/encoded"], int(label[0]), f"{shard}: record {i}"))
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise damaged(shard, error) from error
    rng.shuffle(records)
    yield from records
