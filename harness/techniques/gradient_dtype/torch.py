"""The dtype of exchanged gradients in PyTorch; the hook is set where the model is wrapped, see the strategy."""

from __future__ import annotations

from harness.spec import Cell


def unavailable(level: str, cell: Cell) -> str | None:
    """A hook of DistributedDataParallel casts its buckets."""
    toggles = cell.toggles
    hooked = toggles["strategy"] == "ddp" and cell.devices > 1 and toggles["gradient_sync"] == "overlap"
    if level == "float32" or hooked:
        return None
    return f"gradient_dtype {level!r} is a hook of DistributedDataParallel on two devices or more"
