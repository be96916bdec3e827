"""The embedded images: 6,000 training and 1,000 test images of Fashion-MNIST, 10 classes, 28 x 28 grey pixels.

Source: Xiao, Rasul and Vollgraf, «Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms»,
2017 (arXiv:1708.07747), MIT licence: ``fashion_mnist.LICENSE`` beside this file. How the subset was cut:
:mod:`harness.data.make_fashion_mnist`.
"""

from __future__ import annotations

import functools
import hashlib
import io
from pathlib import Path

import numpy as np

from harness.data import Arrays
from harness.errors import Unavailable

FILE = Path(__file__).with_name("fashion_mnist.npz")
SHA256 = "2a7086bcc130ca51f8957440dcba3070733dcc5f72fd0c052ec97dc53077ef30"
CLASSES = 10


@functools.cache
def load() -> Arrays:
    """The embedded subset; raises :class:`~harness.errors.Unavailable` where its file is missing or altered."""
    return read(FILE)


def read(file: Path) -> Arrays:
    """The subset in ``file``, whose bytes must have the hash :data:`SHA256`."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise Unavailable(f"{file}: cannot be read ({error.strerror}); reinstall speedproof.") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256:
        raise Unavailable(
            f"{file}: has SHA-256 {digest}, allowed is only {SHA256}: the file was altered. "
            "Restore it (git checkout, or reinstall speedproof)."
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return Arrays(
            train_x=arrays["train_x"],
            train_y=arrays["train_y"].astype(np.int64),
            test_x=arrays["test_x"],
            test_y=arrays["test_y"].astype(np.int64),
            classes=CLASSES,
            sha256=digest,
        )
