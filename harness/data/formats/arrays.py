"""Decoded pixels in one array: mapped from an npy file, or in memory."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from harness.data.cache import Job, Report, no_report
from harness.data.formats.base import Format, damaged, image_pixels, in_chunks
from harness.data.photos import ImageSet
from harness.errors import Unavailable

PIXELS = "pixels.npy"
LABELS = "labels.npy"


class Mapped:
    """Maps an npy file; a record is a view of the mapping, not a copy, and read-only."""

    def __init__(self, file: Path, shape: tuple[int, ...]) -> None:
        try:
            self._pixels: NDArray[np.uint8] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise damaged(file, error) from error
        if self._pixels.shape != shape or self._pixels.dtype != np.uint8:
            raise damaged(file, f"holds {self._pixels.dtype} {self._pixels.shape}, not uint8 {shape}")

    def read(self, index: int) -> NDArray[np.uint8]:
        """Pixels [size, size, 3]; they stay mapped while the view is held."""
        return np.asarray(self._pixels[index])

    def close(self) -> None:
        """Unmap, so that the page cache can let go; a record that is still held keeps the mapping alive."""
        del self._pixels


def write_npy(images: ImageSet, job: Job) -> None:
    """Write pixels.npy, uint8 [n, size, size, 3], and labels.npy, int64 [n].

    The pixels are appended, not written through a mapping: so the length of the file tells an attempt that resumes
    where to go on, and the memory does not grow with the set.
    """
    shape = _shape(images)
    np.save(job.folder / LABELS, images.labels)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    head, each = header.getvalue(), int(np.prod(shape[1:]))
    with open(job.folder / PIXELS, "ab") as file:
        done = max(file.tell() - len(head), 0) // each
        file.truncate(len(head) + done * each if file.tell() >= len(head) else 0)
        if not file.tell():
            file.write(head)
        job.report(done)
        for chunk in in_chunks(image_pixels(images, done)):
            for image in chunk:
                file.write(image.data)
            file.flush()
            job.advance(len(chunk))
        os.fsync(file.fileno())


def _shape(images: ImageSet) -> tuple[int, int, int, int]:
    return len(images.paths), images.size, images.size, 3


class InMemory:
    """Every image decoded, in this process's memory; processes forked from it share the pages."""

    def __init__(self, images: ImageSet) -> None:
        self._pixels = decode_all(images)

    def read(self, index: int) -> NDArray[np.uint8]:
        """Pixels [size, size, 3], a view."""
        view: NDArray[np.uint8] = self._pixels[index]
        return view

    def close(self) -> None:
        """Nothing to let go: the set is meant to stay in memory."""


def decode_all(images: ImageSet, report: Report = no_report) -> NDArray[np.uint8]:
    """Pixels [n, size, size, 3]; raises :class:`~harness.errors.Unavailable` where they do not fit the free memory."""
    shape = _shape(images)
    needed, free = int(np.prod(shape)), psutil.virtual_memory().available
    if needed > free:
        raise Unavailable(f"the decoded set needs {needed:,} bytes of memory, {free:,} are free; take fewer examples")
    decoded = np.empty(shape, np.uint8)
    for place, image in zip(decoded, image_pixels(images), strict=True):
        place[:] = image
        report(1)
    return decoded


def open_npy(images: ImageSet, folder: Path) -> Mapped:
    """Map what :func:`write_npy` wrote."""
    return Mapped(folder / PIXELS, _shape(images))


def open_ram(images: ImageSet, _: Path) -> InMemory:
    """Decode the source into memory."""
    return InMemory(images)


NPY = Format(
    name="npy",
    encoded=False,
    write=write_npy,
    open=open_npy,
    resumable=True,
)
RAM = Format(name="ram", encoded=False, write=None, open=open_ram)
