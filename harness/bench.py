"""One invocation of the suite: prepared, measured arm by arm as tests ask, summed up at the end."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from harness import machine
from harness.errors import ConfigError
from harness.meeting import Meeting
from harness.plan import check_studies, plan, thin_controls
from harness.profiles import Profile, load_profile
from harness.results_header import plan_of
from harness.results_reader import RunData
from harness.runner import Nurseries, Run, Site, estimate_s, survey
from harness.spec import CONTROL, Comparison, Mode, Status, Study
from harness.store import RunStore, read
from harness.studies import benchmarks_folder, load_studies


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one arm came to. ``timings`` are seconds a step (an epoch, a probe), one for each sample."""

    status: Status
    reason: str
    timings: list[float]
    extra_info: dict[str, Any]


class Bench:
    """A prepared run: the plan, the store, the workers' nurseries."""

    def __init__(
        self,
        *,
        comparisons: tuple[Comparison, ...],
        profile: Profile,
        site: Site,
        nurseries: Nurseries,
        store: RunStore,
        lock: contextlib.ExitStack,
        results: Path,
        began: float,
    ) -> None:
        self.store = store
        self._comparisons = {c.id: c for c in comparisons}
        self._profile = profile
        self._site = site
        self._nurseries = nurseries
        self._lock = lock
        self._results = results
        self._began = began
        self._earlier = store.header["timing"]
        self._estimates = {c.id: estimate_s(c, profile, site) for c in comparisons}
        self._progress = _Progress(self._estimates)
        self._gpus = machine.GpuSampler()
        self._run = Run(
            store=store,
            profile=profile,
            site=site,
            nurseries=nurseries,
            reporter=self._progress,
            after_launch=self._gpus.sample,
        )
        self._data: dict[str, RunData] = {}
        self._spent: dict[str, dict[str, float]] = dict(self._earlier["comparisons"])
        self._finished = False

    @classmethod
    def prepare(
        cls,
        *,
        selected: set[tuple[str, str]],
        studies: list[Study],
        profile: str,
        launches: int | None,
        results: Path,
        resume: bool,
        command: str,
        nnodes: int = 1,
        rdzv_endpoint: str | None = None,
    ) -> Bench:
        """Survey the machine, plan the selected (comparison, arm) pairs and open the store.

        Raises a :class:`~harness.errors.SpeedproofError` of one line for anything that cannot be done.
        """
        began = time.monotonic()
        check_studies(load_studies())
        if launches is not None and launches < 1:
            raise ConfigError(f"--launches {launches}: must be at least 1")
        chosen = load_profile(profile, benchmarks_folder(), launches=launches)
        store = RunStore.latest(results, unfinished=True) if resume else None
        if resume and store is None:
            raise ConfigError(f"--resume: {results} holds no unfinished run; leave --resume out to start one")
        frameworks = sorted({f for s in studies for f in s.frameworks if _any(selected, s, f)})
        meeting = _meeting(nnodes, rdzv_endpoint)
        lock = contextlib.ExitStack()
        lock.enter_context(machine.MachineLock())
        facts = machine.fingerprint()
        hazards = machine.hazards(facts, results_dir=results)
        nurseries = Nurseries()
        try:
            if meeting is not None:
                hosts = lock.enter_context(meeting)
                facts |= {"hosts": hosts.count, "hosts_cores": hosts.cores}
            site = survey(nurseries, frameworks, machine.cores())
            devices = {f: site.devices.get(f, "cpu") for s in studies for f in s.frameworks}
            narrowed = (_narrow(c, selected) for c in plan(studies, chosen, devices))
            comparisons = thin_controls((c for c in narrowed if c is not None), chosen)
            if store is None:
                header = _header(chosen, command, comparisons, site, facts, hazards)
                store = RunStore.create(results, header)
            else:
                _require_same(store, chosen, comparisons, nnodes)
        except BaseException:
            nurseries.close()
            lock.close()
            raise
        return cls(
            comparisons=comparisons,
            profile=chosen,
            site=site,
            nurseries=nurseries,
            store=store,
            lock=lock,
            results=results,
            began=began,
        )

    def measures(self, comparison: str, arm: str) -> bool:
        """Whether the plan holds this arm of this comparison."""
        planned = self._comparisons.get(comparison)
        return planned is not None and any(cell.arm == arm for cell in planned)

    def opening(self) -> list[str]:
        """The machine, and the plan with its estimated time."""
        cells = sum(len(c.cells) for c in self._comparisons.values())
        studies = len({c.study.id for c in self._comparisons.values()})
        minutes = sum(self._estimates.values()) / 60
        header = self.store.header
        hazards = [machine.Hazard(**{**h, "level": machine.Level(h["level"])}) for h in header["hazards"]]
        return [
            machine.one_line(header["machine"], hazards),
            f"profile {self._profile.name}: {studies} studies, {len(self._comparisons)} comparisons, {cells} cells, "
            f"about {max(1, round(minutes))} min",
            *(f"{framework}: {reason}" for framework, reason in self._site.missing.items()),
        ]

    def outcome(self, comparison: str, arm: str) -> Outcome:
        """Measure the comparison if that has not been done, and report one of its arms."""
        if comparison not in self._data:
            began, measured = time.monotonic(), self._run.measured_s
            with self._progress.shown():
                self._run.measure(self._comparisons[comparison])
            spent = {"wall_s": time.monotonic() - began, "measured_s": self._run.measured_s - measured}
            before = self._spent.get(comparison, {})  # of the invocation that this one goes on with
            self._spent[comparison] = {name: round(before.get(name, 0.0) + s, 3) for name, s in spent.items()}
            self._data[comparison] = read(self.store.path)
            self._note_time(state="running")
        return _outcome(self._data[comparison], self._comparisons[comparison], arm)

    def _note_time(self, **fields: Any) -> None:
        wall = (self._earlier["wall_s"] or 0.0) + time.monotonic() - self._began
        measured = (self._earlier["measured_s"] or 0.0) + self._run.measured_s
        timing = {
            "wall_s": round(wall, 3),
            "measured_s": round(measured, 3),
            "measured_share": round(measured / wall, 4),
            "parent_peak_bytes": machine.parent_peak_bytes(),
            "comparisons": self._spent,
        }
        self.store.update_header(timing=timing, **fields)

    def finish(self, *, interrupted: bool) -> None:
        """End every worker and close the header; safe to call twice."""
        if self._finished:
            return
        self._finished = True
        self._nurseries.close()
        self._lock.close()
        found = [{"level": machine.Level.WARNING, "name": n, "message": m} for n, m in self._gpus.findings()]
        hazards = [*self.store.header["hazards"], *found]
        self._note_time(state="interrupted" if interrupted else "finished", hazards=hazards)
        self.store.close()

    def closing(self) -> list[str]:
        """The verdict table, where the rows are, and the measured share of the wall time."""
        from harness import tables
        from harness.report import report_of

        header = self.store.header
        timing = header["timing"]
        lines = tables.terminal(report_of(self.store.path).verdicts, width=80).splitlines()
        lines.append(
            f"{timing['measured_share']:.0%} of {timing['wall_s'] / 60:.1f} min was measured; "
            f"rows: {self._results}/{self.store.run_id}"
        )
        if header["state"] == "interrupted":
            lines.append("interrupted: the same command with --resume goes on")
        return lines


