"""The page cache of given files: emptied, filled, and seen. No root rights are needed, but the files must be one's own.

Emptying drops the files' content only, not what the kernel knows of folders and names. It does not reach pages that a
process has mapped (close LMDB, Arrow and npy first), nor files on tmpfs, which live in memory. So the share that is
cached is always looked at, never taken for granted.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.errors import Unavailable

READ_BYTES = 4 << 20
FULL = 0.99  # files of which at least this share is cached are not read again
_SYS_CACHESTAT = 451  # the same number on every architecture; Linux 6.5
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def bring(files: Sequence[Path], *, cold: bool) -> float:
    """Empty the page cache of the files, or fill it where it is not full; the share that it then holds."""
    if cold:
        evict(files)
    elif cached_share(files) < FULL:
        warm(files)
    return cached_share(files)


def evict(files: Iterable[Path]) -> None:
    """Drop the files' content from the page cache, written to the disk first where it was not yet."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def warm(files: Iterable[Path]) -> None:
    """Read every file through once."""
    buffer = memoryview(bytearray(READ_BYTES))
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            while os.readv(descriptor, [buffer]):
                pass
        finally:
            os.close(descriptor)


def cached_share(files: Iterable[Path]) -> float:
    """The share of the files' pages that the page cache holds, from 0 to 1; 1 where there is no page at all.

    Raises :class:`~harness.errors.Unavailable` for a file of another user's, whose pages the kernel does not show.
    """
    cached = total = 0
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            pages = -(-os.fstat(descriptor).st_size // mmap.PAGESIZE)
            cached += min(_cached_pages(descriptor, pages), pages) if pages else 0
        except PermissionError as error:
            raise Unavailable(
                f"{file}: the kernel does not show the page cache of another user's file; copy the folder"
            ) from error
        finally:
            os.close(descriptor)
        total += pages
    return cached / total if total else 1.0


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))  # length 0: to the end


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


def _cached_pages(descriptor: int, pages: int) -> int:
    return cachestat(descriptor) if _has_cachestat() else mincore(descriptor, pages)


@functools.cache
def _has_cachestat() -> bool:
    """Whether the kernel knows the call and lets this process make it (a container's filter may not)."""
    with open(__file__, "rb") as file:
        try:
            cachestat(file.fileno())
        except PermissionError:
            return True  # asked of a file of another user's
        except OSError:
            return False
    return True


def cachestat(descriptor: int) -> int:
    """Cached pages of an open file, by cachestat(2)."""
    counts = _Counts()
    if _libc.syscall(_SYS_CACHESTAT, descriptor, ctypes.byref(_Range()), ctypes.byref(counts), 0):
        raise _last_error()
    return int(counts.cached)


def mincore(descriptor: int, pages: int) -> int:
    """Cached pages of the first ``pages`` of an open file, by mincore(2) over a mapping that touches none of them.

    To a process that neither owns the file nor may write it, mincore calls every page cached: PermissionError.
    """
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() and not os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
        raise PermissionError(errno.EPERM, "mincore tells nothing of a file that is neither owned nor writable")
    length = pages * mmap.PAGESIZE
    address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        raise _last_error()
    try:
        resident = ctypes.create_string_buffer(pages)
        if _libc.mincore(address, length, resident):
            raise _last_error()
        return sum(byte & 1 for byte in resident.raw)
    finally:
        _libc.munmap(address, length)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
