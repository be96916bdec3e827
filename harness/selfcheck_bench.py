"""What the checks of the selfcheck share: a small study, a store for its raw rows, and the line that each ends in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import inference, machine, workloads
from harness.plan import plan
from harness.profiles import Hardware, Profile
from harness.results_header import plan_of
from harness.runner import Nurseries
from harness.spec import Arm, Cell, Comparison, Framework, Mode, Study
from harness.store import RunStore
from harness.workers import missing

FOLDER = "selfcheck"
LAUNCHES = 6

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


def ratio(name: str, target: str, y: list[float], reached: Callable[[inference.Interval], bool]) -> Figure:
    """The line of a ratio: ``y`` holds one log ratio a launch."""
    found = inference.ratio_interval(y)
    measured = f"{found.estimate:.4f} [{found.low:.4f}, {found.high:.4f}] n={found.n}"
    logs = "log ratios: " + " ".join(f"{value:+.4f}" for value in y)
    return Figure(name=name, target=target, measured=measured, passed=reached(found), detail=logs)


@contextmanager
def warm(bench: Bench, framework: Framework, cell: Cell) -> Iterator[tuple[Any, float]]:
    """A worker that has built and warmed up a cell, and the seconds of its step."""
    worker = bench.nurseries.of(framework).spawn()
    try:
        worker.ask("build", 300.0, cell=cell.as_json(), seed=0, threads=bench.threads)
        answer = worker.ask("warm_up", 300.0, window_s=0.2, limit_s=3.0)
        yield worker, answer["step_s"]
    finally:
        worker.close()
