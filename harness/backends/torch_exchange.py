"""What a projection needs to know, measured between ranks: the link, the backward pass, what a transfer steals.

Every function here is called by all ranks of a process group alike and gives rank 0's seconds; they are medians over
repetitions, each begun together. ``python -m harness.backends.torch_exchange`` under torchrun measures all of it, and
the training step that is to be predicted, for models of several sizes, and prints them as JSON lines.
"""

from __future__ import annotations

import inspect
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
MIDDLE = 1 << 23  # of those, the one that computing is timed beside
REPETITIONS = 7
WARM_UP = 50  # all-reduces before those that are timed: the first ones take a multiple
WINDOW_S = 0.3  # of one timing of a step

# Each replica keeps the statistics of its own examples. The switch has a new name since PyTorch 2.14; the old warns.
_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
OWN_BUFFERS: dict[str, Any] = {"forward_sync_buffers" if _RENAMED else "broadcast_buffers": False}

RECIPE = Optimizer(name="sgd", learning_rate=0.01, momentum=0.9)


def together(action: Callable[[], object], repetitions: int = REPETITIONS) -> float:
    """Median seconds of an action that every rank begins at the same time; the first of several is not counted."""
    seconds = []
    for _ in range(repetitions + 1):
        dist.barrier()
        _done()
        started = time.perf_counter()
        action()
        _done()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:] or seconds)


def device() -> torch.device:
    """Where this rank computes: its own GPU under NCCL, else its core."""
    return torch.device("cuda", 0) if dist.get_backend() == "nccl" else torch.device("cpu")


def _done() -> None:
    if device().type == "cuda":
        torch.cuda.synchronize()


def all_reduces(sizes: Sequence[int] = SIZES, limit_s: float = 8.0) -> list[tuple[float, float]]:
    """(bytes, seconds) of one all-reduce of each size, until ``limit_s`` is spent: a slow link takes long enough."""
    found: list[tuple[float, float]] = []
    for _ in range(WARM_UP):
        dist.all_reduce(_tensor(0.0))
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


def link() -> tuple[list[tuple[float, float]], float]:
    """(bytes, seconds) of all-reduces of several sizes, and the share of their time that computing loses to them."""
    reduced = all_reduces()
    size, seconds = next(((s, t) for s, t in reduced if s == MIDDLE), reduced[-1])
    return reduced, stolen_share(seconds, int(size))


def stolen_share(all_reduce_s: float, size: int = 1 << 23) -> float:
    """The share of a transfer's time that the rank's own computing loses to it, from 0 to 0.99.

    ``all_reduce_s`` is what an all-reduce of ``size`` bytes takes alone. Beside a computation that is longer than it,
    it makes that longer by this share of itself.
    """
    # Matrices that leave no room for the transfer's own data in a core's cache, as a training step does.
    data, a = torch.zeros(size // 4, device=device()), torch.randn(1024, 1024, device=device())

    def compute() -> None:
        for _ in range(rounds):
            torch.mm(a, a)

    def both() -> None:
        work = dist.all_reduce(data, async_op=True)
        compute()
        work.wait()

    rounds = 1
    rounds = _agreed(1.5 * all_reduce_s / together(compute))
    taken = in_turns(compute, both)
    lost = statistics.median(b - c for c, b in zip(taken[compute], taken[both], strict=True))
    return min(0.99, max(0.0, lost / all_reduce_s))


def in_turns(*actions: Callable[[], object]) -> dict[Callable[[], object], list[float]]:
    """Seconds of each action in every round: a machine whose speed drifts favours none of them."""
    taken: dict[Callable[[], object], list[float]] = {action: [] for action in actions}
    for _ in range(REPETITIONS + 1):
        for action in actions:
            taken[action].append(together(action, 0))
    return {action: seconds[1:] for action, seconds in taken.items()}


def _tensor(value: float) -> Tensor:
    return torch.tensor(value, device=device())


def _agreed(number: float) -> int:
    """Rank 0's number, at least 1, on every rank."""
    whole = _tensor(max(1, round(number)))
    dist.broadcast(whole, 0)
    return int(whole)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Seconds of a step with no gradients exchanged, the backward pass's share, and it over the step of a rank alone.

    Devices wait for one another in every step, and those of one machine may share its memory, its power and its cores:
    ``beside`` is what that costs, 1 for nothing. ``ddp_s`` is the step of DistributedDataParallel, ``buckets`` are the
    bytes of its buckets in the order in which they fill.
    """

    step_s: float
    backward: float
    beside: float
    ddp_s: float
    buckets: list[int]


def parts(model: nn.Module, x: Tensor, y: Tensor) -> Parts:
    """A training step of all ranks, with its gradients exchanged and without; of rank 0 while the others wait."""
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, **OWN_BUFFERS)
    optimizer, step, token = build_optimizer(RECIPE, model), Step(), _tensor(0.0)
    steps = 1

    def exchanged() -> None:
        for _ in range(steps):
            step.run(wrapped, optimizer, x, y)

    def in_step() -> None:
        for _ in range(steps):
            step.run(model, optimizer, x, y)
            dist.all_reduce(token)

    def alone() -> None:
        for _ in range(steps if dist.get_rank() == 0 else 0):
            step.run(model, optimizer, x, y)

    def without_backward() -> None:
        """Forward passes that keep what a backward pass would need, and updates with the gradients that there are."""
        for _ in range(steps):
            step.loss(model, x, y)
            optimizer.step()

    exchanged()  # the buckets are formed anew after the first step
    steps = _agreed(WINDOW_S / together(in_step, 2))
    taken = in_turns(in_step, exchanged, alone, without_backward)

    def over(action: Callable[[], object]) -> float:
        return statistics.median(a / b for a, b in zip(taken[action], taken[in_step], strict=True))

    logged = wrapped._get_ddp_logging_data()
    step_s = statistics.median(taken[in_step]) / steps
    return Parts(
        step_s=step_s,
        backward=min(1.0, max(0.0, 1 - over(without_backward))),
        beside=1 / over(alone),
        ddp_s=step_s * over(exchanged),
        buckets=[int(size) for size in str(logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"]).split(",")],
    )


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
    for name in names or MODELS:  # the link is timed anew beside each model: its speed drifts as a machine's does
        reduced, stolen = link()
        _tell(model=name, all_reduces=reduced, stolen=stolen, **asdict(parts(*MODELS[name]())))
    dist.barrier()
    dist.destroy_process_group()


def _tell(**what: Any) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(what), flush=True)  # noqa: T201 - answers its parent


if __name__ == "__main__":
    main(sys.argv[1:])
