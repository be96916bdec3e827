"""The format toggle in PyTorch."""

from __future__ import annotations

import importlib.util

from harness.data.formats.shards import SHARDS
from harness.spec import Cell
from harness.techniques.workers.torch import count

_PACKAGES = {
    "tfrecord": "tfrecord",
    "webdataset": "webdataset",
    "lmdb": "lmdb",
    "lmdb_decoded": "lmdb",
    "arrow": "datasets",
}


def unavailable(level: str, cell: Cell) -> str | None:
    """The reader's package, and a shard for each worker where a worker reads whole shards."""
    package = _PACKAGES.get(level)
    if package is not None and importlib.util.find_spec(package) is None:
        return f"format '{level}' needs {package}, not installed: pip install 'speedproof[data]'"
    workers = count(cell.toggles["workers"])
    if level in ("tfrecord", "webdataset") and workers > SHARDS:
        return f"format '{level}' is stored in {SHARDS} shards, and each of {workers} workers needs one of its own"
    return None
