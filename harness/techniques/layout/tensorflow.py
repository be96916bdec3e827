"""The layout toggle in Keras, where there is nothing to switch on."""

from __future__ import annotations

from harness.backends.tensorflow_step import keras
from harness.spec import Cell


def unavailable(level: str, _cell: Cell) -> str | None:
    """Channels-last is what Keras does by itself, so a treatment would be its own baseline."""
    if level != "channels_last":
        return None
    return "Keras is channels-last by default, so the level 'native' already is channels_last; there is no other arm"


def environment(_level: str, _cell: Cell) -> None:
    """Keras' own default, also where the user's configuration file says otherwise."""
    keras.config.set_image_data_format("channels_last")
