"""Stored sets: the same images in eight formats, made once and read by both frameworks.

======================  =================================================================  ==============
format                  what it holds                                                      access
======================  =================================================================  ==============
files                   loose image files, one folder a class                              random
tfrecord, webdataset    image files one after the other, in eight shards                   sequential
lmdb, arrow             image files in one mapped file                                     random
lmdb_decoded, npy       uint8 pixels in one mapped file                                    random
ram                     uint8 pixels in memory: nothing is stored                          random
======================  =================================================================  ==============

Index ``i`` is the same image in each of them, with equal pixels bit for bit once decoded.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.backends import Stored
from harness.data import cache, photos
from harness.data.formats import arrays, arrow, lmdb, loose, shards
from harness.data.formats.base import Format, Reader, Record, load
from harness.data.photos import ImageSet
from harness.errors import ConfigError, unknown

NAMES = ("files", "tfrecord", "lmdb", "webdataset", "arrow", "lmdb_decoded", "npy", "ram")
SAMPLES = ("decode", "augment", "prepare", "prepared")  # only the last is stored in a way of its own
RECIPE = 1  # raise it when what a writer stores changes

_FORMATS = {
    f.name: f
    for f in (
        loose.SOURCE,
        shards.TFRECORDS,
        lmdb.ENCODED,
        shards.WEBDATASETS,
        arrow.ARROW,
        lmdb.DECODED,
        arrays.NPY,
        arrays.RAM,
    )
}
_opening = threading.Lock()


@dataclass(kw_only=True)
class StoredSet:
    """A stored set. Its handles are opened by the first :meth:`read` and do not travel: it may be forked or pickled.

    ``files`` are those that a pass reads ((): the set is in memory). ``labels`` int64 [n] are indices into
    ``classes``. ``encoded``: records are image files, else pixels. ``sha256`` is that of the source, so it is equal
    for every format.
    """

    format: str
    folder: Path
    files: tuple[Path, ...]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    size: int
    encoded: bool
    sha256: str
    source: ImageSet = field(repr=False)
    how: Format = field(repr=False)
    _reader: Reader | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shards(self) -> tuple[Path, ...]:
        """The files of a sequential format; () where records are reached by index."""
        return self.files if self.how.open is None else ()

    def read(self, index: int) -> Record:
        """Record ``index``: the bytes of an image file, or uint8 [size, size, 3], which may be a read-only view.

        Raises :class:`~harness.errors.MeasurementError` that names the file where it is damaged, and
        :class:`~harness.errors.ConfigError` where the format is sequential.
        """
        return (self._reader or self._open()).read(index)

    def _open(self) -> Reader:
        if self.how.open is None:
            raise ConfigError(f"format {self.format!r} is read from front to back: read its shards")
        with _opening:
            if self._reader is None:
                self._reader = self.how.open(self.source, self.folder)
            return self._reader

    def close(self) -> None:
        """Let go of this process's handles and mappings, so that the page cache can be emptied; reading opens again.

        The pixels of ``ram`` stay: they are the set.
        """
        if self._reader is not None and self.how is not arrays.RAM:
            self._reader.close()
            self._reader = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}


def store(
    format: str, *, size: int, examples: int | None, sample: str = "decode", report: cache.Report = cache.no_report
) -> Stored:
    """Make a set where it is not there yet, and say what it takes.

    ``size`` is the images' side in pixels; ``examples`` bounds the set, see :func:`harness.data.photos.image_set`.
    ``report`` is told the number of images done. For the files of the user nothing is made: 0 seconds; ``ram`` is
    decoded to see how long that takes, and its bytes are those in memory. Raises
    :class:`~harness.errors.MeasurementError` for a broken image or a damaged set, OSError that names the folder for a
    full disk, :class:`~harness.errors.Unavailable` where a library is missing.
    """
    how = _how(format, sample)
    images = photos.image_set(size=size, examples=examples, report=report if how is loose.SOURCE else cache.no_report)
    n = len(images.paths)
    if how is loose.SOURCE:
        return Stored(bytes=images.bytes, seconds=images.seconds, examples=n, sha256=images.sha256)
    if how is arrays.RAM:
        started = time.perf_counter()
        decoded = arrays.decode_all(images, report)
        seconds = time.perf_counter() - started
        return Stored(bytes=decoded.nbytes, seconds=seconds, examples=n, sha256=images.sha256)
    made = _make(how, images, report)
    return Stored(bytes=made.bytes, seconds=made.seconds, examples=n, sha256=made.sha256)


def open_set(format: str, *, size: int, examples: int | None, sample: str = "decode") -> StoredSet:
    """The set that :func:`store` makes (it is made where it is not there); its files are checked for their sizes.

    The handles of ``ram``, which are its pixels, are there at once, so that forked processes share them.
    """
    how = _how(format, sample)
    images = photos.image_set(size=size, examples=examples)
    folder, files = images.folder, images.paths
    if how.write is not None:
        folder = _folder(how, images)
        files = tuple(folder / name for name in _make(how, images).files)
    stored = StoredSet(
        format=format,
        folder=folder,
        files=() if how is arrays.RAM else files,
        labels=images.labels,
        classes=images.classes,
        size=size,
        encoded=how.encoded,
        sha256=images.sha256,
        source=images,
        how=how,
    )
    if how is arrays.RAM:
        stored._open()
    return stored


def format_named(name: str) -> Format:
    """How a format stores; raises :class:`~harness.errors.ConfigError` for a name that does not exist."""
    if name not in _FORMATS:
        raise unknown("format", name, _FORMATS)
    return _FORMATS[name]


def _how(format: str, sample: str) -> Format:
    how = format_named(format)
    if sample not in SAMPLES:
        raise unknown("sample", sample, SAMPLES)
    if sample != "prepared":
        return how
    if format != "files":
        raise ConfigError(f"sample 'prepared' is stored as loose files only, not as {format!r}; take format 'files'")
    return loose.PREPARED


def _folder(how: Format, images: ImageSet) -> Path:
    kind = f"{how.name}-prepared" if how is loose.PREPARED else how.name
    key = cache.digest(RECIPE, images.sha256, images.size, cache.codec())
    return cache.cache_folder() / "sets" / f"{kind}-{key}"


def _make(how: Format, images: ImageSet, report: cache.Report = cache.no_report) -> cache.Manifest:
    write = how.write
    if write is None:
        raise ConfigError(f"format {how.name!r} stores nothing of its own")

    for package in how.packages:  # before the clock starts, and before a process that reads is forked
        load(package)

    def build(job: cache.Job) -> str:
        write(images, job)
        return images.sha256

    return cache.make_once(
        _folder(how, images),
        build,
        format=how.name,
        examples=len(images.paths),
        size=images.size,
        packages=how.packages,
        resumable=how.resumable,
        report=report,
    )
