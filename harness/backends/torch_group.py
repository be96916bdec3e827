"""Several PyTorch processes that train together, seen from the worker as one session.

The worker forks an agent, which runs PyTorch's elastic launcher; that forks the ranks. A command goes to one rank, the
leader, by a socket, and from there to the others over a gloo group of their own, so that no command waits behind a
gradient. The kernel ends agent and ranks with the worker, and the launcher ends all ranks with the first that fails.

Where several hosts train together, the agent asks the others through the board (:mod:`harness.backends.torch_board`)
to launch their share of the ranks, which is what :func:`take_part` does there; the leader is on the first host.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import select
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from harness import hosts as several
from harness.backends import Memory, Observed, Session, torch_board
from harness.backends.group import GroupError, StepsOnly
from harness.errors import MeasurementError, Unavailable
from harness.hosts import Hosts
from harness.measure.host_memory import limit_data
from harness.measure.parent import die_with_parent
from harness.spec import SPLIT_MODEL, Cell

GRADIENT_LIMIT = datetime.timedelta(seconds=25)  # that a rank waits for another inside a step before it gives up
IDLE_LIMIT = datetime.timedelta(days=1)  # that a rank waits for its next command, while other cells have their turn
JOIN_LIMIT_S = 25  # that the launchers of several hosts wait for one another
LAST_WORDS_S = 10.0  # that the ranks and the launcher have to say what happened
AWAY_LIMIT = datetime.timedelta(seconds=4)  # that other hosts have to say it after those
MESSAGE_BYTES = 1 << 16

Shard = tuple[int, int]  # rank, ranks
OpenShard = Callable[[Shard], Session]

_STOP, _STEPS, _LIMIT, _SYNCHRONIZE, _LOSS, _RESET, _MEMORY, _OBSERVE = range(8)
_OPS = ("stop", "steps", "limit_memory", "synchronize", "fetch_loss", "reset_memory", "memory", "observe")


@dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """One group of ranks on several hosts: the hosts, and the name under which their launchers find one another."""

    hosts: Hosts
    group: str


class GroupSession(StepsOnly):
    """Ranks in training; see :class:`harness.backends.Session`. What is said of them holds for all of them.

    ``open_shard`` builds the session of one rank, in that rank's process, on ``seed``. Must be made before this process
    has run anything in parallel: it is forked.
    """

    trace_s: float | None = None

    def __init__(self, cell: Cell, open_shard: OpenShard, *, seed: int) -> None:
        self.items_per_step = cell.global_batch
        hosts = several.from_environment() if cell.devices > 1 else None
        self._together = Together(hosts=hosts, group=uuid.uuid4().hex) if hosts else None
        self._devices = cell.devices
        self._splits_model = cell.toggles["strategy"] in SPLIT_MODEL
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._words, words = os.pipe()
        worker = os.getpid()
        self._agent = os.fork()
        if self._agent == 0:
            self._channel.close()
            os.close(self._words)
            code = 1
            try:
                die_with_parent(worker)
                code = _launch(cell, open_shard, theirs, words, self._together, seed)
            finally:
                os._exit(code)
        theirs.close()
        os.close(words)
        self._receive()  # every rank is built

    def steps(self, n: int) -> None:
        """Enqueue ``n`` steps on every rank."""
        self._send(_STEPS, n)

    def synchronize(self) -> None:
        """Wait until every rank's device has done its work."""
        self._ask(_SYNCHRONIZE)

    def fetch_loss(self) -> float:
        """The last step's loss on the leading rank, of its own examples."""
        return float(self._ask(_LOSS)[0])

    def reset_memory(self) -> None:
        """Start a new window for :meth:`memory` on every rank."""
        self._ask(_RESET)

    def memory(self) -> Memory:
        """Of the rank with the highest peak."""
        return max((Memory(**found) for found in self._ask(_MEMORY)), key=lambda memory: memory.peak)

    def limit_memory(self, more: int) -> None:
        """Let every rank's process allocate so many bytes beyond what it holds now."""
        self._send(_LIMIT, more)
        self._receive()

    def observe(self) -> Observed:
        """One step of every rank; raises :class:`~harness.errors.MeasurementError` where they did unlike things."""
        ranks = self._ask(_OBSERVE)
        own = {"batch", "layout"} if self._splits_model else {"batch"}  # a stage may hold no convolution
        alike = [{k: v for k, v in found.items() if k not in own} for found in ranks]
        for rank, found in enumerate(alike):
            if found != alike[0]:
                raise MeasurementError(f"rank {rank} did {found}, but rank 0 {alike[0]}: they do not train as one")
        hosts = self._together.hosts if self._together else None
        if ranks[0]["hosts"] != (hosts.count if hosts else 1):
            raise MeasurementError(
                f"the ranks ran on {ranks[0]['hosts']} host(s), not on {hosts.count if hosts else 1}"
            )
        whole = {"batch": sum(found["batch"] for found in ranks), "devices": len(ranks)}
        return Observed(**{**ranks[0], **whole, "cores": hosts.cores if hosts else None})

    def _ask(self, op: int) -> list[Any]:
        self._send(op, 0)
        return self._receive()

    def _send(self, op: int, n: int) -> None:
        try:
            self._channel.send(json.dumps([op, n]).encode())
        except OSError:
            self._fail()

    def _receive(self) -> list[Any]:
        ready, _, _ = select.select([self._channel.fileno(), self._words], [], [])
        message = b"" if self._words in ready else self._channel.recv(MESSAGE_BYTES)
        if not message:
            self._fail()
        found: list[Any] = json.loads(message)
        return found

    def _fail(self) -> NoReturn:
        """Gather what the ranks and the launcher said, and say it."""
        said = b""
        deadline = time.monotonic() + LAST_WORDS_S
        while (left := deadline - time.monotonic()) > 0 and select.select([self._words], [], [], left)[0]:
            chunk = os.read(self._words, MESSAGE_BYTES)
            if not chunk:
                break
            said += chunk
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._agent, os.WNOHANG)
        words = [json.loads(line) for line in said.splitlines()]
        if self._together:
            with contextlib.suppress(RuntimeError):  # the board itself may be gone; what was said here is enough then
                words += torch_board.words(self._together.hosts, self._together.group, AWAY_LIMIT)
        raise _error(words, self._devices)


