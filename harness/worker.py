"""The inside of a worker process: answers one request at a time about one cell of one framework."""

from __future__ import annotations

import dataclasses
import importlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, cast

from harness.backends import Backend, Loading, Session, backend_name
from harness.errors import Unavailable
from harness.measure import convergence, fit, host_memory, loading, steady
from harness.measure.neighbour import Neighbour
from harness.spec import Cell, Framework, Mode, Status

MESSAGE_BYTES = 1 << 16
Answer = dict[str, Any]


class Worker:
    """Holds the session of one cell between requests; each public method is one request by its name."""

    def __init__(self, framework: Framework) -> None:
        self.backend: Backend = cast(Backend, importlib.import_module(backend_name(framework)))
        self.clock: steady.Clock = getattr(self.backend, "clock", time.perf_counter)
        self.session: Session | None = None
        self.loading: Loading | None = None
        self.cell: Cell | None = None
        self.first_step_s: float | None = None
        self.beside: AbstractContextManager[Any] = nullcontext()  # a neighbour, which trains inside it

    @property
    def _open(self) -> tuple[Session, Cell]:
        if self.session is None or self.cell is None:
            raise RuntimeError("the worker has no session: ask it to build first")
        return self.session, self.cell

    def describe(self, *, threads: int) -> Answer:
        """What this installation is."""
        self.backend.configure(threads)
        return {"describe": self.backend.describe()}

    def build(
        self,
        *,
        cell: dict[str, Any],
        seed: int,
        threads: int,
        data_limit: list[int] | None = None,
        examples: int | None = None,
    ) -> Answer:
        """Open the session of a cell; raises :class:`Unavailable` where it cannot run.

        Where the framework compiles its step, the first is taken here: most of it is compilation on one core, which
        the arms of a launch do side by side.
        """
        self.cell = Cell.from_json(cell)
        self.backend.configure(threads)
        if reason := self.backend.unavailable(self.cell):
            raise Unavailable(reason)
        if self.cell.toggles["neighbour"] == "training":
            alone = replace(self.cell, toggles={**self.cell.toggles, "neighbour": "none"})
            self.beside = Neighbour(lambda: self.backend.open_session(alone, seed=seed + 1, data_limit=None))
        started = self.clock()
        limit = (data_limit[0], data_limit[1]) if data_limit else None
        opened: Session | Loading
        if self.cell.mode.loads:
            opened = self.loading = self.backend.open_loading(self.cell, seed=seed, examples=examples)
        else:
            opened = self.session = self.backend.open_session(self.cell, seed=seed, data_limit=limit)
        trace_s = opened.trace_s
        built = {"build_s": self.clock() - started - (trace_s or 0.0), "trace_s": trace_s, "threads": threads}
        if trace_s is not None and self.session is not None and self.cell.mode is Mode.STEADY:
            self.first_step_s = steady.first_step(self.session, self.clock, self.cell.steps_per_call)
        return built

    def warm_up(self, *, window_s: float, limit_s: float) -> Answer:
        """Step until two windows agree, and report what a step does; of a loader, make one pass."""
        if self.loading is not None and self.cell is not None:
            passes = loading.warm_up(self.loading, self.clock, expect=self.cell)
            return {**dataclasses.asdict(passes), "observed": dataclasses.asdict(passes.observed)}
        session, cell = self._open
        first = self.first_step_s
        if first is None:
            first = steady.first_step(session, self.clock, cell.steps_per_call)
        with self.beside:
            warm = steady.warm_up(session, self.clock, first, window_s=window_s, limit_s=limit_s, expect=cell)
        return {**dataclasses.asdict(warm), "observed": dataclasses.asdict(warm.observed)}

    def settle(self, *, steps: int) -> Answer:
        """Untimed steps after a switch."""
        session, _ = self._open
        with self.beside:
            session.steps(steps)
            session.synchronize()
        return {}

    def block(self, *, steps: int) -> Answer:
        """One timed block of so many steps; of a loader, passes."""
        if self.loading is not None:
            return dataclasses.asdict(loading.timed_passes(self.loading, self.clock, steps))
        session, cell = self._open
        extra = steps // 10 if cell.toggles["extra_work"] == "tenth" else 0
        with self.beside:
            block = steady.timed_block(session, self.clock, steps=steps, extra=extra)
        return dataclasses.asdict(block)

    def store(self, *, cell: dict[str, Any], examples: int | None, threads: int) -> Answer:
        """Make the stored set of a cell."""
        self.backend.configure(threads)
        wanted = Cell.from_json(cell)
        if reason := self.backend.unavailable(wanted):
            raise Unavailable(reason)
        return {"stored": dataclasses.asdict(self.backend.store(wanted, examples))}

    def plain(self, *, steps: int) -> Answer:
        """The same steps with nothing around them but the clock: what the harness's own block is held against."""
        session, _ = self._open
        session.synchronize()
        started = self.clock()
        session.steps(steps)
        session.synchronize()
        return {"seconds": self.clock() - started}

    def ping(self) -> Answer:
        """An empty answer: the worker is there."""
        return {}

    def memory(self) -> Answer:
        """Peak memory since the warm-up began."""
        session = self.loading or self._open[0]
        return dataclasses.asdict(session.memory())

    def train(self, *, epochs: int) -> Iterator[Answer]:
        """One answer for each epoch."""
        session, cell = self._open
        for row in convergence.train(session, self.clock, epochs=epochs):
            yield {"epoch": dataclasses.asdict(row)}
        observed = session.observe()
        steady.check_level(cell, observed, session.items_per_step)
        yield {"observed": dataclasses.asdict(observed), "memory": dataclasses.asdict(session.memory())}

    def probe(self, *, steps: int, memory_cap: int | None) -> Answer:
        """Whether the cell trains a few steps under the memory there is, or under a cap beyond what it holds now."""
        session, cell = self._open
        if memory_cap is not None:
            limit = getattr(session, "limit_memory", host_memory.limit_data)  # of several devices, each has its own
            limit(memory_cap)
        return fit.probe(session, cell, self.clock, steps)

    def join(self, *, cell: dict[str, Any], seed: int, threads: int, group: str, host: int) -> Answer:
        """Be one of several hosts that train a cell together, until that has ended."""
        self.backend.configure(threads)
        join: Callable[..., None] = getattr(self.backend, "join", _no_hosts)
        join(Cell.from_json(cell), seed=seed, group=group, host=host)
        return {}

    def check(self, *, cell: dict[str, Any], name: str, threads: int) -> Answer:
        """The values of a named check."""
        self.backend.configure(threads)
        started = self.clock()
        values = [dataclasses.asdict(c) for c in self.backend.checks(Cell.from_json(cell), name)]
        return {"checks": values, "seconds": self.clock() - started}


