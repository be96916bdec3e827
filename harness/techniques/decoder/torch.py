"""The decoder toggle in PyTorch: Pillow, torchvision's own JPEG and PNG decoder, or DALI's whole pipeline."""

from __future__ import annotations

import dataclasses
import importlib.util

import torch

from harness.backends.torch_plan import Decoder, Pixels, Plan
from harness.errors import MeasurementError
from harness.spec import Cell

_DALI_INSTALL = "pip install nvidia-dali-cuda120"
# What DALI's pipeline does not do, by toggle: the level that it does do, and why there is no other.
_DALI_ONLY = {
    "format": ("files", "its readers of packed formats need other files than the ones that are stored"),
    "sample": ("decode", "what is done to a sample here is Python"),
    "storage_latency": ("none", "it reads by itself, where no delay can be put in"),
    "pin_memory": ("off", "it is the DataLoader that pins"),
    "persistent": ("on", "its threads cannot be started again between two passes"),
}


def unavailable(level: str, cell: Cell) -> str | None:
    """DALI replaces the DataLoader, so it takes part in what its own pipeline can do."""
    if level == "torchvision" and importlib.util.find_spec("torchvision") is None:
        return "decoder 'torchvision' needs torchvision, not installed: pip install 'speedproof[torch]'"
    if level != "dali" or not cell.mode.loads:
        return None
    if importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None:
        return f"decoder 'dali' needs DALI, not installed: {_DALI_INSTALL}"
    if cell.toggles["workers"] == "none":
        return "DALI decodes in threads of its own: there is no level 'none' of its workers"
    for toggle, (only, reason) in _DALI_ONLY.items():
        if cell.toggles[toggle] != only:
            return f"DALI's pipeline is measured with {toggle} '{only}' only: {reason}"
    return None


def loader(level: str, plan: Plan, _cell: Cell) -> Plan:
    """Another decoder for the DataLoader; with DALI there is no DataLoader."""
    return dataclasses.replace(plan, decoder=TORCHVISION) if level == "torchvision" else plan


def _decode(data: bytes, size: int, name: str) -> Pixels:
    """As :func:`harness.data.pixels.decode`, bit for bit where nothing is scaled."""
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms.v2 import functional

    try:
        image = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)
    except RuntimeError as error:
        raise MeasurementError(f"{name}: is not a readable image ({error}); replace or remove it") from error
    if image.shape[1:] != (size, size):
        image = functional.center_crop(functional.resize(image, [size], antialias=True), [size, size])
    pixels: Pixels = image.permute(1, 2, 0).numpy()  # its memory is in this order already
    return pixels


TORCHVISION = Decoder(name="torchvision", decode=_decode)