def _meeting(nnodes: int, endpoint: str | None) -> Meeting | None:
    """Where several hosts come together; ``None`` for one."""
    if nnodes < 1:
        raise ConfigError(f"--nnodes {nnodes}: must be at least 1")
    if nnodes == 1:
        if endpoint is not None:
            raise ConfigError("--rdzv-endpoint needs --nnodes N, the number of hosts that train together")
        return None
    if endpoint is None:
        raise ConfigError(f"--nnodes {nnodes} needs --rdzv-endpoint NAME:PORT, an address of this host")
    return Meeting(endpoint, nnodes, log=lambda line: print(line, file=sys.__stdout__, flush=True))


def _require_same(store: RunStore, profile: Profile, comparisons: tuple[Comparison, ...], hosts: int) -> None:
    """A run goes on only as it began: rows of two profiles or plans in one folder could not be told apart."""
    header = store.header
    same = header["profile"] == _described(profile) and header["plan"] == plan_of(comparisons)
    if not same or header["machine"].get("hosts", 1) != hosts:
        raise ConfigError(
            f"--resume: run {store.run_id} was begun as '{header['command']}', with another profile, plan or --nnodes; "
            "use that command with --resume, or leave --resume out to start a new run"
        )


def _described(profile: Profile) -> dict[str, Any]:
    return {"name": profile.name, "content": profile.model_dump(mode="json", exclude={"name"})}


def _any(selected: set[tuple[str, str]], study: Study, framework: str) -> bool:
    return any(comparison.startswith(f"{study.id}/{framework}/") for comparison, _ in selected)


