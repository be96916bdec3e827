"""What the scikit-learn backend does, as JSON on stdout: run by tests/test_sklearn.py in a process of its own.

``python sklearn_probe.py CELLS`` reports on every cell of the JSON file: a map of a name to a cell.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from harness.backends import sklearn_backend as backend
from harness.backends.sklearn_loading import FeatureLoading, content_hash
from harness.errors import SpeedproofError
from harness.spec import Cell, Mode

LIMIT = (400, 300)


def steady(cell: Cell) -> dict[str, Any]:
    """A step, its observation, and what another seed's step comes to."""
    session = backend.open_session(cell, seed=0, data_limit=None)
    session.reset_memory()
    session.steps(1)
    first = session.fetch_loss()
    other = backend.open_session(cell, seed=1, data_limit=None)
    other.steps(1)
    return {
        "observed": dataclasses.asdict(session.observe()),
        "items_per_step": session.items_per_step,
        "again": [first, session.fetch_loss()],
        "other_seed": other.fetch_loss(),
        "memory": dataclasses.asdict(session.memory()),
    }


def convergence(cell: Cell) -> dict[str, Any]:
    """Trained and scored on two seeds, the first of them twice."""
    scores = []
    for seed in (0, 0, 1):
        session = backend.open_session(cell, seed=seed, data_limit=LIMIT)
        seen = session.train_epoch(1)
        scores.append([seen, *dataclasses.astuple(session.evaluate())])
    train, test = backend._split(cell, 0, LIMIT)
    return {"scores": scores, "sizes": [len(train.texts), len(test.texts)], "shared": _shared(train, test)}


def _shared(train: Any, test: Any) -> int:
    return len(set(train.texts) & set(test.texts))


def loading(cell: Cell) -> dict[str, Any]:
    """Stored twice, then two passes over a set whose page cache is brought to the cell's level."""
    stored = [dataclasses.asdict(backend.store(cell, None)) for _ in range(2)]
    loader = backend.open_loading(cell, seed=0, examples=None)
    hashes = []
    for _ in range(2):
        loader.ready()
        loader.open()
        waited = loader.run(1)
        loader.close()
        hashes.append(content_hash(loader.features))
    return {
        "stored": stored,
        "observed": dataclasses.asdict(loader.observe()),
        "hashes": hashes,
        "waited": waited,
        "features": _described(loader),
    }


def _described(loader: FeatureLoading) -> list[Any]:
    return [list(loader.features.shape), str(loader.features.dtype)]


def report(cell: Cell) -> dict[str, Any]:
    """By the cell's mode; the error where there is one."""
    if reason := backend.unavailable(cell):
        return {"unavailable": reason}
    looks = {Mode.STEADY: steady, Mode.CONVERGENCE: convergence, Mode.LOADING: loading}
    try:
        return looks[cell.mode](cell)
    except SpeedproofError as error:
        return {"raised": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    backend.configure(1)
    cells = {name: Cell.from_json(fields) for name, fields in json.loads(Path(sys.argv[1]).read_text()).items()}
    answers: dict[str, Any] = {name: report(cell) for name, cell in cells.items()}
    answers["describe"] = backend.describe()
    print(json.dumps(answers))  # noqa: T201 - the report
