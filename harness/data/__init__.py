"""The data sets of the workloads, as numpy arrays; nothing here knows a framework, and nothing is ever downloaded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.errors import MeasurementError, unknown

NAMES = ("docstrings", "fashion_mnist")

VOCABULARY = 30_522
"""Rows of a text model's embedding: every token id is below it. The number is DistilBERT's, so that sizes match."""

# Of the 60,000 training images, pixels scaled to 0..1.
IMAGE_MEAN = 0.2860
IMAGE_STD = 0.3530


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrays:
    """A labelled set.

    Images: ``x`` uint8 [n, 28, 28]. Text: ``x`` int32 [n, tokens], 0 is padding, 1 the unknown word, 2 the start
    token at position 0 of each row. ``y`` int64 [n]. ``sha256`` is the hash of the content the set was made from.
    Classes take turns (0, 1, 2, …), so every prefix is balanced; shuffle with :func:`epoch_order`.
    """

    train_x: NDArray[np.generic]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.generic]
    test_y: NDArray[np.int64]
    classes: int
    sha256: str


def load(name: str, *, size: int) -> Arrays:
    """A data set by name, read once per process; the arrays are shared, so do not write into them.

    ``size`` is the number of tokens in a row of text; images keep their 28 x 28 pixels (see :func:`prepare_images`).
    Raises :class:`~harness.errors.ConfigError` for an unknown name, :class:`~harness.errors.Unavailable` where the set
    cannot be made on this installation.
    """
    if name not in NAMES:
        raise unknown("data set", name, NAMES)
    # Each set is a module of its own that builds an Arrays, so they import this one.
    from harness.data import docstrings, fashion_mnist

    return fashion_mnist.load() if name == "fashion_mnist" else docstrings.load(size)


def prepare_images(x: NDArray[np.generic], size: int, channels: int) -> NDArray[np.float32]:
    """Scale, normalise and resize grey images: uint8 [n, h, w] to float32 [n, size, size, channels].

    Pixels become (x / 255 - mean) / std with the mean and deviation of Fashion-MNIST's training set, so 0 is the mean
    grey. Resizing is bilinear between pixel centres (half-pixel offsets, no antialiasing: ``align_corners=False`` in
    PyTorch's words), written as one matrix product for the rows and one for the columns. The grey value is repeated
    over ``channels``.
    """
    pixels = x.astype(np.float32)
    pixels *= np.float32(1 / (255 * IMAGE_STD))
    pixels -= np.float32(IMAGE_MEAN / IMAGE_STD)
    height, width = pixels.shape[1:]
    # Normalising first is the same as last, since the weights of each output pixel add up to 1, and costs less.
    if height != size:
        pixels = _resize_matrix(height, size) @ pixels
    if width != size:
        pixels = pixels @ _resize_matrix(width, size).T
    images = np.empty((*pixels.shape, channels), np.float32)
    images[...] = pixels[..., np.newaxis]
    return images


def _resize_matrix(source: int, target: int) -> NDArray[np.float32]:
    """Weights [target, source] of bilinear resizing along one axis."""
    centres = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
    left = np.floor(centres).astype(np.int64)
    right = np.minimum(left + 1, source - 1)
    weight = centres - left
    matrix = np.zeros((target, source))
    rows = np.arange(target)
    matrix[rows, left] = 1 - weight
    matrix[rows, right] += weight
    return matrix.astype(np.float32)


def epoch_order(n: int, batch: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The indices of an epoch's batches, int64 [n // batch, batch]: shuffled, each at most once, the rest dropped.

    Fixed by ``(n, seed, epoch)`` alone, so both frameworks and all arms of a comparison see the same order.
    Raises :class:`~harness.errors.MeasurementError` where not one batch can be filled.
    """
    if not 1 <= batch <= n:
        raise MeasurementError(
            f"a batch of {batch} cannot be filled from {n} training examples; allowed: 1 to {n}. "
            "Use a smaller batch, or more examples (the profile's data limit)."
        )
    shuffled = np.random.default_rng((seed, epoch)).permutation(n).astype(np.int64, copy=False)
    steps = n // batch
    return shuffled[: steps * batch].reshape(steps, batch)
