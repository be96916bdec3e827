"""The decoder toggle in TensorFlow, which decodes by its own operations."""

from __future__ import annotations

import importlib

from harness.spec import Cell

_INSTALL = "pip install nvidia-dali-cuda120 nvidia-dali-tf-plugin-cuda120"


def unavailable(level: str, _cell: Cell) -> str | None:
    """DALI feeds tf.data through a plugin that is built against one release of TensorFlow, for GPUs."""
    if level == "native":
        return None
    if level == "torchvision":
        return "torchvision belongs to PyTorch"
    try:
        importlib.import_module("nvidia.dali.plugin.tf")
    except Exception as error:  # whatever it is, is the reason: the plugin loads libraries of its own
        said = " ".join(str(error).split())
        return f"DALI's plugin for TensorFlow cannot be loaded ({type(error).__name__}: {said[:200]}); {_INSTALL}"
    return "decoder 'dali' is measured in PyTorch only: its plugin for TensorFlow takes a GPU"
