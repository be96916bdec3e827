"""``pytest benchmarks/ --benchmark-only``: every arm is a test, its timings replayed through pytest-benchmark.

Measuring happens outside the ``benchmark`` fixture, arms of a comparison taking turns in worker processes; the fixture
is given the worker's own timings by a logical clock, so that its table, its JSON and its comparison work
on true numbers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import SpeedproofError
from harness.spec import IMAGES, Framework, Mode, Status, Study

if TYPE_CHECKING:
    from harness.bench import Bench, Outcome

_ONE_AT_A_TIME = "speedproof measures one cell at a time: run without -n (two at once would slow each other down)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What one test asks for: an arm of a study on a framework and a workload."""

    study: Study
    framework: Framework
    workload: str
    arm: str

    @property
    def comparison(self) -> str:
        """Id of the comparison that the arm belongs to."""
        return f"{self.study.id}/{self.framework}/{self.workload}"

    def __str__(self) -> str:
        return f"{self.study.id}-{self.framework}-{self.workload}-{self.arm}"


class LogicalClock:
    """A timer that shows what it is told: pytest-benchmark reads it around a replay."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


_CLOCK = LogicalClock()
_BENCH: pytest.StashKey[Bench] = pytest.StashKey()


class Replay:
    """The ``cell`` fixture: measures its comparison when first asked, and replays its own arm."""

    def __init__(self, asked: Asked, config: pytest.Config) -> None:
        self._asked = asked
        self._config = config

    def replay(self, benchmark: Any) -> None:
        """Give ``benchmark`` this arm's seconds a step; skip or fail with the row's reason where it has none."""
        if benchmark.disabled:
            pytest.skip("benchmarks are disabled: nothing is measured")
        outcome = self._measure()
        if outcome.status is not Status.OK:
            known = {Status.UNAVAILABLE, Status.OOM}
            (pytest.skip if outcome.status in known else pytest.fail)(f"{outcome.status}: {outcome.reason}")
        timings = iter(outcome.timings)

        def replay() -> None:
            _CLOCK.now += next(timings)

        benchmark.extra_info.update(outcome.extra_info)
        benchmark.pedantic(replay, rounds=len(outcome.timings), iterations=1, warmup_rounds=0)

    def _measure(self) -> Outcome:
        bench = self._config.stash[_BENCH]
        capture = self._config.pluginmanager.getplugin("capturemanager")
        try:
            with capture.global_and_fixture_disabled():
                outcome: Outcome = bench.outcome(self._asked.comparison, self._asked.arm)
                return outcome
        except SpeedproofError as error:
            pytest.exit(f"speedproof: {error}", returncode=2)


@pytest.fixture
def cell(request: pytest.FixtureRequest) -> Replay:
    """The arm that a benchmark test is about."""
    return Replay(request.param, request.config)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the suite."""
    group = parser.getgroup("speedproof", "measuring the techniques")
    group.addoption("--profile", metavar="NAME|FILE", default="quick", help="smoke, quick, full, or a YAML file")
    group.addoption("--results", metavar="DIR", default="results", help="folder of the results (default: results)")
    group.addoption("--launches", metavar="N", type=int, help="a fixed number of launches for every comparison")
    group.addoption("--images", metavar="DIR", help="your own images for the data studies, one subfolder a class")
    group.addoption("--nnodes", metavar="N", type=int, default=1, help="hosts that train together (default: 1)")
    group.addoption(
        "--rdzv-endpoint", metavar="NAME:PORT", help="of several hosts: an address of this one, where the others join"
    )
    group.addoption("--resume", action="store_true", help="go on with the last unfinished run in the results folder")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Refuse ``-n`` also where pytest-xdist, which knows it, is not installed."""
    if not early_config.pluginmanager.hasplugin("xdist") and any(a == "-n" or a.startswith("-n=") for a in args):
        raise pytest.UsageError(_ONE_AT_A_TIME)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each arm of each study of the module."""
    studies = getattr(metafunc.module, "STUDIES", ())
    if "cell" not in metafunc.fixturenames or not studies:
        return
    asked = [
        Asked(study=study, framework=framework, workload=workload, arm=arm)
        for study in studies
        for framework in study.frameworks
        for workload in study.workloads
        for arm in (study.checks if study.mode is Mode.CHECK else [a.name for a in study.arms])
    ]
    metafunc.parametrize("cell", asked, ids=str, indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Plan what is left after ``-k``; drop what the profile does not measure on this machine."""
    wanted = [(item, asked) for item in items if (asked := _asked(item)) is not None]
    if not wanted:
        return
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError(_ONE_AT_A_TIME)
    if (
        config.option.collectonly
        or config.getoption("benchmark_disable", False)
        or config.getoption("benchmark_skip", False)
    ):
        return
    from harness.bench import Bench

    if config.option.images is not None:
        folder = Path(config.option.images).resolve()
        if not folder.is_dir():
            raise pytest.UsageError(f"--images {folder}: is not a folder; name one with a subfolder a class")
        os.environ[IMAGES] = str(folder)  # the workers inherit it
    try:
        bench = Bench.prepare(
            selected={(a.comparison, a.arm) for _, a in wanted},
            studies=list({a.study.id: a.study for _, a in wanted}.values()),
            profile=config.option.profile,
            launches=config.option.launches,
            results=Path(config.option.results),
            resume=config.option.resume,
            nnodes=config.option.nnodes,
            rdzv_endpoint=config.option.rdzv_endpoint,
            command=" ".join(["pytest", *config.invocation_params.args]),
        )
    except SpeedproofError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_BENCH] = bench
    left_out = []
    for item, asked in wanted:
        if bench.measures(asked.comparison, asked.arm):
            item.add_marker(pytest.mark.benchmark(group=asked.comparison, timer=_CLOCK))
        else:
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _asked(item: pytest.Item) -> Asked | None:
    found = getattr(item, "callspec", None)
    param = found.params.get("cell") if found else None
    return param if isinstance(param, Asked) else None


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """The machine with its hazards, and the plan."""
    bench = config.stash.get(_BENCH, None)
    return bench.opening() if bench else []


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End the workers and close the run's header."""
    if (bench := session.config.stash.get(_BENCH, None)) is not None:
        bench.finish(interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The verdict table and the share of wall time that was really measured."""
    if (bench := config.stash.get(_BENCH, None)) is not None:
        terminalreporter.section("speedproof")
        for line in bench.closing():
            terminalreporter.write_line(line)
