"""``speedproof selfcheck``: the suite measured by its own rules, against targets that were set beforehand."""

from __future__ import annotations

import csv
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import audit, inference, launch, machine, workloads
from harness.errors import ConfigError, unknown
from harness.plan import plan
from harness.profiles import Hardware, Profile
from harness.results_header import plan_of
from harness.runner import Nurseries
from harness.spec import CONTROL, Arm, Cell, Comparison, Framework, Mode, Study
from harness.store import RunStore, run_folders
from harness.studies import benchmarks_folder
from harness.workers import missing

FOLDER = "selfcheck"
FILE = "selfcheck.csv"
LAUNCHES = 6
OVERHEAD_LAUNCHES = 10  # of many short turns: a difference of 1% is small beside the noise of a few
NULL_TARGET, INJECTION_TARGET = 36 / 40, 27 / 30  # shares of decisions

HARDWARE = Hardware(
    looks=(LAUNCHES,),
    half_width=1.0,
    rounds=7,
    block_s=0.08,
    window_s=0.05,
    warm_up_s=1.0,
    budget_s=600.0,
    timeout_s=120.0,
    largest_batch=8,
    batches={"cnn_fashion": 8},  # short steps: ten of them, the least that can carry a tenth more, fit a block
)
STUDY = Study(
    id="selfcheck",
    title="No difference, and a known one",
    question="Does the harness see nothing where there is nothing, and 10% where 10% was put?",
    mode=Mode.STEADY,
    axis="extra_work",
    workloads=("cnn_fashion",),
    baseline=Arm(name="base"),
    treatments=(Arm(name="tenth", sets={"extra_work": "tenth"}),),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One line of the selfcheck: a figure, its target, what was measured, and whether it was reached.

    ``passed`` is ``None`` where nothing could be measured here; ``detail`` then says why.
    """

    name: str
    target: str
    measured: str
    passed: bool | None
    detail: str = ""


Check = Callable[["Bench"], Iterator[Figure]]


class Bench:
    """What the checks share: the nurseries, the threads, and a store for the raw rows."""

    def __init__(self, results: Path, decisions: int, log: Callable[[str], None]) -> None:
        self.results = results
        self.decisions = decisions
        self.log = log
        self.nurseries = Nurseries()
        self.threads = machine.cores()
        self.frameworks = [f for f in (Framework.TORCH, Framework.TENSORFLOW) if missing(f) is None]
        self._store: RunStore | None = None

    def comparison(self, framework: Framework) -> Comparison:
        """The study's comparison on the CPU: base, tenth and the A/A twin."""
        profile = Profile(name="selfcheck", cpu=HARDWARE, gpu=HARDWARE)
        (planned,) = plan([replace(STUDY, frameworks=(framework,))], profile, {framework: "cpu"})
        return planned

    @property
    def store(self) -> RunStore:
        """Made when the first check asks for it."""
        if self._store is None:
            facts = machine.fingerprint()
            hazards = machine.hazards(facts, results_dir=self.results)
            self._store = RunStore.create(
                self.results / FOLDER,
                {
                    "command": "speedproof selfcheck",
                    "profile": {"name": "selfcheck", "content": HARDWARE.model_dump(mode="json")},
                    "machine": facts,
                    "hazards": [{"level": h.level, "name": h.name, "message": h.message} for h in hazards],
                    "versions": machine.versions(),
                    "git": machine.git_state(),
                    "plan": plan_of([self.comparison(f) for f in self.frameworks]),
                },
            )
        return self._store

    def cell(self, framework: Framework, workload: str) -> Cell:
        """A baseline cell of a workload, at its size and batch on a CPU."""
        recipe = workloads.load(workload)
        base = self.comparison(framework).baseline
        toggles = {**base.toggles, "batch": str(recipe.batch["cpu"])}
        return replace(base, workload=workload, size=recipe.size["cpu"], toggles=toggles)

    def close(self) -> None:
        """End the workers and the run."""
        self.nurseries.close()
        if self._store is not None:
            self._store.update_header(state="finished")
            self._store.close()


def _ratio(name: str, target: str, y: list[float], reached: Callable[[inference.Interval], bool]) -> Figure:
    found = inference.ratio_interval(y)
    measured = f"{found.estimate:.4f} [{found.low:.4f}, {found.high:.4f}] n={found.n}"
    return Figure(name=name, target=target, measured=measured, passed=reached(found))


def starts(bench: Bench) -> Iterator[Figure]:
    """From the request to the first answer of a worker after the first."""
    for framework, limit in ((Framework.TORCH, 0.2), (Framework.TENSORFLOW, 0.5)):
        if framework not in bench.frameworks:
            continue
        times = []
        for _ in range(11):
            started = time.perf_counter()
            worker = bench.nurseries.of(framework).spawn()
            worker.ask("ping", 60.0)
            times.append(time.perf_counter() - started)
            worker.close()
        later = times[1:]
        yield Figure(
            name=f"worker start, {framework}",
            target=f"≤ {limit} s",
            measured=f"median {statistics.median(later):.3f} s, largest {max(later):.3f} s, n={len(later)}",
            passed=statistics.median(later) <= limit,
        )


@contextmanager
def _warm(bench: Bench, framework: Framework, cell: Cell) -> Iterator[tuple[Any, float]]:
    worker = bench.nurseries.of(framework).spawn()
    try:
        worker.ask("build", 300.0, cell=cell.as_json(), seed=0, threads=bench.threads)
        answer = worker.ask("warm_up", 300.0, window_s=0.2, limit_s=3.0)
        yield worker, answer["step_s"]
    finally:
        worker.close()


def overhead(bench: Bench) -> Iterator[Figure]:
    """The harness's block against a plain loop over the same session in the same process, in turns."""
    for framework in bench.frameworks:
        cell = bench.cell(framework, "cnn_fashion")
        y = []
        for _ in range(OVERHEAD_LAUNCHES):
            with _warm(bench, framework, cell) as (worker, step_s):
                steps = max(1, round(0.15 / step_s))
                pairs = []
                for round_ in range(24):
                    seconds = {}
                    for op in ("block", "plain") if round_ % 2 else ("plain", "block"):
                        worker.ask("settle", 60.0, steps=2)
                        seconds[op] = worker.ask(op, 60.0, steps=steps)["seconds"]
                    pairs.append(math.log(seconds["block"] / seconds["plain"]))
                y.append(statistics.median(pairs))
        yield _ratio(
            f"step in the harness / plain loop, {framework}",
            "time ratio within 1%",
            y,
            lambda i: abs(i.estimate - 1) <= 0.01,
        )


_MINIMAL = {Framework.TORCH: "torch_loop.py", Framework.TENSORFLOW: "keras_fit.py"}


class _Script:
    """An independent minimal training script that takes its turn when told."""

    def __init__(self, framework: Framework, cell: Cell, threads: int) -> None:
        script = benchmarks_folder() / "minimal" / _MINIMAL[framework]
        arguments = [cell.workload, str(cell.batch), str(cell.size), str(threads)]
        self._process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def steps(self, n: int) -> float:
        """Seconds of ``n`` steps."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{n}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ConfigError(f"the minimal script ended with exit code {self._process.wait()}")
        return float(line)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def independent(bench: Bench) -> Iterator[Figure]:
    """Our step's throughput against an independent minimal script, in turns, in fresh processes each time."""
    for framework in bench.frameworks:
        for workload, block_s in (("cnn_fashion", 0.5), ("resnet50", 1.5)):
            cell = bench.cell(framework, workload)
            y = [_against_script(bench, framework, cell, block_s, i) for i in range(LAUNCHES)]
            yield _ratio(
                f"{workload}: ours / minimal {_MINIMAL[framework]}",
                "throughput ratio ≥ 0.98",
                y,
                lambda i: i.estimate >= 0.98,
            )


def _against_script(bench: Bench, framework: Framework, cell: Cell, block_s: float, number: int) -> float:
    script = _Script(framework, cell, bench.threads)
    try:
        with _warm(bench, framework, cell) as (worker, step_s):
            steps = max(2, round(block_s / step_s))
            script.steps(max(2, round(0.3 / step_s)))
            script.steps(steps)
            order = random.Random(number)
            logs = []
            for _ in range(5):
                seconds = {}
                for side in order.sample(["ours", "theirs"], 2):
                    if side == "ours":
                        worker.ask("settle", 300.0, steps=1)
                        seconds[side] = worker.ask("block", 300.0, steps=steps)["seconds"]
                    else:
                        script.steps(1)
                        seconds[side] = script.steps(steps)
                logs.append(math.log(seconds["theirs"] / seconds["ours"]))
            return statistics.median(logs)
    finally:
        script.close()


def decisions(bench: Bench) -> Iterator[Figure]:
    """Null and injected arms on real launches: each decision is a t interval over its own six launches."""
    nulls: list[str | None] = []
    tenths: list[str | None] = []
    spreads = []
    for framework in bench.frameworks:
        comparison = bench.comparison(framework)
        y: dict[str, list[float]] = {CONTROL: [], "tenth": []}
        for number in range(LAUNCHES * bench.decisions):
            rows = launch.steady(
                bench.nurseries.of(framework),
                comparison,
                comparison.cells,
                HARDWARE,
                run_id=bench.store.run_id,
                launch=number,
                threads=bench.threads,
            )
            bench.store.append_many(rows.tables())
            for arm, ratio in rows.log_ratios(comparison.baseline.arm).items():
                y[arm].append(-ratio)  # the audit speaks of time: 1.10 is the arm with a tenth more work
            if (number + 1) % LAUNCHES == 0:
                bench.log(f"{framework}: decision {(number + 1) // LAUNCHES} of {bench.decisions}")
        nulls += [audit.check_null(inference.ratio_interval(d)) for d in _decisions(y[CONTROL])]
        tenths += [audit.check_injection(inference.ratio_interval(d)) for d in _decisions(y["tenth"])]
        spreads.append((framework, statistics.stdev(y[CONTROL])))
    yield _share("null toggle: interval covers 1", nulls, NULL_TARGET)
    yield _share("10% more work: interval covers 1.10 and excludes 1", tenths, INJECTION_TARGET)
    for framework, sd in spreads:
        smallest = inference.smallest_detectable_effect(sd, LAUNCHES)
        yield Figure(
            name=f"smallest detectable effect, {framework}, {LAUNCHES} launches",
            target="printed",
            measured=f"{100 * smallest:.1f}% (between launches: sd {100 * sd:.1f}%)",
            passed=True,
        )


def _decisions(y: list[float]) -> Iterator[list[float]]:
    for start in range(0, len(y) - LAUNCHES + 1, LAUNCHES):
        yield y[start : start + LAUNCHES]


def _share(name: str, outcomes: list[str | None], target: float) -> Figure:
    good = outcomes.count(None)
    wrong = [o for o in outcomes if o]
    return Figure(
        name=name,
        target=f"≥ {target:.0%} of decisions",
        measured=f"{good} of {len(outcomes)}",
        passed=bool(outcomes) and good >= target * len(outcomes),
        detail="; ".join(wrong[:3]),
    )


def _scripted_tenths(bench: Bench) -> list[float]:
    """Log time ratios of the arm with a tenth more work, from launches of the fake backend: seconds, not minutes."""
    comparison = bench.comparison(Framework.FAKE)
    found = []
    for number in range(2 * LAUNCHES):
        rows = launch.steady(
            bench.nurseries.of(Framework.FAKE),
            comparison,
            comparison.cells,
            HARDWARE,
            run_id="scripted",
            launch=number,
            threads=bench.threads,
        )
        found.append(-rows.log_ratios(comparison.baseline.arm)["tenth"])
    return found


def mutants(bench: Bench) -> Iterator[Figure]:
    """Each rule broken once: the audit must fail."""
    for mutant in audit.mutants(_scripted_tenths(bench)):
        yield Figure(
            name=f"mutant: {mutant.name}",
            target="the audit fails",
            measured="caught" if mutant.caught else "NOT caught",
            passed=mutant.caught,
            detail=mutant.broken or mutant.sound or "the broken measurement passed",
        )


def speed(bench: Bench) -> Iterator[Figure]:
    """The command line, the derivation from a million rows, and what the last quick run says of itself."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "harness.cli", "list"], check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    middle = statistics.median(times)
    yield Figure(
        name="speedproof list", target="≤ 1 s", measured=f"median {middle:.2f} s, n={len(times)}", passed=middle <= 1.0
    )
    yield from _million_rows()
    yield from _last_runs(bench.results)


def _million_rows() -> Iterator[Figure]:
    seconds, peaks = {}, {}
    for rows in (250_000, 1_000_000):
        command = [sys.executable, "-m", "harness.rehearsal", str(rows)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        seconds[rows], peaks[rows] = float(answer[0]), int(answer[1])
    million = 1_000_000
    growth = seconds[million] / seconds[250_000]
    yield Figure(
        name="ratios, verdicts and figures from 1,000,000 sample rows",
        target="≤ 20 s, ≤ 1.5 GB, linear",
        measured=f"{seconds[million]:.1f} s, {peaks[million] / 1e9:.2f} GB, {growth:.1f}x the time of 250,000 rows",
        passed=seconds[million] <= 20 and peaks[million] <= 1.5e9 and growth <= 4.4,
    )


def _last_runs(results: Path) -> Iterator[Figure]:
    headers = [RunStore.open(folder).header for folder in run_folders(results)] if results.is_dir() else []
    for profile, minutes in (("smoke", 3), ("quick", 12)):
        runs = [h for h in headers if h["profile"]["name"] == profile and h["state"] == "finished"]
        if not runs:
            yield Figure(
                name=f"{profile} run",
                target=f"≤ {minutes} min",
                measured="–",
                passed=None,
                detail=f"no finished {profile} run in {results}",
            )
            continue
        timing, run_id = runs[-1]["timing"], runs[-1]["run_id"]
        yield Figure(
            name=f"{profile} run",
            target=f"≤ {minutes} min",
            measured=f"{timing['wall_s'] / 60:.1f} min",
            passed=timing["wall_s"] <= 60 * minutes,
            detail=run_id,
        )
        if profile == "quick":
            share, peak = timing["measured_share"], timing["parent_peak_bytes"]
            yield Figure(
                name="share of wall time in timed blocks, quick",
                target="≥ 60%",
                measured=f"{share:.0%}",
                passed=share >= 0.6,
                detail=run_id,
            )
            yield Figure(
                name="parent process, quick",
                target="≤ 300 MB",
                measured=f"{peak / 1e6:.0f} MB",
                passed=peak <= 300e6,
                detail=run_id,
            )


CHECKS: dict[str, Check] = {
    "starts": starts,
    "overhead": overhead,
    "independent": independent,
    "decisions": decisions,
    "mutants": mutants,
    "speed": speed,
}


def selfcheck(
    results: Path, *, only: tuple[str, ...] = (), decisions: int = 20, log: Callable[[str], None] = lambda _: None
) -> list[Figure]:
    """Run the named checks (all by default), ``decisions`` a framework; keep the figures in ``results/selfcheck/``.

    Raises :class:`ConfigError` for an unknown name.
    """
    for name in only:
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
    if decisions < 1:
        raise ConfigError(f"--decisions {decisions}: must be at least 1")
    bench = Bench(results, decisions, log)
    figures = []
    with machine.MachineLock():
        try:
            for name in only or CHECKS:
                bench.log(f"{name} …")
                for figure in CHECKS[name](bench):
                    figures.append(figure)
                    bench.log(f"  {figure.name}: {figure.measured}")
            _keep(figures, bench.store.path)
        finally:
            bench.close()
    return figures


def _keep(figures: list[Figure], folder: Path) -> None:
    with (folder / FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Figure.__slots__)
        writer.writerows([getattr(f, name) for name in Figure.__slots__] for f in figures)
