"""LMDB: one file, a tree of records. Key: 8-byte big-endian index. Value: label (int64, little-endian), payload."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.cache import Job
from harness.data.formats.base import Format, Record, damaged, image_bytes, image_pixels, in_chunks, load
from harness.data.photos import ImageSet
from harness.errors import MeasurementError

FILE = "data.lmdb"
LABEL_BYTES = 8
PAGE = 4096
SPARE = 1 << 20  # bytes of the map for the tree's own pages


def key(index: int) -> bytes:
    """The key of a record; big-endian, so that keys sort as indices do."""
    return index.to_bytes(8, "big")


class Environment:
    """An environment open for reading; opened again in a process that was forked off with it."""

    def __init__(self, file: Path, images: ImageSet, *, decoded: bool) -> None:
        self._lmdb = load("lmdb")
        self._file, self._labels = file, images.labels.tolist()
        self._shape = (images.size, images.size, 3) if decoded else None
        self._environment: Any = None
        self._open()

    def _open(self) -> None:
        if self._environment is not None:  # inherited: the library allows one environment on a file in a process
            self._environment.close()
        self._process = os.getpid()
        try:
            # No lock file: nobody writes a finished set. The kernel's read-ahead stays on: a record covers many pages.
            self._environment = self._lmdb.open(str(self._file), subdir=False, readonly=True, lock=False)
            entries = self._environment.stat()["entries"]
        except (self._lmdb.CorruptedError, self._lmdb.InvalidError, self._lmdb.VersionMismatchError) as error:
            raise damaged(self._file, error) from error
        except self._lmdb.Error as error:  # as: already open in this process
            raise MeasurementError(f"{self._file}: cannot be opened ({error})") from error
        if entries != len(self._labels):
            raise damaged(self._file, f"holds {entries} records, not {len(self._labels)}")

    def read(self, index: int) -> Record:
        """A copy of the payload: bytes of the image file, or pixels [size, size, 3]."""
        if self._process != os.getpid():
            self._open()
        try:
            with self._environment.begin(buffers=True) as transaction:
                value = transaction.get(key(index))
                if value is None:
                    raise damaged(self._file, f"record {index} is missing")
                return self._payload(index, value)
        except self._lmdb.Error as error:
            raise damaged(self._file, error) from error

    def _payload(self, index: int, value: memoryview) -> Record:
        if int.from_bytes(value[:LABEL_BYTES], "little", signed=True) != self._labels[index]:
            raise damaged(self._file, f"record {index} does not have the source's label")
        if self._shape is None:
            return bytes(value[LABEL_BYTES:])
        if len(value) - LABEL_BYTES != math.prod(self._shape):
            raise damaged(self._file, f"record {index} does not hold {self._shape} pixels")
        return np.frombuffer(value, np.uint8, offset=LABEL_BYTES).reshape(self._shape).copy()

    def close(self) -> None:
        """Unmap, so that the page cache can let go."""
        self._environment.close()


def write_encoded(images: ImageSet, job: Job) -> None:
    """Store the image files as they are."""
    environment = _open_for_writing(job.folder / FILE, map_size(p.stat().st_size for p in images.paths))
    _write(environment, images, job, image_bytes(images, _done(environment)))


def write_decoded(images: ImageSet, job: Job) -> None:
    """Store pixels."""
    each = images.size * images.size * 3
    environment = _open_for_writing(job.folder / FILE, map_size([each] * len(images.paths)))
    _write(environment, images, job, (image.tobytes() for image in image_pixels(images, _done(environment))))


def map_size(payloads: Iterable[int]) -> int:
    """Bytes of address space for the records: large ones take whole pages of their own, so round each up, and one more.

    Where it is too small after all, it is doubled.
    """
    return SPARE + sum((n // PAGE + 2) * PAGE for n in payloads)


def _open_for_writing(file: Path, size: int) -> Any:
    lmdb = load("lmdb")

    def environment() -> Any:
        # Unsynced until the end: a half-made set that a crash of the machine broke is not gone on with anyway.
        return lmdb.open(str(file), subdir=False, lock=False, map_size=size, sync=False)

    try:
        return environment()
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError):  # killed while its head was written
        os.unlink(file)
        return environment()


def _done(environment: Any) -> int:
    """Records that an interrupted attempt left: transactions are whole, and in the order of the indices."""
    return int(environment.stat()["entries"])


def _write(environment: Any, images: ImageSet, job: Job, payloads: Iterator[bytes]) -> None:
    lmdb = load("lmdb")
    try:
        done = _done(environment)
        job.report(done)
        for chunk in in_chunks(payloads):
            labels = images.labels[done : done + len(chunk)].astype("<i8")
            records = [
                (key(done + i), label.tobytes() + payload)
                for i, (label, payload) in enumerate(zip(labels, chunk, strict=True))
            ]
            _put(environment, records)
            done += len(chunk)
            job.advance(len(chunk))
        environment.sync(True)
    except lmdb.Error as error:  # a write that the disk cut short is an "Input/output error" to the library
        raise OSError(errno.ENOSPC if isinstance(error, lmdb.DiskError) else errno.EIO, str(error)) from error
    finally:
        environment.close()


def _put(environment: Any, records: list[tuple[bytes, bytes]]) -> None:
    """One transaction; the map is doubled until it holds it."""
    lmdb = load("lmdb")
    while True:
        try:
            with environment.begin(write=True) as transaction:
                for name, value in records:
                    transaction.put(name, value, append=True)
            return
        except lmdb.MapFullError:
            environment.set_mapsize(2 * environment.info()["map_size"])


def open_encoded(images: ImageSet, folder: Path) -> Environment:
    """Open what :func:`write_encoded` wrote."""
    return Environment(folder / FILE, images, decoded=False)


def open_decoded(images: ImageSet, folder: Path) -> Environment:
    """Open what :func:`write_decoded` wrote."""
    return Environment(folder / FILE, images, decoded=True)


ENCODED = Format(
    name="lmdb",
    encoded=True,
    write=write_encoded,
    open=open_encoded,
    packages=("lmdb",),
    resumable=True,
)
DECODED = Format(
    name="lmdb_decoded",
    encoded=False,
    write=write_decoded,
    open=open_decoded,
    packages=("lmdb",),
    resumable=True,
)