def _narrow(comparison: Comparison, selected: set[tuple[str, str]]) -> Comparison | None:
    """The comparison with the selected arms, and the baseline and A/A twin that give them meaning."""
    arms = {arm for c, arm in selected if c == comparison.id}
    if not arms:
        return None
    if comparison.study.mode is not Mode.CHECK:
        arms |= {comparison.baseline.arm, CONTROL}
    return replace(comparison, cells=tuple(cell for cell in comparison if cell.arm in arms))


def _header(
    profile: Profile,
    command: str,
    comparisons: Iterable[Comparison],
    site: Site,
    facts: dict[str, Any],
    hazards: Iterable[machine.Hazard],
) -> dict[str, Any]:
    frameworks = {str(f): dict(d) for f, d in site.descriptions.items()}
    return {
        "command": command,
        "profile": _described(profile),
        "machine": {**facts, "threads": site.threads, "frameworks": frameworks},
        "hazards": [{"level": h.level, "name": h.name, "message": h.message} for h in hazards],
        "versions": machine.versions(),
        "git": machine.git_state(),
        "plan": plan_of(comparisons),
    }


def _outcome(data: RunData, comparison: Comparison, arm: str) -> Outcome:
    def of_arm(frame: Any) -> Any:
        return frame[(frame["comparison"] == comparison.id) & (frame["arm"] == arm)]

    trials = of_arm(data.trials)
    ok = trials[trials["status"] == Status.OK]
    if not len(ok):
        if not len(trials):
            return Outcome(status=Status.ERROR, reason="no trial was recorded", timings=[], extra_info={})
        last = trials.iloc[-1]
        return Outcome(status=Status(last["status"]), reason=str(last["reason"]), timings=[], extra_info={})
    extra: dict[str, Any] = {"trials": len(ok), "failed_trials": len(trials) - len(ok)}
    match comparison.study.mode:
        case Mode.STEADY | Mode.LOADING | Mode.END_TO_END:
            samples = of_arm(data.samples)
            timings = (samples["seconds"] / samples["steps"]).tolist()
            extra["items_per_second"] = float(samples["items"].sum() / samples["seconds"].sum())
            extra["peak_bytes"] = float(ok["peak_bytes"].median())
        case Mode.CONVERGENCE:
            rows = of_arm(data.convergence)
            last = rows[rows["epoch"] == rows["epoch"].max()]
            timings = (last["train_s"] / last["epoch"]).tolist()
            extra["accuracy"] = float(last["accuracy"].mean())
        case _:
            # What was looked for is a value, not a time: the start of its worker is the only time there is.
            timings = ok["start_s"].astype(float).tolist()
            rows = of_arm(data.checks)
            extra |= {str(r.check): float(r.value) for r in rows.itertuples()}
    return Outcome(status=Status.OK, reason="", timings=timings, extra_info=extra)


class _Progress:
    """A progress bar on a terminal; one line for each comparison elsewhere."""

    def __init__(self, estimates: dict[str, float]) -> None:
        self._estimates = estimates
        self._console = Console(file=sys.__stdout__)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[ratio]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            auto_refresh=False,  # no thread beside the measurement
        )
        self._task = self._bar.add_task("", total=sum(estimates.values()) or 1.0, ratio="")
        self._current = ""
        self._launches = 1
        self._spent = 0.0

    @contextlib.contextmanager
    def shown(self) -> Any:
        """Show the bar while something is measured."""
        started = time.monotonic()
        if not self._console.is_terminal:
            yield
        else:
            with self._bar:
                yield
        self._spent += self._estimates.get(self._current, 0.0)
        self._bar.update(self._task, completed=self._spent)
        if not self._console.is_terminal and self._current:
            ratio = self._bar.tasks[0].fields["ratio"]
            self._console.print(f"{self._current}: {ratio} in {time.monotonic() - started:.1f} s", highlight=False)

    def begin(self, comparison: str, launches: int) -> None:
        """Show which comparison is measured."""
        self._current, self._launches = comparison, launches
        self._bar.update(self._task, description=comparison, ratio="")

    def launched(self, done: int, ratio: str) -> None:
        """Move on by a launch."""
        estimate = self._estimates.get(self._current, 0.0)
        completed = self._spent + estimate * min(1.0, done / self._launches)
        self._bar.update(self._task, completed=completed, ratio=f"launch {done} {ratio}".rstrip())

    def tick(self) -> None:
        """Keep the clock of the bar going without a thread beside the measurement."""
        if self._console.is_terminal:
            self._bar.refresh()
