"""A model in training in PyTorch, and how its step is looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from harness import data as datasets
from harness.backends import Evaluation, Memory, Observed
from harness.backends.torch_step import Data, Step
from harness.errors import ConfigError
from harness.measure.host_memory import HostMemoryWindow

EVALUATION_BATCH = 256
_OBSERVED_PRODUCTS = (nn.Conv2d, nn.Linear)


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
        parameters = [_held(p) for p in self._model.parameters()]
        state = (_held(v) for entry in self._optimizer.state.values() for v in entry.values() if isinstance(v, Tensor))
        return Memory(
            peak=peak,
            parameters=size_in_bytes(parameters),
            optimizer=size_in_bytes(state),
            activations=self._activation_bytes(parameters),
        )

    def _activation_bytes(self, parameters: list[Tensor]) -> int:
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
        with self._watching() as seen:
            x, y = self._next_batch()
            self._optimizer.zero_grad(set_to_none=True)
            loss = self._step.loss(self._model, x, y)
            loss.register_hook(seen.loss_gradients.append)
            self._step.update(loss, self._model, self._optimizer)
            self._loss = loss.detach()
        return self._observed(seen)

    @contextmanager
    def _watching(self) -> Iterator[_Seen]:
        seen = _Seen()
        with seen.watching(self._model):
            yield seen

    def _observed(self, seen: _Seen) -> Observed:
        if seen.product is None:
            kinds = " or ".join(kind.__name__ for kind in _OBSERVED_PRODUCTS)
            raise ConfigError(f"{type(self._model).__name__} ran no {kinds}, which is what is observed of a step")
        return Observed(
            device=_kind(seen.product.device),
            dtype=_dtype(seen.product, seen.convolution),
            layout=_layout(seen.product),
            batch=seen.examples,
            scaled=any(bool(g != 1) for g in seen.loss_gradients),
            learning_rate=float(self._optimizer.param_groups[0]["lr"]),
            parameters=sum(p.numel() for p in self._model.parameters()),
            devices=len(seen.devices),
            threads=torch.get_num_threads(),
        )


class _Seen:
    """What one step showed: the first product's output, the examples that came in, the gradient at the loss."""

    def __init__(self) -> None:
        self.product: Tensor | None = None
        self.convolution = False
        self.examples = 0
        self.devices: set[torch.device] = set()
        self.loss_gradients: list[Tensor] = []

    def _enter(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.examples += len(inputs[0])

    def _leave(self, module: nn.Module, _: tuple[Any, ...], output: Tensor) -> None:
        self.devices.add(output.device)
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


def _held(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this process holds; any other as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def size_in_bytes(tensors: Iterable[Tensor]) -> int:
    """What the tensors' elements take."""
    return sum(t.numel() * t.element_size() for t in tensors)


def _kind(device: torch.device) -> str:
    return "gpu" if device.type == "cuda" else device.type


def _dtype(product: Tensor, convolution: bool) -> str:
    name = str(product.dtype).removeprefix("torch.")
    backend: Any = torch.backends.cudnn.conv if convolution else torch.backends.cuda.matmul
    tf32 = product.dtype == torch.float32 and product.is_cuda and backend.fp32_precision == "tf32"
    return f"{name}+tf32" if tf32 else name


def _layout(product: Tensor) -> str:
    if product.dim() != 4:  # noqa: PLR2004 - images are [n, c, h, w]
        return "none"
    return "nhwc" if product.is_contiguous(memory_format=torch.channels_last) else "nchw"
