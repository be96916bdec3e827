"""The machine: limits from control groups, hazards, GPUs through a stand-in for NVML, the lock of the one run."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from harness import hazards as hazards_module
from harness import limits, machine
from harness.hazards import Hazard, Level, MachineLock
from harness.nvml import EnergyMeter, GpuSampler, Nvml, describe, handles

ROOT = Path(__file__).resolve().parents[1]
GIB = 2**30


class NVMLError(Exception):
    """As pynvml's: carries the code."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class FakeNvml:
    """What the harness uses of pynvml, for GPUs scripted by the test."""

    NVMLError = NVMLError
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, count: int = 1, init_error: int = 0) -> None:
        self.count = count
        self.init_error = init_error
        self.gone = False
        self.energy_mj: list[int] = []
        self.pids: list[int] = []
        self.throttle = 0
        self.mig = 0

    def nvmlInit(self) -> None:
        if self.init_error:
            raise NVMLError(self.init_error)

    def _answer(self, value: Any) -> Any:
        if self.gone:
            raise NVMLError(15)  # NVML_ERROR_GPU_IS_LOST
        return value

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
            "nvmlDeviceGetHandleByUUID": lambda uuid: f"handle {uuid}",
            "nvmlDeviceGetName": lambda h: b"NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(total=140 * GIB, used=3 * GIB),
            "nvmlDeviceGetCudaComputeCapability": lambda h: (9, 0),
            "nvmlDeviceGetClockInfo": lambda h, kind: {1: 345, 2: 3201}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda h, kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetPowerManagementLimit": lambda h: 700_000,
            "nvmlDeviceGetPowerUsage": lambda h: 76_500,
            "nvmlDeviceGetTemperature": lambda h, kind: 31,
            "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=12),
            "nvmlDeviceGetCurrentClocksEventReasons": lambda h: self.throttle,
            "nvmlDeviceGetComputeRunningProcesses": lambda h: [SimpleNamespace(pid=p) for p in self.pids],
            "nvmlDeviceGetTotalEnergyConsumption": lambda h: self.energy_mj.pop(0),
            "nvmlDeviceGetMigMode": lambda h: [self.mig, self.mig],
            "nvmlSystemGetDriverVersion": lambda: "570.00",
        }
        if name not in answers:
            raise AttributeError(name)
        return lambda *arguments: self._answer(None) or answers[name](*arguments)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return FakeNvml()


# --- cores and memory


