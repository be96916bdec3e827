"""A made-up run for tests of figures, tables and the command line: real plan, real store, invented times.

Its header says that it is made up. Everything is drawn from one seed, so two runs differ in their run id only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.launch import cell_fields, trial
from harness.plan import plan
from harness.profiles import load_profile
from harness.results_header import plan_of
from harness.spec import Cell, Comparison, Framework, Mode, Status
from harness.store import RunStore
from harness.studies import benchmarks_folder, load_studies

LAUNCHES, ROUNDS, EPOCHS, SEEDS = 6, 3, 5, 6
FRAMEWORKS = (Framework.TORCH, Framework.TENSORFLOW, Framework.SKLEARN)
MACHINE = {
    "cpu": "Example CPU & Sons #1_x",
    "cores": 2,
    "gpus": [],
    "frameworks": {f: {"devices": {"cpu": "cpu"}} for f in FRAMEWORKS},
}
_SPEED = {"tf32": 1.0, "bf16": 1.6, "fp16": 0.7, "bf16_nhwc": 1.9, "fp16_nhwc": 0.8, "fp16_largest": 1.1}
_SPEED |= {"mobilenet_v2": 2.4, "text_small": 6.0}
_BYTES = {"bf16": 0.62, "fp16": 0.66, "bf16_nhwc": 0.6, "fp16_nhwc": 0.7, "fp16_largest": 4.0}
_BYTES |= {"mobilenet_v2": 0.8, "text_small": 0.3}

CLAIMS = """
planned_metrics: {size: bytes of the model}
claims:
  - id: amp-speed
    documents: [D0]
    says: half precision trains faster
    stated: "2 to 3 times"
    measures:
      - metric: throughput
        study: precision
        arms: [bf16, fp16_nhwc]
        tolerance: 0.05
        readings: {literal: {low: 2.0, high: 3.0}, loose: {low: 1.0, high: 2.0}}
      - {metric: memory, study: precision, arms: [bf16], readings: {literal: {low: 0.5, high: 0.5}}, tolerance: 0.1}
    published:
      - {metric: throughput, value: 3.26, hardware: V100, setting: ResNet-50, source: a README, mark: V}
      - {metric: throughput, value: 1.98, value_high: 2.3, hardware: V100, setting: a net, source: a README, mark: V}
  - id: amp-gpu
    documents: [D4]
    says: a GPU with half precision trains three times faster
    scope: {device: gpu}
    measures:
      - {metric: throughput, study: precision, arms: [fp16], readings: {literal: {low: 4.0}, loose: {low: 3.0}}}
  - id: amp-acc
    documents: [D0, D4]
    says: half precision costs no accuracy
    measures:
      - metric: accuracy
        study: precision-accuracy
        arms: [bf16, fp16]
        no_loss: true
        tolerance: 1.0
        readings: {literal: {low: 0.0, high: 0.0}}
    published:
      - {metric: accuracy, value: -0.13, hardware: V100, setting: ResNet-50, source: a README, mark: C}
  - id: batch-up
    documents: [D0]
    says: a larger batch is faster
    measures:
      - {metric: throughput, study: batch-fp32, arms: [b64, b128], readings: {literal: {low: 1.0}}}
  - id: light-speed
    documents: [D0]
    says: light models train faster
    measures:
      - metric: throughput
        study: model-image
        arms: [mobilenet_v2]
        readings: {literal: {low: 3.0, high: 4.0}, loose: {low: 2.0, high: 3.0}}
  - id: fp-eps
    documents: [D4]
    says: float16 resolves a thousandth
    measures:
      - {metric: eps_float16, study: numerics, arms: [float_eps], readings: {literal: {low: 0.0009, high: 0.0011}}}
  - id: workers-1x
    documents: [D0]
    says: one worker a core is best
    measures: [{metric: size, readings: {literal: {low: 1.0}}}]
  - id: npy-cache
    documents: [D0]
    says: saved arrays skip the work
    measures: [{metric: size, readings: {literal: {low: 1.0}}}]
  - id: tf-cloud
    documents: [D4]
    says: one call trains in the cloud
    scope: {never: "not measurable by a program: a service, not a technique"}
    measures: [{metric: load, readings: {literal: {low: 1.0}}}]
