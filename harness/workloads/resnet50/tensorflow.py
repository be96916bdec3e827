"""ResNet-50 from keras-hub: torchvision's network, layer by layer."""

from __future__ import annotations

from typing import Any

import keras
from keras import initializers, layers

from harness.spec import Workload

REQUIRES = ("keras_hub",)


def kaiming_fan_out(model: Any) -> None:
    """Draw every convolution's weights anew from a normal of variance 2 / fan_out, as torchvision does.

    Fan-out counts a kernel's outputs as PyTorch counts them: for a depthwise kernel [h, w, c, 1] they are h * w * c.
    Biases do not occur: a batch normalisation follows each of these convolutions.
    """
    for layer in model.layers:
        if isinstance(layer, (layers.Conv2D, layers.DepthwiseConv2D)):
            height, width, inputs, outputs = layer.kernel.shape
            filters = inputs if isinstance(layer, layers.DepthwiseConv2D) else outputs
            normal = initializers.RandomNormal(stddev=(2 / (height * width * filters)) ** 0.5)
            layer.kernel.assign(normal(layer.kernel.shape))


def build(workload: Workload, size: int, classes: int) -> Any:
    """Images [n, size, size, channels] to logits [n, classes]; the dense layer starts as PyTorch's does."""
    import keras_hub

    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128, 256, 512],
        stackwise_num_blocks=[3, 4, 6, 3],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="bottleneck_block",
        image_shape=(size, size, workload.channels),
    )
    kaiming_fan_out(backbone)
    features = layers.GlobalAveragePooling2D()(backbone.output)
    limit = features.shape[-1] ** -0.5
    head = layers.Dense(
        classes,
        dtype="float32",
        kernel_initializer=initializers.RandomUniform(-limit, limit),
        bias_initializer=initializers.RandomUniform(-limit, limit),
    )
    return keras.Model(backbone.input, head(features))
