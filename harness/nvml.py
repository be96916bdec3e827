"""NVIDIA GPUs through NVML: what they are, what they are doing, what energy they took.

Nothing here raises for a GPU that is missing, does not know a counter, or vanishes: the value is ``None`` then.
A framework's "GPU 0" is the first of CUDA_VISIBLE_DEVICES; on a machine with different GPUs that is NVML's order only
with CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Self

import psutil

_IDLE = 0x1
# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h); idle is no reason to worry.
THROTTLE_BITS = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}
_ABSENT = ("NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_DRIVER_NOT_LOADED", "NVML_ERROR_NO_PERMISSION")


class Nvml:
    """An opened NVML. ``module`` is pynvml or a stand-in; ``problem`` says why a driver that is there is silent."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.problem = ""
        self.ready = False
        try:
            module.nvmlInit()
            self.ready = True
        except module.NVMLError as error:
            code = getattr(error, "value", None)
            if code not in [getattr(module, name, object()) for name in _ABSENT]:
                self.problem = str(error)

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer of one NVML function, ``None`` where it has none. Bytes become text."""
        if not self.ready or not hasattr(self.module, function):
            return None
        try:
            answer = getattr(self.module, function)(*arguments)
        except (self.module.NVMLError, ValueError):  # pynvml raises ValueError for answers that it cannot decode
            return None
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def constant(self, name: str) -> Any:
        """A constant of the module, ``None`` where this version lacks it."""
        return getattr(self.module, name, None)


@functools.cache
def nvml() -> Nvml:
    """The NVML of this process, opened once."""
    import pynvml

    return Nvml(pynvml)


def handles(lib: Nvml) -> list[tuple[int | str, Any]]:
    """(index or UUID, handle) of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; MIG slices count as GPUs."""
    count = lib.ask("nvmlDeviceGetCount") or 0
    chosen: list[int | str] = list(range(count))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        chosen = []
        for name in (part.strip() for part in visible.split(",")):
            if not (name.startswith(("GPU-", "MIG-")) or (name.isdecimal() and int(name) < count)):
                break  # CUDA, too, ignores what follows a name that does not exist
            chosen.append(int(name) if name.isdecimal() else name)
    found = []
    for key in chosen:
        by = "nvmlDeviceGetHandleByIndex" if isinstance(key, int) else "nvmlDeviceGetHandleByUUID"
        handle = lib.ask(by, key)
        if handle is not None:
            found.append((key, handle))
    return found


def throttle_reasons(lib: Nvml, handle: Any) -> list[str] | None:
    """Why the clocks are lower than they could be; ``None`` where NVML does not say."""
    bits = lib.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:
        bits = lib.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if bits is None else [name for bit, name in THROTTLE_BITS.items() if bits & bit]


def compute_pids(lib: Nvml, handle: Any) -> list[int]:
    """Processes that compute on a GPU, as NVML counts them: in a container they may be the host's numbers."""
    return sorted({int(p.pid) for p in lib.ask("nvmlDeviceGetComputeRunningProcesses", handle) or []})


def describe(lib: Nvml) -> list[dict[str, Any]]:
    """Each visible GPU: what it is, its clocks (MHz), power limit (W), temperature (°C), throttle reasons, MIG."""
    return [_describe(lib, key, handle) for key, handle in handles(lib)]


def _describe(lib: Nvml, key: int | str, handle: Any) -> dict[str, Any]:
    memory = lib.ask("nvmlDeviceGetMemoryInfo", handle)
    capability = lib.ask("nvmlDeviceGetCudaComputeCapability", handle)
    power = lib.ask("nvmlDeviceGetPowerManagementLimit", handle)
    mig = lib.ask("nvmlDeviceGetMigMode", handle)
    sm, mem = lib.constant("NVML_CLOCK_SM"), lib.constant("NVML_CLOCK_MEM")
    return {
        "index": key if isinstance(key, int) else None,  # a UUID is a serial number: it stays here
        "name": lib.ask("nvmlDeviceGetName", handle),
        "memory_bytes": None if memory is None else int(memory.total),
        "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
        "sm_clock_mhz": lib.ask("nvmlDeviceGetClockInfo", handle, sm),
        "memory_clock_mhz": lib.ask("nvmlDeviceGetClockInfo", handle, mem),
        "max_sm_clock_mhz": lib.ask("nvmlDeviceGetMaxClockInfo", handle, sm),
        "max_memory_clock_mhz": lib.ask("nvmlDeviceGetMaxClockInfo", handle, mem),
        "power_limit_w": None if power is None else power / 1000,
        "temperature_c": _temperature(lib, handle),
        "throttle_reasons": throttle_reasons(lib, handle),
        "mig": bool(mig[0]) if mig is not None else str(key).startswith("MIG-"),
    }


def _temperature(lib: Nvml, handle: Any) -> int | None:
    answer: int | None = lib.ask("nvmlDeviceGetTemperature", handle, lib.constant("NVML_TEMPERATURE_GPU"))
    return answer


