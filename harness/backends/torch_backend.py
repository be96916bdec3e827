"""PyTorch: what a worker does with it. The only module of the package, beside the torch parts, that imports torch."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

# CUDA's own count of devices starts the driver, and a driver started before a fork is dead in the child. NVML's does not.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from harness import data as datasets
from harness import spec, techniques, workloads
from harness.backends import Check, Evaluation, Memory, Observed
from harness.errors import ConfigError, Unavailable, unknown
from harness.measure.host_memory import HostMemoryWindow
from harness.spec import Cell, Framework, Mode, Status

PRELOAD = ("torch", "torchvision", "transformers.models.distilbert.modeling_distilbert")

INSTALL = "pip install 'speedproof[torch]'"
EVALUATION_BATCH = 256
RESIDENT_BYTES = 32 << 20  # that steps cycle through: enough batches not to memorise them, too few to weigh in a peak
RESIDENT_BATCHES = (2, 16)  # at least, at most

_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed")
_OBSERVED_PRODUCTS = (nn.Conv2d, nn.Linear)


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Examples on one device. ``x`` is held in the memory order it is trained in.

    Images are float32 [n, c, h, w], or with ``channels_last`` [n, h, w, c]; text is int32 [n, tokens]. ``y`` is int64 [n].
    """

    x: Tensor
    y: Tensor
    channels_last: bool = False

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The examples at ``index`` (int64 [b]) as a batch; images are always [b, c, h, w] to the model."""
        x = self.x.index_select(0, index)
        return (x.permute(0, 3, 1, 2) if self.channels_last else x), self.y.index_select(0, index)

    def to_channels_last(self) -> Split:
        """The same images with the channels innermost in memory."""
        return dataclasses.replace(self, x=self.x.permute(0, 2, 3, 1).contiguous(), channels_last=True)

    def to(self, device: torch.device) -> Split:
        """The same examples on ``device``, through pinned memory where that is a GPU."""
        x, y = (t.pin_memory() if device.type == "cuda" else t for t in (self.x, self.y))
        return dataclasses.replace(self, x=x.to(device, non_blocking=True), y=y.to(device, non_blocking=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """What a session trains and is tested on. ``test`` is ``None`` where only resident batches are stepped through."""

    train: Split
    test: Split | None

    def each(self, change: Callable[[Split], Split]) -> Data:
        """Apply a change to both splits."""
        return Data(train=change(self.train), test=None if self.test is None else change(self.test))


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """How one training step is run. A technique returns a changed copy.

    ``autocast`` is the dtype of mixed precision; ``scaler`` scales the loss.
    """

    device: torch.device = torch.device("cpu")
    autocast: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None

    def precision(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, dtype=self.autocast)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross entropy of a batch, computed in float32: on a CPU, autocast would leave the softmax in 16 bits."""
        with self.precision():
            logits = model(x)
        return functional.cross_entropy(logits.float(), y)

    def update(self, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Backward pass and optimizer step."""
        if self.scaler is None:
            loss.backward()
            optimizer.step()
            return
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()

    def run(self, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        """One training step; returns its loss, still on the device."""
        optimizer.zero_grad(set_to_none=True)
        loss = self.loss(model, x, y)
        self.update(loss, optimizer)
        return loss.detach()


class TorchSession:
    """One model in training on one device; see :class:`harness.backends.Session`."""

    trace_s: float | None = None

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        step: Step,
        data: Data,
        batch: int,
        seed: int,
        host_memory: HostMemoryWindow,
    ) -> None:
        self.items_per_step = batch
        self._model = model
        self._optimizer = optimizer
        self._step = step
        self._data = data
        self._seed = seed
        self._host_memory = host_memory
        self._loss = torch.full((), float("nan"))
        resident = torch.arange(len(data.train.y) if data.test is None else batch, device=step.device)
        self._batches = [data.train.take(index) for index in resident.split(batch)]
        self._next = 0

    def _next_batch(self) -> tuple[Tensor, Tensor]:
        batch = self._batches[self._next]
        self._next = (self._next + 1) % len(self._batches)
        return batch

    def steps(self, n: int) -> None:
        """Enqueue ``n`` steps over the resident batches."""
        model, optimizer, run = self._model, self._optimizer, self._step.run
        for _ in range(n):
            x, y = self._next_batch()
            self._loss = run(model, optimizer, x, y)

    def synchronize(self) -> None:
        """Wait for the GPU; a CPU has nothing outstanding, since each operation returns when it is done."""
        if self._step.device.type == "cuda":
            torch.cuda.synchronize(self._step.device)

    def fetch_loss(self) -> float:
        """The last step's loss."""
        return float(self._loss)

    def train_epoch(self, epoch: int) -> int:
        """One pass over the training set in the order of ``(seed, epoch)``."""
        train = self._data.train
        order = datasets.epoch_order(len(train.y), self.items_per_step, self._seed, epoch)
        for index in torch.from_numpy(order).to(self._step.device):
            x, y = train.take(index)
            self._loss = self._step.run(self._model, self._optimizer, x, y)
        return int(order.size)

    def evaluate(self) -> Evaluation:
        """Accuracy and mean cross entropy over the test set, under the precision of the training step."""
        test = self._data.test
        if test is None:
            raise ConfigError("this session holds no test set; open it in convergence mode to evaluate it")
        device = self._step.device
        correct = torch.zeros((), dtype=torch.int64, device=device)
        loss = torch.zeros((), dtype=torch.float64, device=device)
        self._model.eval()
        with torch.inference_mode():
            for index in torch.arange(len(test.y), device=device).split(EVALUATION_BATCH):
                x, y = test.take(index)
                with self._step.precision():
                    logits = self._model(x)
                correct += (logits.argmax(1) == y).sum()
                loss += functional.cross_entropy(logits.float(), y, reduction="sum")
        self._model.train()
        return Evaluation(accuracy=int(correct) / len(test.y), loss=float(loss) / len(test.y))

    def reset_memory(self) -> None:
        """Start a new window for :meth:`memory`."""
        if self._step.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._step.device)
        else:
            self._host_memory.open()

    def memory(self) -> Memory:
        """Peak since the reset, read first; then one more step, which is not in the peak, counts the activations."""
        if self._step.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._step.device)
        else:
            peak = self._host_memory.peak()
        parameters = list(self._model.parameters())
        state = (v for entry in self._optimizer.state.values() for v in entry.values() if isinstance(v, Tensor))
        return Memory(
            peak=peak,
            parameters=_bytes(parameters),
            optimizer=_bytes(state),
            activations=self._activation_bytes(parameters),
        )

    def _activation_bytes(self, parameters: list[nn.Parameter]) -> int:
        """Bytes of the distinct storages that autograd keeps for one backward pass, parameters left out."""
        own = {p.untyped_storage().data_ptr() for p in parameters}
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            self.steps(1)
        return sum(kept.values())

    def observe(self) -> Observed:
        """Run one step with hooks on it, which are gone afterwards, and report what they saw."""
        seen = _Seen()
        with seen.watching(self._model):
            x, y = self._next_batch()
            self._optimizer.zero_grad(set_to_none=True)
            loss = self._step.loss(self._model, x, y)
            loss.register_hook(seen.loss_gradients.append)
            self._step.update(loss, self._optimizer)
            self._loss = loss.detach()
        if seen.product is None:
            raise ConfigError(f"{type(self._model).__name__} ran no {' or '.join(k.__name__ for k in _OBSERVED_PRODUCTS)}")
        return Observed(
            device=_kind(seen.product.device),
            dtype=_dtype(seen.product, seen.convolution),
            layout=_layout(seen.product),
            batch=seen.examples,
            scaled=any(bool(g != 1) for g in seen.loss_gradients),
            learning_rate=float(self._optimizer.param_groups[0]["lr"]),
            parameters=sum(p.numel() for p in self._model.parameters()),
        )


