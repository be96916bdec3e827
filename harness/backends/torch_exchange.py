"""What a projection needs to know, measured between ranks: the link, the backward pass, what a transfer steals.

Every function here is called by all ranks of a process group alike and gives rank 0's seconds; they are medians over
repetitions, each begun together. ``python -m harness.backends.torch_exchange`` under torchrun measures all of it, and
the training step that is to be predicted, for models of several sizes, and prints them as JSON lines.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness import workloads
from harness.backends.torch_step import Step, build_optimizer
from harness.measure.host_memory import keep_freed_memory
from harness.spec import Framework, Optimizer

SIZES = (1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 25)  # bytes of an all-reduce
REPETITIONS = 7
WINDOW_S = 0.15  # of one timing of a step

RECIPE = Optimizer(name="sgd", learning_rate=0.01, momentum=0.9)


def together(action: Callable[[], object], repetitions: int = REPETITIONS) -> float:
    """Median seconds of an action that every rank begins at the same time; one more before it is not counted."""
    seconds = []
    for _ in range(repetitions + 1):
        dist.barrier()
        _done()
        started = time.perf_counter()
        action()
        _done()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def device() -> torch.device:
    """Where this rank computes: its own GPU under NCCL, else its core."""
    return torch.device("cuda", 0) if dist.get_backend() == "nccl" else torch.device("cpu")


def _done() -> None:
    if device().type == "cuda":
        torch.cuda.synchronize()


def all_reduces(sizes: Sequence[int] = SIZES, limit_s: float = 20.0) -> list[tuple[float, float]]:
    """(bytes, seconds) of one all-reduce of each size, until ``limit_s`` is spent: a slow link takes long enough."""
    found: list[tuple[float, float]] = []
    started = time.monotonic()
    for size in sizes:
        data = torch.zeros(size // 4, device=device())
        once = together(lambda data=data: dist.all_reduce(data), 1)  # type: ignore[misc]
        over = _tensor(time.monotonic() - started + (REPETITIONS + 1) * once > limit_s)
        dist.broadcast(over, 0)  # the ranks go on, or stop, as one
        if over and len(found) > 1:
            break
        found.append((float(size), together(lambda data=data: dist.all_reduce(data))))  # type: ignore[misc]
    return found


def stolen_share(all_reduce_s: float, size: int = 1 << 23) -> float:
    """The share of a transfer's time that the rank's own computing loses to it, from 0 to 0.99.

    ``all_reduce_s`` is what an all-reduce of ``size`` bytes takes alone. Beside a computation that is longer than it,
    it makes that longer by this share of itself.
    """
    data, a = torch.zeros(size // 4, device=device()), torch.randn(256, 256, device=device())

    def compute(rounds: int) -> None:
        for _ in range(rounds):
            torch.mm(a, a)

    rounds = max(1, round(1.5 * all_reduce_s / together(lambda: compute(1), 20)))
    agreed = _tensor(rounds)
    dist.broadcast(agreed, 0)
    rounds = int(agreed)
    alone = together(lambda: compute(rounds))

    def both() -> None:
        work = dist.all_reduce(data, async_op=True)
        compute(rounds)
        work.wait()

    return min(0.99, max(0.0, (together(both) - alone) / all_reduce_s))


def _tensor(value: float) -> Tensor:
    return torch.tensor(value, device=device())


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Seconds of a step without any exchange, the backward pass's share of it, and it over the step of one rank alone.

    Devices of one machine may share its memory, its power and its cores: ``beside`` is what that costs, 1 for nothing.
    """

    step_s: float
    backward: float
    beside: float