class EnergyMeter:
    """Energy of one visible GPU over the parts of a run that a ``with`` block encloses, from NVML's total counter.

    ``joules`` is ``None`` as soon as one reading is missing, and before the first block. ``gpu`` counts visible GPUs.
    """

    def __init__(self, gpu: int = 0, lib: Nvml | None = None) -> None:
        self._lib = lib or nvml()
        found = handles(self._lib)
        self._handle = found[gpu][1] if gpu < len(found) else None
        self._start: float | None = None
        self._sum = 0.0
        self._blocks = 0
        self._lost = False

    @property
    def joules(self) -> float | None:
        """Energy of the blocks so far, J."""
        return self._sum if self._blocks and not self._lost else None

    def read(self) -> float | None:
        """The counter now, J since the driver was loaded; ``None`` where there is none."""
        if self._handle is None:
            return None
        millijoules = self._lib.ask("nvmlDeviceGetTotalEnergyConsumption", self._handle)
        return None if millijoules is None else millijoules / 1000

    def __enter__(self) -> Self:
        self._start = self.read()
        return self

    def __exit__(self, *_: object) -> None:
        end = self.read()
        if self._start is None or end is None or end < self._start:  # gone, or the driver was loaded anew
            self._lost = True
        else:
            self._sum += end - self._start
        self._blocks += 1


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSample:
    """One GPU at one moment; ``None`` where NVML does not say."""

    gpu: int
    utilisation_percent: int | None
    memory_used_bytes: int | None
    sm_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    throttle_reasons: tuple[str, ...]
    foreign_pids: tuple[int, ...]


class GpuSampler:
    """Looks at the visible GPUs between timed blocks, and remembers what would put a measurement in doubt.

    ``own_pids`` gives this run's processes. A process is foreign when it was there before the run, or when it is
    alive on this machine and none of ours; one that we cannot see may be ours under its host's number.
    """

    def __init__(self, own_pids: Callable[[], Collection[int]] | None = None, lib: Nvml | None = None) -> None:
        self._lib = lib or nvml()
        self._own = own_pids or _family
        self._handles = [handle for _, handle in handles(self._lib)]
        self._before = {pid for h in self._handles for pid in compute_pids(self._lib, h)} - set(self._own())
        self._vanished: set[int] = set()
        self._throttled: dict[int, set[str]] = {}
        self._foreign: set[int] = set()

    def sample(self) -> list[GpuSample]:
        """The visible GPUs now; one that has vanished is left out."""
        own = set(self._own())
        samples = [self._sample(gpu, handle, own) for gpu, handle in enumerate(self._handles)]
        return [s for s in samples if s is not None]

    def findings(self) -> list[tuple[str, str]]:
        """(name, message) of what the samples so far put in doubt."""
        found = [("gpu vanished", f"GPU {gpu} no longer answers") for gpu in sorted(self._vanished)]
        for gpu, reasons in sorted(self._throttled.items()):
            found.append(("gpu throttled", f"GPU {gpu} held its clocks back: {', '.join(sorted(reasons))}"))
        if self._foreign:
            found.append(("foreign gpu process", f"other processes computed on the GPU: {_pids(self._foreign)}"))
        return found

    def _sample(self, gpu: int, handle: Any, own: set[int]) -> GpuSample | None:
        lib = self._lib
        if lib.ask("nvmlDeviceGetName", handle) is None:
            self._vanished.add(gpu)
            return None
        utilisation = lib.ask("nvmlDeviceGetUtilizationRates", handle)
        memory = lib.ask("nvmlDeviceGetMemoryInfo", handle)
        power = lib.ask("nvmlDeviceGetPowerUsage", handle)
        reasons = tuple(throttle_reasons(lib, handle) or ())
        if reasons:
            self._throttled.setdefault(gpu, set()).update(reasons)
        foreign = tuple(p for p in compute_pids(lib, handle) if p in self._before or (p not in own and _alive(p)))
        self._foreign.update(foreign)
        return GpuSample(
            gpu=gpu,
            utilisation_percent=None if utilisation is None else int(utilisation.gpu),
            memory_used_bytes=None if memory is None else int(memory.used),
            sm_clock_mhz=lib.ask("nvmlDeviceGetClockInfo", handle, lib.constant("NVML_CLOCK_SM")),
            temperature_c=_temperature(lib, handle),
            power_w=None if power is None else power / 1000,
            throttle_reasons=reasons,
            foreign_pids=foreign,
        )


def foreign_processes(lib: Nvml) -> dict[int, list[int]]:
    """By visible GPU, the computing processes that are not of this process's family."""
    own = _family()
    found = {gpu: [p for p in compute_pids(lib, h) if p not in own] for gpu, (_, h) in enumerate(handles(lib))}
    return {gpu: pids for gpu, pids in found.items() if pids}


def _family() -> set[int]:
    """This process and its descendants."""
    me = psutil.Process()
    return {me.pid, *(child.pid for child in me.children(recursive=True))}


def _alive(pid: int) -> bool:
    return bool(psutil.pid_exists(pid))


def _pids(pids: Collection[int]) -> str:
    return ", ".join(f"pid {pid}" for pid in sorted(pids))
