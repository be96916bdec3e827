"""TensorFlow and Keras as every TensorFlow part of the package gets them, and the parts of a training step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import spec
from harness.errors import ConfigError, unknown

__all__ = ["Data", "Split", "Step", "build_optimizer", "compile_model", "gpus", "has_tf32", "keras", "tf"]

# Keras reads its backend once, at import; another choice in the user's environment or configuration is not for us.
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Off by default on CPUs without AVX-512, where it still halves the time of a convolution; the user's own choice stands.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


@contextmanager
def _silenced() -> Iterator[None]:
    """Send what the C++ side writes to file descriptor 2 to nowhere: it logs before any log level is read."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


with _silenced():
    import keras
    import tensorflow as tf

_AMPERE = (8, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Examples on the host: images float32 [n, h, w, c] or tokens int32 [n, tokens]; ``y`` int64 [n]."""

    x: NDArray[np.generic]
    y: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """What a session trains and is tested on. ``test`` is ``None`` where only resident batches are stepped through."""

    train: Split
    test: Split | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """How one training step is run. A technique returns a changed copy.

    ``device`` is "cpu" or "gpu"; ``scale_loss`` lets Keras scale the loss where the policy is mixed_float16.
    ``jit_compile`` is pinned: Keras would switch XLA on by itself on a GPU, and XLA is a technique of its own.
    """

    device: str = "cpu"
    scale_loss: bool = True
    jit_compile: bool = False
    steps_per_execution: int = 1


def compile_model(model: Any, optimizer: Any, step: Step) -> None:
    """Mean cross entropy of logits, and no metrics: their cost is not the model's."""
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=step.jit_compile,
        auto_scale_loss=step.scale_loss,
        steps_per_execution=step.steps_per_execution,
    )


def build_optimizer(recipe: spec.Optimizer) -> Any:
    """The optimizer of a recipe, with PyTorch's constants where Keras has others."""
    if recipe.name == "sgd":
        if recipe.weight_decay:
            raise ConfigError("weight decay with sgd means two things (added to the gradient, or apart); use adamw")
        return keras.optimizers.SGD(recipe.learning_rate, momentum=recipe.momentum)
    if recipe.name == "adamw":
        return keras.optimizers.AdamW(recipe.learning_rate, weight_decay=recipe.weight_decay, epsilon=1e-8)
    raise unknown("optimizer", recipe.name, ("sgd", "adamw"))


def gpus() -> list[Any]:
    """The GPUs that TensorFlow can use; asking starts none of them."""
    found: list[Any] = tf.config.list_physical_devices("GPU")
    return found


def has_tf32() -> bool:
    """Whether the first GPU has TF32 units: NVIDIA's since compute capability 8.0."""
    capability = tf.config.experimental.get_device_details(gpus()[0]).get("compute_capability")
    return capability is not None and tuple(capability) >= _AMPERE
