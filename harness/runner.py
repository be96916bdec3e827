"""One run: comparisons measured launch by launch into a store, until their ratios are narrow enough."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from harness import inference, launch, workloads
from harness.launch import Rows
from harness.plan import LARGEST, DeviceKind
from harness.profiles import Hardware, Profile, Training
from harness.spec import CONTROL, Cell, Comparison, Framework, Mode, Status
from harness.store import RunStore, read
from harness.workers import Nursery, NurseryGone, WorkerFailure, missing

MAX_FAILURES = 2  # a cell that failed in this many launches in a row is not started again
SAME_AGAIN = frozenset({Status.UNAVAILABLE, Status.OOM})  # what a further launch would only repeat


class Reporter(Protocol):
    """Who tells the user how far the run is."""

    def begin(self, comparison: str, launches: int) -> None:
        """A comparison starts; ``launches`` is the most that it may take."""

    def launched(self, done: int, ratio: str) -> None:
        """A launch is done; ``ratio`` is the widest current ratio with its half width, or empty."""

    def tick(self) -> None:
        """Something moved inside a launch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What this machine offers: the best device of each framework, why a framework is missing, and the threads."""

    devices: Mapping[Framework, DeviceKind]
    missing: Mapping[Framework, str]
    descriptions: Mapping[Framework, Mapping[str, Any]]
    threads: int


class Nurseries:
    """One nursery for each framework, started when first needed and again when one has died."""

    def __init__(self) -> None:
        self._open: dict[Framework, Nursery] = {}

    def of(self, framework: Framework) -> Nursery:
        """The framework's nursery, perhaps still importing."""
        if framework not in self._open:
            self._open[framework] = Nursery(framework)
            self._open[framework].begin()
        return self._open[framework]

    def restart(self, framework: Framework) -> None:
        """Forget a nursery that has died."""
        self._open.pop(framework).close()

    def close(self) -> None:
        """End them all."""
        while self._open:
            self._open.popitem()[1].close()


def survey(nurseries: Nurseries, frameworks: Iterable[Framework], threads: int) -> Site:
    """Ask each installed framework what it is and which devices it shows."""
    devices: dict[Framework, DeviceKind] = {}
    reasons: dict[Framework, str] = {}
    descriptions: dict[Framework, Mapping[str, Any]] = {}
    wanted = list(frameworks)
    for framework in wanted:
        if reason := missing(framework):
            reasons[framework] = reason
            devices[framework] = "cpu"
        else:
            nurseries.of(framework)  # all import side by side
    for framework in wanted:
        if framework in reasons:
            continue
        try:
            worker = nurseries.of(framework).spawn()
            answer = worker.ask("describe", 120.0, threads=threads)["describe"]
            worker.close()
        except (WorkerFailure, NurseryGone) as failure:
            reasons[framework] = f"{framework} is installed but cannot be used: {failure}"
            devices[framework] = "cpu"
            continue
        descriptions[framework] = answer
        devices[framework] = "gpu" if answer["devices"].get("gpu") else "cpu"
    return Site(devices=devices, missing=reasons, descriptions=descriptions, threads=threads)


