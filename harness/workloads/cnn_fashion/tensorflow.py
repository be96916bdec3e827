"""The two-convolution network in Keras."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from harness.spec import Workload


def build(workload: Workload, size: int, classes: int) -> Any:
    """Images [n, size, size, channels] to logits [n, classes]; Keras' own Glorot uniform weights and zero biases."""
    return keras.Sequential(
        [
            keras.Input((size, size, workload.channels)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(classes, dtype="float32"),  # also under a mixed policy: a 16-bit softmax loses its small terms
        ]
    )
