"""The cache folder, and how a folder in it is made: once, whole or not at all.

A folder is built beside its place, as ``NAME.part``, gets its ``manifest.json`` last, and then takes its place in one
step. So whatever stops the building (a kill, a full disk), no reader ever sees half a set. Everything in the cache may
be deleted at any time; ``speedproof data clean`` does.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import MeasurementError, Unavailable

MANIFEST = "manifest.json"
PART = ".part"
LOCK = ".lock"
CLEAN = "remove it with `speedproof data clean`; it is made again when it is needed"

KINDS = ("photos", "images", "sets", "features", "downloads")  # the folders of the cache
_MADE = re.compile(r"(?:[\w.-]+-)?[0-9a-f]{16}(?:\.[\w.-]+)?")  # a name that ends in a digest, or a note beside it
_BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

Report = Callable[[int], None]  # is told how many examples were finished since it was last told


def no_report(examples: int) -> None:
    """A :data:`Report` that nobody waits for."""


def cache_path() -> Path:
    """``$SPEEDPROOF_CACHE``, else ``$XDG_CACHE_HOME/speedproof``, else ``~/.cache/speedproof``; it may not exist yet.

    Raises :class:`~harness.errors.Unavailable` where there is no home folder either.
    """
    chosen = os.environ.get("SPEEDPROOF_CACHE")
    if chosen:
        return Path(chosen).absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(xdg) if xdg else Path.home() / ".cache").absolute() / "speedproof"
    except RuntimeError as error:  # a user without an entry in the password file
        raise Unavailable("there is no home folder to cache data in; set SPEEDPROOF_CACHE to a folder") from error


def cache_folder() -> Path:
    """The cache folder, made if need be; raises :class:`~harness.errors.Unavailable` where that is impossible."""
    folder = cache_path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"{folder}: cannot be made ({error.strerror}); set SPEEDPROOF_CACHE to a writable folder"
        ) from error
    return folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a folder of the cache holds: one stored set.

    ``files`` are its files, relative to the folder, with their bytes. ``seconds`` is the time that making it took,
    over all attempts where it was resumed. ``sha256`` is that of the source's content.
    """

    format: str
    examples: int
    size: int
    bytes: int
    seconds: float
    sha256: str
    versions: dict[str, str]
    files: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A folder in the making: where to write, and whom to tell how far it got."""

    folder: Path
    earlier_s: float  # spent by attempts that were interrupted
    started: float
    report: Report

    def advance(self, examples: int) -> None:
        """Say that so many more examples are written; the time so far is kept for an attempt that resumes."""
        (self.folder / _ELAPSED).write_text(str(self.seconds()))
        self.report(examples)

    def seconds(self) -> float:
        """Spent on this folder so far."""
        return self.earlier_s + time.perf_counter() - self.started


_ELAPSED = "elapsed.part"
_BOOT = "boot.part"


def make_once(
    folder: Path,
    build: Callable[[Job], str],
    *,
    format: str,
    examples: int,
    size: int,
    packages: Sequence[str] = (),
    resumable: bool = False,
    report: Report = no_report,
) -> Manifest:
    """The manifest of a folder, which ``build`` fills first where it is not there; processes wait for one another.

    ``build`` returns the SHA-256 of the content. A ``resumable`` one finds what an interrupted attempt left in
    ``job.folder``; another one finds an empty folder. Raises OSError that names the folder where the disk is full.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if folder.exists():
            return read_manifest(folder)
        part = folder.with_name(folder.name + PART)
        earlier_s = _left_by_an_earlier_attempt(part) if resumable else None
        if earlier_s is None:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            (part / _BOOT).write_text(_boot())
        job = Job(folder=part, earlier_s=earlier_s or 0.0, started=time.perf_counter(), report=report)
        try:
            digest = build(job)
            for note in (_ELAPSED, _BOOT):
                (part / note).unlink(missing_ok=True)
            files = {f.relative_to(part).as_posix(): f.stat().st_size for f in sorted(part.rglob("*")) if f.is_file()}
            manifest = Manifest(
                format=format,
                examples=examples,
                size=size,
                bytes=sum(files.values()),
                seconds=job.seconds(),
                sha256=digest,
                versions={package: importlib.metadata.version(package) for package in ("numpy", "pillow", *packages)},
                files=files,
            )
            (part / MANIFEST).write_text(json.dumps(dataclasses.asdict(manifest)), "utf-8")
            os.replace(part, folder)
        except OSError as error:
            if error.errno not in _FULL_DISK:
                raise
            shutil.rmtree(part, ignore_errors=True)  # half a set is of no use, and the disk is full
            raise OSError(
                error.errno,
                f"{os.strerror(error.errno or 0)}: the set was not made; free some space (`speedproof data clean`), "
                "or set SPEEDPROOF_CACHE to a folder on another disk",
                str(folder),
            ) from error
    return manifest


def _left_by_an_earlier_attempt(part: Path) -> float | None:
    """Seconds that an interrupted attempt spent; ``None`` where there is nothing to go on with.

    What was written before a crash of the machine may not have reached the disk: it is not gone on with.
    """
    try:
        if (part / _BOOT).read_text() == _boot():
            return float((part / _ELAPSED).read_text())
    except (OSError, ValueError):
        pass
    return None


def _boot() -> str:
    return _BOOT_FILE.read_text().strip()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(folder.with_name(folder.name + LOCK), "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished folder, whose files must have the sizes that it records.

    Raises :class:`~harness.errors.MeasurementError` that names the file which does not.
    """
    file = folder / MANIFEST
    try:
        manifest = Manifest(**json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise MeasurementError(f"{file}: unreadable ({error}); {CLEAN}") from error
    for name, wanted in manifest.files.items():
        try:
            found = os.stat(os.path.join(folder, name)).st_size
        except OSError as error:
            raise MeasurementError(f"{folder / name}: {error.strerror}; {CLEAN}") from error
        if found != wanted:
            raise MeasurementError(f"{folder / name}: damaged, has {found} bytes, was made with {wanted}; {CLEAN}")
    return manifest


def made() -> list[Path]:
    """Everything that the suite put into the cache, finished or not; the user may keep other things beside it."""
    root = cache_path()
    inside = (path for kind in KINDS for path in (root / kind).glob("*") if _MADE.fullmatch(path.name))
    return sorted((*inside, *root.glob("docstrings-*")))


def digest(*parts: object) -> str:
    """A name of 16 hexadecimal digits for what decides a folder's content."""
    return hashlib.sha256(json.dumps(parts, default=str).encode("utf-8", "surrogateescape")).hexdigest()[:16]


@functools.cache
def codec() -> str:
    """Version of Pillow and of the JPEG library in it: they decide pixels, and the bytes of a JPEG."""
    from PIL import __version__, features

    return f"{__version__}/{features.version('jpg')}"