def parts(model: nn.Module, x: Tensor, y: Tensor) -> Parts:
    """A training step of each rank for itself, all of them at once, and of rank 0 while the others wait."""
    optimizer, step = build_optimizer(RECIPE, model), Step()

    def steps_of(n: int) -> None:
        for _ in range(n):
            step.run(model, optimizer, x, y)

    steps = _steps_of(lambda: steps_of(1))
    together(lambda: steps_of(steps), 1)
    at_once, alone, forward = [], [], []
    for _ in range(REPETITIONS):  # in turns, so that a machine whose speed drifts does not favour one of them
        at_once.append(together(lambda: steps_of(steps), 1) / steps)
        alone.append(together(lambda: steps_of(steps if dist.get_rank() == 0 else 0), 1) / steps)
        forward.append(together(lambda: _without_backward(step, model, optimizer, x, y, steps), 1) / steps)
    step_s = statistics.median(at_once)
    ratios = [a / b for a, b in zip(at_once, alone, strict=True)]
    shares = [1 - f / a for f, a in zip(forward, at_once, strict=True)]
    return Parts(
        step_s=step_s, backward=min(1.0, max(0.0, statistics.median(shares))), beside=statistics.median(ratios)
    )


def _without_backward(
    step: Step, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int
) -> None:
    """Forward passes that keep what a backward pass would need, and the updates: a step less its backward pass."""
    for _ in range(steps):
        step.loss(model, x, y)
        optimizer.step()  # with the gradients of the last whole step


def data_parallel(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, list[int]]:
    """Seconds of a step of DistributedDataParallel, and the bytes of its buckets in the order in which they fill."""
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer, step = build_optimizer(RECIPE, wrapped), Step()

    def once() -> None:
        step.run(wrapped, optimizer, x, y)

    once()  # the buckets are formed anew after the first step
    steps = _steps_of(once)

    def run() -> None:
        for _ in range(steps):
            once()

    seconds = together(run) / steps
    logged = wrapped._get_ddp_logging_data()
    sizes = logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"]
    return seconds, [int(size) for size in str(sizes).split(",")]


def _steps_of(once: Callable[[], object]) -> int:
    """Steps that fill the window, the same on every rank."""
    steps = _tensor(max(1, round(WINDOW_S / together(once, 2))))
    dist.broadcast(steps, 0)
    return int(steps)


def workload(name: str, size: int, batch: int) -> tuple[nn.Module, Tensor, Tensor]:
    """The model of a workload, and one batch of noise for it: only its time matters."""
    recipe = workloads.load(name)
    model = workloads.part(name, Framework.TORCH).build(recipe, size, 10).train()
    x, y = torch.randn(batch, recipe.channels, size, size), torch.randint(10, (batch,))
    return model.to(device()), x.to(device()), y.to(device())


def perceptron(width: int, batch: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Three square layers: many gradients for their computation."""
    layers = [m for _ in range(3) for m in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10)), torch.randn(batch, width), torch.randint(10, (batch,))


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]] = {
    "cnn_fashion": lambda: workload("cnn_fashion", 28, 64),
    "perceptron 0.8M": lambda: perceptron(512, 512),
    "perceptron 7M": lambda: perceptron(1536, 256),
    "mobilenet_v2": lambda: workload("mobilenet_v2", 64, 16),
    "resnet50": lambda: workload("resnet50", 64, 8),
}


def main(names: Sequence[str]) -> None:
    """Measure between the ranks that torchrun started."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()
    reduced = all_reduces()
    size, seconds = reduced[-1] if len(reduced) < len(SIZES) else reduced[SIZES.index(1 << 23)]
    _tell(all_reduces=reduced, stolen=stolen_share(seconds, int(size)))
    for name in names or MODELS:
        model, x, y = MODELS[name]()
        alone = parts(model, x, y)
        step_s, buckets = data_parallel(model, x, y)
        _tell(model=name, **asdict(alone), ddp_s=step_s, buckets=buckets)
    dist.barrier()
    dist.destroy_process_group()


def _tell(**what: Any) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(what), flush=True)  # noqa: T201 - answers its parent


if __name__ == "__main__":
    main(sys.argv[1:])
