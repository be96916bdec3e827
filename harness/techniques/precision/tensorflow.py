"""Precision in Keras: strict float32, TF32, and the mixed-precision policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import data as datasets
from harness import workloads
from harness.backends import Check
from harness.backends.tensorflow_step import Step, build_optimizer, compile_model, gpus, has_tf32, keras, tf
from harness.errors import MeasurementError
from harness.spec import Cell, Framework

_POLICIES = {"fp32": "float32", "tf32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}

# The resolutions that the document states for the float types.
_STATED = {tf.float16: 1e-3, tf.float32: 1e-7, tf.float64: 1e-16}

# As in PyTorch: training until most examples are classified with some confidence, so that gradients are small.
_UNDERFLOW_STEPS = 40
_UNDERFLOW_BATCH = 256
_UNDERFLOW_SEED = 0
_SCALE_TRIES = 20

_Batch = tuple[NDArray[np.float32], NDArray[np.int64]]


def unavailable(level: str, cell: Cell) -> str | None:
    """TF32 and bfloat16 units came with compute capability 8.0; a CPU has no TF32."""
    if level not in ("tf32", "bf16"):
        return None
    if cell.toggles["device"] == "cpu":
        return "a CPU has no TF32 units" if level == "tf32" else None
    if not gpus() or has_tf32():
        return None  # without a GPU, the device toggle says so
    details = tf.config.experimental.get_device_details(gpus()[0])
    found = f"{details.get('device_name', 'the GPU')} has {details.get('compute_capability')}"
    return f"{level} needs a GPU of compute capability 8.0 or later; {found}"


def environment(level: str, _cell: Cell) -> None:
    """IEEE float32 wherever float32 is computed, except where TF32 is asked for; the policy for what is built."""
    tf.config.experimental.enable_tensor_float_32_execution(level == "tf32")
    keras.config.set_dtype_policy(_POLICIES[level])


def float_eps(_cell: Cell) -> list[Check]:
    """The spacing above 1 of each float type, found by halving in its arithmetic, and its ratio to the stated one."""
    found = []
    for dtype, stated in _STATED.items():
        one, half = tf.ones((), dtype), tf.constant(0.5, dtype)
        eps = one
        while bool(one + eps * half > one):
            eps = eps * half
        found.append(Check(name=f"eps_{dtype.name}", value=float(eps), detail="halved until 1 + eps/2 is 1"))
        ratio = float(eps) / stated
        found.append(Check(name=f"eps_ratio_{dtype.name}", value=ratio, detail=f"to the stated {stated:g}"))
    return found


@contextmanager
def _policy(name: str) -> Iterator[None]:
    """What is built inside is built under this policy."""
    before = keras.config.dtype_policy()
    keras.mixed_precision.set_global_policy(name)
    try:
        yield
    finally:
        keras.mixed_precision.set_dtype_policy(before)


def _policy_model() -> Any:
    """A model with a product, a softmax, and a dense layer that is set to float32."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(4, 3),
            keras.layers.Flatten(),
            keras.layers.Softmax(),
            keras.layers.Dense(2, dtype="float32"),
        ]
    )


def mixed_policy(_cell: Cell) -> list[Check]:
    """The document's four statements about ``mixed_float16``, each looked up in a model that is built, run and trained.

    A value is 1 where the statement holds, 0 where it does not; ``policy_statements_true`` is their share.
    """
    images = tf.ones((2, 8, 8, 1))
    with _policy("mixed_float16"):
        model = _policy_model()
        model.compile("sgd", loss="mse", jit_compile=False)
        model.fit(images, tf.zeros((2, 2)), verbose=0)
    dtypes, output = [], images
    for layer in model.layers:
        output = layer(output)
        dtypes.append(output.dtype.name)
    product, _, softmax, override = dtypes
    weights = sorted({tf.as_dtype(v.dtype).name for v in model.trainable_variables})
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    statements = {
        "policy_one_line": (
            product == "float16" and scaled,
            f"after set_global_policy alone a convolution gives {product}, loss scaling is {'on' if scaled else 'off'}",
        ),
        "policy_variables_float32": (weights == ["float32"], f"trainable variables are {', '.join(weights)}"),
        "policy_softmax_float32": (softmax == "float32", f"a softmax layer puts out {softmax}"),
        "policy_layer_override": (override == "float32", f"a layer with dtype='float32' puts out {override}"),
    }
    found = [Check(name=name, value=float(holds), detail=detail) for name, (holds, detail) in statements.items()]
    share = sum(check.value for check in found) / len(found)
    return [
        *found,
        Check(name="policy_statements_true", value=share, unit="share", detail=f"of {len(found)} statements"),
    ]


