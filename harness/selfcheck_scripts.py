"""The suite against minimal scripts (``benchmarks/minimal``): a slow baseline is a lie about the speedup."""

from __future__ import annotations

import math
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import psutil

from harness.data import formats
from harness.errors import ConfigError
from harness.selfcheck_bench import LAUNCHES, Bench, Figure, ratio, warm
from harness.spec import Cell, Framework, Mode
from harness.studies import benchmarks_folder

_STEPS = {Framework.TORCH: "torch_loop.py", Framework.TENSORFLOW: "keras_fit.py"}


class Script:
    """An independent minimal script that takes its turn when told."""

    def __init__(self, name: str, *arguments: object, launcher: tuple[str, ...] = ()) -> None:
        script = benchmarks_folder() / "minimal" / name
        self._process = subprocess.Popen(
            [sys.executable, *launcher, str(script), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def steps(self, n: int) -> float:
        """Seconds of ``n`` steps, or passes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{n}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ConfigError(f"the minimal script ended with exit code {self._process.wait()}")
        return float(line.split()[0])

    def close(self) -> None:
        """End it, and what it has started."""
        for child in psutil.Process(self._process.pid).children(recursive=True):
            child.kill()
        self._process.kill()
        self._process.communicate()


def independent(bench: Bench) -> Iterator[Figure]:
    """Our step's throughput against an independent minimal script, in turns, in fresh processes each time."""
    for framework in bench.frameworks:
        for workload, block_s in (("cnn_fashion", 0.5), ("resnet50", 1.5)):
            cell = bench.cell(framework, workload)
            arguments = (cell.workload, cell.batch, cell.size, bench.threads)
            y = [
                _against_script(bench, cell, Script(_STEPS[framework], *arguments), block_s, i) for i in range(LAUNCHES)
            ]
            yield _not_slower(f"{workload}: ours / minimal {_STEPS[framework]}", y)


_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def data_parallel(bench: Bench) -> Iterator[Figure]:
    """The same for two ranks of DistributedDataParallel on two cores, against a script that torchrun starts."""
    if Framework.TORCH not in bench.frameworks or bench.threads < 2:
        why = "two ranks need PyTorch and two cores"
        yield Figure(
            name="two ranks: ours / minimal torch_ddp.py", target=_TARGET, measured="–", passed=None, detail=why
        )
        return
    for workload, block_s in (("cnn_fashion", 0.5), ("resnet50", 1.5)):
        plain = bench.cell(Framework.TORCH, workload)
        cell = replace(plain, toggles={**plain.toggles, "strategy": "ddp", "devices": "2"})
        arguments = (cell.workload, cell.batch, cell.size)
        y = [
            _against_script(bench, cell, Script("torch_ddp.py", *arguments, launcher=_TORCHRUN), block_s, i)
            for i in range(LAUNCHES)
        ]
        yield _not_slower(f"{workload}, two ranks: ours / minimal torch_ddp.py", y)


_TARGET = "throughput ratio ≥ 0.98"


def _not_slower(name: str, y: list[float]) -> Figure:
    return ratio(name, _TARGET, y, lambda i: i.estimate >= 0.98)


def _against_script(bench: Bench, cell: Cell, script: Script, block_s: float, number: int) -> float:
    """The median over turns of log(their seconds / ours); ends the script."""
    try:
        with warm(bench, cell.framework, cell) as (worker, step_s):
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


_LOADERS = {
    Framework.TORCH: ("torch_loader.py", ("files", "webdataset")),
    Framework.TENSORFLOW: ("tensorflow_loader.py", ("files", "tfrecord")),
}
IMAGES = 1024


def loaders(bench: Bench) -> Iterator[Figure]:
    """Our passes over a stored set against the public loaders' own, on the same files, in turns."""
    for framework in bench.frameworks:
        script, kinds = _LOADERS[framework]
        for kind in kinds:
            y = [_against_loader(bench, framework, script, kind, number) for number in range(LAUNCHES)]
            yield ratio(
                f"loading {kind}: ours / minimal {script}", "throughput ratio ≥ 1.0", y, lambda i: i.estimate >= 1.0
            )


def _against_loader(bench: Bench, framework: Framework, name: str, kind: str, number: int) -> float:
    base = bench.cell(framework, "cnn_photos")
    cell = replace(base, mode=Mode.LOADING, toggles={**base.toggles, "format": kind})
    stored = formats.open_set(kind, size=cell.size, examples=IMAGES)
    processes_or_pixels = bench.threads if framework is Framework.TORCH else cell.size
    script = Script(name, kind, stored.folder, cell.batch, processes_or_pixels, bench.threads)
    worker = bench.nurseries.of(framework).spawn()
    try:
        request = {"cell": cell.as_json(), "seed": number, "threads": bench.threads, "examples": IMAGES}
        worker.ask("build", 300.0, **request)
        worker.ask("warm_up", 300.0, window_s=0.2, limit_s=3.0)
        script.steps(1)
        order, logs = random.Random(number), []
        for _ in range(5):
            seconds = {}
            for side in order.sample(["ours", "theirs"], 2):
                if side == "ours":
                    block = worker.ask("block", 300.0, steps=1)
                    seconds[side] = block["seconds"]
                else:
                    seconds[side] = script.steps(1)
            logs.append(math.log(seconds["theirs"] / seconds["ours"]))
        return statistics.median(logs)
    finally:
        worker.close()
        script.close()
