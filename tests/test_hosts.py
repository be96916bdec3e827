"""Several hosts: network namespaces with addresses of their own, where the rights exist, else this host's loopback."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from harness import hosts, meeting
from harness.bench import _meeting
from harness.errors import ConfigError
from harness.hosts import Hosts
from harness.limits import cores
from harness.results_reader import RunData
from harness.store import read, run_folders

ROOT = Path(__file__).parent.parent
PROFILE = """
cpu: &cpu
  {looks: [%d], half_width: 1.0, rounds: %d, block_s: 0.05, window_s: 0.02, warm_up_s: 0.3, budget_s: 60,
   timeout_s: 60, largest_batch: 32, batches: {cnn_fashion: 16}}
gpu: *cpu
"""


def needs_torch(test: Callable[..., None]) -> Callable[..., None]:
    missing = importlib.util.find_spec("torch") is None
    for mark in (pytest.mark.torch, pytest.mark.slow, pytest.mark.skipif(missing, reason="PyTorch is not installed")):
        mark(test)  # puts the mark onto the function itself
    return test


# --- what needs no framework ---


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [("node0", ("node0", 29400)), ("node0:1234", ("node0", 1234)), ("[::1]:29400", ("::1", 29400))],
)
def test_an_endpoint_is_a_name_and_a_port(endpoint: str, expected: tuple[str, int]) -> None:
    assert hosts.split(endpoint) == expected


@pytest.mark.parametrize("endpoint", ["", ":29400", "node0:", "node0:http", "node0:0", "node0:70000"])
def test_anything_else_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="NAME:PORT"):
        hosts.split(endpoint)


def test_processes_that_are_started_know_of_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEEDPROOF_HOSTS", raising=False)
    assert hosts.from_environment() is None
    together = Hosts(endpoint="node0:29400", count=2, cores=16, peer="node1")
    together.put()
    assert hosts.from_environment() == together
    assert together.address == ("node0", 29400)
    hosts.forget()
    assert hosts.from_environment() is None


@pytest.mark.parametrize(
    ("nnodes", "endpoint", "said"),
    [
        (0, None, "must be at least 1"),
        (2, None, "needs --rdzv-endpoint"),
        (1, "node0:29400", "needs --nnodes"),
        (2, "192.0.2.1:29400", "is not an address of this host"),
        (2, "no-such-name.invalid", "is not known here"),
    ],
)
def test_options_that_do_not_fit_say_what_would(nnodes: int, endpoint: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _meeting(nnodes, endpoint)


# --- real hosts, as far as one machine can show them ---


@dataclass(frozen=True, kw_only=True)
class Network:
    """Two hosts: what a command is preceded by on each, and where they meet."""

    prefixes: tuple[list[str], list[str]]
    address: str


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with contextlib.ExitStack() as stack:
        try:
            yield _namespaces(stack)
        except (OSError, subprocess.CalledProcessError):
            yield Network(prefixes=([], []), address="127.0.0.1")


def _namespaces(stack: contextlib.ExitStack) -> Network:
    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    names = [f"sp{os.getpid()}{side}" for side in "ab"]
    for name in names:
        ip("netns", "add", name)
        stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=False)
    ip("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
    for number, name in enumerate(names, start=1):
        ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "veth0")
        ip("-n", name, "link", "set", "veth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
    first, second = (["ip", "netns", "exec", name] for name in names)
    return Network(prefixes=(first, second), address="10.77.0.1")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, kw_only=True)
class Outcome:
    code: int
    output: str
    joined: tuple[int, str]
    data: RunData


def _run(
    network: Network,
    folder: Path,
    meddle: Callable[[psutil.Process], None] = lambda _: None,
    *,
    launches: int = 1,
    rounds: int = 3,
) -> Outcome:
    """A run of two hosts; ``meddle`` is called with the second host's process once its ranks are there."""
    endpoint = f"{network.address}:{_free_port()}"
    profile = folder / "profile.yaml"
    profile.write_text(PROFILE % (launches, rounds))
    here, there = network.prefixes
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    joiner = subprocess.Popen(
        [*there, sys.executable, "-m", "harness.cli", "join", "--rdzv-endpoint", endpoint],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    asked = "ddp-weak and torch and cnn_fashion and (d1 or d2)"
    main = subprocess.Popen(
        [*here, sys.executable, "-m", "pytest", "benchmarks/test_devices.py", "--benchmark-only", "-k", asked,
         "--profile", str(profile), "--results", str(folder), "--nnodes", "2", "--rdzv-endpoint", endpoint,
         "-p", "no:cacheprovider"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    try:
        process = psutil.Process(joiner.pid)
        deadline = time.monotonic() + 90
        while not _ranks(process) and main.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        meddle(process)
        output, _ = main.communicate(timeout=120)
        said, _ = joiner.communicate(timeout=30)
    finally:
        for left in (main, joiner):
            left.kill()
            left.wait()
    (run,) = run_folders(folder)
    return Outcome(code=main.returncode, output=output, joined=(joiner.returncode, said), data=read(run))


def _ranks(joiner: psutil.Process) -> list[psutil.Process]:
    """The ranks on a host: children of a worker, which is a child of the nursery."""
    with contextlib.suppress(psutil.NoSuchProcess):
        nurseries = [p for p in joiner.children() if "harness.nursery" in p.cmdline()]
        workers = [w for nursery in nurseries for w in nursery.children()]
        return [rank for worker in workers for rank in worker.children()]
    return []


@needs_torch
def test_two_hosts_train_as_one(network: Network, tmp_path: Path) -> None:
    done = _run(network, tmp_path)
    assert done.code == 0, done.output + done.joined[1]
    assert "speedproof join --rdzv-endpoint" in done.output
    trials = done.data.trials.set_index("arm")
    assert set(trials["status"]) == {"ok"}
    assert trials["observed_devices"].to_dict() == {"d1": 1, "d2": 2, "control": 1}
    assert trials["observed_hosts"].to_dict() == {"d1": 1, "d2": 2, "control": 1}
    assert trials.loc["d2", "observed_batch"] == 32
    assert not trials["oversubscribed"].any() or len(os.sched_getaffinity(0)) < 2
    (header,) = done.data.headers.values()
    assert (header["machine"]["hosts"], header["machine"]["hosts_cores"]) == (2, cores())
    assert done.joined[0] == 0
    assert "the run has ended" in done.joined[1]


@needs_torch
def test_a_rank_killed_on_another_host_is_named_and_the_run_goes_on(network: Network, tmp_path: Path) -> None:
    killed = []

    def kill(joiner: psutil.Process) -> None:
        time.sleep(0.5)
        (rank,) = _ranks(joiner)
        rank.send_signal(signal.SIGKILL)
        killed.append(time.monotonic())

    done = _run(network, tmp_path, kill, launches=2, rounds=40)
    assert killed
    two = done.data.trials[done.data.trials["arm"] == "d2"].sort_values("launch")
    assert list(two["status"]) == ["error", "ok"], done.output
    reason = two["reason"].iloc[0]
    assert "was ended by SIGKILL" in reason
    assert "of 2 ranks, rank" in reason
    assert "on host 1" in reason
    others = done.data.trials[done.data.trials["arm"] != "d2"]
    assert set(others["status"]) == {"ok"}, others[["arm", "launch", "status", "reason"]].to_string()


@needs_torch
def test_a_host_that_is_gone_is_a_row_within_half_a_minute(network: Network, tmp_path: Path) -> None:
    gone = []

    def kill(joiner: psutil.Process) -> None:
        time.sleep(0.5)
        gone.append(time.monotonic())
        joiner.kill()

    done = _run(network, tmp_path, kill, rounds=40)
    assert time.monotonic() - gone[0] < 60
    two = done.data.trials[done.data.trials["arm"] == "d2"]
    assert list(two["status"]) == ["error"]
    assert "host 1 of 2 (counted from 0) did not answer any more" in two["reason"].iloc[0]


@needs_torch
def test_hosts_with_other_code_are_refused() -> None:
    endpoint = f"127.0.0.1:{_free_port()}"
    board = meeting._Board("serve", endpoint, "2", '{"speedproof": "0.0", "boot_id": "", "cores": 1}')
    try:
        assert board.hear(60)
        with pytest.raises(meeting.MeetingError, match="this host has speedproof"):
            meeting.join(endpoint, log=lambda _: None)
    finally:
        board.close()


def _resolvable() -> bool:
    try:
        socket.getaddrinfo(socket.gethostname(), 0)
    except OSError:
        return False
    return True


@needs_torch
@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
@pytest.mark.skipif(not _resolvable(), reason="this host's name has no address")
def test_a_job_of_two_tasks_is_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """submitit's own local executor stands in for Slurm: the tasks, their numbers and their host names are its."""
    from harness.slurm import submit

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(ROOT)
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE % (1, 2))
    asked = ["-k", "ddp-weak and torch and cnn_fashion and (d1 or d2)", "-p", "no:cacheprovider"]
    arguments = [*asked, "--profile", str(profile), "--results", str(tmp_path / "results")]
    job = submit(arguments, nodes=2, folder=tmp_path / "logs", cluster="local", port=_free_port(), timeout_min=5)
    assert job.results() == [0, 0], job.stdout()
    (run,) = run_folders(tmp_path / "results")
    trials = read(run).trials.set_index("arm")
    assert trials.loc["d2", "observed_hosts"] == 2
