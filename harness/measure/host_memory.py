"""Memory of this process on the host, from /proc (Linux).

``VmHWM`` counts file pages too, which a forked worker faults in from the framework's libraries as it goes. So a peak is
taken as the anonymous memory held when the window opens, plus how far the resident set rose inside the window.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MAPPED_FROM, _TRIMMED_FROM = 32 << 20, 1 << 30  # bytes; glibc takes no larger threshold for mapping
_CLEAR_REFS = Path("/proc/self/clear_refs")


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{_STATUS} has no field {name}; memory on the host is measured on Linux only")


def data_bytes() -> int:
    """Private writable memory of this process, resident or not: what RLIMIT_DATA limits."""
    return _field("VmData")


def limit_data(more: int) -> None:
    """Let this process allocate ``more`` bytes beyond what it holds now, and no more.

    The limit is on private writable memory, resident or not: the only one on a CPU that makes an allocation fail, and
    does not kill.
    """
    allowed = data_bytes() + more
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))


def keep_freed_memory() -> None:
    """Have the C library keep what a step frees for the next one, as the allocators that experts preload do.

    By default it returns large blocks to the system, and each step of a small CNN then faults thousands of pages in
    again: a tenth of its time. :meth:`HostMemoryWindow.open` still gives everything back before it counts.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIMMED_FROM)


class HostMemoryWindow:
    """Peak of this process's memory beyond what it held at ``start``.

    Make one when the worker starts; call :meth:`open` before the steps to be watched and :meth:`peak` after them.
    """

    def __init__(self) -> None:
        self._start_anonymous = _field("RssAnon")
        self._before = 0
        self._held = 0

    def open(self) -> None:
        """Give free memory back to the system and restart the peak (``clear_refs`` 5 resets VmHWM, no root needed)."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR_REFS.write_text("5")
        self._before = _field("VmRSS")
        self._held = _field("RssAnon") - self._start_anonymous

    def peak(self) -> int:
        """Bytes: held when the window opened, plus the rise of the resident set since."""
        return max(0, self._held + _field("VmHWM") - self._before)
