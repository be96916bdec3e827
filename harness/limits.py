"""What this process may use of the machine: cores and memory, as affinity and control groups (v1 and v2) allow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

_PROC = Path("/proc")


def cores(proc: Path = _PROC) -> int:
    """Cores that this process can keep busy: the lesser of its affinity and its CPU quota, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(proc)
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def cpu_quota(proc: Path = _PROC) -> float | None:
    """The CPU quota in cores, the least of this control group and those above it; ``None`` without one."""
    quotas = []
    for folder in _groups("cpu", proc):
        text = _read(folder / "cpu.max") or ""
        quota, _, period = text.partition(" ")
        if not text:  # version 1
            quota, period = _read(folder / "cpu.cfs_quota_us") or "", _read(folder / "cpu.cfs_period_us") or ""
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:  # "max" and -1 say that there is none
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit(proc: Path = _PROC) -> int:
    """Bytes that this process may hold: the lesser of the physical memory and its control groups' limits."""
    limits = [psutil.virtual_memory().total]
    for folder in _groups("memory", proc):
        text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes") or ""
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)


def memory_free(proc: Path = _PROC) -> int:
    """Bytes that this process can still take before machine or control group refuses; page cache counts as free."""
    free = [psutil.virtual_memory().available]
    for folder in _groups("memory", proc):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes") or ""
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes") or ""
        stat = dict(line.split() for line in (_read(folder / "memory.stat") or "").splitlines() if line.count(" ") == 1)
        cache = int(stat.get("inactive_file", stat.get("total_inactive_file", "0")))
        if limit.isdecimal() and used.isdecimal():
            free.append(max(0, int(limit) - int(used) + cache))
    return min(free)


def _read(path: Path) -> str | None:
    """The text of a small file of the kernel, ``None`` where there is none for us."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _groups(controller: str, proc: Path) -> Iterator[Path]:
    """The folders of this process's control groups for one controller, from its own to the root of the mount."""
    paths = _paths(controller, proc)
    for line in (_read(proc / "self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        mounted, source = left.split(), right.split()
        path = paths.get(source[0]) if source else None
        if path is None or (source[0] == "cgroup" and controller not in source[-1].split(",")):
            continue
        # A container mounts its own group as the root, and may still be told its path on the host.
        group, root = mounted[3], Path(mounted[4])
        inside = Path(path).relative_to(group) if Path(path).is_relative_to(group) else Path()
        folder = root / inside
        while folder != root:
            yield folder
            folder = folder.parent
        yield root


def _paths(controller: str, proc: Path) -> dict[str, str]:
    """This process's group by type of mount, from lines such as ``0::/a/b`` (v2) and ``4:cpu,cpuacct:/a`` (v1)."""
    found = {}
    for line in (_read(proc / "self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            found["cgroup2"] = path
        elif controller in controllers.split(","):
            found["cgroup"] = path
    return found
