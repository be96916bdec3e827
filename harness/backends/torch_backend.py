"""PyTorch: what a worker does with it. Implements :class:`harness.backends.Backend`."""

from __future__ import annotations

import os
import platform
import random
from collections.abc import Callable

# CUDA's own count of devices starts the driver, and one started before a fork is dead in the child. NVML's does not.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn

from harness import data as datasets
from harness import hosts as several
from harness import spec, techniques, workloads
from harness.backends import Check, Session, Stored
from harness.backends.group import GroupError
from harness.backends.torch_dali import DaliLoader
from harness.backends.torch_group import GroupSession, OpenShard, Shard, Together, take_part
from harness.backends.torch_loader import WorkerLoader
from harness.backends.torch_loading import Loader, TorchLoading, Training
from harness.backends.torch_pipeline import PipelineSession, PipelineStep, pipelined, stage_of
from harness.backends.torch_plan import Plan
from harness.backends.torch_session import TorchSession
from harness.backends.torch_step import Data, Split, Step, build_optimizer
from harness.data import formats
from harness.errors import ConfigError, unknown
from harness.measure.host_memory import HostMemoryWindow, keep_freed_memory
from harness.spec import SPLIT_MODEL, Cell, Framework, Mode, Status

PRELOAD = ("torch", "torchvision", "transformers.models.distilbert.modeling_distilbert")

INSTALL = "pip install 'speedproof[torch]'"
RESIDENT_BYTES = 32 << 20  # that steps cycle through: enough batches not to memorise them, too few to weigh in a peak
RESIDENT_BATCHES = (2, 16)  # at least, at most

IN_PROCESSES = frozenset({"ddp", "fsdp", "pipeline"})  # strategies with a process for each device

_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed")

_host_memory: list[HostMemoryWindow] = []  # made when the process is configured, before anything is built


def configure(threads: int) -> None:
    """Set the compute threads of this process, and take its memory now as the zero of :meth:`TorchSession.memory`."""
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)  # allowed once, and only before the first parallel work
    keep_freed_memory()
    _host_memory.append(HostMemoryWindow())


