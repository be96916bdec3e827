"""One launch: a set of fresh processes, one for each cell, that take turns.

Every function returns rows; a cell that fails is a row with its status and reason, and its neighbours go on.
"""

from __future__ import annotations

import math
import random
import select
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.machine import EnergyMeter
from harness.plan import LARGEST
from harness.profiles import Hardware, Training
from harness.schema import toggle_column
from harness.spec import Cell, Comparison, Status
from harness.workers import Nursery, WorkerFailure, WorkerProcess

Row = dict[str, Any]

FIT_STEPS = 2
# What TensorFlow, the C++ library and oneDNN say when an allocation fails under a limit.
_NO_MEMORY = (
    "mmap error: 12",
    "bad_alloc",
    "Cannot allocate memory",
    "could not execute a primitive",
    "could not create a primitive",
)
FIRST_BATCH, SMALLEST_BATCH = 64, 8  # of a search for the largest batch that trains
EPOCHS = 4  # passes of a block where the study asks what happens between them


@dataclass(kw_only=True, slots=True)
class Rows:
    """What one launch adds to each table, and the seconds of it that were really measured."""

    samples: list[Row] = field(default_factory=list)
    trials: list[Row] = field(default_factory=list)
    convergence: list[Row] = field(default_factory=list)
    checks: list[Row] = field(default_factory=list)
    measured_s: float = 0.0

    def tables(self) -> dict[str, list[Row]]:
        """By table name, trials last: a launch counts as done when they are there."""
        return {
            "samples": self.samples,
            "convergence": self.convergence,
            "checks": self.checks,
            "trials": self.trials,
        }

    def log_ratios(self, baseline: str) -> dict[str, float]:
        """By arm, the median over rounds of log(t_baseline / t_arm) in time per item; empty without a baseline.

        One launch of what :func:`harness.stats.launch_log_ratios` derives from whole tables, for while a run goes on.
        """
        times: dict[str, dict[int, float]] = {}
        for sample in self.samples:
            times.setdefault(sample["arm"], {})[sample["round"]] = sample["seconds"] / sample["items"]
        base = times.pop(baseline, {})
        shared = {arm: base.keys() & t.keys() for arm, t in times.items()}
        return {
            arm: statistics.median(math.log(base[r] / times[arm][r]) for r in rounds)
            for arm, rounds in shared.items()
            if rounds
        }


def cell_fields(cell: Cell, run_id: str) -> Row:
    """The columns that every row of a cell carries."""
    return {
        "run_id": run_id,
        "comparison": cell.comparison,
        "study": cell.study,
        "framework": cell.framework.value,
        "workload": cell.workload,
        "arm": cell.arm,
        "size": cell.size,
        **{toggle_column(name): level for name, level in cell.toggles.items()},
    }


def trial(
    cell: Cell,
    run_id: str,
    launch: int,
    status: Status,
    reason: str | None,
    facts: Mapping[str, Any] | None = None,
) -> Row:
    """A row of the trials table; ``facts`` are the worker's answers, flattened by :func:`facts_of`."""
    row = {**cell_fields(cell, run_id), "mode": cell.mode.value, "launch": launch, "status": status.value}
    return {**row, "reason": reason, **(facts or {})}


def facts_of(worker: WorkerProcess, *answers: Mapping[str, Any]) -> Row:
    """The columns of trials that come from a worker's answers."""
    merged: Row = {"start_s": worker.start_s}
    for answer in answers:
        merged |= answer
    row = {k: merged.get(k) for k in _TIMES}
    memory = merged.get("memory") or {}
    observed = merged.get("observed") or {}
    row |= {
        "peak_bytes": memory.get("peak"),
        "parameter_bytes": memory.get("parameters"),
        "optimizer_bytes": memory.get("optimizer"),
        "activation_bytes": memory.get("activations"),
        "energy_j": merged.get("energy_j"),
        "parameters": observed.get("parameters"),
        "observed_device": observed.get("device"),
        "observed_dtype": observed.get("dtype"),
        "observed_layout": observed.get("layout"),
        "observed_batch": observed.get("batch"),
        "observed_scaled": observed.get("scaled"),
        "observed_lr": observed.get("learning_rate"),
        "observed_devices": observed.get("devices"),
        "observed_hosts": observed.get("hosts"),
        "oversubscribed": _oversubscribed(observed, observed.get("cores") or merged.get("threads")),
        "observed_workers": observed.get("workers"),
        "observed_decoder": observed.get("decoder"),
        "observed_cached": observed.get("cached"),
    }
    row["threads"] = observed.get("threads") or row["threads"]
    return row


