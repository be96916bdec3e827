"""Time the way from sample rows to figures on made-up rows, in a process of its own.

``python -m harness.rehearsal ROWS`` prints seconds and the process's peak memory in bytes. The rows are drawn at
random, not measured, and never come near results/.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness import plots
from harness.claims import judge
from harness.plan import DeviceKind, plan
from harness.profiles import load_profile
from harness.report import facts_of, load_all_claims
from harness.results_header import plan_of
from harness.results_reader import RunData
from harness.schema import SAMPLES, TRIALS
from harness.spec import Framework, Mode
from harness.stats import effects
from harness.store import RunStore, read
from harness.studies import benchmarks_folder, load_studies

ROUNDS = 50


def main(rows: int) -> None:
    """Write ``rows`` sample rows of the real studies, then time reading, deriving, judging and drawing."""
    profile = load_profile("full", benchmarks_folder())
    devices: dict[Framework, DeviceKind] = dict.fromkeys(Framework, "cpu")
    steady = [c for c in plan(load_studies(), profile, devices) if c.study.mode is Mode.STEADY]
    with tempfile.TemporaryDirectory() as folder:
        header = {"command": "rehearsal", "profile": {"name": "rehearsal"}, "plan": plan_of(steady)}
        store = RunStore.create(folder, header)
        cells = [cell for comparison in steady for cell in comparison if cell.toggles["batch"] != "largest"]
        _write(store, cells, rows)
        started = time.perf_counter()
        data: RunData = read(store.path)
        (head,) = data.headers.values()
        derived = effects(data.samples, data.trials, data.convergence, data.checks, baselines=head["baselines"])
        claims = load_all_claims()
        verdicts = judge(claims, derived, facts_of(head, data.trials))
        plots.draw_all(data, derived, verdicts, claims, Path(folder) / "plots")
        seconds = time.perf_counter() - started
        store.close()
    print(f"{seconds:.3f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}")


def _write(store: RunStore, cells: list, rows: int) -> None:  # type: ignore[type-arg]
    from harness.launch import cell_fields

    rng = np.random.default_rng(0)
    launches = max(1, round(rows / (ROUNDS * len(cells))))
    fields = pd.DataFrame([cell_fields(cell, store.run_id) for cell in cells])
    trials = fields.merge(pd.DataFrame({"launch": range(launches)}), how="cross")
    samples = trials.merge(pd.DataFrame({"round": range(ROUNDS)}), how="cross").head(rows)
    n = len(samples)
    drawn: dict[str, Any] = {
        "turn": 0,
        "steps": 10,
        "items": 640,
        "seconds": rng.lognormal(-1, 0.05, n),
        "drain_s": 1e-4,
    }
    samples.assign(**drawn).reindex(columns=SAMPLES.names).to_csv(store.path / SAMPLES.file, index=False)
    known: dict[str, Any] = {
        "mode": "steady",
        "status": "ok",
        "settled": True,
        "peak_bytes": rng.integers(1, 9, len(trials)) * 10**8,
    }
    trials.assign(**known).reindex(columns=TRIALS.names).to_csv(store.path / TRIALS.file, index=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
