"""TensorFlow and Keras: what a worker does with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness import data as datasets
from harness import spec, techniques, workloads
from harness.backends import Check, Session, Stored
from harness.backends.group import GroupError
from harness.backends.tensorflow_group import KerasGroup, RankSession
from harness.backends.tensorflow_loading import KerasLoading, Training
from harness.backends.tensorflow_plan import Plan
from harness.backends.tensorflow_replicas import strategy_of
from harness.backends.tensorflow_session import KerasSession
from harness.backends.tensorflow_step import Data, Split, Step, build_optimizer, compile_model, gpus, keras, tf
from harness.data import formats
from harness.errors import ConfigError, unknown
from harness.measure.host_memory import HostMemoryWindow, keep_freed_memory
from harness.spec import Cell, Framework, Mode, Status

K = TypeVar("K", bound=KerasSession)

PRELOAD = ("tensorflow", "keras", "keras_hub")

INSTALL = "pip install 'speedproof[tensorflow]'"
RESIDENT_BYTES = 32 << 20  # as in PyTorch, so that both cycle through the same batches
RESIDENT_BATCHES = (2, 16)  # at least, at most

# Status 1 is oneDNN's out_of_memory; TensorFlow wraps it in an AbortedError.
_OUT_OF_MEMORY = ("out of memory", "out_of_memory", "oom when", "failed to allocate", "status: 1, message")

_host_memory: list[HostMemoryWindow] = []  # made when the process is configured, before anything is built


def configure(threads: int) -> None:
    """Set the threads inside an operation and between operations, before TensorFlow starts its pools."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    # As TensorFlow does by itself; with 1 between operations, a step of ResNet-50 took a quarter longer on 2 cores.
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    for gpu in gpus():
        tf.config.experimental.set_memory_growth(gpu, True)  # else the first step takes the whole card
    keras.utils.disable_interactive_logging()
    keep_freed_memory()
    _host_memory.append(HostMemoryWindow())


def describe() -> dict[str, object]:
    """Versions, devices and how the installed library was built."""
    build = tf.sysconfig.get_build_info()
    devices = {"cpu": _cpu_name()}
    facts: dict[str, object] = {
        "version": tf.__version__,
        "keras": keras.__version__,
        "devices": devices,
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "interop_threads": tf.config.threading.get_inter_op_parallelism_threads(),
        "onednn": os.environ["TF_ENABLE_ONEDNN_OPTS"] != "0",
        "built_for_cuda": build.get("cuda_version") if build.get("is_cuda_build") else None,
    }
    if gpus():
        details = tf.config.experimental.get_device_details(gpus()[0])
        devices["gpu"] = details.get("device_name", "GPU")
        facts["gpus"] = len(gpus())
        facts["compute_capability"] = ".".join(map(str, details.get("compute_capability", ())))
        facts["cudnn"] = build.get("cudnn_version")
    return facts


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine


def unavailable(cell: Cell) -> str | None:
    """Why this cell cannot run here: a package of the workload, or a level of a technique."""
    return workloads.missing(cell.workload, Framework.TENSORFLOW, INSTALL) or techniques.unavailable(cell)


def open_session(cell: Cell, *, seed: int, data_limit: tuple[int, int] | None) -> Session:
    """Build the session of a cell; see :class:`harness.backends.Backend`."""
    if cell.toggles["strategy"] != "multiworker" or cell.devices == 1:
        return _open(KerasSession, cell, seed, data_limit)

    def open_rank() -> RankSession:
        _host_memory[:] = [HostMemoryWindow()]  # this rank's own, from here
        return _open(RankSession, cell, seed, data_limit)

    datasets.load(workloads.load(cell.workload).data, size=cell.size)  # once, and shared by the ranks
    return KerasGroup(cell, open_rank)


def _open(kind: type[K], cell: Cell, seed: int, data_limit: tuple[int, int] | None) -> K:
    """The session of one process."""
    memory = _set_up(cell, seed)
    workload = workloads.load(cell.workload)
    arrays = datasets.load(workload.data, size=cell.size)
    data: Data = techniques.apply("data", _prepare(workload, cell, arrays, seed, data_limit), cell)
    strategy = strategy_of(cell)
    with strategy.scope():
        model, step = _model(workload, cell, arrays.classes)
    return kind(
        model=model,
        data=data,
        batch=cell.global_batch,
        seed=seed,
        step=step,
        strategy=strategy,
        host_memory=memory,
    )


