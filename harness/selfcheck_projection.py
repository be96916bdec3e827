"""The projection against two ranks of this machine: over its loopback, and over slow links that it emulates."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from harness import projection
from harness.projection import Network, Training
from harness.selfcheck_bench import Bench, Figure
from harness.spec import Framework

TARGET = 0.10
LINKS = {"1 Gbit/s": "1gbit", "200 Mbit/s": "200mbit"}  # as tc names the rates
LIMIT_S = 400.0

_MODULE = ("-m", "torch.distributed.run")
_MEASURE = ("-m", "harness.backends.torch_exchange")


def check(bench: Bench) -> Iterator[Figure]:
    """A line for each link: how far the projected step of two ranks lies from the measured one, model by model."""
    if Framework.TORCH not in bench.frameworks or bench.threads < 2:
        yield _gap("over the loopback", "two ranks need PyTorch and two cores")
        return
    yield _figure("over the loopback", _loopback())
    for name, rate in LINKS.items():
        where = f"between two network namespaces, {name}"
        try:
            found = _namespaces(rate)
        except (OSError, subprocess.CalledProcessError) as error:
            yield _gap(where, f"namespaces cannot be made here: {error}")
        else:
            yield _figure(where, found)


def errors(lines: list[dict[str, Any]]) -> dict[str, float]:
    """For each model the relative error of the projected step: 0.05 means that it is 5% too long.

    ``lines`` are what :mod:`harness.backends.torch_exchange` prints.
    """
    by_size: dict[float, list[float]] = {}
    for size, seconds in (timed for one in lines for timed in one["all_reduces"]):
        by_size.setdefault(size, []).append(seconds)
    link = projection.fit_link([(size, statistics.median(seconds)) for size, seconds in by_size.items()], 2)
    stolen = statistics.median(one["stolen"] for one in lines)
    found = {}
    for one in lines:
        training = Training(
            step_s=one["step_s"],
            backward=one["backward"],
            buckets=projection.buckets(one["buckets"]),
            stolen=stolen,
        )
        projected = projection.project(training, Network(link=link), 2)
        found[one["model"]] = projected.step_s / one["ddp_s"] - 1
    return found


def _figure(where: str, lines: list[dict[str, Any]]) -> Figure:
    found = errors(lines)
    worst = max(found.values(), key=abs)
    return Figure(
        name=f"projected step of two ranks, {where}",
        target=f"error ≤ {TARGET:.0%}",
        measured=", ".join(f"{model} {error:+.1%}" for model, error in found.items()),
        passed=abs(worst) <= TARGET,
        detail="DDP steps of " + ", ".join(f"{one['ddp_s']:.4g} s" for one in lines),
    )


def _gap(where: str, reason: str) -> Figure:
    name = f"projected step of two ranks, {where}"
    return Figure(name=name, target=f"error ≤ {TARGET:.0%}", measured="–", passed=None, detail=reason)


def _loopback() -> list[dict[str, Any]]:
    command = [sys.executable, *_MODULE, "--standalone", "--nproc-per-node", "2", *_MEASURE]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S)
    return _lines(done.stdout)


def _namespaces(rate: str) -> list[dict[str, Any]]:
    """One rank in each of two network namespaces, joined by a pair of virtual interfaces of that rate."""
    names = [f"speedproof{os.getpid()}{side}" for side in "ab"]
    with contextlib.ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=False)
        _ip("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for number, name in enumerate(names, start=1):
            _ip("-n", name, "address", "add", f"10.79.0.{number}/24", "dev", "veth0")
            _ip("-n", name, "link", "set", "veth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            shape = ["tbf", "rate", rate, "burst", "256kb", "latency", "100ms"]
            _run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "veth0", "root", *shape])
        ranks = []
        for number, name in enumerate(names, start=1):
            launcher = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", name[:-1]]
            launcher += ["--rdzv-endpoint", "10.79.0.1:29400", "--local-addr", f"10.79.0.{number}"]
            rank = subprocess.Popen(
                ["ip", "netns", "exec", name, sys.executable, *_MODULE, *launcher, *_MEASURE],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "veth0", "OMP_NUM_THREADS": "1"},
            )
            stack.callback(rank.wait)
            stack.callback(rank.kill)
            ranks.append(rank)
        # Which of the two is rank 0, and prints, is the launcher's choice.
        said = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
        for rank in ranks:
            if rank.returncode:
                raise subprocess.CalledProcessError(rank.returncode, "torch.distributed.run")
    return _lines("".join(said))


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
