"""Image files to pixels, and the costly deterministic preprocessing that the offline study moves."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageOps

from harness.errors import MeasurementError

Pixels = NDArray[np.uint8]


def decode(data: bytes, size: int, *, name: str = "an image") -> Pixels:
    """Decode an image file to uint8 [size, size, 3], RGB, with Pillow.

    An image that is not ``size`` x ``size`` is scaled (bilinear, antialiased) so that its shorter side fits, and cut to
    its centre. Raises :class:`~harness.errors.MeasurementError` that gives ``name`` where the file is broken.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            rgb = image.convert("RGB")  # decodes: a truncated file raises here
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise MeasurementError(f"{name}: is not a readable image ({error}); replace or remove it") from error
    return fit(np.array(rgb), size)


def fit(pixels: Pixels, size: int) -> Pixels:
    """Pixels of any size, uint8 [height, width, 3], brought to uint8 [size, size, 3] as :func:`decode` does."""
    height, width = pixels.shape[:2]
    if (width, height) == (size, size):
        return pixels
    image = Image.fromarray(pixels)
    return np.array(image.resize((size, size), Image.Resampling.BILINEAR, box=_centre(width, height)))


def _centre(width: int, height: int) -> tuple[float, float, float, float]:
    """The largest square in the middle: left, top, right, bottom."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def prepare(pixels: Pixels) -> Pixels:
    """The costly preprocessing, uint8 [height, width, 3] to the same: contrast, blur against noise, sharpening.

    Deterministic, so doing it once and doing it each time give the same pixels. Pillow's filters release the
    interpreter's lock.
    """
    image = ImageOps.autocontrast(Image.fromarray(pixels), cutoff=1)
    image = image.filter(ImageFilter.GaussianBlur(radius=1)).filter(ImageFilter.UnsharpMask(radius=2, percent=150))
    return np.array(image)


def encode_png(pixels: Pixels) -> bytes:
    """A lossless file of uint8 [height, width, 3]; compressed lightly, since reading it back is what counts."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