def groups(tmp_path: Path, cgroup: str, mount: str, files: dict[str, str]) -> Path:
    """A /proc for a process in control groups; ``{}`` in ``mount`` is where they are mounted."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    (tmp_path / "proc/self/mountinfo").write_text(
        "22 1 8:1 / / rw - ext4 /dev/root rw\n" + mount.format(tmp_path / "cg")
    )
    for name, text in files.items():
        path = tmp_path / "cg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return tmp_path / "proc"


V2 = "30 22 0:26 / {} rw - cgroup2 cgroup2 rw\n"
V1 = (
    "32 31 0:29 ROOT {0}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 ROOT {0}/memory rw - cgroup cgroup rw,memory\n"
)


def test_the_least_quota_of_a_v2_group_and_its_parents_counts(tmp_path: Path) -> None:
    files = {"cpu.max": "max 100000", "a/cpu.max": "150000 100000", "a/b/cpu.max": "400000 100000"}
    files |= {"a/memory.max": str(GIB), "a/b/memory.max": "max"}
    proc = groups(tmp_path, "0::/a/b\n", V2, files)
    assert limits.cpu_quota(proc) == 1.5
    assert limits.cores(proc) == 1
    assert limits.memory_limit(proc) == GIB


def test_v1_groups_count_as_well(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000"}
    files |= {"memory/x/memory.limit_in_bytes": str(3 * GIB // 2), "memory/memory.limit_in_bytes": str(2**63 - 4096)}
    proc = groups(tmp_path, "4:cpu,cpuacct:/x\n3:memory:/x\n", V1.replace("ROOT", "/"), files)
    assert limits.cpu_quota(proc) == 0.5
    assert limits.cores(proc) == 1
    assert limits.memory_limit(proc) == 3 * GIB // 2


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}
    proc = groups(tmp_path, "4:cpu:/docker/abc\n", V1.replace("ROOT", "/docker/abc"), files)
    assert limits.cpu_quota(proc) == 2.0
    (proc / "self/cgroup").write_text("4:cpu:/\n")  # the path as seen from inside
    assert limits.cpu_quota(proc) == 2.0


def test_without_groups_affinity_and_physical_memory_count(tmp_path: Path) -> None:
    assert limits.cpu_quota(tmp_path) is None
    assert limits.cores(tmp_path) == len(os.sched_getaffinity(0))
    assert limits.memory_limit(tmp_path) == psutil.virtual_memory().total


def test_affinity_bounds_the_cores() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += "from harness.limits import cores; print(cores())"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "1"


def test_free_memory_counts_the_page_cache_of_the_group_as_free(tmp_path: Path) -> None:
    files = {"memory.max": str(GIB), "memory.current": str(GIB - 100), "memory.stat": "anon 5\ninactive_file 40"}
    assert limits.memory_free(groups(tmp_path, "0::/\n", V2, files)) == 140


# --- the fingerprint


def fake_root(tmp_path: Path, flags: str = "fpu avx2 fma avx512f avx512_bf16 amx_bf16 hypervisor") -> Path:
    (tmp_path / "proc").mkdir()
    cpu = (
        f"processor : 0\nmodel name : Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz\nflags : {flags}\n\nprocessor : 1\n"
    )
    (tmp_path / "proc/cpuinfo").write_text(cpu)
    (tmp_path / "proc/stat").write_text("cpu 100 0 0 890 0 0 0 10\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME=x\nPRETTY_NAME="Some Linux 9"\n')
    return tmp_path


def test_the_fingerprint_says_what_the_machine_is(tmp_path: Path, fake: FakeNvml) -> None:
    facts = machine.fingerprint(root=fake_root(tmp_path), lib=Nvml(fake))
    assert facts["cpu"] == "Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz"
    assert facts["instruction_set"] == ["avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16"]
    assert facts["os"] == "Some Linux 9"
    assert facts["virtual"] is True
    assert facts["driver"] == "570.00"
    gpu = facts["gpus"][0]
    assert (gpu["name"], gpu["compute_capability"], gpu["memory_bytes"]) == ("NVIDIA H200", "9.0", 140 * GIB)
    assert (gpu["sm_clock_mhz"], gpu["max_sm_clock_mhz"], gpu["power_limit_w"]) == (345, 1980, 700.0)
    assert (gpu["temperature_c"], gpu["throttle_reasons"], gpu["mig"]) == (31, [], False)


def test_the_machine_id_is_the_same_after_an_update_and_another_with_another_gpu(
    tmp_path: Path, fake: FakeNvml
) -> None:
    root = fake_root(tmp_path)
    first = machine.fingerprint(root=root, lib=Nvml(fake))["machine_id"]
    fake.throttle = 0x40
    (root / "etc/os-release").write_text('PRETTY_NAME="Some Linux 9"\nVERSION=9.1\n')
    assert machine.fingerprint(root=root, lib=Nvml(fake))["machine_id"] == first
    fake.count = 2
    assert machine.fingerprint(root=root, lib=Nvml(fake))["machine_id"] != first


def test_the_fingerprint_is_plain_data_without_the_host_s_name() -> None:
    text = json.dumps(machine.fingerprint())
    assert len(platform.node()) < 3 or platform.node() not in json.loads(text).values()
    assert json.loads(text)["cores"] >= 1


# --- hazards


def find(tmp_path: Path, fake: FakeNvml, **facts: object) -> dict[str, Hazard]:
    root = tmp_path if (tmp_path / "proc").exists() else fake_root(tmp_path)
    lib = Nvml(fake)
    known = {**machine.fingerprint(root=root, lib=lib), "cores": 8, "host_cores": 10**6, "virtual": False, **facts}
    found = hazards_module.find(known, lib=lib, results_dir=tmp_path / "not/yet", root=root, watch_s=0)
    return {h.name: h for h in found}


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake: FakeNvml) -> FakeNvml:
    """A machine on which nothing is wrong."""
    monkeypatch.setattr(MachineLock, "default_path", staticmethod(lambda: tmp_path / "lock"))
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(used=0))
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    monkeypatch.setattr(psutil, "disk_usage", lambda path: SimpleNamespace(free=50 * GIB))
    monkeypatch.setattr(hazards_module, "memory_free", lambda proc: 20 * GIB)
    (fake_root(tmp_path) / "proc/stat").write_text("cpu 100 0 0 900 0 0 0 0\n")
    return fake


def test_a_calm_machine_has_no_hazards(tmp_path: Path, calm: FakeNvml) -> None:
    assert find(tmp_path, calm) == {}


def test_each_hazard_is_found(tmp_path: Path, calm: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    calm.pids, calm.throttle, calm.mig = [os.getpid(), 2**22 + 1], 0x1 | 0x40, 1
    governor = tmp_path / "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor"
    governor.parent.mkdir(parents=True)
    governor.write_text("powersave\n")
    (tmp_path / "proc/stat").write_text("cpu 100 0 0 900 0 0 0 50\n")
    monkeypatch.setattr(os, "getloadavg", lambda: (7.5, 1.0, 1.0))
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(used=GIB))
    monkeypatch.setattr(psutil, "sensors_battery", lambda: SimpleNamespace(power_plugged=False), raising=False)
    monkeypatch.setattr(psutil, "disk_usage", lambda path: SimpleNamespace(free=GIB // 2))
    monkeypatch.setattr(hazards_module, "memory_free", lambda proc: GIB)
    found = find(tmp_path, calm, cores=2, host_cores=8, virtual=True)
    assert set(found) == {
        "foreign gpu process",
        "gpu throttled",
        "mig",
        "virtual machine",
        "few cores",
        "clock governor",
        "load",
        "steal time",
        "low memory",
        "swap",
        "battery",
        "low disk",
    }
    assert found["foreign gpu process"].message.endswith(f"GPU 0: pid {2**22 + 1}")  # ours is not counted
    assert "thermal (hardware)" in found["gpu throttled"].message
    assert "powersave" in found["clock governor"].message
    assert "4.8%" in found["steal time"].message


def test_processors_that_are_busy_now_are_a_hazard(
    tmp_path: Path, calm: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(seconds: float) -> None:
        (tmp_path / "proc/stat").write_text("cpu 160 0 0 940 0 0 0 0\n")

    monkeypatch.setattr(time, "sleep", work)
    assert "60% busy" in find(tmp_path, calm)["busy"].message


def test_a_driver_that_does_not_answer_is_a_hazard_and_none_at_all_is_not(tmp_path: Path, calm: FakeNvml) -> None:
    calm.init_error = 18  # driver and library of different versions
    assert "NVML error 18" in find(tmp_path, calm)["nvml"].message
    calm.init_error = FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND
    assert find(tmp_path, calm) == {}


def test_the_opening_line_names_machine_and_hazards() -> None:
    facts = {"cpu": "AMD EPYC", "cores": 2, "memory_bytes": 23 * GIB, "gpus": []}
    found = [Hazard(level=Level.NOTE, name=n, message="…") for n in ("virtual machine", "few cores")]
    line = machine.one_line(facts, found)
    assert line == "2 cores AMD EPYC, 23 GiB, no GPU - hazards: virtual machine, few cores"
    long = {**facts, "cpu": "Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz", "gpus": [{"name": "NVIDIA H200"}] * 2}
    assert machine.one_line(long, []) == "2 cores Intel Xeon Platinum 8480+, 23 GiB, 2x NVIDIA H200 - hazards: none"
    assert len(machine.one_line({**facts, "cpu": "x" * 90}, [])) <= 80


# --- GPUs


def test_only_visible_gpus_count_in_their_order(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.count = 4
    lib = Nvml(fake)
    for visible, keys in {"3,1": [3, 1], "": [], "2,9,1": [2], "GPU-ab,0": ["GPU-ab", 0], "-1": []}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [key for key, _ in handles(lib)] == keys


def test_energy_is_the_counter_s_rise_inside_the_blocks(fake: FakeNvml) -> None:
    fake.energy_mj = [1000, 3500, 9000, 10000]
    meter = EnergyMeter(lib=Nvml(fake))
    assert meter.joules is None
    for _ in range(2):
        with meter:
            pass
    assert meter.joules == 3.5


def test_energy_is_null_without_a_counter_and_after_a_loss(fake: FakeNvml) -> None:
    with EnergyMeter(gpu=1, lib=Nvml(fake)) as absent:
        pass
    assert absent.joules is None
    fake.energy_mj = [1000, 2000, 3000, 500]  # the driver was loaded anew: the counter starts again
    meter = EnergyMeter(lib=Nvml(fake))
    for joules in (1.0, None):
        with meter:
            pass
        assert meter.joules == joules
    fake.energy_mj = [1000, 2000]
    with EnergyMeter(lib=Nvml(fake)) as lost:
        fake.gone = True
    assert lost.joules is None


def test_a_gpu_that_vanishes_is_a_finding_not_a_crash(fake: FakeNvml) -> None:
    sampler = GpuSampler(lambda: {1}, lib=Nvml(fake))
    sample = sampler.sample()[0]
    assert (sample.utilisation_percent, sample.sm_clock_mhz, sample.temperature_c, sample.power_w) == (
        12,
        345,
        31,
        76.5,
    )
    assert sampler.findings() == []
    fake.gone = True
    assert sampler.sample() == []
    assert sampler.findings() == [("gpu vanished", "GPU 0 no longer answers")]
    assert describe(Nvml(fake)) == []


def test_foreign_processes_and_throttling_are_remembered(fake: FakeNvml) -> None:
    stranger, before, of_the_host = os.getppid(), 2**22 + 5, 2**22 + 6
    fake.pids = [before]
    sampler = GpuSampler(lambda: {os.getpid()}, lib=Nvml(fake))
    fake.pids, fake.throttle = [before, stranger, os.getpid(), of_the_host], 0x4
    assert sampler.sample()[0].foreign_pids == tuple(sorted((stranger, before)))
    fake.pids, fake.throttle = [], 0
    assert sampler.sample()[0].foreign_pids == ()
    names = dict(sampler.findings())
    assert names["gpu throttled"] == "GPU 0 held its clocks back: power cap"
    assert f"pid {stranger}" in names["foreign gpu process"]


# --- the lock


def _hold(path: Path, ready: Any) -> None:
    assert MachineLock(path).acquire()
    ready.set()
    time.sleep(60)


def test_the_lock_is_seen_by_others_and_freed_by_death(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    other = fork.Process(target=_hold, args=(path, ready))
    other.start()
    assert ready.wait(10)
    assert MachineLock.held_by_another(path) == f"pid {other.pid}"
    assert not MachineLock(path).acquire()
    os.kill(other.pid or 0, signal.SIGKILL)
    other.join()
    assert MachineLock.held_by_another(path) is None
    with MachineLock(path) as lock:
        assert lock.acquire()
        assert MachineLock.held_by_another(path) is None  # our own is none of another
        assert not MachineLock(path).acquire()
    assert MachineLock(path).acquire()


def test_the_lock_does_not_follow_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "lock").symlink_to(target)
    assert not MachineLock(tmp_path / "lock").acquire()
    assert target.read_text() == "precious"


# --- software


def test_versions_are_those_of_the_metadata() -> None:
    found = machine.versions()
    assert found["python"] == platform.python_version()
    assert found["pytest"] == pytest.__version__
    assert set(found) >= {"torch", "torchvision", "transformers", "tensorflow", "keras", "keras-hub", "speedproof"}


def test_the_commit_is_clean_until_code_changes_and_results_do_not_count(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        return subprocess.check_output(["git", "-C", str(tmp_path), *identity, *arguments], text=True).strip()

    assert machine.git_state(tmp_path) == {"commit": None, "dirty": None}
    git("init", "-q")
    assert machine.git_state(tmp_path) == {"commit": None, "dirty": None}  # a checkout of something else
    for name in ("harness/__init__.py", "results/old.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    git("add", ".")
    git("commit", "-qm", "first")
    (tmp_path / "results/new.csv").write_text("1")
    assert machine.git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "harness/__init__.py").write_text("changed = 1")
    assert machine.git_state(tmp_path)["dirty"] is True


def test_the_peak_of_the_parent_rises_with_what_it_holds() -> None:
    before = machine.parent_peak_bytes()
    # Other tests may have left the peak far above what is held now: fill up to it, then beyond.
    held = bytearray(b"x") * (64 * 2**20 + max(0, before - psutil.Process().memory_info().rss))
    assert machine.parent_peak_bytes() - before >= 60 * 2**20
    del held


def test_looking_at_the_machine_imports_no_framework() -> None:
    code = (
        "import sys; from harness import machine as m; m.one_line(f := m.fingerprint(), m.hazards(f)); m.versions(); "
    )
    code += "print([n for n in ('torch', 'tensorflow', 'keras', 'pandas', 'numpy') if n in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"
