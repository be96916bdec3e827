"""Keras' own ``fit``, with nothing of the suite in it: what its own step is held against.

Usage: keras_fit.py MODEL BATCH PIXELS THREADS, then a number of steps on each line of standard input; it answers with
the seconds that they took. MODEL is resnet50 or cnn_fashion.
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as in the suite: off by default without AVX-512, and slower
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf


def cnn_fashion(pixels):
    return keras.Sequential(
        [
            keras.Input((pixels, pixels, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def resnet50(pixels):
    import keras_hub

    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128, 256, 512],
        stackwise_num_blocks=[3, 4, 6, 3],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="bottleneck_block",
        image_shape=(pixels, pixels, 3),
    )
    pooled = keras.layers.GlobalAveragePooling2D()(backbone.output)
    return keras.Model(backbone.input, keras.layers.Dense(10)(pooled))


def main(name, batch, pixels, threads):
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    keras.utils.set_random_seed(0)
    model = cnn_fashion(pixels) if name == "cnn_fashion" else resnet50(pixels)
    model.compile(
        optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    channels = 1 if name == "cnn_fashion" else 3
    x = np.random.default_rng(0).standard_normal((batch, pixels, pixels, channels), dtype=np.float32)
    y = np.random.default_rng(1).integers(0, 10, batch)
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    for line in sys.stdin:
        started = time.perf_counter()
        model.fit(data, steps_per_epoch=int(line), epochs=1, verbose=0)
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