"""

DATA_CLAIMS = """
claims:
  - id: packed-format
    documents: [D0]
    says: packed images load faster
    measures:
      - {metric: load, study: format-load, arms: [lmdb], readings: &packed {by half: {low: 1.5}, twice: {low: 2.0}}}
      - {metric: load, study: format-load-cold, arms: [lmdb], readings: *packed}
  - id: data-wait
    documents: [D0]
    says: training waits for data
    measures:
      - {metric: stall_share, study: format-train, arms: [files], readings: {noticeable: {low: 0.1}, most: {low: 0.5}}}
  - id: workers-1x
    documents: [D0]
    says: one worker a core is best
    measures:
      - {metric: best_workers_per_core, study: workers-load, arms: [none], readings: &one {literal: {low: 1, high: 1}}}
      - {metric: best_workers_per_core, study: workers-slow-load, arms: [none], readings: *one}
"""


SCALE_CLAIMS = """
claims:
  - id: scale-2
    documents: [D4]
    says: two devices train twice as fast
    measures: [{metric: throughput, study: ddp-weak, arms: [d2], readings: {stated: {low: 2, high: 2}}}]
  - id: scale-8
    documents: [D4]
    says: eight devices train 7.3 times as fast
    measures: [{metric: throughput, study: ddp-weak, arms: [d8], readings: {stated: {low: 7.3, high: 7.3}}}]
