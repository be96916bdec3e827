"""What the PyTorch backend does, as JSON on stdout: run by tests/test_torch.py in a process of its own.

``python torch_probe.py CELLS QUESTION…`` reports on every cell of the JSON file, then answers the questions.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # noqa: TID251 - this process runs PyTorch and nothing else
from torch import Tensor  # noqa: TID251
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: TID251

from harness import data as datasets
from harness.backends import torch_backend as backend
from harness.backends.torch_session import TorchSession
from harness.spec import Cell, Mode
from harness.techniques.precision import torch as precision

WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "_unique2", "equal")


class WaitsForHost(TorchDispatchMode):  # type: ignore[misc]
    """Notes every operation whose result the host would have to wait for: what item(), bool(), float() end in."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        copies = name == "_to_copy" and args[0].device != (kwargs or {}).get("device", args[0].device)
        if name in WAITS or copies:
            self.found.add(name)
        return function(*args, **(kwargs or {}))


def open_session(cell: Cell, seed: int = 7, limit: tuple[int, int] | None = None) -> TorchSession:
    session = backend.open_session(cell, seed=seed, data_limit=limit)
    assert isinstance(session, TorchSession)
    return session


def report(cell: Cell) -> dict[str, Any]:
    """Two steps, the second under observation, or why there are none; the memory takes a third."""
    if reason := backend.unavailable(cell):
        return {"unavailable": reason}
    session = open_session(cell)
    session.reset_memory()
    waits = WaitsForHost()
    with waits:
        session.steps(1)
    session.synchronize()
    losses = [session.fetch_loss()]
    observed = session.observe()
    losses.append(session.fetch_loss())
    memory = session.memory()
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in session._model.modules())
    return {
        "losses": losses,
        "memory": dataclasses.asdict(memory),
        "observed": dataclasses.asdict(observed),
        "items_per_step": session.items_per_step,
        "hooks_left": hooks,
        "waits": sorted(waits.found),
        "input_strides": session._batches[0][0].stride(),
        "float32": sorted({place.fp32_precision for place in precision.float32_products()}),
    }


def first_losses(cell: Cell) -> dict[str, float]:
    """The first loss under the same seed twice, and under another."""
    found = {}
    for name, seed in (("once", 7), ("again", 7), ("other", 8)):
        session = open_session(cell, seed)
        session.steps(1)
        found[name] = session.fetch_loss()
    return found


def epoch(cell: Cell) -> dict[str, Any]:
    """Whether an epoch shows the model exactly the examples of ``epoch_order``, and what evaluation says and leaves."""
    cell = dataclasses.replace(cell, mode=Mode.CONVERGENCE)
    session = open_session(cell, limit=(22, 300))
    arrays = datasets.load("fashion_mnist", size=cell.size)
    order = datasets.epoch_order(22, cell.batch, 7, 3)
    seen: list[Tensor] = []
    hook = session._model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    items = session.train_epoch(3)
    hook.remove()
    wanted = torch.from_numpy(datasets.prepare_images(arrays.train_x[order.ravel()], cell.size, 1)).permute(0, 3, 1, 2)
    before = {k: v.clone() for k, v in session._model.state_dict().items()}
    result = session.evaluate()
    images = torch.from_numpy(datasets.prepare_images(arrays.test_x[:300], cell.size, 1)).permute(0, 3, 1, 2)
    labels = torch.from_numpy(arrays.test_y[:300].copy())
    with torch.no_grad():
        logits = session._model(images)
    return {
        "items": items,
        "same_examples": bool(torch.equal(torch.cat(seen), wanted)),
        "batches": [len(x) for x in seen],
        "accuracy": [result.accuracy, float((logits.argmax(1) == labels).double().mean())],
        "loss": [result.loss, float(torch.nn.functional.cross_entropy(logits, labels))],
        "training_again": session._model.training,
        "untouched": all(bool(torch.equal(v, before[k])) for k, v in session._model.state_dict().items()),
    }


def padding(cell: Cell) -> float:
    """How far the logits of a text move when padding is appended to it."""
    model = open_session(cell)._model.eval()
    tokens = torch.randint(3, 1000, (2, 8), dtype=torch.int32)
    padded = torch.nn.functional.pad(tokens, (0, 8))
    with torch.no_grad():
        return float((model(tokens) - model(padded)).abs().max())


