"""DALI's own pipeline on the CPU in place of the DataLoader: it reads, decodes and batches in threads of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image

from harness import data as datasets
from harness.backends.torch_photos import Batch
from harness.backends.torch_plan import Plan
from harness.data.formats import StoredSet
from harness.errors import MeasurementError

DECODER = "dali"


class DaliLoader:
    """Passes over loose image files; ``plan.workers`` are the pipeline's threads, ``plan.prefetch`` its queue.

    A pipeline shuffles for itself from pass to pass, from a seed made of the seed and the pass it was started for. It
    knows no dropped rest, so the n % batch files that the order of that pass leaves over stay out until the next start.
    """

    def __init__(self, stored: StoredSet, plan: Plan, *, batch: int, seed: int) -> None:
        self._stored, self._plan, self._batch, self._seed = stored, plan, batch, seed
        # Bit for bit what Pillow decodes. Where images must be scaled, DALI's filter rounds otherwise than Pillow's.
        self._scale = any(_size(path) != (stored.size, stored.size) for path in stored.source.paths)
        self._pipeline: Any = None

    def start(self, number: int) -> None:
        """Build the pipeline and its threads; it reads nothing before its first run."""
        self._pipeline = self._build(number)
        self._pipeline.build()

    def _build(self, number: int) -> Any:
        from nvidia.dali import Pipeline, fn, types

        order = datasets.epoch_order(len(self._stored), self._batch, self._seed, number).ravel()
        paths, size = self._stored.source.paths, self._stored.size
        pipeline = Pipeline(
            batch_size=self._batch,
            num_threads=self._plan.workers,
            device_id=None,
            prefetch_queue_depth=self._plan.prefetch,
        )
        with pipeline:
            data, label = fn.readers.file(
                files=[str(paths[i]) for i in order],
                labels=self._stored.labels[order].tolist(),
                shuffle_after_epoch=True,
                shuffle_after_epoch_seed=int(np.random.SeedSequence((self._seed, number)).generate_state(1)[0]) >> 1,
            )
            images = fn.decoders.image(data, device="cpu", output_type=types.RGB)
            if self._scale:
                images = fn.resize(images, size=size, mode="not_smaller", interp_type=types.INTERP_LINEAR)
                images = fn.crop(images, crop=(size, size))
            pipeline.set_outputs(images, label)
        return pipeline

    def batches(self, _number: int) -> Iterator[Batch]:
        """The batches of the next pass: views of DALI's own memory, each valid until the next one is asked for."""
        for _ in range(len(self._stored) // self._batch):
            try:
                images, labels = self._pipeline.run()
            except RuntimeError as error:
                raise MeasurementError(_said(error)) from error
            delivered = [torch.from_numpy(np.asarray(made.as_tensor())) for made in (images, labels)]
            yield Batch(delivered[0], delivered[1].flatten().to(torch.int64), DECODER)

    def workers(self) -> int:
        """Threads of the running pipeline."""
        return int(self._pipeline.num_threads)

    def stop(self) -> None:
        """Drop the pipeline: it joins its threads as it goes."""
        self._pipeline = None


def _size(path: Any) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def _said(error: RuntimeError) -> str:
    """DALI's message without the place in its pipeline: the line after "encountered:" names the file."""
    lines = [line for line in str(error).rpartition("encountered:")[2].splitlines() if line.strip()]
    return f"DALI: {lines[0] if lines else error}; replace or remove the file"
