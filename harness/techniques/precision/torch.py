"""Precision in PyTorch: strict float32, TF32, and automatic mixed precision with ``torch.autocast``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from harness import data as datasets
from harness import workloads
from harness.backends import Check
from harness.backends.torch_step import Step, build_optimizer
from harness.errors import MeasurementError, Unavailable
from harness.spec import Cell, Framework

_AMPERE = (8, 0)
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}

# The resolutions that the document states for the float types.
_STATED = {torch.float16: 1e-3, torch.float32: 1e-7, torch.float64: 1e-16}

# Training before gradients are looked at: by then many examples are classified with confidence, their gradients small.
_UNDERFLOW_STEPS = 40
_UNDERFLOW_BATCH = 128
_UNDERFLOW_SEED = 0
_SCALE_TRIES = 20


def unavailable(level: str, cell: Cell) -> str | None:
    """TF32 and bfloat16 units came with compute capability 8.0; a CPU has no TF32."""
    if level not in ("tf32", "bf16"):
        return None
    if cell.toggles["device"] == "cpu":
        return "a CPU has no TF32 units" if level == "tf32" else None
    if not torch.cuda.is_available():
        return None  # the device toggle says so
    capability = torch.cuda.get_device_capability()
    if capability >= _AMPERE:
        return None
    found = f"{torch.cuda.get_device_name()} has {capability[0]}.{capability[1]}"
    return f"{level} needs a GPU of compute capability 8.0 or later; {found}"


def float32_products() -> tuple[Any, ...]:
    """The three places where torch keeps a float32 precision; left alone, cuDNN's two stand at TF32."""
    backends: Any = torch.backends
    return backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn


def environment(level: str, _cell: Cell) -> None:
    """IEEE float32 wherever float32 is computed, also beside 16 bits, except in the cell that asks for TF32."""
    for place in float32_products():
        place.fp32_precision = "tf32" if level == "tf32" else "ieee"


def step(level: str, step: Step, _cell: Cell) -> Step:
    """Autocast in 16 bits over float32 weights; fp16 gets its dynamic loss scaling with it."""
    if level not in _AUTOCAST:
        return step
    scaler = torch.amp.GradScaler(step.device.type) if level == "fp16" else None
    return dataclasses.replace(step, autocast=_AUTOCAST[level], scaler=scaler)


def float_eps(_cell: Cell) -> list[Check]:
    """The spacing above 1 of each float type, by halving in its own arithmetic, and its ratio to the stated one."""
    found = []
    for dtype, stated in _STATED.items():
        name = str(dtype).removeprefix("torch.")
        one = torch.ones((), dtype=dtype)
        eps = torch.ones((), dtype=dtype)
        while bool(one + eps / 2 > one):
            eps = eps / 2
        found.append(Check(name=f"eps_{name}", value=float(eps), detail="halved until 1 + eps/2 is 1"))
        found.append(Check(name=f"eps_ratio_{name}", value=float(eps) / stated, detail=f"to the stated {stated:g}"))
    return found


def mixed_policy(_cell: Cell) -> list[Check]:
    """A statement about Keras alone."""
    raise Unavailable("the mixed-precision policy is an API of Keras; PyTorch sets precision with torch.autocast")


def _gradients(model: nn.Module, loss: Tensor) -> Tensor:
    """All gradients of a loss in one vector, in the dtype of the parameters."""
    return torch.cat([g.ravel() for g in torch.autograd.grad(loss, list(model.parameters()))])


def _scaled_gradients(half: Step, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """Gradients under fp16 with the loss scaled as GradScaler does it: halve the scale until nothing overflows."""
    scale = torch.amp.GradScaler(half.device.type).get_scale()
    for _ in range(_SCALE_TRIES):
        gradients = _gradients(model, half.loss(model, x, y) * scale)
        if bool(torch.isfinite(gradients).all()):
            return gradients / scale, scale
        scale /= 2
    raise MeasurementError(f"fp16 gradients overflow even at a loss scale of {scale:g}; lower the learning rate")


def gradient_underflow(cell: Cell) -> list[Check]:
    """Shares of the gradient entries, not zero in float32, that fp16 loses without and with loss scaling.

    One backward pass each on the same weights and unseen batch of ``cnn_fashion``, after some float32 training.
    """
    device = torch.device("cuda:0" if cell.toggles["device"] == "gpu" else "cpu")
    full = Step(device=device)
    half = dataclasses.replace(full, autocast=torch.float16)
    workload = workloads.load("cnn_fashion")
    size, n = workload.size["cpu"], _UNDERFLOW_STEPS * workload.base_batch + _UNDERFLOW_BATCH
    arrays = datasets.load(workload.data, size=size)
    rows = datasets.epoch_order(len(arrays.train_y), n, _UNDERFLOW_SEED, 0)[0]
    images = torch.from_numpy(datasets.prepare_images(arrays.train_x[rows], size, workload.channels))
    sizes = [workload.base_batch] * _UNDERFLOW_STEPS + [_UNDERFLOW_BATCH]
    inputs = images.permute(0, 3, 1, 2).contiguous().to(device).split(sizes)
    labels = torch.from_numpy(arrays.train_y[rows]).to(device).split(sizes)
    torch.manual_seed(_UNDERFLOW_SEED)
    model = workloads.part(workload.name, Framework.TORCH).build(workload, size, arrays.classes).to(device)
    optimizer = build_optimizer(workload.optimizer, model)
    for x, y in zip(inputs[:-1], labels[:-1], strict=True):
        full.run(model, optimizer, x, y)
    x, y = inputs[-1], labels[-1]
    exact = _gradients(model, full.loss(model, x, y))
    scaled, scale = _scaled_gradients(half, model, x, y)
    there = exact != 0
    lost = {
        "underflow_unscaled": float((_gradients(model, half.loss(model, x, y))[there] == 0).double().mean()),
        "underflow_scaled": float((scaled[there] == 0).double().mean()),
    }
    detail = f"of {int(there.sum())} entries that are not zero in float32, on {device.type}"
    found = [Check(name=name, value=value, unit="share", detail=detail) for name, value in lost.items()]
    if lost["underflow_unscaled"] == 0:
        raise MeasurementError(f"nothing vanished in fp16 {detail}, so there was nothing for loss scaling to prevent")
    prevented = 1 - lost["underflow_scaled"] / lost["underflow_unscaled"]
    detail = f"at a loss scale of {scale:g}"
    return [*found, Check(name="underflow_prevented", value=prevented, unit="share", detail=detail)]


CHECKS: dict[str, Callable[[Cell], list[Check]]] = {
    "float_eps": float_eps,
    "mixed_policy": mixed_policy,
    "gradient_underflow": gradient_underflow,
}
