"""How hosts come together for a run: the first waits for the others, and they do what it orders until it ends.

Neither side imports PyTorch: the store at which they meet is kept, and listened to, by processes of their own
(:mod:`harness.backends.torch_board`). A host launches its share of the ranks through PyTorch's elastic launcher.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import hosts as several
from harness import machine
from harness.errors import ConfigError, SpeedproofError
from harness.hosts import Hosts
from harness.spec import Framework
from harness.workers import Nursery, NurseryGone, WorkerFailure, WorkerProcess

ONE_HOST = 1
LISTEN_S = 1.0  # between two looks at the workers of a host that follows

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same in every container and namespace of a machine

Log = Callable[[str], None]


class MeetingError(SpeedproofError):
    """The hosts did not come together."""


def facts() -> dict[str, Any]:
    """What hosts tell each other of themselves."""
    git = machine.git_state()
    version = machine.versions()["speedproof"]
    return {
        "speedproof": " ".join(str(part) for part in (version, git["commit"]) if part),
        "boot_id": _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "",
        "cores": machine.cores(),
    }


class _Board:
    """A process that keeps the store, or listens to it: one JSON line for everything that it has to say."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.backends.torch_board", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process
        )
        self._rest = b""

    def hear(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """What it says next; ``None`` where it says nothing in time. Raises :class:`MeetingError` at its end."""
        stream = self.process.stdout
        assert stream is not None
        while b"\n" not in self._rest:
            if not select.select([stream], [], [], timeout_s)[0]:
                return None
            chunk = stream.read1(1 << 16)  # type: ignore[attr-defined]
            if not chunk:
                raise MeetingError(f"the store of the hosts ended with exit code {self.process.wait()}")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        if why := said.get("failed") or said.get("refused"):
            raise MeetingError(why)
        return said

    def close(self) -> None:
        """Let it end by itself, and make it where it does not."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Meeting:
    """The first host's side: open while the run lasts. Every process started inside it knows of the hosts."""

    def __init__(self, endpoint: str, count: int, log: Log) -> None:
        name, port = several.split(endpoint)
        if count <= ONE_HOST:
            raise ConfigError(f"--nnodes {count}: several hosts are 2 or more; leave it out for one")
        _require_own(name)
        self._endpoint = f"{name}:{port}"
        self._count = count
        self._log = log

    def __enter__(self) -> Hosts:
        own = facts()
        self._board = _Board("serve", self._endpoint, str(self._count), json.dumps(own))
        try:
            self._board.hear()
            self._log(
                f"waiting for {self._count - 1} more host(s); on each: speedproof join --rdzv-endpoint {self._endpoint}"
            )
            said = self._board.hear()
        except BaseException:
            self._board.close()
            raise
        assert said is not None
        machines = {f["boot_id"]: f["cores"] for f in [own, *said["hosts"]]}
        peer = said["hosts"][0]["address"]
        hosts = Hosts(endpoint=self._endpoint, count=self._count, cores=sum(machines.values()), peer=peer)
        hosts.put()
        return hosts

    def __exit__(self, *_: object) -> None:
        several.forget()
        self._board.close()


def _require_own(name: str) -> None:
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"--rdzv-endpoint: the name {name!r} is not known here: {error}") from None
    for family, kind, *_, address in found:
        with socket.socket(family, kind) as probe, contextlib.suppress(OSError):
            probe.bind(address)
            return
    raise ConfigError(
        f"--rdzv-endpoint: {name!r} is not an address of this host; name one of its own, by which the others reach it"
    )


def join(endpoint: str, log: Log) -> None:
    """A further host's side: launch what the first host orders, until its run ends.

    Raises :class:`MeetingError` where the hosts do not fit each other, or the first one is gone.
    """
    name, port = several.split(endpoint)
    own = facts()
    board = _Board("follow", f"{name}:{port}", json.dumps(own))
    nursery: Nursery | None = None
    with contextlib.ExitStack() as stack:
        stack.callback(board.close)
        log(f"looking for the first host at {name}:{port}")
        said = board.hear()
        assert said is not None
        number, main = said["joined"], said["main"]
        if main["boot_id"] != own["boot_id"]:
            stack.enter_context(machine.MachineLock())  # else the first host, the same machine, holds it
        cores = own["cores"]  # of the whole group only the first host's rows speak
        Hosts(endpoint=f"{name}:{port}", count=said["count"], cores=cores, peer=name).put()
        stack.callback(several.forget)
        nursery = Nursery(Framework.TORCH)
        stack.callback(nursery.close)
        nursery.ready()
        log(f"joined as host {number} of {said['count']} (counted from 0); this ends with the run, or with Ctrl-C")
        _follow(board, nursery, number, log)
    log("the run has ended")


def _follow(board: _Board, nursery: Nursery, number: int, log: Log) -> None:
    """Start a worker for every order; a worker ends with its group, which the first host ends."""
    workers: list[WorkerProcess] = []
    try:
        while True:
            try:
                said = board.hear(LISTEN_S)
            except MeetingError:
                if board.process.wait() == 0:
                    return
                raise MeetingError("the first host is gone") from None
            workers = [w for w in workers if not _ended(w, log)]
            if said is None:
                continue
            worker = nursery.spawn()
            worker.send("join", **said["order"], host=number)
            workers.append(worker)
    finally:
        for worker in workers:
            worker.close()


def _ended(worker: WorkerProcess, log: Log) -> bool:
    if not select.select([worker], [], [], 0)[0]:
        return False
    try:
        worker.receive(1.0)
    except (WorkerFailure, NurseryGone) as failure:
        log(f"a worker failed: {failure}")
    worker.close()
    return True