def _build(policy: str) -> Any:
    workload = workloads.load("cnn_fashion")
    with _policy(policy):
        model = workloads.part(workload.name, Framework.TENSORFLOW).build(workload, workload.size["cpu"], 10)
    compile_model(model, build_optimizer(workload.optimizer), Step(scale_loss=False))
    return model


def _gradients(model: Any, batch: _Batch, scale: float) -> NDArray[np.float64]:
    """All gradients of the scaled loss in one vector, divided by the scale in float32 as the optimizer would."""
    x, y = batch
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True)) * scale
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    return np.concatenate([np.ravel(g.numpy() / np.float32(scale)) for g in gradients])


def _scaled_gradients(model: Any, batch: _Batch) -> tuple[NDArray[np.float64], float]:
    """Gradients with the loss scaled as LossScaleOptimizer does it: halve the scale until nothing overflows."""
    scale = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()).initial_scale
    for _ in range(_SCALE_TRIES):
        gradients = _gradients(model, batch, scale)
        if np.isfinite(gradients).all():
            return gradients, scale
        scale /= 2
    raise MeasurementError(f"fp16 gradients overflow even at a loss scale of {scale:g}; lower the learning rate")


def _trained(batches: list[_Batch]) -> Any:
    keras.utils.set_random_seed(_UNDERFLOW_SEED)
    model = _build("float32")
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    model.fit(x, y, batch_size=_UNDERFLOW_BATCH, shuffle=False, verbose=0)
    return model


def gradient_underflow(cell: Cell) -> list[Check]:
    """Shares of the gradient entries, not zero in float32, that fp16 loses without and with loss scaling.

    One backward pass each on the same weights and batch of ``cnn_fashion`` after some float32 training.
    """
    workload = workloads.load("cnn_fashion")
    size = workload.size["cpu"]
    arrays = datasets.load(workload.data, size=size)
    order = datasets.epoch_order(len(arrays.train_y), _UNDERFLOW_BATCH, _UNDERFLOW_SEED, 0)
    rows = [order[step % len(order)] for step in range(_UNDERFLOW_STEPS + 1)]
    batches = [(datasets.prepare_images(arrays.train_x[r], size, workload.channels), arrays.train_y[r]) for r in rows]
    full, half = _trained(batches[:-1]), _build("mixed_float16")
    half.set_weights(full.get_weights())
    there = _gradients(full, batches[-1], 1.0) != 0
    scaled, scale = _scaled_gradients(half, batches[-1])
    lost = {
        "underflow_unscaled": float(np.mean(_gradients(half, batches[-1], 1.0)[there] == 0)),
        "underflow_scaled": float(np.mean(scaled[there] == 0)),
    }
    detail = f"of {int(there.sum())} entries that are not zero in float32, on {cell.toggles['device']}"
    found = [Check(name=name, value=value, unit="share", detail=detail) for name, value in lost.items()]
    if lost["underflow_unscaled"] == 0:
        raise MeasurementError(f"nothing vanished in fp16 {detail}, so there was nothing for loss scaling to prevent")
    prevented = 1 - lost["underflow_scaled"] / lost["underflow_unscaled"]
    return [
        *found,
        Check(name="underflow_prevented", value=prevented, unit="share", detail=f"at a loss scale of {scale:g}"),
    ]


CHECKS: dict[str, Callable[[Cell], list[Check]]] = {
    "float_eps": float_eps,
    "mixed_policy": mixed_policy,
    "gradient_underflow": gradient_underflow,
}
