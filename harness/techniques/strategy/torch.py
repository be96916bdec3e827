"""Several devices in PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel

from harness import hosts as several
from harness import workloads
from harness.backends.torch_exchange import OWN_BUFFERS
from harness.backends.torch_pipeline import MICRO_BATCHES
from harness.spec import Cell, Framework, Mode

_TENSORFLOW = {"mirrored": "MirroredStrategy", "multiworker": "MultiWorkerMirroredStrategy"}
_XLA = (
    "TPUs are measured through TensorFlow; in PyTorch they need torch_xla, whose last release takes another version of "
    "PyTorch than this suite"
)


def unavailable(level: str, cell: Cell) -> str | None:
    """A strategy needs its devices: GPUs, or on a CPU processes, of which there can be any number."""
    gpu = cell.toggles["device"] == "gpu"
    hosts = several.from_environment() if cell.devices > 1 else None
    count = hosts.count if hosts else 1
    reasons = (
        (level == "single" and cell.devices > 1, f"strategy 'single' has one device, not {cell.devices}"),
        (level in _TENSORFLOW, f"{_TENSORFLOW.get(level)} belongs to TensorFlow"),
        (level == "tpu", _XLA),
        (
            level != "single" and cell.mode not in {Mode.STEADY, Mode.FIT},
            f"strategy {level!r} is measured in training steps on resident data, not in mode {cell.mode.value!r}",
        ),
        (
            level == "pipeline" and not hasattr(workloads.part(cell.workload, Framework.TORCH), "layers"),
            f"workload {cell.workload!r} does not say where its layers can be cut (a function layers(model))",
        ),
        (
            level == "pipeline" and cell.toggles["precision"] not in {"fp32", "tf32"},
            "the pipeline schedule runs its forward passes by itself, outside autocast",
        ),
        (
            level == "pipeline" and bool(cell.batch % MICRO_BATCHES),
            f"a batch of {cell.batch} has no {MICRO_BATCHES} equal parts",
        ),
        (
            level == "dp" and not gpu,
            "DataParallel spreads over GPUs; on a CPU it runs the plain step and does not say so",
        ),
        (level == "dp" and count > 1, f"DataParallel is one process, which cannot span {count} hosts"),
        (bool(cell.devices % count), f"{cell.devices} devices are not shared out evenly by {count} hosts"),
        (
            gpu and cell.devices // count > torch.cuda.device_count(),
            f"{cell.devices} GPUs are needed on {count} host(s), PyTorch sees {torch.cuda.device_count()} on this one",
        ),
    )
    return next((reason for applies, reason in reasons if applies), None)


def model(level: str, model: nn.Module, cell: Cell) -> nn.Module:
    """Wrap the model, whose weights one seed made equal in every process; one device needs no wrapper.

    Buffers are not broadcast before each step: each replica keeps the statistics of its own examples, as the fast
    recipes do.
    """
    if cell.devices == 1 or level in {"single", "pipeline"}:
        return model
    if level == "ddp" and cell.toggles["gradient_sync"] != "overlap":
        return model
    if level == "dp":
        return DataParallel(model, device_ids=list(range(cell.devices)))
    if level == "fsdp":
        for part in model.children():
            if next(part.parameters(), None) is not None:
                fully_shard(part)
        return fully_shard(model)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True, **OWN_BUFFERS)
    if cell.toggles["gradient_dtype"] == "bfloat16":
        wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return wrapped