def store(cell: Cell, examples: int | None) -> Stored:
    """Make the stored set of a cell; see :class:`harness.backends.Backend`."""
    return formats.store(cell.toggles["format"], size=cell.size, examples=examples, sample=cell.toggles["sample"])


def open_loading(cell: Cell, *, seed: int, examples: int | None) -> KerasLoading:
    """Open the stored set of a cell and its pipeline, and for END_TO_END its model; see its ``Backend``."""
    memory = _set_up(cell, seed)
    toggles = cell.toggles
    stored = formats.open_set(toggles["format"], size=cell.size, examples=examples, sample=toggles["sample"])
    plan: Plan = techniques.apply("loader", Plan(), cell)
    training = None
    if cell.mode is Mode.END_TO_END:
        model, step = _model(workloads.load(cell.workload), cell, len(stored.classes))
        training = Training(model, batch=cell.batch, size=cell.size, device=step.device)
    return KerasLoading(
        stored=stored,
        plan=plan,
        training=training,
        batch=cell.batch,
        seed=seed,
        cold=toggles["page_cache"] == "cold",
        host_memory=memory,
    )


def _set_up(cell: Cell, seed: int) -> HostMemoryWindow:
    """Process-wide settings and seeds, before anything is built."""
    if not _host_memory:
        raise ConfigError("the TensorFlow backend is not configured; call configure(threads) before opening a cell")
    for stage, level in techniques.stages("environment", cell):
        stage(level, cell)
    keras.utils.set_random_seed(seed)
    return _host_memory[0]


def _model(workload: spec.Workload, cell: Cell, classes: int) -> tuple[Any, Step]:
    """The compiled model, and how its step is run, as the techniques leave them."""
    model = workloads.part(cell.workload, Framework.TENSORFLOW).build(workload, cell.size, classes)
    model = techniques.apply("model", model, cell)
    recipe: spec.Optimizer = techniques.apply("optimizer", workload.optimizer, cell)
    step: Step = techniques.apply("step", Step(), cell)
    compile_model(model, build_optimizer(recipe), step)
    return model, step


def _prepare(
    workload: spec.Workload, cell: Cell, arrays: datasets.Arrays, seed: int, limit: tuple[int, int] | None
) -> Data:
    """The arrays of a session: all examples for convergence, else those of the resident batches."""
    if cell.mode is Mode.CONVERGENCE:
        train_n, test_n = limit or (len(arrays.train_y), len(arrays.test_y))
        test = _split(workload, cell.size, arrays.test_x[:test_n], arrays.test_y[:test_n])
        return Data(train=_split(workload, cell.size, arrays.train_x[:train_n], arrays.train_y[:train_n]), test=test)
    example = 4 * (workload.channels * cell.size**2 if workload.task == "image" else cell.size)
    fewest, most = RESIDENT_BATCHES
    count = min(most, max(fewest, RESIDENT_BYTES // (example * cell.global_batch)))
    order = datasets.epoch_order(len(arrays.train_y), 1, seed, 0).ravel()
    rows = np.resize(order, count * cell.global_batch)  # starts over where the set is smaller than the batches
    return Data(train=_split(workload, cell.size, arrays.train_x[rows], arrays.train_y[rows]), test=None)


def _split(workload: spec.Workload, size: int, x: NDArray[np.generic], y: NDArray[np.int64]) -> Split:
    if workload.task == "text":
        return Split(x=x, y=y)
    return Split(x=datasets.prepare_images(x, size, workload.channels), y=y)


def checks(cell: Cell, name: str) -> list[Check]:
    """The values of a named check; raises :class:`~harness.errors.ConfigError` for a name that no technique has."""
    found: dict[str, Callable[[Cell], list[Check]]] = {}
    for toggle in techniques.TOGGLES:
        found |= getattr(techniques.part(toggle, Framework.TENSORFLOW), "CHECKS", {})
    if name not in found:
        raise unknown("check", name, found)
    return found[name](cell)


def classify(error: BaseException) -> Status:
    """``OOM`` where the allocator of the GPU or the host, or a library's behind it, refused."""
    if isinstance(error, (tf.errors.ResourceExhaustedError, MemoryError)):
        return Status.OOM
    if isinstance(error, GroupError):
        return Status.OOM if error.out_of_memory else Status.ERROR
    message = str(error).lower()
    full = isinstance(error, tf.errors.OpError) and any(sign in message for sign in _OUT_OF_MEMORY)
    return Status.OOM if full else Status.ERROR
