"""The tie of a process to the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends (Linux), so that nothing outlives a killed run.

    ``parent`` is the parent's process id, taken before the fork, where the parent may have ended since.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
