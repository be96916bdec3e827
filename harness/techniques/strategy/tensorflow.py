"""Several devices in TensorFlow: what the strategies need of the process, and of the machine."""

from __future__ import annotations

from harness import hosts as several
from harness.backends.tensorflow_replicas import no_tpu
from harness.backends.tensorflow_step import gpus, tf
from harness.spec import Cell, Mode

_TORCH = {"ddp": "DistributedDataParallel", "fsdp": "fully_shard", "dp": "DataParallel"}


def unavailable(level: str, cell: Cell) -> str | None:
    """A strategy needs its devices: GPUs, or on a CPU logical devices, of which there can be any number."""
    gpu = cell.toggles["device"] == "gpu"
    reasons = (
        (level == "single" and cell.devices > 1, f"strategy 'single' has one device, not {cell.devices}"),
        (level in _TORCH, f"{_TORCH.get(level)} belongs to PyTorch"),
        (
            level == "multiworker" and gpu,
            "MultiWorkerMirroredStrategy is measured on CPUs only: its processes are forked, and CUDA is not forked",
        ),
        (
            level in {"mirrored", "multiworker"} and cell.devices > 1 and several.from_environment() is not None,
            "TensorFlow's devices are those of one host here; several hosts train together in PyTorch",
        ),
        (
            level == "pipeline",
            "layers on several devices are measured in PyTorch: TensorFlow has no pipeline, and one process does not "
            "tell the memory of its logical CPU devices apart",
        ),
        (
            level != "single" and cell.mode is not Mode.STEADY,
            f"strategy {level!r} is measured in training steps on resident data, not in mode {cell.mode.value!r}",
        ),
        (
            level == "mirrored" and gpu and cell.devices > len(gpus()),
            f"{cell.devices} GPUs are needed, TensorFlow sees {len(gpus())}",
        ),
    )
    found = next((reason for applies, reason in reasons if applies), None)
    return no_tpu() if found is None and level == "tpu" else found


def environment(level: str, cell: Cell) -> None:
    """On a CPU: logical devices, and one compute thread for each, whatever their number."""
    if level not in {"mirrored", "multiworker"} or cell.toggles["device"] != "cpu":
        return
    here = cell.devices if level == "mirrored" else 1
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(here)
    (host,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(host, [tf.config.LogicalDeviceConfiguration()] * here)