def _oversubscribed(observed: Mapping[str, Any], cores: int | None) -> bool | None:
    """Whether more CPU devices took part than there are cores; ``None`` where no step was observed."""
    if "devices" not in observed:
        return None
    return bool(observed["device"] == "cpu" and observed["devices"] > (cores or 1))


_EQUAL = frozenset({"null", "extra_work"})  # toggles that leave the step as it is
_TIMES = ("start_s", "build_s", "trace_s", "first_step_s", "warmup_steps", "settled", "threads")


@dataclass(kw_only=True, slots=True)
class _Runner:
    """One cell inside a steady launch, while it lives."""

    cell: Cell
    worker: WorkerProcess | None = None
    answers: list[Mapping[str, Any]] = field(default_factory=list)
    steps: int = 1  # of a block; passes where the cell loads
    step_s: float = 0.0
    settle: int = 1
    samples: list[Row] = field(default_factory=list)
    energy_j: float | None = None
    failure: WorkerFailure | None = None

    @property
    def process(self) -> WorkerProcess:
        assert self.worker is not None
        return self.worker

    def fail(self, failure: WorkerFailure) -> None:
        self.failure = failure
        if self.worker is not None:
            self.worker.close()


def steady(
    nursery: Nursery,
    comparison: Comparison,
    cells: Iterable[Cell],
    hardware: Hardware,
    *,
    run_id: str,
    launch: int,
    threads: int,
    tick: Callable[[], None] = lambda: None,
    stored: Mapping[str, Row] | None = None,
) -> Rows:
    """One launch of cells that take turns: only one computes at a time, in a random order in every round.

    The order comes from the run, the comparison and the launch alone, so that it can be reproduced. ``stored`` is what
    is known of the set that each arm reads, as columns of its trial.
    """
    rng = random.Random(f"{run_id}/{comparison.id}/{launch}")
    runners = [_Runner(cell=cell) for cell in cells]
    rows = Rows()
    try:
        _start(nursery, rng.sample(runners, len(runners)), hardware, seed=launch, threads=threads)
        for runner in rng.sample(runners, len(runners)):
            _guard(runner, _warm_up, hardware)
        _set_blocks(runners, hardware, comparison)
        for round_ in range(hardware.rounds_of(comparison.id)):
            tick()
            for turn, runner in enumerate(rng.sample(runners, len(runners))):
                _guard(runner, _block, hardware, round_, turn)
        for runner in rng.sample(runners, len(runners)):
            _guard(runner, _memory, hardware)
        for runner in runners:
            _collect(runner, rows, run_id, launch, (stored or {}).get(runner.cell.arm, {}))
    finally:
        for runner in runners:
            if runner.worker is not None:
                runner.worker.close()
    return rows


def _guard(runner: _Runner, action: Callable[..., None], *arguments: Any) -> None:
    if runner.failure is None:
        try:
            action(runner, *arguments)
        except WorkerFailure as failure:
            runner.fail(failure)