class Run:
    """Measures comparisons into a store; remembers log ratios so that it knows when to stop."""

    def __init__(
        self,
        *,
        store: RunStore,
        profile: Profile,
        site: Site,
        nurseries: Nurseries,
        reporter: Reporter,
        after_launch: Callable[[], object] = lambda: None,
    ) -> None:
        self.store = store
        self.site = site
        self._profile = profile
        self._nurseries = nurseries
        self._reporter = reporter
        self._after_launch = after_launch
        self._done = store.done()
        self._largest: dict[tuple[str, str], int] = {}  # by comparison and arm
        self._stored: dict[tuple[str, str], dict[str, Any]] = {}  # by comparison and arm
        self.measured_s = 0.0

    def measure(self, comparison: Comparison) -> None:
        """Run what is not yet in the store. Ctrl-C marks the launch under way as interrupted and goes on up."""
        hardware = self._profile.on(self.site.devices[comparison.framework])
        if reason := self.site.missing.get(comparison.framework):
            self._record_missing(comparison, reason)
            return
        if comparison.study.mode.takes_turns:
            _Steady(self, comparison, hardware).measure()
        else:
            self._once_each(comparison, hardware)

    def _record_missing(self, comparison: Comparison, reason: str) -> None:
        if (comparison.id, 0) in self._done:
            return
        rows = Rows()
        rows.trials = [
            launch.trial(_recordable(c), self.store.run_id, 0, Status.UNAVAILABLE, reason) for c in comparison
        ]
        self.keep(comparison, 0, rows)

    def keep(self, comparison: Comparison, number: int, rows: Rows) -> None:
        """Append one launch's rows, all or none."""
        self._after_launch()
        self.store.append_many(rows.tables())
        self._done.add((comparison.id, number))
        self.measured_s += rows.measured_s

    def is_done(self, comparison: Comparison, number: int) -> bool:
        """Whether a launch is already in the store."""
        return (comparison.id, number) in self._done

    def one(self, comparison: Comparison, number: int, cells: list[Cell], hardware: Hardware) -> Rows:
        """One launch of any mode; a nursery that dies under it is started again once."""
        try:
            return self._attempt(comparison, number, cells, hardware)
        except NurseryGone:
            self._nurseries.restart(comparison.framework)
        try:
            return self._attempt(comparison, number, cells, hardware)
        except NurseryGone as gone:
            self._nurseries.restart(comparison.framework)
            rows = Rows()
            rows.trials = [launch.trial(c, self.store.run_id, number, Status.ERROR, str(gone)) for c in cells]
            return rows

    def _attempt(self, comparison: Comparison, number: int, cells: list[Cell], hardware: Hardware) -> Rows:
        nursery = self._nurseries.of(comparison.framework)
        tick = self._reporter.tick
        shared: dict[str, Any] = {"run_id": self.store.run_id, "threads": self.site.threads}
        try:
            match comparison.study.mode:
                case Mode.STEADY | Mode.LOADING | Mode.END_TO_END:
                    stored = {c.arm: self._stored.get((c.comparison, c.arm), {}) for c in cells}
                    return launch.steady(
                        nursery, comparison, cells, hardware, launch=number, tick=tick, stored=stored, **shared
                    )
                case Mode.CONVERGENCE:
                    target = workloads.load(comparison.baseline.workload).target_accuracy
                    training = _training(comparison, hardware)
                    return launch.convergence(
                        nursery, comparison, cells, hardware, training, target, seed=number, tick=tick, **shared
                    )
                case Mode.FIT:
                    return launch.fit(nursery, cells, hardware, launch=number, tick=tick, **shared)
                case Mode.CHECK:
                    return launch.check(nursery, cells, hardware, launch=number, **shared)
        except KeyboardInterrupt:
            stopped = (Status.INTERRUPTED, "the run was interrupted")
            trials = [launch.trial(_recordable(c), self.store.run_id, number, *stopped) for c in cells]
            self.store.append("trials", trials)
            raise

    def _once_each(self, comparison: Comparison, hardware: Hardware) -> None:
        """Convergence runs every seed; fit and check run once, since what they find is not random."""
        launches = 1
        if comparison.study.mode is Mode.CONVERGENCE:
            launches = _training(comparison, hardware).seeds
        self._reporter.begin(comparison.id, launches)
        cells = list(comparison.cells)
        for number in range(launches):
            if self.is_done(comparison, number):
                continue
            rows = self.one(comparison, number, cells, hardware)
            self.keep(comparison, number, rows)
            dead = {row["arm"] for row in rows.trials if Status(row["status"]) in SAME_AGAIN}
            if comparison.study.mode is Mode.CONVERGENCE:
                cells = [c for c in cells if c.arm not in dead]
            self._reporter.launched(number + 1, "")

    def largest(self, cell: Cell, hardware: Hardware) -> Cell:
        """The cell with its level "largest" replaced by the batch that a search finds, once for each run."""
        key = (cell.comparison, cell.arm)
        if key not in self._largest:
            nursery = self._nurseries.of(cell.framework)
            self._largest[key] = launch.largest_batch(nursery, cell, hardware, threads=self.site.threads)
        return replace(cell, toggles={**cell.toggles, "batch": str(self._largest[key])})

    def prepare(self, cell: Cell, hardware: Hardware) -> None:
        """Make the set that a cell reads, once for each run; raises :class:`WorkerFailure` where that fails."""
        key = (cell.comparison, cell.arm)
        if key not in self._stored:
            nursery = self._nurseries.of(cell.framework)
            self._stored[key] = launch.store(nursery, cell, hardware, threads=self.site.threads)


def _training(comparison: Comparison, hardware: Hardware) -> Training:
    found = hardware.training_of(comparison.study.id, comparison.baseline.workload)
    assert found is not None, "the plan holds only convergence that the profile trains"
    return found


def _recordable(cell: Cell) -> Cell:
    """A cell whose level "largest" was never searched cannot say a number: its row carries 1, and its status why."""
    if cell.toggles["batch"] == LARGEST:
        return replace(cell, toggles={**cell.toggles, "batch": "1"})
    return cell