def _no_hosts(*_: Any, **__: Any) -> None:
    raise Unavailable("several hosts train together in PyTorch only")


def _answers(worker: Worker, op: str, arguments: dict[str, Any]) -> Iterator[Answer]:
    handler: Callable[..., Answer | Iterator[Answer]] = getattr(worker, op)
    result = handler(**arguments)
    if isinstance(result, dict):
        yield {"status": Status.OK, **result}
        return
    for answer in result:
        yield {"status": Status.OK, "more": True, **answer}
    yield {"status": Status.OK}


def failure(error: BaseException, backend: Backend) -> Answer:
    """The answer for an error: its status and a reason of one line."""
    if isinstance(error, Unavailable):
        return {"status": Status.UNAVAILABLE, "reason": str(error)}
    text = " ".join(str(error).split()) or "no message"
    return {"status": backend.classify(error), "reason": f"{type(error).__name__}: {text[:300]}"}


def serve(channel: socket.socket, framework: Framework) -> int:
    """Answer requests until the other end closes; return the process's exit code."""
    worker = Worker(framework)
    while message := channel.recv(MESSAGE_BYTES):
        request = json.loads(message)
        try:
            for answer in _answers(worker, request.pop("op"), request):
                channel.send(json.dumps(answer).encode())
        except Exception as error:  # the boundary of the process: every failure becomes a row with its reason
            channel.send(json.dumps(failure(error, worker.backend)).encode())
    return 0