class _Seen:
    """What one step showed: the first product's output, the examples that entered the model, the gradient at the loss."""

    def __init__(self) -> None:
        self.product: Tensor | None = None
        self.convolution = False
        self.examples = 0
        self.loss_gradients: list[Tensor] = []

    def _enter(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.examples += len(inputs[0])

    def _leave(self, module: nn.Module, _: tuple[Any, ...], output: Tensor) -> None:
        if self.product is None:
            self.product, self.convolution = output.detach(), isinstance(module, nn.Conv2d)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Hook the model, and unhook it whatever happens."""
        hooks = [model.register_forward_pre_hook(self._enter)]
        hooks += [m.register_forward_hook(self._leave) for m in model.modules() if isinstance(m, _OBSERVED_PRODUCTS)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _bytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _kind(device: torch.device) -> str:
    return "gpu" if device.type == "cuda" else device.type


def _dtype(product: Tensor, convolution: bool) -> str:
    name = str(product.dtype).removeprefix("torch.")
    backend: Any = torch.backends.cudnn.conv if convolution else torch.backends.cuda.matmul  # type: ignore[attr-defined]
    tf32 = product.dtype == torch.float32 and product.is_cuda and backend.fp32_precision == "tf32"
    return f"{name}+tf32" if tf32 else name


def _layout(product: Tensor) -> str:
    if product.dim() != 4:  # noqa: PLR2004 - images are [n, c, h, w]
        return "none"
    return "nhwc" if product.is_contiguous(memory_format=torch.channels_last) else "nchw"


_host_memory: list[HostMemoryWindow] = []  # made when the process is configured, before anything is built


def configure(threads: int) -> None:
    """Set the compute threads of this process, and take its memory now as the zero of :meth:`TorchSession.memory`."""
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)  # allowed once, and only before the first parallel work
    _host_memory.append(HostMemoryWindow())


def describe() -> dict[str, object]:
    """Versions, devices and the CPU's instruction set, as torch sees them."""
    cuda = torch.cuda.is_available()
    devices = {"cpu": f"{torch.backends.cpu.get_cpu_capability()}"}
    facts: dict[str, object] = {
        "version": torch.__version__,
        "devices": devices,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "built_for_cuda": torch.version.cuda,
    }
    if cuda:
        devices["gpu"] = torch.cuda.get_device_name(0)
        facts["gpus"] = torch.cuda.device_count()
        facts["compute_capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
        facts["cudnn"] = torch.backends.cudnn.version()
    return facts


def unavailable(cell: Cell) -> str | None:
    """Why this cell cannot run here: a package of the workload, or a level of a technique."""
    part = workloads.part(cell.workload, Framework.TORCH)
    missing = [name for name in getattr(part, "REQUIRES", ()) if importlib.util.find_spec(name) is None]
    if missing:
        return f"{cell.workload} needs {' and '.join(missing)}, not installed: {INSTALL}"
    reasons = (stage(level, cell) for stage, level in _stages("unavailable", cell))
    return next((reason for reason in reasons if reason), None)


def _stages(name: str, cell: Cell) -> Iterator[tuple[Callable[..., Any], str]]:
    """The functions of one stage, in the order of the toggles, each with the cell's level."""
    for toggle in techniques.TOGGLES:
        stage = getattr(techniques.part(toggle, Framework.TORCH), name, None)
        if stage is not None:
            yield stage, cell.toggles[toggle]


def _apply(name: str, thing: Any, cell: Cell) -> Any:
    for stage, level in _stages(name, cell):
        thing = stage(level, thing, cell)
    return thing


def open_session(cell: Cell, *, seed: int, data_limit: tuple[int, int] | None) -> TorchSession:
    """Build the session of a cell; see :class:`harness.backends.Backend`."""
    if not _host_memory:
        raise ConfigError("the PyTorch backend is not configured; call configure(threads) before open_session")
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator is what a model's library would draw from
    torch.manual_seed(seed)
    for stage, level in _stages("environment", cell):
        stage(level, cell)
    workload = workloads.load(cell.workload)
    arrays = datasets.load(workload.data, size=cell.size)
    data: Data = _apply("data", _prepare(workload, cell, arrays, seed, data_limit), cell)
    model: nn.Module = workloads.part(cell.workload, Framework.TORCH).build(workload, cell.size, arrays.classes)
    model = _apply("model", model.train(), cell)
    recipe: spec.Optimizer = _apply("optimizer", workload.optimizer, cell)
    return TorchSession(
        model=model,
        optimizer=build_optimizer(recipe, model),
        step=_apply("step", Step(), cell),
        data=data,
        batch=cell.batch,
        seed=seed,
        host_memory=_host_memory[0],
    )


def _prepare(
    workload: spec.Workload, cell: Cell, arrays: datasets.Arrays, seed: int, limit: tuple[int, int] | None
) -> Data:
    """The tensors of a session on the host: all examples for convergence, else those of the resident batches."""
    if cell.mode is Mode.CONVERGENCE:
        train_n, test_n = limit or (len(arrays.train_y), len(arrays.test_y))
        test = _split(workload, cell.size, arrays.test_x[:test_n], arrays.test_y[:test_n])
        return Data(train=_split(workload, cell.size, arrays.train_x[:train_n], arrays.train_y[:train_n]), test=test)
    example = 4 * (workload.channels * cell.size**2 if workload.task == "image" else cell.size)
    fewest, most = RESIDENT_BATCHES
    count = min(most, max(fewest, RESIDENT_BYTES // (example * cell.batch)))
    order = datasets.epoch_order(len(arrays.train_y), 1, seed, 0).ravel()
    rows = np.resize(order, count * cell.batch)  # starts over where the set is smaller than the batches
    return Data(train=_split(workload, cell.size, arrays.train_x[rows], arrays.train_y[rows]), test=None)


def _split(workload: spec.Workload, size: int, x: NDArray[np.generic], y: NDArray[np.int64]) -> Split:
    labels = torch.from_numpy(np.array(y))  # a copy: the set is shared, and may be read-only
    if workload.task == "text":
        return Split(x=torch.from_numpy(np.array(x)), y=labels)
    images = torch.from_numpy(datasets.prepare_images(x, size, workload.channels))
    return Split(x=images.permute(0, 3, 1, 2).contiguous(), y=labels)


def build_optimizer(recipe: spec.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a recipe, over all parameters alike.

    Fused, on a CPU as on a GPU: one pass over the memory, and the only form whose loss scaling waits for no host.
    """
    rate, parameters = recipe.learning_rate, model.parameters()
    if recipe.name == "sgd":
        return torch.optim.SGD(
            parameters, lr=rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay, fused=True
        )
    if recipe.name == "adamw":
        return torch.optim.AdamW(parameters, lr=rate, weight_decay=recipe.weight_decay, fused=True)
    raise unknown("optimizer", recipe.name, ("sgd", "adamw"))


def checks(cell: Cell, name: str) -> list[Check]:
    """The values of a named check; raises :class:`~harness.errors.Unavailable` for one that PyTorch has no part in."""
    found: dict[str, Callable[[Cell], list[Check]]] = {}
    for toggle in techniques.TOGGLES:
        found |= getattr(techniques.part(toggle, Framework.TORCH), "CHECKS", {})
    if name not in found:
        raise unknown("check", name, found)
    return found[name](cell)


def classify(error: BaseException) -> Status:
    """``OOM`` where the GPU's or the host's allocator refused."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return Status.OOM
    message = str(error).lower()
    full = isinstance(error, RuntimeError) and any(sign in message for sign in _OUT_OF_MEMORY)
    return Status.OOM if full else Status.ERROR