def _start(
    nursery: Nursery,
    runners: list[_Runner],
    hardware: Hardware,
    *,
    seed: int,
    threads: int,
    data_limit: list[int] | None = None,
) -> None:
    """Fork every worker and build as many at a time as there are cores; building is not timed work."""
    waiting, building = list(runners), list[_Runner]()
    while waiting or building:
        while waiting and len(building) < threads:
            runner = waiting.pop(0)
            runner.worker = nursery.spawn()
            request = {
                "cell": runner.cell.as_json(),
                "seed": seed,
                "threads": threads,
                "data_limit": data_limit,
                "examples": hardware.examples_of(runner.cell),
            }
            _guard(runner, _ask_to_build, request)
            if runner.failure is None:
                building.append(runner)
        ready, _, _ = select.select([r.process for r in building], [], [], hardware.timeout_s)
        for runner in [r for r in building if r.process in ready]:
            building.remove(runner)
            _guard(runner, _built, hardware)
        if not ready:
            for runner in building:
                runner.fail(WorkerFailure(Status.TIMEOUT, f"building took over {hardware.timeout_s:g} s"))
            building.clear()


def _ask_to_build(runner: _Runner, request: Mapping[str, Any]) -> None:
    runner.process.send("build", **request)


def _built(runner: _Runner, hardware: Hardware) -> None:
    runner.answers.append(runner.process.receive(hardware.timeout_s))


def _warm_up(runner: _Runner, hardware: Hardware) -> None:
    answer = runner.process.ask("warm_up", hardware.timeout_s, window_s=hardware.window_s, limit_s=hardware.warm_up_s)
    runner.answers.append(answer)
    runner.step_s = answer["pass_s" if runner.cell.mode.loads else "step_s"]


def _set_blocks(runners: list[_Runner], hardware: Hardware, comparison: Comparison) -> None:
    """Steps (or passes) of a block: as many as fill its time, and the same for cells of one setting.

    Else a control's blocks could be longer than the baseline's in every round of a launch, by the noise of its warm-up.
    """
    groups: dict[tuple[object, ...], list[_Runner]] = {}
    for runner in runners:
        if runner.failure is None:
            toggles = sorted((k, v) for k, v in runner.cell.toggles.items() if k not in _EQUAL)
            groups.setdefault((runner.cell.workload, *toggles), []).append(runner)
    for group in groups.values():
        block_s = hardware.block_of(group[0].cell)
        steps = max(1, round(block_s / statistics.median(r.step_s for r in group)))
        if any(r.cell.toggles["extra_work"] != "none" for r in group):
            steps = 10 * max(1, round(steps / 10))
        call = group[0].cell.steps_per_call
        for runner in group:
            runner.steps = call * max(1, round(steps / call))
            runner.settle = call * max(1, round(0.05 * steps / call))
            if comparison.study.axis == "persistent":
                runner.steps = EPOCHS  # what is asked for happens between passes
            elif runner.cell.toggles["page_cache"] == "cold":
                runner.steps = 1  # a second pass would find the set cached


def _block(runner: _Runner, hardware: Hardware, round_: int, turn: int) -> None:
    if not runner.cell.mode.loads:
        runner.process.ask("settle", hardware.timeout_s, steps=runner.settle)
    with EnergyMeter() as meter:
        block = runner.process.ask("block", hardware.timeout_s, steps=runner.steps)
    if meter.joules is not None:
        runner.energy_j = (runner.energy_j or 0.0) + meter.joules
    kept = {name: block.get(name) for name in ("steps", "items", "seconds", "drain_s", "loader_start_s", "wait_s")}
    runner.samples.append({"round": round_, "turn": turn, **kept})


def _memory(runner: _Runner, hardware: Hardware) -> None:
    runner.answers.append({"memory": runner.process.ask("memory", hardware.timeout_s)})


def _collect(runner: _Runner, rows: Rows, run_id: str, launch: int, stored: Row) -> None:
    rows.measured_s += sum(sample["seconds"] for sample in runner.samples)
    if runner.failure is not None:
        rows.trials.append(trial(runner.cell, run_id, launch, runner.failure.status, str(runner.failure)))
        return
    fields = cell_fields(runner.cell, run_id)
    rows.samples += [{**fields, "launch": launch, **sample} for sample in runner.samples]
    facts = {**facts_of(runner.process, *runner.answers, {"energy_j": runner.energy_j}), **stored}
    rows.trials.append(trial(runner.cell, run_id, launch, Status.OK, None, facts))


