"""Cut the embedded subset out of the whole Fashion-MNIST.

    python -m harness.data.make_fashion_mnist FOLDER

reads the four original files from FOLDER (``train-images-idx3-ubyte.gz`` and so on), checks them, and writes
``fashion_mnist.npz`` beside this file. Of each class the first 600 training and the first 100 test images are taken, in
the order of the original, and the classes take turns. Debian's package ``dataset-fashion-mnist`` holds the files under
``/usr/share/datasets/fashion-mnist``.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.data.fashion_mnist import CLASSES, FILE
from harness.errors import ConfigError

TRAIN_PER_CLASS = 600
TEST_PER_CLASS = 100

# SHA-256 of the uncompressed files: the packages differ in how they compress them.
ORIGINALS = {
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
}


def read_idx(file: Path) -> NDArray[np.uint8]:
    """The array of one gzipped idx file of bytes: a 4-byte magic number, one big-endian length per axis, the data.

    Raises :class:`~harness.errors.ConfigError` where the content is not that of the original.
    """
    content = gzip.decompress(file.read_bytes())
    digest = hashlib.sha256(content).hexdigest()
    if digest != ORIGINALS[file.name]:
        raise ConfigError(f"{file}: its content has SHA-256 {digest}, the original has {ORIGINALS[file.name]}.")
    axes = content[3]
    shape = np.frombuffer(content, ">u4", count=axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def balanced(labels: NDArray[np.uint8], per_class: int) -> NDArray[np.int64]:
    """Indices of the first ``per_class`` examples of each class, int64 [classes * per_class], classes taking turns."""
    each = [np.flatnonzero(labels == label)[:per_class] for label in range(CLASSES)]
    return np.stack(each, axis=1).reshape(-1)


def make(folder: Path, target: Path) -> str:
    """Write the subset of the files in ``folder`` to ``target`` and return its SHA-256."""
    arrays: dict[str, Any] = {}
    for split, prefix, per_class in (("train", "train", TRAIN_PER_CLASS), ("test", "t10k", TEST_PER_CLASS)):
        labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
        chosen = balanced(labels, per_class)
        arrays[f"{split}_x"] = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")[chosen]
        arrays[f"{split}_y"] = labels[chosen]
    np.savez_compressed(target, **arrays)
    return hashlib.sha256(target.read_bytes()).hexdigest()


if __name__ == "__main__":
    if len(sys.argv) != 2:  # noqa: PLR2004
        sys.exit(__doc__)
    print(make(Path(sys.argv[1]), FILE))
