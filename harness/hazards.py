"""What puts a measurement on this machine in doubt, and the lock that tells two runs on one machine apart."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil

from harness.limits import memory_free
from harness.nvml import Nvml, foreign_processes

FEW_CORES = 4
LOW_MEMORY = 2 * 2**30  # bytes
LOW_DISK = 2**30  # bytes
SWAP_IN_USE = 64 * 2**20  # bytes; less is what an idle system leaves behind
STEAL_SHARE = 0.01
BUSY_SHARE = 0.25
LOAD_SHARE = 0.5


class Level(StrEnum):
    """How much a hazard matters: ``note`` is to be known, ``warning`` widens intervals, ``severe`` distorts results."""

    NOTE = "note"
    WARNING = "warning"
    SEVERE = "severe"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hazard:
    """One thing to know before trusting a number: a short name for the opening line, and what was seen."""

    level: Level
    name: str
    message: str


def find(
    machine: Mapping[str, Any], *, lib: Nvml, results_dir: Path, root: Path = Path("/"), watch_s: float = 0.2
) -> list[Hazard]:
    """Every hazard here and now. ``machine`` is the fingerprint; the processors are watched for ``watch_s`` seconds."""
    return [
        *_other_run(),
        *_gpu(machine, lib),
        *_processor(machine, root, watch_s),
        *_memory(results_dir, root),
    ]


def _other_run() -> Iterator[Hazard]:
    holder = MachineLock.held_by_another()
    if holder is not None:
        yield Hazard(
            level=Level.SEVERE,
            name="another run",
            message=f"another speedproof run measures on this machine ({holder})",
        )


def _gpu(machine: Mapping[str, Any], lib: Nvml) -> Iterator[Hazard]:
    if lib.problem:
        yield Hazard(level=Level.WARNING, name="nvml", message=f"the GPU's driver does not answer: {lib.problem}")
    for gpu, pids in foreign_processes(lib).items():
        who = ", ".join(f"pid {p}" for p in pids)
        message = f"{len(pids)} other process(es) compute on GPU {gpu}: {who}"
        yield Hazard(level=Level.SEVERE, name="foreign gpu process", message=message)
    for gpu, facts in enumerate(machine.get("gpus") or []):
        if facts.get("throttle_reasons"):
            message = f"GPU {gpu} holds its clocks back: {', '.join(facts['throttle_reasons'])}"
            yield Hazard(level=Level.WARNING, name="gpu throttled", message=message)
        if facts.get("mig"):
            message = f"GPU {gpu} is cut into MIG slices; others may use its memory bandwidth"
            yield Hazard(level=Level.NOTE, name="mig", message=message)


def _processor(machine: Mapping[str, Any], root: Path, watch_s: float) -> Iterator[Hazard]:
    if machine.get("virtual"):
        yield Hazard(
            level=Level.NOTE,
            name="virtual machine",
            message="a virtual machine: neighbours share its processor and caches",
        )
    if machine["cores"] < FEW_CORES:
        message = f"{machine['cores']} cores: the system's own work takes a visible share"
        yield Hazard(level=Level.NOTE, name="few cores", message=message)
    governors = {g for p in root.glob("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor") if (g := _read(p))}
    if governors - {"performance"}:
        message = (
            f"the clock governor is {', '.join(sorted(governors))}; `cpupower frequency-set -g performance` pins it"
        )
        yield Hazard(level=Level.WARNING, name="clock governor", message=message)
    load = os.getloadavg()[0]
    if load > LOAD_SHARE * machine["host_cores"]:
        message = f"load average {load:.1f} on {machine['host_cores']} cores: other work runs or has just ended"
        yield Hazard(level=Level.WARNING, name="load", message=message)
    since_boot = _cpu_times(root)
    time.sleep(watch_s)
    now = _cpu_times(root)
    lately = {name: now[name] - since_boot[name] for name in now}
    busy, stolen = 1 - _share(lately, "idle", "iowait", empty=1.0), max(_share(now, "steal"), _share(lately, "steal"))
    if busy > BUSY_SHARE:
        message = f"the processors are {busy:.0%} busy before anything is measured"
        yield Hazard(level=Level.WARNING, name="busy", message=message)
    if stolen > STEAL_SHARE:
        message = f"the host took {stolen:.1%} of the processor time away (steal)"
        yield Hazard(level=Level.WARNING, name="steal time", message=message)


def _memory(results_dir: Path, root: Path) -> Iterator[Hazard]:
    free = memory_free(root / "proc")
    if free < LOW_MEMORY:
        yield Hazard(level=Level.WARNING, name="low memory", message=f"{free / 2**30:.1f} GiB of memory are free")
    swap = psutil.swap_memory().used
    if swap > SWAP_IN_USE:
        yield Hazard(level=Level.WARNING, name="swap", message=f"{swap / 2**20:.0f} MiB are swapped out")
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    if battery is not None and battery.power_plugged is False:
        yield Hazard(level=Level.WARNING, name="battery", message="runs on battery: clocks change with its charge")
    folder = next(p for p in (results_dir.absolute(), *results_dir.absolute().parents) if p.exists())
    disk = psutil.disk_usage(str(folder)).free
    if disk < LOW_DISK:
        message = f"{disk / 2**20:.0f} MiB are free where results are written"
        yield Hazard(level=Level.WARNING, name="low disk", message=message)


def _cpu_times(root: Path) -> dict[str, int]:
    """Ticks of all processors since boot, by state, from the first line of /proc/stat."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    words = (_read(root / "proc/stat") or "").split()[1 : 1 + len(names)]
    return dict(zip(names, map(int, words), strict=False))


def _share(ticks: Mapping[str, int], *states: str, empty: float = 0.0) -> float:
    total = sum(ticks.values())
    return sum(ticks.get(s, 0) for s in states) / total if total > 0 else empty


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


class MachineLock:
    """Held by the one run that measures on a machine, over all users. The system frees it when the process dies.

    Two runs side by side measure each other, so the second should say so or wait.
    """

    _held: ClassVar[set[Path]] = set()

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or self.default_path()
        self._fd: int | None = None

    @staticmethod
    def default_path() -> Path:
        """The lock file, in the system's folder for temporary files."""
        return Path(tempfile.gettempdir()) / "speedproof.lock"

    @classmethod
    def held_by_another(cls, path: Path | None = None) -> str | None:
        """``pid N`` of the other process that measures here, ``None`` where there is none."""
        lock = cls(path)
        if lock.path in cls._held or not lock.path.exists():
            return None
        if lock.acquire():
            lock.release()
            return None
        return lock.holder()

    def acquire(self) -> bool:
        """Take the lock; false where another run has it, or this process already."""
        if self._fd is not None or self.path in self._held:
            return self._fd is not None
        fd = self._open()
        if fd is None:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        with contextlib.suppress(OSError):  # another user's file: the lock counts, the number is a courtesy
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        self._fd = fd
        self._held.add(self.path)
        return True

    def release(self) -> None:
        """Free the lock; without effect where it is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self._held.discard(self.path)

    def holder(self) -> str:
        """Who has written into the lock file last."""
        pid = _read(self.path) or ""
        return f"pid {pid}" if pid.isdecimal() else "of unknown pid"

    def _open(self) -> int | None:
        """A descriptor of the lock file, never of a link that somebody put there; ``None`` where it is forbidden."""
        for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT):
            with contextlib.suppress(OSError):
                fd = os.open(self.path, flags | os.O_NOFOLLOW, 0o644)
                if flags & os.O_CREAT:
                    os.fchmod(fd, 0o644)  # whatever the umask, others must be able to see that it is locked
                return fd
        return None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
