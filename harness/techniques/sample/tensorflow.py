"""What is done to each decoded image in TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any

from harness.backends.tensorflow_plan import STORED_PIXELS, Plan
from harness.backends.tensorflow_step import tf
from harness.data import pixels
from harness.spec import Cell

AREA = (0.08, 1.0)  # of the image, as torchvision's RandomResizedCrop has it
ASPECT = (3 / 4, 4 / 3)
BRIGHTNESS, CONTRAST, SATURATION, HUE = 0.4, 0.4, 0.4, 0.1


def unavailable(level: str, cell: Cell) -> str | None:
    """Stored pixels are gathered by the batch, where nothing is done to one image."""
    if level == "decode" or cell.toggles["format"] not in STORED_PIXELS:
        return None
    return f"sample '{level}' is measured with formats of image files, not with stored pixels; take format 'files'"


def loader(level: str, plan: Plan, _cell: Cell) -> Plan:
    """``prepared`` is stored, so it is only decoded."""
    if level == "prepare":
        return dataclasses.replace(plan, prepare=pixels.prepare)
    return dataclasses.replace(plan, augment=augment) if level == "augment" else plan


def augment(image: Any, seed: Any) -> Any:
    """Random crop, flip and colours of uint8 [size, size, 3] by ``seed``, int64 [2]; equal seeds, equal images."""
    size = tf.shape(image)[:2]
    box, flip, brightness, contrast, saturation, hue = tf.unstack(tf.random.split(seed, 6))
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(image),
        tf.zeros([1, 0, 4]),
        box,
        min_object_covered=0.0,
        area_range=AREA,
        aspect_ratio_range=ASPECT,
        use_image_if_no_bounding_boxes=True,
    )
    image = tf.image.resize(tf.slice(image, begin, extent), size, antialias=True) / 255.0
    image = tf.image.stateless_random_flip_left_right(image, flip)
    image = tf.image.stateless_random_brightness(image, BRIGHTNESS, brightness)
    image = tf.image.stateless_random_contrast(image, 1 - CONTRAST, 1 + CONTRAST, contrast)
    image = tf.image.stateless_random_saturation(image, 1 - SATURATION, 1 + SATURATION, saturation)
    image = tf.image.stateless_random_hue(image, HUE, hue)
    return tf.image.convert_image_dtype(image, tf.uint8, saturate=True)
