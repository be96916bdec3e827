"""Loose files: the source as it is, or its preprocessed images as lossless PNG."""

from __future__ import annotations

from pathlib import Path

from harness.data import pixels
from harness.data.cache import Job
from harness.data.formats.base import Format
from harness.data.photos import ImageSet, in_order
from harness.errors import MeasurementError


class LooseFiles:
    """Reads whole files, each opened for its read."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self._paths = paths

    def read(self, index: int) -> bytes:
        """The bytes of a file; raises :class:`~harness.errors.MeasurementError` that names it where it is not there."""
        path = self._paths[index]
        try:
            with open(path, "rb", buffering=0) as file:
                return file.read()
        except OSError as error:
            raise MeasurementError(f"{path}: cannot be read ({error.strerror})") from error

    def close(self) -> None:
        """Nothing is held open."""


def prepared_paths(images: ImageSet, folder: Path) -> tuple[Path, ...]:
    """Where the preprocessed image of each source image lies."""
    return tuple(
        folder / images.classes[label] / f"{index:06d}.png" for index, label in enumerate(images.labels.tolist())
    )


def write_prepared(images: ImageSet, job: Job) -> None:
    """Decode, preprocess, and store as PNG."""

    def made(path: Path) -> bytes:
        decoded = pixels.decode(path.read_bytes(), images.size, name=str(path))
        return pixels.encode_png(pixels.prepare(decoded))

    for name in images.classes:
        (job.folder / name).mkdir()
    for path, data in zip(prepared_paths(images, job.folder), in_order(made, images.paths), strict=True):
        path.write_bytes(data)
        job.report(1)


def open_source(images: ImageSet, _: Path) -> LooseFiles:
    """Read the source itself."""
    return LooseFiles(images.paths)


def open_prepared(images: ImageSet, folder: Path) -> LooseFiles:
    """Read what :func:`write_prepared` wrote."""
    return LooseFiles(prepared_paths(images, folder))


PREPARED = Format(
    name="files",
    encoded=True,
    write=write_prepared,
    open=open_prepared,
)
SOURCE = Format(name="files", encoded=True, write=None, open=open_source)
