"""Several TensorFlow processes that train together under MultiWorkerMirroredStrategy, seen as one session.

The worker forks a process for each device before TensorFlow has started anything; TensorFlow's own cluster
configuration (``TF_CONFIG``) tells them of one another. Each obeys the commands that come by its socket. The kernel
ends them with the worker; where one fails, the worker ends the others, which would wait for it for ever.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from harness.backends import Memory, Observed
from harness.backends.group import GroupError, StepsOnly
from harness.backends.tensorflow_session import KerasSession
from harness.backends.tensorflow_step import tf
from harness.errors import MeasurementError
from harness.measure.parent import die_with_parent
from harness.spec import Cell

MESSAGE_BYTES = 1 << 16
LAST_WORDS_S = 2.0  # that the other processes have to say what happened, once one has failed

OpenRank = Callable[[], KerasSession]


class RankSession(KerasSession):
    """What one process of the group trains: Keras' own train function on its share of every batch."""

    def _devices(self) -> list[str]:
        return [""]  # its own

    def _shares(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        ranks, rank = self._strategy.num_replicas_in_sync, self._strategy.cluster_resolver.task_id
        return order.reshape(len(order) * ranks, -1)[rank::ranks]

    def _logged(self, logs: dict[str, Any]) -> dict[str, Any]:
        # Keras averages over the first dimension, and a loss has none (keras#20585).
        return {name: tf.reshape(value, [1]) for name, value in logs.items()}

    def synchronize(self) -> None:
        """Wait for the last loss, and for the first layer's weights: their gradient is the last of a step.

        TensorFlow's own way to wait for a device does not work in a cluster.
        """
        float(self._loss)
        self._strategy.experimental_local_results(self._model.trainable_variables[0].value)[0].numpy()


class KerasGroup(StepsOnly):
    """Ranks in training; see :class:`harness.backends.Session`. What is said of them holds for all of them.

    ``open_rank`` builds the session of one process, in that process. Must be made before this process has started
    TensorFlow: it is forked.
    """

    def __init__(self, cell: Cell, open_rank: OpenRank) -> None:
        self.items_per_step = cell.global_batch
        self.trace_s: float | None = None
        self._channels: list[socket.socket] = []
        self._pids: list[int] = []
        addresses = [f"127.0.0.1:{port}" for port in _free_ports(cell.devices)]
        worker = os.getpid()
        for rank in range(cell.devices):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    die_with_parent(worker)
                    for channel in (*self._channels, ours):
                        channel.close()
                    task = {"type": "worker", "index": rank}
                    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
                    code = _rank(open_rank, theirs)
                finally:
                    os._exit(code)
            theirs.close()
            self._channels.append(ours)
            self._pids.append(pid)
        self.trace_s = max(self._receive())

    def steps(self, n: int) -> None:
        """Enqueue ``n`` steps on every rank."""
        self._send("steps", n)

    def synchronize(self) -> None:
        """Wait until every rank has done its work."""
        self._ask("synchronize")

    def fetch_loss(self) -> float:
        """The mean loss since the last call of :meth:`steps` began, of all ranks; the first one has it."""
        self._send("fetch_loss", ranks=[0])
        return float(self._receive(ranks=[0])[0])

    def reset_memory(self) -> None:
        """Start a new window for :meth:`memory` on every rank."""
        self._ask("reset_memory")

    def memory(self) -> Memory:
        """Of the rank with the highest peak."""
        return max((Memory(**found) for found in self._ask("memory")), key=lambda memory: memory.peak)

    def observe(self) -> Observed:
        """One step of every rank; raises :class:`~harness.errors.MeasurementError` where they did unlike things.

        The count of examples that each gives is Keras' own, which is of all ranks.
        """
        ranks = self._ask("observe")
        for rank, found in enumerate(ranks):
            if found != ranks[0]:
                raise MeasurementError(f"rank {rank} did {found}, but rank 0 {ranks[0]}: they do not train as one")
        return Observed(**{**ranks[0], "devices": sum(found["devices"] for found in ranks)})

    def _ask(self, op: str) -> list[Any]:
        self._send(op)
        return self._receive()

    def _send(self, op: str, n: int | None = None, ranks: list[int] | None = None) -> None:
        for rank in range(len(self._channels)) if ranks is None else ranks:
            try:
                self._channels[rank].send(json.dumps([op, n]).encode())
            except OSError:
                self._fail()

    def _receive(self, ranks: list[int] | None = None) -> list[Any]:
        """An answer of each rank; a rank that ends, or fails, while others are waited for ends the group."""
        waiting = set(range(len(self._channels)) if ranks is None else ranks)
        found: dict[int, Any] = {}
        while waiting:
            ready, _, _ = select.select([self._channels[rank] for rank in waiting], [], [])
            for rank in [r for r in waiting if self._channels[r] in ready]:
                message = self._hear(rank)
                if message is None or "error" in message:
                    self._fail({rank: message})
                found[rank] = message["answer"]
                waiting.discard(rank)
        return [found[rank] for rank in sorted(found)]

    def _hear(self, rank: int) -> Any:
        """The next message of a rank; ``None`` where it has ended."""
        try:
            message = self._channels[rank].recv(MESSAGE_BYTES)
        except ConnectionError:
            return None
        return json.loads(message) if message else None

    def _fail(self, said: dict[int, Any] | None = None) -> NoReturn:
        """Gather what the ranks have to say, end them all, and say which failed first, and why."""
        said = dict(said or {})
        deadline = time.monotonic() + LAST_WORDS_S
        while open_ := [c for rank, c in enumerate(self._channels) if rank not in said]:
            ready, _, _ = select.select(open_, [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for rank in [r for r, c in enumerate(self._channels) if c in ready]:
                message = self._hear(rank)
                if message is None or "error" in message:
                    said[rank] = message
        ended = {rank: os.waitpid(pid, os.WNOHANG) for rank, pid in enumerate(self._pids)}
        for pid in self._pids:
            _kill(pid)
        raise _error(said, {rank: status for rank, (pid, status) in ended.items() if pid}, len(self._pids))


def _error(said: dict[int, Any], ended: dict[int, int], ranks: int) -> GroupError:
    """A rank that a signal ended explains the others; else the first that said what went wrong."""
    for rank, status in ended.items():
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return GroupError(f"of {ranks} ranks, rank {rank} was ended by {name}", out_of_memory=False)
    for rank, message in said.items():
        if message is not None:
            return GroupError(f"rank {rank} of {ranks}: {message['error']}", out_of_memory=message["full"])
    return GroupError("the ranks ended without a word", out_of_memory=False)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it has ended, and was waited for


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens at; all are held until the last is found, so that they differ."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _rank(open_rank: OpenRank, channel: socket.socket) -> int:
    """One process of the group: build, then obey until the worker is gone."""
    try:
        session = open_rank()
        channel.send(json.dumps({"answer": session.trace_s}).encode())
        while message := channel.recv(MESSAGE_BYTES):
            op, n = json.loads(message)
            if op == "steps":
                session.steps(n)
                continue
            value = getattr(session, op)()
            found = asdict(value) if isinstance(value, (Memory, Observed)) else value
            channel.send(json.dumps({"answer": found}).encode())
    except Exception as error:  # told to the worker, which ends the others
        text = " ".join(str(error).split()) or "no message"
        full = isinstance(error, (tf.errors.ResourceExhaustedError, MemoryError))
        channel.send(json.dumps({"error": f"{type(error).__name__}: {text[:300]}", "full": full}).encode())
        return 1
    return 0
