"""Replicas and the whole batch in TensorFlow; the devices themselves are the strategy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.backends import Check
from harness.backends.tensorflow_step import keras, tf
from harness.spec import Cell
from harness.techniques.devices import equality as eq
from harness.techniques.devices.equality import Weights


def _built(replicas: int, *, batchnorm: bool = False) -> Any:
    """The compiled model, in the scope of so many replicas."""
    keras.utils.set_random_seed(0)
    strategy = tf.distribute.get_strategy()
    if replicas > 1:
        devices = [f"CPU:{i}" for i in range(replicas)]
        strategy = tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())
    with strategy.scope():
        norm = keras.layers.BatchNormalization() if batchnorm else keras.layers.GroupNormalization(2)
        layers = [keras.layers.Conv2D(8, 3), norm, keras.layers.ReLU(), keras.layers.Flatten()]
        model = keras.Sequential([*layers, keras.layers.Dense(eq.CLASSES)])
        model.compile(
            keras.optimizers.SGD(eq.RATE, momentum=eq.MOMENTUM),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        model.build((None, eq.EDGE, eq.EDGE, 1))
    return model


def _trained(replicas: int, *, batchnorm: bool = False, shards: int = 1) -> Weights:
    """The weights after the steps of ``fit``; of ``shards`` only the first is seen."""
    model = _built(replicas, batchnorm=batchnorm)
    images, labels = (a[::shards] for a in eq.examples())
    model.fit(images[..., None], labels, batch_size=len(labels), epochs=eq.STEPS, shuffle=False, verbose=0)
    return [v.numpy() for v in model.trainable_variables]


def shards_equal_batch(_cell: Cell) -> list[Check]:
    """MirroredStrategy over logical CPU devices against the whole batch on one."""
    (host,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(host, [tf.config.LogicalDeviceConfiguration()] * max(eq.REPLICAS))
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    whole, forgotten = _trained(1), _trained(1, shards=2)
    sharded = {n: _trained(n) for n in eq.REPLICAS}
    batchnorm = _trained(1, batchnorm=True), _trained(2, batchnorm=True)
    # What trained above was built in a scope and given to fit, and nothing else: the weights must be on every device.
    model = _built(max(eq.REPLICAS))
    held = model.distribute_strategy.experimental_local_results(model.trainable_variables[0].value)
    everywhere = len({part.device for part in held}) == max(eq.REPLICAS)
    detail = f"weights on {len(held)} of {max(eq.REPLICAS)} logical devices"
    one_line = Check(name="mirrored_one_line", value=float(everywhere), detail=detail)
    return [*eq.compare(whole, sharded, forgotten, batchnorm), one_line]


CHECKS: dict[str, Callable[[Cell], list[Check]]] = {"shards_equal_batch": shards_equal_batch}