def _error(words: list[dict[str, Any]], devices: int) -> Exception:
    """The one error that explains the others.

    A rank that was killed, else the first that did not blame its peers, else a host that is gone.
    """
    killed = [w for w in words if w["by"] == "launcher" and w["signal"]]
    own = [w for w in words if w["by"] == "rank"]
    gone = [w["text"] for w in words if w.get("gone")]
    first = next((w for w in own if not w["peer"]), None)
    if killed:
        return GroupError(f"of {devices} ranks, {killed[0]['text']}{_where(killed[0])}", out_of_memory=False)
    if first is None and gone:
        return GroupError(gone[0], out_of_memory=False)
    first = first or next(iter(own), None)
    if first is None:
        launcher = [w["text"] for w in words]
        return GroupError(launcher[0] if launcher else "the ranks ended without a word", out_of_memory=False)
    if first["unavailable"]:
        return Unavailable(first["text"] + _where(first))
    said = f"rank {first['rank']} of {devices}{_where(first)}: {first['text']}"
    return GroupError(said, out_of_memory=first["out_of_memory"])


def _where(word: dict[str, Any]) -> str:
    return f" on host {word['host']} (counted from 0)" if "host" in word else ""


def _say(words: int, **what: Any) -> None:
    os.write(words, json.dumps(what).encode() + b"\n")  # less than PIPE_BUF, so whole


def one_host(processes: int) -> LaunchConfig:
    """So many forked processes of this host, none of them started again."""
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        monitor_interval=0.1,
        max_restarts=0,
    )


