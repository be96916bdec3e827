"""What every format has in common: a writer, and a reader of one record."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.data import pixels
from harness.data.cache import CLEAN, Job
from harness.data.photos import INSTALL, ImageSet, in_order
from harness.errors import MeasurementError, Unavailable

T = TypeVar("T")

CHUNK = 64
Record = bytes | NDArray[np.uint8]


class Reader(Protocol):
    """Open handles on a stored set, in one process."""

    def read(self, index: int) -> Record:
        """Bytes of the image file, or pixels."""

    def close(self) -> None:
        """Let go of every handle and mapping."""


Write = Callable[[ImageSet, Job], None]
Open = Callable[[ImageSet, Path], Reader]


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """How a set is stored.

    ``encoded``: image files rather than pixels. ``write`` is ``None`` where nothing is stored beside the source,
    ``open`` where records are not reached by index. ``packages`` are the distributions whose versions decide what is
    written. ``resumable``: see :func:`harness.data.cache.make_once`.
    """

    name: str
    encoded: bool
    write: Write | None
    open: Open | None
    packages: tuple[str, ...] = ()
    resumable: bool = False


def load(module: str) -> ModuleType:
    """A library of the data extra; raises :class:`~harness.errors.Unavailable` with the line that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(f"{module.split('.', maxsplit=1)[0]} is not installed ({error}); {INSTALL}") from error


def image_bytes(images: ImageSet, start: int = 0) -> Iterator[bytes]:
    """The image files from index ``start`` on, as they are."""
    return (path.read_bytes() for path in images.paths[start:])


def image_pixels(images: ImageSet, start: int = 0) -> Iterator[NDArray[np.uint8]]:
    """The decoded images from index ``start`` on, uint8 [size, size, 3] each; a few are decoded ahead by threads."""
    return in_order(lambda p: pixels.decode(p.read_bytes(), images.size, name=str(p)), images.paths[start:])


def in_chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """``items`` in lists of :data:`CHUNK`, the last one shorter: what is written, and can be gone on after, at once."""
    there = iter(items)
    while chunk := list(itertools.islice(there, CHUNK)):
        yield chunk


def damaged(file: Path, detail: object) -> MeasurementError:
    """The error for a stored file that does not hold what was written."""
    return MeasurementError(f"{file}: damaged ({detail}); {CLEAN}")
