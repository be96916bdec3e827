"""The device toggle in TensorFlow: what the process may see decides where everything is placed."""

from __future__ import annotations

import dataclasses

from harness.backends.tensorflow_step import Step, gpus, tf
from harness.spec import Cell


def unavailable(level: str, _cell: Cell) -> str | None:
    """A GPU is one that TensorFlow can use, which is less than what the driver shows."""
    if level != "gpu" or gpus():
        return None
    if not tf.sysconfig.get_build_info().get("is_cuda_build"):
        return f"TensorFlow {tf.__version__} is built without CUDA; install a CUDA build for the gpu level"
    return (
        f"TensorFlow {tf.__version__} finds no GPU that it can use: there is none, or its CUDA libraries are missing "
        "(pip install 'tensorflow[and-cuda]')"
    )


def environment(level: str, _cell: Cell) -> None:
    """One GPU, or none: an operation without a CPU kernel must fail, not move to the GPU in a CPU cell."""
    tf.config.set_visible_devices(gpus()[:1] if level == "gpu" else [], "GPU")


def step(level: str, step: Step, _cell: Cell) -> Step:
    """The examples are kept there, and its memory is what is counted."""
    return dataclasses.replace(step, device=level)
