"""The format toggle in TensorFlow."""

from __future__ import annotations

import importlib.util

from harness.spec import Cell

_PACKAGES = {"lmdb": "lmdb", "lmdb_decoded": "lmdb", "arrow": "datasets", "tfrecord": "crc32c"}


def unavailable(level: str, _cell: Cell) -> str | None:
    """The package that reads the format or, for TFRecord, helps to write it."""
    package = _PACKAGES.get(level)
    if package is not None and importlib.util.find_spec(package) is None:
        return f"format '{level}' needs {package}, not installed: pip install 'speedproof[data]'"
    return None