def _one_of(together: Together, devices: int) -> LaunchConfig:
    """This host's share of the processes of a group on several hosts."""
    hosts = together.hosts
    return replace(
        one_host(devices // hosts.count),
        min_nodes=hosts.count,
        max_nodes=hosts.count,
        run_id=together.group,
        rdzv_endpoint=hosts.endpoint,
        rdzv_configs={"is_host": False, "join_timeout": JOIN_LIMIT_S},  # the board is the store
        local_addr=torch_board.own_address(hosts.peer),
    )


def take_part(cell: Cell, open_shard: OpenShard, *, seed: int, together: Together, host: int) -> None:
    """The share of host number ``host`` in a group whose leader is elsewhere; returns when the group has ended."""
    heard, words = os.pipe()
    _launch(cell, open_shard, None, words, together, seed)
    os.close(words)
    with os.fdopen(heard, "rb") as said:
        torch_board.leave_words(together.hosts, together.group, host, [json.loads(line) for line in said])


def _launch(
    cell: Cell,
    open_shard: OpenShard,
    commands: socket.socket | None,
    words: int,
    together: Together | None,
    seed: int,
) -> int:
    """The agent: run the launcher until its ranks have ended. The first host has ``commands``, and gives orders."""
    try:
        if together and commands:
            what = {"cell": cell.as_json(), "seed": seed, "threads": torch.get_num_threads()}
            torch_board.order(together.hosts, {**what, "group": together.group})
        config = _one_of(together, cell.devices) if together else one_host(cell.devices)
        if together and config.local_addr and (name := torch_board.interface(config.local_addr)):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
        elastic_launch(config, _rank)(cell, open_shard, commands, words, os.getpid())
    except ChildFailedError as error:
        for rank, failure in error.failures.items():
            signalled = failure.exitcode < 0
            how = f"ended by {failure.signal_name()}" if signalled else f"ended with exit code {failure.exitcode}"
            _say(words, by="launcher", signal=signalled, text=f"rank {rank} was {how}")
        return 1
    except Exception as error:  # whatever stops the launcher is told to the worker, which would else wait
        _say(words, by="launcher", signal=False, text=f"the launcher: {type(error).__name__}: {error}"[:400])
        return 1
    return 0


def _rank(cell: Cell, open_shard: OpenShard, commands: socket.socket | None, words: int, agent: int) -> None:
    """One rank: build, then obey until the worker is gone."""
    die_with_parent(agent)
    rank, ranks, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    try:
        gpu = cell.toggles["device"] == "gpu"
        if gpu:
            see_one_gpu()
        else:
            torch.set_num_threads(1)
        dist.init_process_group("nccl" if gpu else "gloo", timeout=GRADIENT_LIMIT)
        obeying = dist.new_group(backend="gloo", timeout=IDLE_LIMIT)
        session = open_shard((rank, ranks))
        # The launcher numbers the hosts by itself, so the leader need not be rank 0.
        heard = commands if local_rank == 0 else None
        leader = torch.tensor(rank if heard else -1)
        dist.all_reduce(leader, dist.ReduceOp.MAX, group=obeying)
        _obey(session, heard, obeying, ranks, int(leader))
    except BaseException as error:
        text = " ".join(str(error).split()) or "no message"
        full = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "allocate memory" in text
        peer = isinstance(error, dist.DistError) or "peer" in text or "Timed out" in text
        kind = type(error).__name__
        said = text if isinstance(error, Unavailable) else f"{kind}: {text[:300]}"
        unavailable = isinstance(error, Unavailable)
        _say(words, by="rank", rank=rank, peer=peer, unavailable=unavailable, out_of_memory=full, text=said)
        raise
    dist.destroy_process_group()


def see_one_gpu() -> None:
    """Leave this rank the one GPU that is its own, before CUDA starts: ``cuda:0`` is then right in every rank."""
    local_rank = int(os.environ["LOCAL_RANK"])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    os.environ["CUDA_VISIBLE_DEVICES"] = names[local_rank]


def _obey(session: Session, commands: socket.socket | None, group: dist.ProcessGroup, ranks: int, leader: int) -> None:
    """Do what the worker asks, all ranks the same; only the leader, which holds ``commands``, hears it and answers."""
    order = torch.zeros(2, dtype=torch.int64)
    has_loss = not getattr(session, "loss_is_on_last_rank", False)
    answer = functools.partial(_answer, commands=commands, group=group, ranks=ranks, leader=leader)
    answer(None)
    while True:
        if commands is not None:
            message = commands.recv(MESSAGE_BYTES)
            order = torch.tensor(json.loads(message) if message else [_STOP, 0])
            if order[0] == _LOSS and has_loss:  # at once: the time that it takes is the block's own check
                commands.send(json.dumps([session.fetch_loss()]).encode())
                continue
        dist.broadcast(order, leader, group=group)
        op, n = order.tolist()
        if op == _STOP:
            return
        if op == _STEPS:
            session.steps(n)
        elif op == _LIMIT:
            limit_data(n)
            answer(None)
        elif op == _LOSS:
            loss = session.fetch_loss()
            if commands is not None:
                commands.send(json.dumps([loss]).encode())
        else:
            answer(getattr(session, _OPS[op])())


def _answer(value: Any, *, commands: socket.socket | None, group: dist.ProcessGroup, ranks: int, leader: int) -> None:
    """Gather every rank's value, which is also the wait for all of them, and hand it to the worker."""
    if isinstance(value, Observed):
        value = replace(value, hosts=int(os.environ["GROUP_WORLD_SIZE"]))
    if isinstance(value, (Memory, Observed)):
        value = asdict(value)
    found: list[Any] | None = [None] * ranks if commands is not None else None
    if value is None:
        dist.barrier(group=group)
    else:
        dist.gather_object(value, found, leader, group=group)
    if commands is not None:
        commands.send(json.dumps(found).encode())