def convergence(
    nursery: Nursery,
    comparison: Comparison,
    cells: Iterable[Cell],
    hardware: Hardware,
    training: Training,
    target: float,
    *,
    run_id: str,
    seed: int,
    threads: int,
    tick: Callable[[], None] = lambda: None,
) -> Rows:
    """Every cell built on one seed, then trained one after the other in a random order."""
    rows = Rows()
    runners = [_Runner(cell=cell) for cell in cells]
    random.Random(f"{run_id}/{comparison.id}/{seed}").shuffle(runners)
    limit = [training.train, training.test]
    try:
        _start(nursery, runners, hardware, seed=seed, threads=threads, data_limit=limit)
        for runner in runners:
            tick()
            epochs: list[Row] = []
            _guard(runner, _train, hardware, training, epochs)
            if runner.failure is not None:
                failure = runner.failure
                rows.trials.append(trial(runner.cell, run_id, seed, failure.status, str(failure)))
                continue
            rows.measured_s += epochs[-1]["train_s"]
            fields = {**cell_fields(runner.cell, run_id), "seed": seed, "target_accuracy": target}
            rows.convergence += [{**fields, **epoch} for epoch in epochs]
            facts = facts_of(runner.process, *runner.answers)
            rows.trials.append(trial(runner.cell, run_id, seed, Status.OK, None, facts))
            runner.process.close()
    finally:
        for runner in runners:
            if runner.worker is not None:
                runner.worker.close()
    return rows


def _train(runner: _Runner, hardware: Hardware, training: Training, epochs: list[Row]) -> None:
    """Train a built cell; its epochs are added to ``epochs``, what it observed to the runner's answers."""
    runner.process.send("train", epochs=training.epochs)
    while (answer := runner.process.receive(hardware.timeout_s)).get("more"):
        if "epoch" in answer:
            epochs.append(answer["epoch"])
        else:
            runner.answers.append(answer)


class _Spawned:
    """A worker that ends with the block."""

    def __init__(self, nursery: Nursery) -> None:
        self._worker = nursery.spawn()

    def __enter__(self) -> WorkerProcess:
        return self._worker

    def __exit__(self, *_: object) -> None:
        self._worker.close()


def fit(
    nursery: Nursery,
    cells: Iterable[Cell],
    hardware: Hardware,
    *,
    run_id: str,
    launch: int,
    threads: int,
    tick: Callable[[], None] = lambda: None,
) -> Rows:
    """Search the largest batch (in powers of two) of each cell; every probe is a row and a fresh process."""
    rows = Rows()
    for cell in cells:
        tick()
        largest, failure, facts = _search(nursery, cell, hardware, rows, run_id, launch, threads)
        found = _with_batch(cell, largest or SMALLEST_BATCH)
        if failure is not None and not (failure.status is Status.OOM and largest):
            rows.trials.append(trial(found, run_id, launch, failure.status, str(failure)))
        else:
            rows.trials.append(trial(found, run_id, launch, Status.OK, None, facts))
    return rows


def _with_batch(cell: Cell, batch: int) -> Cell:
    return replace(cell, toggles={**cell.toggles, "batch": str(batch)})


