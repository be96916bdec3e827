"""MobileNetV2 from keras.applications, set to torchvision's constants."""

from __future__ import annotations

from typing import Any

import keras
from keras import initializers, layers

from harness.spec import Workload
from harness.workloads.resnet50.tensorflow import kaiming_fan_out


def build(workload: Workload, size: int, classes: int) -> Any:
    """Images [n, size, size, channels] to logits [n, classes]; weights and dropout as torchvision's."""
    backbone = keras.applications.MobileNetV2(
        weights=None, include_top=False, input_shape=(size, size, workload.channels)
    )
    for layer in backbone.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.epsilon, layer.momentum = 1e-5, 0.9  # Keras has 1e-3 and 0.999; read when a step is traced
    kaiming_fan_out(backbone)
    features = layers.GlobalAveragePooling2D()(backbone.output)
    features = layers.Dropout(0.2)(features)
    head = layers.Dense(classes, dtype="float32", kernel_initializer=initializers.RandomNormal(stddev=0.01))
    return keras.Model(backbone.input, head(features))
