"""Sequential files, read from front to back: TFRecord and WebDataset, in eight shards.

Shard ``k`` of ``s`` holds the indices from ``n * k // s`` to before ``n * (k + 1) // s``, in their order.

The libraries that are named after these formats import PyTorch, which must not meet TensorFlow in one process. So a
WebDataset is written for what it is, a POSIX tar, by :mod:`tarfile`, and a TFRecord by the few lines that frame a
message; the tests read both back with those libraries.
"""

from __future__ import annotations

import functools
import io
import os
import struct
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from harness.data.cache import Job
from harness.data.formats.base import Format, image_bytes, load
from harness.data.photos import ImageSet

SHARDS = 8
TFRECORD = "tfrecord"
WEBDATASET = "tar"

Put = Callable[[int, int, bytes], None]  # index, label, image file


def shard_paths(folder: Path, ending: str, examples: int) -> tuple[Path, ...]:
    """The files of a set; fewer than eight only where there are fewer examples."""
    count = min(SHARDS, examples)
    return tuple(folder / f"{shard:05d}-of-{count:05d}.{ending}" for shard in range(count))


def _write(
    images: ImageSet, job: Job, ending: str, records_of: Callable[[BinaryIO], AbstractContextManager[Put]]
) -> None:
    labels, n = images.labels.tolist(), len(images.paths)
    contents = image_bytes(images)
    paths = shard_paths(job.folder, ending, n)
    for k, path in enumerate(paths):
        with open(path, "wb") as file, records_of(file) as put:
            for index in range(n * k // len(paths), n * (k + 1) // len(paths)):
                put(index, labels[index], next(contents))
                job.report(1)
    for path in paths:  # all at the end: the disk writes the first ones meanwhile
        with open(path, "rb") as written:
            os.fsync(written.fileno())


# --- WebDataset ----------------------------------------------------------------------------------------------------


def write_webdataset(images: ImageSet, job: Job) -> None:
    """Two members for an example, ``INDEX.jpg`` (the image file as it is) and ``INDEX.cls`` (the label in digits)."""
    _write(images, job, WEBDATASET, _tar_members)


@contextmanager
def _tar_members(file: BinaryIO) -> Iterator[Put]:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:

        def put(index: int, label: int, image: bytes) -> None:
            for ending, data in (("jpg", image), ("cls", str(label).encode("ascii"))):
                member = tarfile.TarInfo(f"{index:08d}.{ending}")  # no time, no owner: equal sets are equal files
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))

        yield put


# --- TFRecord ------------------------------------------------------------------------------------------------------


def write_tfrecord(images: ImageSet, job: Job) -> None:
    """Messages ``tf.train.Example``: "image/encoded" (the image file as it is), "image/class/label" (int64)."""
    _write(images, job, TFRECORD, _framed_messages)


@contextmanager
def _framed_messages(file: BinaryIO) -> Iterator[Put]:
    crc32c = load("crc32c").crc32c

    def checksum(data: bytes) -> bytes:
        crc = crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    def put(index: int, label: int, image: bytes) -> None:
        message = example(image, label)
        length = struct.pack("<Q", len(message))
        file.writelines((length, checksum(length), message, checksum(message)))

    yield put


def example(image: bytes, label: int) -> bytes:
    """The message ``tf.train.Example`` in protocol buffers' wire format; ``label`` is not negative.

    Example.features = 1; Features.feature = 1, a map of key = 1 to value = 2; Feature.bytes_list = 1 and
    int64_list = 3, each a list of value = 1.
    """
    return _field(1, _label_entry(label) + _entry(b"image/encoded", _field(1, _field(1, image))))


@functools.cache  # a set has few labels
def _label_entry(label: int) -> bytes:
    return _entry(b"image/class/label", _field(3, _field(1, _varint(label))))


def _entry(name: bytes, feature: bytes) -> bytes:
    return _field(1, _field(1, name) + _field(2, feature))


def _field(number: int, content: bytes) -> bytes:
    """A field with a length before its content (wire type 2)."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, lowest first; the top bit says that more follow."""
    head = bytearray()
    while value >> 7:
        head.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(head) + bytes([value])


TFRECORDS = Format(name="tfrecord", encoded=True, write=write_tfrecord, open=None, packages=("crc32c",))
WEBDATASETS = Format(name="webdataset", encoded=True, write=write_webdataset, open=None)