def strict(cell: Cell) -> dict[str, list[str]]:
    """The three float32 precisions after the environment of each level, from the other one."""
    found = {}
    for level in ("tf32", "fp32", "tf32", "bf16"):
        precision.environment(level, cell)
        found[level] = [place.fp32_precision for place in precision.float32_products()]
    return found


def errors(_cell: Cell) -> dict[str, str]:
    """How errors are classified; the refused allocation is a real one."""
    found = {
        "cuda": backend.classify(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")),
        "python": backend.classify(MemoryError()),
        "other": backend.classify(RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)")),
        "type": backend.classify(TypeError("out of memory")),
    }
    try:
        torch.empty(1 << 58)
    except RuntimeError as error:
        found["host"] = backend.classify(error)
    return {k: str(v) for k, v in found.items()}


def named_checks(cell: Cell) -> dict[str, Any]:
    """The values of each check; the message of those that are not for PyTorch."""
    values = {c.name: c.value for name in ("float_eps", "gradient_underflow") for c in backend.checks(cell, name)}
    refused = {}
    for name in ("mixed_policy", "float_epps"):
        try:
            backend.checks(cell, name)
        except Exception as error:  # its type and text are the answer
            refused[name] = [type(error).__name__, str(error)]
    return {"values": values, "refused": refused}


def without_torchvision(cell: Cell) -> str | None:
    """What is said of a workload whose package is not installed."""
    real = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name == "torchvision" else real(name, package)
    try:
        return backend.unavailable(cell)
    finally:
        importlib.util.find_spec = real


def described(_cell: Cell) -> dict[str, object]:
    """The installation."""
    return backend.describe()


QUESTIONS: dict[str, tuple[str, Callable[[Cell], Any]]] = {
    "first_losses": ("cnn_fashion", first_losses),
    "first_losses_text": ("text_small", first_losses),
    "epoch": ("cnn_fashion", epoch),
    "padding": ("text_small", padding),
    "strict": ("cnn_fashion", strict),
    "errors": ("cnn_fashion", errors),
    "checks": ("cnn_fashion", named_checks),
    "without_torchvision": ("mobilenet_v2", without_torchvision),
    "describe": ("cnn_fashion", described),
}


def preload() -> dict[str, Any]:
    """What importing the preloaded modules does to this process, before anything else of torch has run."""
    counts: list[int] = []
    real = torch._C._cuda_getDeviceCount if hasattr(torch._C, "_cuda_getDeviceCount") else None

    def counting() -> int:
        counts.append(1)
        return real() if real else 0

    if real is not None:
        torch._C._cuda_getDeviceCount = counting
    for name in backend.PRELOAD:
        importlib.import_module(name)
    if real is not None:
        torch._C._cuda_getDeviceCount = real
    found = {"cuda_counted": len(counts), "cuda_started": torch.cuda.is_initialized()}
    found["child_exit"] = _child_computes()
    return found


def _child_computes() -> int:
    """Fork as the nursery does and compute in the child, on two threads: a fork of a parallel process would hang."""
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(2)
        x = torch.ones(512, 512, requires_grad=True)
        (x @ x).sum().backward()
        os._exit(0 if float(x.grad.sum()) == 2 * 512**3 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(cells: dict[str, Cell], questions: list[str]) -> dict[str, Any]:
    """Every answer; one that raises is its traceback."""
    answers: dict[str, Any] = {"preload": preload()}
    warnings.simplefilter("error")
    backend.configure(1)
    asked: list[tuple[str, Callable[[Cell], Any], Cell]] = [(name, report, cell) for name, cell in cells.items()]
    baselines = {c.workload: c for name, c in cells.items() if name.endswith("-cpu-baseline")}
    asked += [(name, QUESTIONS[name][1], baselines[QUESTIONS[name][0]]) for name in questions]
    for name, question, cell in asked:
        try:
            answers[name] = question(cell)
        except Exception:  # the test that reads this answer fails with the traceback
            answers[name] = {"raised": traceback.format_exc()}
    return answers


if __name__ == "__main__":
    given = {name: Cell.from_json(fields) for name, fields in json.loads(Path(sys.argv[1]).read_text()).items()}
    print(json.dumps(main(given, sys.argv[2:])))  # noqa: T201