class _Steady:
    """A comparison whose cells take turns: launch after launch until a look decides or the budget is spent."""

    def __init__(self, run: Run, comparison: Comparison, hardware: Hardware) -> None:
        self._run = run
        self._comparison = comparison
        self._hardware = hardware
        self._ratios: dict[str, list[float]] = {c.arm: [] for c in comparison.cells[1:]}
        self._failures: dict[str, int] = {}

    def measure(self) -> None:
        hardware, comparison = self._hardware, self._comparison
        self._run._reporter.begin(comparison.id, hardware.looks[-1])
        self._recall()
        cells = list(comparison.cells)
        treatments = {c.arm for c in cells} - {comparison.baseline.arm, CONTROL}
        started = time.monotonic()
        for number in range(hardware.looks[-1]):
            if number in hardware.looks and self._narrow():
                return
            if number > hardware.looks[0] and time.monotonic() - started > hardware.budget_s:
                return
            if self._run.is_done(comparison, number):
                continue
            cells = [c for c in cells if self._failures.get(c.arm, 0) < MAX_FAILURES]
            if not cells or (treatments and not treatments & {c.arm for c in cells}):
                return  # a baseline beside its twin answers nothing
            if comparison.study.mode is Mode.STEADY and comparison.baseline.arm not in {c.arm for c in cells}:
                return  # and without one there is nothing to divide by
            lost, runnable = self._resolve(cells, number)
            rows = self._run.one(comparison, number, runnable, hardware) if runnable else Rows()
            rows.trials += lost
            self._run.keep(comparison, number, rows)
            self._learn(rows)
            self._run._reporter.launched(number + 1, self._current())

    def _resolve(self, cells: list[Cell], number: int) -> tuple[list[dict[str, Any]], list[Cell]]:
        """Make the stored sets, replace the level "largest"; what fails is a row."""
        lost, runnable = [], []
        for cell in cells:
            try:
                if cell.mode.loads:
                    self._run.prepare(cell, self._hardware)
                largest = cell.toggles["batch"] == LARGEST
                runnable.append(self._run.largest(cell, self._hardware) if largest else cell)
            except WorkerFailure as failure:
                lost.append(
                    launch.trial(_recordable(cell), self._run.store.run_id, number, failure.status, str(failure))
                )
        return lost, runnable

    def _recall(self) -> None:
        """Take in what an earlier, interrupted invocation of this run has measured."""
        data = read(self._run.store.path)
        samples = data.samples[data.samples["comparison"] == self._comparison.id]
        trials = data.trials[data.trials["comparison"] == self._comparison.id]
        for number in sorted(set(trials["launch"])):
            rows = Rows()
            rows.samples = samples[samples["launch"] == number].to_dict("records")
            rows.trials = trials[trials["launch"] == number].to_dict("records")
            self._learn(rows)

    def _learn(self, rows: Rows) -> None:
        for row in rows.trials:
            status = Status(row["status"])
            if status is Status.OK:
                self._failures[row["arm"]] = 0
            elif status in SAME_AGAIN:
                self._failures[row["arm"]] = MAX_FAILURES
            elif status is not Status.INTERRUPTED:
                self._failures[row["arm"]] = self._failures.get(row["arm"], 0) + 1
        for arm, ratio in rows.log_ratios(self._comparison.baseline.arm).items():
            self._ratios[arm].append(ratio)

    def _narrow(self) -> bool:
        measured = [y for y in self._ratios.values() if y]
        return all(inference.half_width(y) <= self._hardware.half_width for y in measured)

    def _current(self) -> str:
        """The treatment whose ratio is least certain, for the progress line."""
        known = {arm: y for arm, y in self._ratios.items() if y and arm != CONTROL}
        if not known:
            return ""
        arm = max(known, key=lambda a: inference.half_width(known[a]))
        y = known[arm]
        width = inference.half_width(y)
        spread = f" ±{100 * width:.1f}%" if math.isfinite(width) else ""
        return f"{arm} {math.exp(statistics.fmean(y)):.3g}x{spread}"


def estimate_s(comparison: Comparison, profile: Profile, site: Site) -> float:
    """Seconds that a comparison is likely to take up to its first look."""
    if comparison.framework in site.missing:
        return 0.0
    hardware = profile.on(site.devices[comparison.framework])
    cells = len(comparison.cells)
    match comparison.study.mode:
        case Mode.STEADY | Mode.LOADING | Mode.END_TO_END:
            rounds = hardware.rounds_of(comparison.id)
            return hardware.looks[0] * cells * (rounds * hardware.block_of(comparison.baseline) * 1.2 + 0.7)
        case Mode.CONVERGENCE:
            training = _training(comparison, hardware)
            return training.seeds * training.epochs * cells * 1.5
        case Mode.FIT:
            return 8.0 * cells
        case Mode.CHECK:
            return 3.0 * cells
