"""``speedproof selfcheck``: the suite measured by its own rules, against targets that were set beforehand."""

from __future__ import annotations

import csv
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from harness import audit, inference, launch, machine
from harness.errors import ConfigError, unknown
from harness.selfcheck_bench import FOLDER, HARDWARE, LAUNCHES, Bench, Figure, ratio, warm
from harness.selfcheck_conversion import conversion
from harness.selfcheck_projection import check as projected
from harness.selfcheck_scripts import data_parallel, independent, loaders
from harness.spec import CONTROL, Framework
from harness.store import RunStore, run_folders
from harness.studies import benchmarks_folder, studies_in

__all__ = ["CHECKS", "FILE", "FOLDER", "Figure", "selfcheck"]

FILE = "selfcheck.csv"
OVERHEAD_LAUNCHES = 10  # of many short turns: a difference of 1% is small beside the noise of a few
NULL_TARGET, INJECTION_TARGET = 36 / 40, 27 / 30  # shares of decisions

Check = Callable[["Bench"], Iterator[Figure]]


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


def overhead(bench: Bench) -> Iterator[Figure]:
    """The harness's block against a plain loop over the same session in the same process, in turns."""
    for framework in bench.frameworks:
        cell = bench.cell(framework, "cnn_fashion")
        y = []
        for _ in range(OVERHEAD_LAUNCHES):
            with warm(bench, framework, cell) as (worker, step_s):
                steps = max(1, round(0.15 / step_s))
                pairs = []
                for round_ in range(24):
                    seconds = {}
                    for op in ("block", "plain") if round_ % 2 else ("plain", "block"):
                        worker.ask("settle", 60.0, steps=2)
                        seconds[op] = worker.ask(op, 60.0, steps=steps)["seconds"]
                    pairs.append(math.log(seconds["block"] / seconds["plain"]))
                y.append(statistics.median(pairs))
        yield ratio(
            f"step in the harness / plain loop, {framework}",
            "time ratio within 1%",
            y,
            lambda i: abs(i.estimate - 1) <= 0.01,
        )


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
            for arm, log_ratio in rows.log_ratios(comparison.baseline.arm).items():
                y[arm].append(-log_ratio)  # the audit speaks of time: 1.10 is the arm with a tenth more work
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


# What the newest quick run must keep to: its parts by the files that declare their studies, and minutes for each.
_PARTS = {
    "training on one device": (("test_batch", "test_device", "test_model", "test_precision"), 12),
    "the data path": (("test_data", "test_text_data"), 8),
    "several devices": (("test_devices",), 6),
}


def _last_runs(results: Path) -> Iterator[Figure]:
    headers = [RunStore.open(folder).header for folder in run_folders(results)] if results.is_dir() else []
    for profile, minutes in (("smoke", 3), ("quick", 40)):
        runs = [h for h in headers if h["profile"]["name"] == profile and h["state"] == "finished"]
        if not runs:
            why = f"no finished {profile} run in {results}"
            yield Figure(name=f"{profile} run", target=f"≤ {minutes} min", measured="–", passed=None, detail=why)
            continue
        timing, run_id = runs[-1]["timing"], runs[-1]["run_id"]
        yield _minutes(f"{profile} run", timing["wall_s"], minutes, run_id)
        if profile == "quick":
            yield from _parts(timing["comparisons"], run_id)
            yield _measured("share of wall time in timed blocks, quick", timing["measured_share"], run_id)
            peak = timing["parent_peak_bytes"]
            yield Figure(
                name="parent process, quick",
                target="≤ 300 MB",
                measured=f"{peak / 1e6:.0f} MB",
                passed=peak <= 300e6,
                detail=run_id,
            )


def _parts(comparisons: Mapping[str, Mapping[str, float]], run_id: str) -> Iterator[Figure]:
    for part, (files, minutes) in _PARTS.items():
        studies = {s.id for file in files for s in studies_in(benchmarks_folder() / f"{file}.py")}
        spent = [t for comparison, t in comparisons.items() if comparison.split("/")[0] in studies]
        wall_s, measured_s = (sum(t[name] for t in spent) for name in ("wall_s", "measured_s"))
        if wall_s:
            yield _minutes(f"quick, {part}", wall_s, minutes, run_id)
            yield _measured(f"share of wall time in timed blocks, quick, {part}", measured_s / wall_s, run_id)


def _minutes(name: str, seconds: float, limit: float, run_id: str) -> Figure:
    return Figure(
        name=name,
        target=f"≤ {limit} min",
        measured=f"{seconds / 60:.1f} min",
        passed=seconds <= 60 * limit,
        detail=run_id,
    )


def _measured(name: str, share: float, run_id: str) -> Figure:
    return Figure(name=name, target="≥ 60%", measured=f"{share:.0%}", passed=share >= 0.6, detail=run_id)


CHECKS: dict[str, Check] = {
    "starts": starts,
    "overhead": overhead,
    "independent": independent,
    "data-parallel": data_parallel,
    "projection": projected,
    "loaders": loaders,
    "conversion": conversion,
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