def describe() -> dict[str, object]:
    """Versions, devices and the CPU's instruction set, as torch sees them."""
    cuda = torch.cuda.is_available()
    devices = {"cpu": f"{platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"}
    facts: dict[str, object] = {
        "version": torch.__version__,
        "devices": devices,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "built_for_cuda": torch.version.cuda,
    }
    if cuda:
        devices["gpu"] = torch.cuda.get_device_name(0)
        facts["gpus"] = torch.cuda.device_count()
        facts["compute_capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
        facts["cudnn"] = torch.backends.cudnn.version()
    return facts


def unavailable(cell: Cell) -> str | None:
    """Why this cell cannot run here: a package of the workload, or a level of a technique."""
    return workloads.missing(cell.workload, Framework.TORCH, INSTALL) or techniques.unavailable(cell)


def open_session(cell: Cell, *, seed: int, data_limit: tuple[int, int] | None) -> Session:
    """Build the session of a cell; see :class:`harness.backends.Backend`."""
    if cell.toggles["strategy"] not in IN_PROCESSES:
        return _open(cell, seed, data_limit)
    return GroupSession(cell, _opener(cell, seed), seed=seed)


def join(cell: Cell, *, seed: int, group: str, host: int) -> None:
    """Be host number ``host`` of those that train a cell together, until that has ended."""
    hosts = several.from_environment()
    if hosts is None:
        raise ConfigError("this process knows of no other hosts; start it with `speedproof join`")
    take_part(cell, _opener(cell, seed), seed=seed, together=Together(hosts=hosts, group=group), host=host)


def _opener(cell: Cell, seed: int) -> OpenShard:
    """What a rank, forked from this process, opens its session with."""

    def open_shard(shard: Shard) -> Session:
        _host_memory[:] = [HostMemoryWindow()]  # this rank's own, from here
        return _open(cell, seed, None, shard)

    datasets.load(workloads.load(cell.workload).data, size=cell.size)  # once, and shared by the ranks
    return open_shard


def _open(cell: Cell, seed: int, data_limit: tuple[int, int] | None, shard: Shard = (0, 1)) -> TorchSession:
    """The session of one process, which trains on its shard (its rank, of so many) of the examples."""
    memory = _set_up(cell, seed)
    workload = workloads.load(cell.workload)
    arrays = datasets.load(workload.data, size=cell.size)
    if cell.toggles["strategy"] in SPLIT_MODEL:
        shard = (0, 1)  # every stage sees the whole batch
    batch = cell.global_batch // shard[1]
    data: Data = techniques.apply("data", _prepare(workload, cell, arrays, seed, data_limit, batch, shard), cell)
    training = _training(workload, cell, arrays.classes)
    kind = PipelineSession if isinstance(training.step, PipelineStep) else TorchSession
    return kind(
        model=training.model,
        optimizer=training.optimizer,
        step=training.step,
        data=data,
        batch=batch,
        seed=seed,
        host_memory=memory,
    )


def store(cell: Cell, examples: int | None) -> Stored:
    """Make the stored set of a cell; see :class:`harness.backends.Backend`."""
    return formats.store(cell.toggles["format"], size=cell.size, examples=examples, sample=cell.toggles["sample"])


def open_loading(cell: Cell, *, seed: int, examples: int | None) -> TorchLoading:
    """Open the stored set of a cell and its loader, and for END_TO_END its model."""
    memory = _set_up(cell, seed)
    toggles = cell.toggles
    stored = formats.open_set(toggles["format"], size=cell.size, examples=examples, sample=toggles["sample"])
    plan: Plan = techniques.apply("loader", Plan(), cell)
    kind = DaliLoader if toggles["decoder"] == "dali" else WorkerLoader
    loader: Loader = kind(stored, plan, batch=cell.batch, seed=seed)
    end_to_end = cell.mode is Mode.END_TO_END
    training = _training(workloads.load(cell.workload), cell, len(stored.classes)) if end_to_end else None
    return TorchLoading(
        stored=stored,
        loader=loader,
        training=training,
        batch=cell.batch,
        cold=toggles["page_cache"] == "cold",
        host_memory=memory,
    )


def _set_up(cell: Cell, seed: int) -> HostMemoryWindow:
    """Seeds and process-wide settings, before anything is built."""
    if not _host_memory:
        raise ConfigError("the PyTorch backend is not configured; call configure(threads) before opening a cell")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    for stage, level in techniques.stages("environment", cell):
        stage(level, cell)
    return _host_memory[0]


def _training(workload: spec.Workload, cell: Cell, classes: int) -> Training:
    """The model, its optimizer and its step, as the techniques leave them."""
    model: nn.Module = workloads.part(cell.workload, Framework.TORCH).build(workload, cell.size, classes)
    if splits := cell.toggles["strategy"] in SPLIT_MODEL and cell.devices > 1:
        layers = workloads.part(cell.workload, Framework.TORCH).layers(model)
        model = stage_of(layers, dist.get_rank(), cell.devices)
    model = techniques.apply("model", model.train(), cell)
    recipe: spec.Optimizer = techniques.apply("optimizer", workload.optimizer, cell)
    step: Step = techniques.apply("step", Step(), cell)
    if splits:
        step = pipelined(step, model)
    return Training(model=model, optimizer=build_optimizer(recipe, model), step=step)


def _prepare(
    workload: spec.Workload,
    cell: Cell,
    arrays: datasets.Arrays,
    seed: int,
    limit: tuple[int, int] | None,
    batch: int,
    shard: Shard,
) -> Data:
    """The tensors of a session on the host: all examples for convergence, else those of the resident batches."""
    if cell.mode is Mode.CONVERGENCE:
        train_n, test_n = limit or (len(arrays.train_y), len(arrays.test_y))
        test = _split(workload, cell.size, arrays.test_x[:test_n], arrays.test_y[:test_n])
        return Data(train=_split(workload, cell.size, arrays.train_x[:train_n], arrays.train_y[:train_n]), test=test)
    example = 4 * (workload.channels * cell.size**2 if workload.task == "image" else cell.size)
    fewest, most = RESIDENT_BATCHES
    count = min(most, max(fewest, RESIDENT_BYTES // (example * batch)))
    rank, ranks = shard
    order = datasets.epoch_order(len(arrays.train_y), 1, seed, 0).ravel()[rank::ranks]
    rows = np.resize(order, count * batch)  # starts over where the set is smaller than the batches
    return Data(train=_split(workload, cell.size, arrays.train_x[rows], arrays.train_y[rows]), test=None)


def _split(workload: spec.Workload, size: int, x: NDArray[np.generic], y: NDArray[np.int64]) -> Split:
    labels = torch.from_numpy(np.array(y))  # a copy: the set is shared, and may be read-only
    if workload.task == "text":
        return Split(x=torch.from_numpy(np.array(x)), y=labels)
    images = torch.from_numpy(datasets.prepare_images(x, size, workload.channels))
    return Split(x=images.permute(0, 3, 1, 2).contiguous(), y=labels)


def checks(cell: Cell, name: str) -> list[Check]:
    """The values of a named check; raises :class:`~harness.errors.Unavailable` for one that PyTorch has no part in."""
    found: dict[str, Callable[[Cell], list[Check]]] = {}
    for toggle in techniques.TOGGLES:
        found |= getattr(techniques.part(toggle, Framework.TORCH), "CHECKS", {})
    if name not in found:
        raise unknown("check", name, found)
    return found[name](cell)


def classify(error: BaseException) -> Status:
    """``OOM`` where the GPU's or the host's allocator refused."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return Status.OOM
    if isinstance(error, GroupError):
        return Status.OOM if error.out_of_memory else Status.ERROR
    message = str(error).lower()
    full = isinstance(error, RuntimeError) and any(sign in message for sign in _OUT_OF_MEMORY)
    return Status.OOM if full else Status.ERROR