def _search(
    nursery: Nursery, cell: Cell, hardware: Hardware, rows: Rows, run_id: str, launch: int, threads: int
) -> tuple[int, WorkerFailure | None, Row]:
    """The largest batch that trained (0 for none), what stopped the search, and the facts of the last success.

    It starts at the documents' 64 and goes up until a batch fails; where 64 fails, down until one trains.
    """
    facts: Row = {}
    failure: WorkerFailure | None = None

    def trains(batch: int) -> bool:
        nonlocal facts, failure
        probed = _with_batch(cell, batch)
        row = {**cell_fields(probed, run_id), "launch": launch, "check": "fits", "unit": None}
        try:
            facts, seconds = _probe(nursery, probed, hardware, threads)
        except WorkerFailure as found:
            failure = found
            rows.checks.append({**row, "value": 0.0, "detail": str(found)})
            return False
        rows.measured_s += seconds
        rows.checks.append({**row, "value": 1.0, "detail": f"{seconds:.3g} s for {FIT_STEPS} steps"})
        return True

    first = min(FIRST_BATCH, hardware.largest_batch)
    if trains(first):
        batch = first
        while 2 * batch <= hardware.largest_batch and trains(2 * batch):
            batch *= 2
        return batch, failure, facts
    batch = first // 2
    while batch >= SMALLEST_BATCH and failure is not None and failure.status is Status.OOM:
        if trains(batch):
            return batch, failure, facts
        batch //= 2
    return 0, failure, facts


def _probe(nursery: Nursery, cell: Cell, hardware: Hardware, threads: int) -> tuple[Row, float]:
    cap = hardware.memory_cap_mb
    with _Spawned(nursery) as worker:
        built = worker.ask(
            "build",
            hardware.timeout_s,
            cell=cell.as_json(),
            seed=0,
            threads=threads,
        )
        try:
            probed = worker.ask(
                "probe", hardware.timeout_s, steps=FIT_STEPS, memory_cap=cap * 1_000_000 if cap else None
            )
        except WorkerFailure as failure:
            if cap and failure.status is Status.ERROR and any(words in str(failure) for words in _NO_MEMORY):
                raise WorkerFailure(Status.OOM, str(failure)) from None
            raise
        return facts_of(worker, built, probed), probed["seconds"]


def largest_batch(nursery: Nursery, cell: Cell, hardware: Hardware, *, threads: int) -> int:
    """The batch that a cell with the level "largest" runs at; raises :class:`WorkerFailure` where none trains."""
    assert cell.toggles["batch"] == LARGEST
    found, failure, _ = _search(nursery, cell, hardware, Rows(), "", 0, threads)
    if not found:
        raise failure or WorkerFailure(Status.OOM, f"not even a batch of {SMALLEST_BATCH} trains")
    return found


def store(nursery: Nursery, cell: Cell, hardware: Hardware, *, threads: int) -> Row:
    """Make the stored set of a cell that loads, alone; its columns of the trials table."""
    with _Spawned(nursery) as worker:
        examples = hardware.examples_of(cell)
        answer = worker.ask("store", hardware.timeout_s, cell=cell.as_json(), examples=examples, threads=threads)
    made = answer["stored"]
    return {
        "convert_s": made["seconds"],
        "stored_bytes": made["bytes"],
        "stored_examples": made["examples"],
        "stored_sha256": made["sha256"],
    }


def check(
    nursery: Nursery, cells: Iterable[Cell], hardware: Hardware, *, run_id: str, launch: int, threads: int
) -> Rows:
    """Every named check of a study, each an arm in a fresh process."""
    rows = Rows()
    for cell in cells:
        with _Spawned(nursery) as worker:
            try:
                answer = worker.ask("check", hardware.timeout_s, cell=cell.as_json(), name=cell.arm, threads=threads)
            except WorkerFailure as failure:
                rows.trials.append(trial(cell, run_id, launch, failure.status, str(failure)))
                continue
        rows.measured_s += answer["seconds"]
        fields = {**cell_fields(cell, run_id), "launch": launch}
        for c in answer["checks"]:
            named = {"check": c["name"], "value": c["value"], "unit": c["unit"] or None, "detail": c["detail"] or None}
            rows.checks.append({**fields, **named})
        rows.trials.append(trial(cell, run_id, launch, Status.OK, None, {"start_s": worker.start_s}))
    return rows
