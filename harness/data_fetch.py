"""Larger photograph sets, fetched by an explicit command only: a known file, from wherever the user says.

The suite knows name and SHA-256 of a file, the user the mirror (or the copy on the disk) that it comes from. What does
not have the hash is not used. The photographs in it are cut as the embedded ones are.

This module lies outside of ``harness.data``, on the parent's side: a worker, and so a study, cannot even import it.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from PIL import Image

from harness.data import cache, photos
from harness.data.formats.base import load
from harness.data.photos import ImageSet
from harness.errors import ConfigError, unknown

EXAMPLES = 10_000
TIMEOUT_S = 60

_MAGIC = b"!<arch>\n"
_HEAD = 60  # bytes before each member of an ar archive: the name in the first 16, the length at 48 in digits
_OTHER_SIZES = re.compile(r"_\d+x\d+$")  # the same photograph once more, at another resolution


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A Debian package of photographs."""

    file: str
    sha256: str
    photographs: int
    licence: str


SOURCES = {
    "lomiri-wallpapers": Source(
        file="lomiri-wallpapers-16.04_20.04.0-2_all.deb",
        sha256="a99ff6a3bfe451e4cc0682ecb3cc82e71740626d59e4845ae34a0a0e45421eab",
        photographs=15,
        licence="CC-BY, CC-BY-SA or CC0, by photograph",
    ),
    "mate-backgrounds": Source(
        file="mate-backgrounds_1.26.0-1_all.deb",
        sha256="7bf4c2209f34b4f61ba6d24c8b58c28b361e82e4b943aae6d42c030169af9e04",
        photographs=14,
        licence="GPL-2+",
    ),
}


def fetch(
    name: str, where: str, *, size: int, examples: int = EXAMPLES, report: cache.Report = cache.no_report
) -> ImageSet:
    """Crops of a source's photographs, whose file is read from ``where``: an http(s) address or a path.

    An interrupted download goes on where it stopped, a finished one is not made again. Raises
    :class:`~harness.errors.ConfigError` where the file cannot be had or is not the one that is known.
    """
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    source = SOURCES[name]
    package = _downloaded(source, where) if re.match(r"https?://", where) else _local(source, where)
    with tempfile.TemporaryDirectory(dir=cache.cache_folder()) as folder:
        photographs = dict(_unpack(package, Path(folder)))
        return photos.crops(photographs, size=size, examples=examples, report=report)


def _local(source: Source, where: str) -> Path:
    file = Path(where)
    try:
        found = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); name {source.file}, or its address") from error
    if found != source.sha256:
        raise ConfigError(f"{file}: has SHA-256 {found}, allowed is that of {source.file}, {source.sha256}")
    return file


def _downloaded(source: Source, address: str) -> Path:
    pooch = load("pooch")
    pooch.get_logger().setLevel("WARNING")
    try:
        return Path(
            pooch.retrieve(
                address,
                known_hash=f"sha256:{source.sha256}",
                fname=f"{source.sha256[:16]}.deb",
                path=cache.cache_folder() / "downloads",
                downloader=_go_on,
            )
        )
    except ValueError as error:  # the hash
        raise ConfigError(
            f"{address}: is not {source.file} with SHA-256 {source.sha256}; name another mirror"
        ) from error
    except OSError as error:
        raise ConfigError(f"{address}: cannot be fetched ({error}); the command goes on where it stopped") from error


def _go_on(address: str, target: str, _: object) -> None:
    """Download to ``target``; what an interrupted attempt got lies beside it and is gone on with."""
    part = Path(target).parent / f"{cache.digest(address)}{cache.PART}"
    there = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={there}-"} if there else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            goes_on = response.status == HTTPStatus.PARTIAL_CONTENT
            with open(part, "ab" if goes_on else "wb") as file:
                shutil.copyfileobj(response, file)
            if response.length:  # copying takes an early end for the end
                raise ConnectionError(f"ended {response.length} bytes early")
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # that is: all of it is there
            raise
    os.replace(part, target)


def _unpack(package: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """The JPEG photographs of a Debian package, written into ``folder``; class and file."""
    with tarfile.open(fileobj=io.BytesIO(_data_archive(package))) as archive:
        for member in archive:
            name, ending = os.path.splitext(os.path.basename(member.name))
            content = archive.extractfile(member) if member.isfile() else None
            if content is None or ending.lower() not in (".jpg", ".jpeg") or _OTHER_SIZES.search(name):
                continue
            file = folder / f"{name}.jpg"
            file.write_bytes(content.read())
            with Image.open(file) as image:
                if min(image.size) >= photos.SMALLEST:
                    yield name, file


def _data_archive(package: Path) -> bytes:
    """The member data.tar.* of a Debian package, which is an ar archive."""
    content = package.read_bytes()
    place = len(_MAGIC)
    while content.startswith(_MAGIC) and place < len(content):
        head = content[place : place + _HEAD]
        length = int(head[48:58])
        place += _HEAD
        if head.startswith(b"data.tar"):
            return content[place : place + length]
        place += length + length % 2  # members begin at even places
    raise ConfigError(f"{package}: holds no data.tar, hence is no Debian package")