"""


def write_run(results: Path, *, speed: dict[str, float] | None = None, only: str | tuple[str, ...] = "") -> Path:
    """Write a made-up run into ``results`` and return its folder; ``only`` keeps studies whose id starts so."""
    profile = load_profile("full", benchmarks_folder())
    studies = [s for s in load_studies() if s.id.startswith(only)]
    comparisons = plan(studies, profile, dict.fromkeys(FRAMEWORKS, "cpu"))
    header: dict[str, Any] = {
        "command": 'pytest benchmarks/ --benchmark-only -k "made_up & 100%"',
        "profile": {"name": "full", "content": {}},
        "machine": MACHINE,
        "versions": {"torch": "0.0-made-up", "tensorflow": "0.0-made-up", "python": None},
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": True},
        "plan": plan_of(comparisons),
    }
    with RunStore.create(results, header) as store:
        for comparison in comparisons:
            for tables in _launches(comparison, store.run_id, {**_SPEED, **(speed or {})}):
                store.append_many(tables)
        store.update_header(state="finished")
        return store.path


Tables = dict[str, list[dict[str, Any]]]

CORES = 2
FORMATS = ("files", "tfrecord", "lmdb", "webdataset", "arrow", "lmdb_decoded", "npy", "ram")
WORKERS = {"none": 0, "one": 1, "half": 1, "cores": 2, "double": 4, "quadruple": 8}
ITEMS = 320
_RATE = {"files": 900, "tfrecord": 1000, "lmdb": 1000, "webdataset": 700, "arrow": 800, "lmdb_decoded": 6000}
_RATE |= {"npy": 8000, "ram": 15000, "resident": 5000}  # images a second that one process loads, warm
_TRAINED = 1200  # images a second that the step takes


def _times(cell: Cell) -> tuple[float, float]:
    """Seconds of a pass and of waiting in it: processes share the cores, and training takes what it takes."""
    workers = WORKERS[cell.toggles["workers"]]
    one = 1 / _RATE[cell.toggles["format"]] + (0.002 if cell.toggles["sample"] in {"augment", "prepare"} else 0.0)
    one *= 20.0 if cell.toggles["features"] == "computed" and cell.framework is Framework.SKLEARN else 1.0
    one += 0.0004 if cell.toggles["page_cache"] == "cold" and cell.toggles["format"] != "ram" else 0.0
    latency = 0.005 if cell.toggles["storage_latency"] == "5ms" else 0.0
    load = one / max(1, min(workers, CORES)) * (1.1 if workers > 2 * CORES else 1.0) + latency / max(1, workers)
    if cell.mode is Mode.LOADING:
        return ITEMS * load, ITEMS * load
    step = 1 / _TRAINED
    wait = load if workers == 0 else max(0.02 * step, load - step / 2)
    return ITEMS * (step + wait), ITEMS * wait


def _launches(comparison: Comparison, run_id: str, speed: dict[str, float]) -> Iterator[Tables]:
    rng = random.Random(comparison.id)
    mode = comparison.study.mode
    count = LAUNCHES if mode.takes_turns else SEEDS if mode is Mode.CONVERGENCE else 1
    for launch in range(count):
        tables: dict[str, list[dict[str, Any]]] = {"samples": [], "convergence": [], "checks": [], "trials": []}
        luck = rng.gauss(0, 0.03)
        for cell in comparison:
            cell.toggles["batch"].isdecimal() or cell.toggles.update(batch="96")  # type: ignore[attr-defined]
            status, reason = _status(cell)
            facts = _facts(cell) if status is Status.OK else None
            tables["trials"].append(trial(cell, run_id, launch, status, reason, facts))
            if status is Status.OK:
                _measure(tables, cell, run_id, launch, luck, rng, speed)
        yield tables


def _status(cell: Cell) -> tuple[Status, str | None]:
    if cell.toggles["device"] == "gpu":
        return Status.UNAVAILABLE, f"{cell.framework} shows no GPU here"
    if cell.workload == "resnet50" and cell.batch == 1024:
        return Status.OOM, "not enough memory for a batch of 1024"
    if cell.mode.loads and cell.toggles["workers"] == "half":
        return Status.UNAVAILABLE, "half of 2 cores is one worker, which the level 'one' measures"
    if cell.mode.loads and cell.toggles["format"] == "webdataset" and cell.framework is Framework.TENSORFLOW:
        return Status.UNAVAILABLE, "webdataset is a loader of PyTorch"
    return Status.OK, None


def _facts(cell: Cell) -> dict[str, Any]:
    if cell.mode.loads:
        return {
            **dict.fromkeys(("start_s", "build_s", "first_step_s"), 0.1),
            "warmup_steps": 2, "settled": True, "peak_bytes": 10**8, "observed_batch": cell.batch, "threads": CORES,
            "observed_workers": WORKERS[cell.toggles["workers"]], "observed_decoder": "pillow",
            "observed_cached": 0.0 if cell.toggles["page_cache"] == "cold" else 1.0,
            "convert_s": 1.5, "stored_bytes": 10**7, "stored_examples": 1000, "stored_sha256": "made-up",
        }  # fmt: skip
    peak = 4e8 * (0.25 + cell.batch / 32 * 0.75) * _BYTES.get(cell.arm, 1.0)
    return {
        **dict.fromkeys(("start_s", "build_s", "first_step_s"), 0.1),
        "warmup_steps": 10, "settled": True, "peak_bytes": int(peak), "parameters": 1000, "observed_device": "cpu",
        "observed_dtype": "float32", "observed_layout": "nchw", "observed_batch": cell.batch,
        "observed_scaled": False, "observed_lr": 0.1, "threads": 2,
        "observed_devices": cell.devices, "oversubscribed": cell.devices > CORES,
    }  # fmt: skip


def _measure(
    tables: dict[str, list[dict[str, Any]]],
    cell: Cell,
    run_id: str,
    launch: int,
    luck: float,
    rng: random.Random,
    speed: dict[str, float],
) -> None:
    row = cell_fields(cell, run_id)
    factor = speed.get(cell.arm, 1.0) * (cell.batch / 32) ** 0.35
    factor *= min(cell.devices, CORES) ** 0.9 * (1.05 if cell.toggles["gradient_sync"] == "none" else 1.0)
    factor *= 0.8 if cell.framework is Framework.TENSORFLOW else 1.0
    if cell.mode.loads:
        own = luck + rng.gauss(0, 0.02)
        for round_ in range(ROUNDS):
            seconds, wait_s = (t * math.exp(own + rng.gauss(0, 0.01)) for t in _times(cell))
            facts = {"round": round_, "turn": 0, "steps": 10, "items": ITEMS, "seconds": seconds, "drain_s": 0.0}
            facts |= {"loader_start_s": 0.02, "wait_s": min(wait_s, seconds)}
            tables["samples"].append({**row, "launch": launch, **facts})
    elif cell.mode is Mode.STEADY:
        own = rng.gauss(0, 0.02)
        for round_ in range(ROUNDS):
            seconds = 0.2 / factor * (1 + luck + own + rng.gauss(0, 0.01))
            facts = {"round": round_, "turn": 0, "steps": 5, "items": 100, "seconds": seconds, "drain_s": 0.0}
            tables["samples"].append({**row, "launch": launch, **facts})
    elif cell.mode is Mode.CONVERGENCE:
        ceiling = {"fp16": 0.82, "b1024": 0.78}.get(cell.arm, 0.86) + rng.gauss(0, 0.004)
        for epoch in range(1, EPOCHS + 1):
            accuracy = ceiling - 0.35 * 0.45**epoch + rng.gauss(0, 0.002)
            facts = {"train_s": 2.0 * epoch / factor * (1 + luck), "items": 6000 * epoch, "accuracy": accuracy}
            facts |= {"loss": 0.5, "target_accuracy": 0.8}
            tables["convergence"].append({**row, "seed": launch, "epoch": epoch, **facts})
    elif cell.mode is Mode.CHECK and cell.arm == "float_eps":
        value = {"check": "eps_float16", "value": 0.000977, "unit": None, "detail": None}
        tables["checks"].append({**row, "launch": launch, **value})
