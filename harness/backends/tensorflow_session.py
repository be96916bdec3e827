"""One Keras model in training."""

from __future__ import annotations

import time
from inspect import getclosurevars
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import data as datasets
from harness.backends import Evaluation, Memory, Observed
from harness.backends.tensorflow_step import Data, Split, Step, has_tf32, keras, tf
from harness.errors import ConfigError
from harness.measure.host_memory import HostMemoryWindow

EVALUATION_BATCH = 256

_PRODUCTS = frozenset({"Conv2D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2", "Einsum"})


class KerasSession:
    """One compiled Keras model in training; see :class:`harness.backends.Session`.

    A step is one call of the train function that ``Model.fit`` itself runs. The examples stay on the device, and the
    train function is fed with their positions (int64 [batch]), so no step copies examples from the host, nothing can be
    prefetched in idle time, and one graph serves every epoch.
    """

    trace_s: float | None

    def __init__(
        self,
        *,
        model: Any,
        data: Data,
        batch: int,
        seed: int,
        step: Step,
        strategy: Any,
        host_memory: HostMemoryWindow,
    ) -> None:
        self.items_per_step = batch
        self._model = model
        self._strategy = strategy
        self._per_call = step.steps_per_execution
        self._device = f"/{step.device.upper()}:0"
        self._seed = seed
        self._host_memory = host_memory
        self._examples = len(data.train.y)
        self._train_on = {device: _resident(data.train, device or self._device) for device in self._devices()}
        self._test = None if data.test is None else _resident(data.test, self._device)
        self._score = tf.function(self._score_batch, reduce_retracing=True)
        self._loss: Any = float("nan")
        self._feed()
        resident = np.arange(self._examples if data.test is None else batch, dtype=np.int64)
        self._batches = self._feeding(resident.reshape(-1, batch), again=True)
        self._trace()

    def _devices(self) -> list[str]:
        """Where replicas train, by the names that they have in the strategy; "" where there is one."""
        if self._strategy.num_replicas_in_sync == 1:
            return [""]
        return [_name(device) for device in self._strategy.extended.worker_devices]

    def _feed(self) -> None:
        """Have the model's own train step take its batch out of the examples on its device."""
        train_step = self._model.train_step

        def gather_and_train(positions: Any) -> Any:
            here = ""
            if len(self._train_on) > 1:
                here = _name(tf.nest.flatten(tf.distribute.get_replica_context().devices)[0])
            x, y = self._train_on[here]
            return self._logged(train_step((tf.gather(x, positions), tf.gather(y, positions))))

        self._model.train_step = gather_and_train

    def _logged(self, logs: dict[str, Any]) -> dict[str, Any]:
        """What a train step reports, as Keras merges it over the replicas."""
        return logs

    def _trace(self) -> None:
        """Build the optimizer's state and the graph of the step; run nothing."""
        with self._strategy.scope():
            self._model.optimizer.build(self._model.trainable_variables)
        self._model.make_train_function()
        self._train = self._model.train_function
        # Keras wraps the tf.function in a plain one, and only a tf.function can be traced without being run.
        traced = getclosurevars(self._train).nonlocals["multi_step_on_iterator"]
        started = time.perf_counter()
        self._graph = traced.get_concrete_function(self._batches).graph
        self.trace_s = time.perf_counter() - started

    def _feeding(self, order: NDArray[np.int64], *, again: bool = False) -> Any:
        """An iterator over the rows of ``order`` [steps, batch], for ever if asked; each replica gets its share."""
        shares = _positions(self._shares(order))
        shares = shares.repeat() if again else shares
        if self._strategy.num_replicas_in_sync == 1:
            return iter(shares)
        return iter(self._strategy.distribute_datasets_from_function(lambda _: shares))

    def _shares(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows that this process's replicas take, one after the other, of the steps in ``order``."""
        return order.reshape(len(order) * self._strategy.num_replicas_in_sync, -1)

    def _run(self, batches: Any, n: int) -> None:
        train, logs = self._train, None
        self._model.reset_metrics()  # Keras reports the mean loss since the last reset
        for _ in range(n // self._per_call):
            logs = train(batches)
        if logs is not None:
            self._loss = logs["loss"]

    def steps(self, n: int) -> None:
        """Enqueue ``n`` steps over the resident batches."""
        self._run(self._batches, n)

    def synchronize(self) -> None:
        """Wait for every device of this process."""
        tf.test.experimental.sync_devices()

    def fetch_loss(self) -> float:
        """The mean loss since the last call of :meth:`steps` began, the last step's included."""
        return float(self._loss)

    def train_epoch(self, epoch: int) -> int:
        """Train over the epoch's order; a new iterator of the same shape does not trace the step again."""
        order = datasets.epoch_order(self._examples, self.items_per_step, self._seed, epoch)
        self._run(self._feeding(order), len(order))
        return order.size

    def _score_batch(self, positions: Any) -> tuple[Any, Any]:
        assert self._test is not None
        x, y = (tf.gather(t, positions) for t in self._test)
        logits = self._model(x, training=False)
        loss = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        right = tf.math.count_nonzero(tf.equal(tf.argmax(logits, axis=-1), y))
        return right, tf.reduce_sum(tf.cast(loss, tf.float64))

    def evaluate(self) -> Evaluation:
        """Accuracy and mean loss over the whole test set, in a graph of its own."""
        if self._test is None:
            raise ConfigError("this session holds no test set; open it in convergence mode to evaluate it")
        n = len(self._test[1])
        starts = range(0, n, EVALUATION_BATCH)
        scores = [self._score(tf.range(s, min(s + EVALUATION_BATCH, n), dtype=tf.int64)) for s in starts]
        right, loss = (float(sum(float(part) for part in parts)) for parts in zip(*scores, strict=True))
        return Evaluation(accuracy=right / n, loss=loss / n)

    def reset_memory(self) -> None:
        """Start a new window for :meth:`memory`."""
        if self._device == "/GPU:0":
            tf.config.experimental.reset_memory_stats("GPU:0")
        else:
            self._host_memory.open()

    def memory(self) -> Memory:
        """Peak since the reset; TensorFlow does not tell activations apart."""
        gpu = self._device == "/GPU:0"
        peak = tf.config.experimental.get_memory_info("GPU:0")["peak"] if gpu else self._host_memory.peak()
        state = [v for v in self._model.optimizer.variables if len(v.shape)]  # the scalars are counters and rates
        return Memory(
            peak=int(peak), parameters=size_in_bytes(self._model.trainable_variables), optimizer=size_in_bytes(state)
        )

    def observe(self) -> Observed:
        """Run one step; read its graph for the first product, and Keras' own count for the examples."""
        self.steps(self._per_call)
        model = self._model
        replicas = self._strategy.experimental_local_results(model.trainable_variables[0].value)
        product = _first_product(self._graph)
        return Observed(
            device=device_kind(self._loss.device, *(replica.device for replica in replicas)),
            dtype=_dtype(product, self._device),
            layout=product.attr["data_format"].s.decode().lower() or "none",
            batch=int(tf.convert_to_tensor(model.metrics[0].count)) // self._per_call,  # of all replicas
            scaled=isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer),
            learning_rate=float(tf.convert_to_tensor(model.optimizer.learning_rate)),
            # Moving averages and states of random generators are no parameters, in either framework.
            parameters=sum(int(np.prod(v.shape)) for v in model.trainable_variables),
            devices=len({replica.device for replica in replicas}),
            threads=tf.config.threading.get_intra_op_parallelism_threads(),
        )


def _name(device: str) -> str:
    """One spelling of a device."""
    found: str = tf.DeviceSpec.from_string(device).to_string()
    return found


def _resident(split: Split, device: str) -> tuple[Any, Any]:
    """The examples on a device."""
    with tf.device(device):
        return tf.identity(tf.convert_to_tensor(split.x)), tf.identity(tf.convert_to_tensor(split.y))


def _positions(order: NDArray[np.int64]) -> Any:
    """A data set of the rows of ``order`` [steps, batch] that does nothing ahead of being asked."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return tf.data.Dataset.from_tensor_slices(order).with_options(options)


def size_in_bytes(variables: list[Any]) -> int:
    """What the variables' elements take."""
    return sum(int(np.prod(v.shape)) * tf.as_dtype(v.dtype).size for v in variables)


def _first_product(graph: Any) -> Any:
    """The node of the first convolution or matrix product in the graph that a step runs, nested functions included."""
    definition = graph.as_graph_def()
    functions = {f.signature.name: f.node_def for f in definition.library.function}

    def search(nodes: Any) -> Any:
        for node in nodes:
            if node.op in _PRODUCTS:
                return node
            called = [value.func.name for value in node.attr.values() if value.HasField("func")]
            found = next((product for name in called if (product := search(functions.get(name, ())))), None)
            if found is not None:
                return found
        return None

    product = search(definition.node)
    if product is None:
        raise ConfigError(f"the training step runs none of {', '.join(sorted(_PRODUCTS))}; nothing to observe")
    return product


def device_kind(*devices: str) -> str:
    """ "cpu" or "gpu"; both, joined, where the parts of a step are not in one place."""
    kinds = {tf.DeviceSpec.from_string(device).device_type.lower() for device in devices}
    return "+".join(sorted(kinds))


def _dtype(product: Any, device: str) -> str:
    name: str = tf.as_dtype(product.attr["T"].type).name
    allowed = name == "float32" and device == "/GPU:0" and tf.config.experimental.tensor_float_32_execution_enabled()
    return f"{name}+tf32" if allowed and has_tf32() else name
