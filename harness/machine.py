"""The machine as the parent sees it: what it is, what puts a measurement on it in doubt, what software is on it.

Imports no framework: versions come from package metadata, GPUs from NVML. Nothing here names a host or a serial number.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness import hazards as _hazards
from harness.hazards import Hazard, Level, MachineLock
from harness.limits import cores, cpu_quota, memory_free, memory_limit
from harness.nvml import EnergyMeter, GpuSample, GpuSampler, Nvml, describe, nvml

__all__ = [
    "EnergyMeter",
    "GpuSample",
    "GpuSampler",
    "Hazard",
    "Level",
    "MachineLock",
    "cores",
    "cpu_quota",
    "fingerprint",
    "git_state",
    "hazards",
    "instruction_set",
    "memory_free",
    "memory_limit",
    "one_line",
    "parent_peak_bytes",
    "versions",
]

_ROOT = Path("/")
_CHECKOUT = Path(__file__).resolve().parents[1]
# The extensions that decide how fast training runs, as /proc/cpuinfo calls them (x86, then ARM).
_EXTENSIONS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
    *("asimd", "asimdhp", "asimddp", "sve", "sve2", "bf16", "i8mm"),
)
_PACKAGES = (
    *("torch", "torchvision", "transformers", "tensorflow", "keras", "keras-hub", "numpy", "pandas", "scipy"),
    *("scikit-learn", "pytest", "pytest-benchmark", "speedproof"),
)
_OTHER_NAMES = {"tensorflow": ("tensorflow-cpu", "tensorflow-rocm", "tf-nightly")}
_STABLE = ("cpu", "cores", "host_cores", "instruction_set", "os", "architecture", "virtual")
_LINE_COLUMNS = 80


def instruction_set(root: Path = _ROOT) -> list[str]:
    """The processor's extensions that matter for training, such as avx2 or amx_bf16; empty where they are hidden."""
    info = _cpuinfo(root)
    flags = set(info.get("flags", info.get("Features", "")).split())
    return [name for name in _EXTENSIONS if name in flags]


def fingerprint(*, root: Path = _ROOT, lib: Nvml | None = None) -> dict[str, Any]:
    """What this machine is: processor, memory, system, GPUs with their present clocks.

    ``machine_id`` is a hash of what stays the same from day to day: not of kernel, driver, clocks or temperatures, so
    that runs before and after an update can be compared. Holds no host name and no serial number.
    """
    lib = lib or nvml()
    info = _cpuinfo(root)
    facts: dict[str, Any] = {
        "cpu": info.get("model name") or info.get("Processor") or platform.processor() or platform.machine(),
        "cores": cores(root / "proc"),
        "host_cores": os.cpu_count() or 1,
        "cpu_quota": cpu_quota(root / "proc"),
        "memory_bytes": memory_limit(root / "proc"),
        "instruction_set": instruction_set(root),
        "architecture": platform.machine(),
        "os": _os_name(root),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "virtual": "hypervisor" in info.get("flags", "").split() or (root / "sys/hypervisor/type").exists(),
        "container": any((root / p).exists() for p in (".dockerenv", "run/.containerenv")),
        "driver": lib.ask("nvmlSystemGetDriverVersion"),
        "gpus": describe(lib),
    }
    return {"machine_id": _machine_id(facts), **facts}


def _machine_id(facts: Mapping[str, Any]) -> str:
    stable = {name: facts[name] for name in _STABLE}
    stable["memory_gib"] = round(facts["memory_bytes"] / 2**30)
    stable["gpus"] = [
        [g["name"], g["compute_capability"], round((g["memory_bytes"] or 0) / 2**30)] for g in facts["gpus"]
    ]
    return hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()[:12]


def hazards(
    machine: Mapping[str, Any] | None = None,
    *,
    results_dir: str | Path = ".",
    root: Path = _ROOT,
    lib: Nvml | None = None,
) -> list[Hazard]:
    """What puts a measurement here and now in doubt, the gravest first. Takes 0.2 s, in which nothing else should run.

    Take the :class:`MachineLock` before: the lock of this process is no hazard.
    """
    lib = lib or nvml()
    facts = machine or fingerprint(root=root, lib=lib)
    found = _hazards.find(facts, lib=lib, results_dir=Path(results_dir), root=root)
    return sorted(found, key=lambda h: list(Level).index(h.level), reverse=True)


def one_line(machine: Mapping[str, Any] | None = None, found: Iterable[Hazard] | None = None) -> str:
    """The opening line of a run: the machine and the names of its hazards, in 80 columns where they fit.

    Without arguments it looks now; a run should rather say what it saw before its workers started.
    """
    machine = fingerprint() if machine is None else machine
    found = hazards(machine) if found is None else found
    gpus = machine["gpus"]
    gpu = f"{len(gpus)}x {gpus[0]['name']}" if len(gpus) > 1 else gpus[0]["name"] if gpus else "no GPU"
    names = list(dict.fromkeys(h.name for h in found))
    cpu = " ".join(
        str(machine["cpu"]).replace("(R)", "").replace("(TM)", "").replace(" CPU", "").split(" @ ")[0].split()
    )
    plural = "" if machine["cores"] == 1 else "s"
    tail = f", {machine['memory_bytes'] / 2**30:.0f} GiB, {gpu} - hazards: {', '.join(names) or 'none'}"
    head = f"{machine['cores']} core{plural} {cpu}"
    room = max(24, _LINE_COLUMNS - len(tail))
    return (head if len(head) <= room else head[: room - 1].rstrip() + "…") + tail


def versions() -> dict[str, str | None]:
    """Python's version and those of the packages that a result depends on, ``None`` for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        names = (package, *_OTHER_NAMES.get(package, ()))
        found[package] = next((v for name in names if (v := _version(name)) is not None), None)
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_state(checkout: Path = _CHECKOUT) -> dict[str, str | bool | None]:
    """``commit`` of the checkout that holds this suite and whether anything but its outputs (results/, plots/) differs.

    Both are ``None`` outside a checkout: also where the suite is installed into an environment inside another one.
    """
    nothing: dict[str, str | bool | None] = {"commit": None, "dirty": None}
    if not _git(checkout, "ls-files", "harness/__init__.py"):
        return nothing
    commit = _git(checkout, "rev-parse", "--verify", "HEAD")
    changes = _git(checkout, "status", "--porcelain", "--", ".", ":(exclude)results", ":(exclude)plots")
    return {"commit": commit, "dirty": bool(changes)} if commit and changes is not None else nothing


def _git(checkout: Path, *arguments: str) -> str | None:
    """The output of a git command, ``None`` where git is missing or refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def parent_peak_bytes() -> int:
    """The largest memory this process has had resident, bytes."""
    for line in (_read(Path("/proc/self/status"))).splitlines():
        if line.startswith("VmHWM:"):  # unlike ru_maxrss it does not carry the peak of the process that started us
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _cpuinfo(root: Path) -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo."""
    first = _read(root / "proc/cpuinfo").split("\n\n")[0]
    return {name.strip(): value.strip() for line in first.splitlines() for name, _, value in [line.partition(":")]}


def _os_name(root: Path) -> str:
    for line in _read(root / "etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return f"{platform.system()} {platform.release()}"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
