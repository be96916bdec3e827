"""The parent's side of the worker processes: start them, ask them, and say how they died."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from harness.errors import SpeedproofError
from harness.spec import Framework, Status

MESSAGE_BYTES = 1 << 16
START_LIMIT_S = 120.0
FORK_LIMIT_S = 20.0

Answer = dict[str, Any]

_INSTALL = {
    Framework.TORCH: "pip install 'speedproof[torch]'",
    Framework.TENSORFLOW: "pip install 'speedproof[tensorflow]'",
    Framework.SKLEARN: "pip install 'speedproof[data]'",
}
_MODULE = {Framework.TORCH: "torch", Framework.TENSORFLOW: "tensorflow", Framework.SKLEARN: "sklearn"}


class WorkerFailure(SpeedproofError):
    """A request that did not succeed: the row's status, and its reason as the message."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class NurseryGone(SpeedproofError):
    """The process that forks workers has ended; a new one must be started."""


def missing(framework: Framework) -> str | None:
    """Why a framework cannot be imported here, with the install line; ``None`` where it is installed."""
    module = _MODULE.get(framework)
    if module is None:
        return None
    if importlib.util.find_spec(module) is None:
        return f"{module} is not installed: {_INSTALL[framework]}"
    return None


def _receive(channel: socket.socket, timeout_s: float) -> Answer | None:
    """The next message; ``None`` when the other end has closed. Raises :class:`TimeoutError`."""
    ready, _, _ = select.select([channel], [], [], timeout_s)
    if not ready:
        raise TimeoutError
    try:
        message = channel.recv(MESSAGE_BYTES)
    except ConnectionError:
        return None
    if not message:
        return None
    answer: Answer = json.loads(message)
    return answer


class WorkerProcess:
    """One live worker. ``start_s`` is the time from the request for it to its being there."""

    def __init__(self, nursery: Nursery, pid: int, channel: socket.socket, start_s: float) -> None:
        self._nursery = nursery
        self._channel = channel
        self._log_from = nursery.log_size()
        self.pid = pid
        self.start_s = start_s
        self.alive = True

    def send(self, op: str, **arguments: Any) -> None:
        """Send a request whose answer :meth:`receive` will bring."""
        try:
            self._channel.send(json.dumps({"op": op, **arguments}).encode())
        except OSError:
            raise self._death() from None

    def receive(self, timeout_s: float) -> Answer:
        """The next answer; raises :class:`WorkerFailure` for a failure, a death, or silence beyond ``timeout_s``."""
        try:
            answer = _receive(self._channel, timeout_s)
        except TimeoutError:
            self.close()
            raise WorkerFailure(Status.TIMEOUT, f"no answer within {timeout_s:g} s") from None
        if answer is None:
            raise self._death()
        if answer["status"] != Status.OK:
            raise WorkerFailure(Status(answer["status"]), answer["reason"])
        return answer

    def ask(self, op: str, timeout_s: float, **arguments: Any) -> Answer:
        """A request and its one answer."""
        self.send(op, **arguments)
        return self.receive(timeout_s)

    def fileno(self) -> int:
        """For ``select``."""
        return self._channel.fileno()

    def close(self) -> None:
        """End the worker now."""
        if self.alive:
            self._channel.close()
            self.alive = False
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._nursery.reap(self.pid)

    def _death(self) -> WorkerFailure:
        if not self.alive:
            return WorkerFailure(Status.ERROR, "the worker was already ended")
        self._channel.close()
        self.alive = False
        code = self._nursery.reap(self.pid)
        last = self._nursery.last_words(self._log_from)
        said = f"; it last wrote: {last}" if last else ""
        if code is None:
            return WorkerFailure(Status.ERROR, f"the worker closed its channel{said}")
        if code < 0:
            name = signal.Signals(-code).name
            why = " (the kernel's out-of-memory killer ends processes this way)" if name == "SIGKILL" else ""
            return WorkerFailure(Status.ERROR, f"the worker was ended by {name}{why}{said}")
        return WorkerFailure(Status.ERROR, f"the worker ended with exit code {code}{said}")


class Nursery:
    """The process that has one framework imported and forks workers from it."""

    def __init__(self, framework: Framework, *, environment: dict[str, str] | None = None) -> None:
        self.framework = framework
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._scratch = tempfile.TemporaryDirectory(  # workers are killed, and could not tidy up
            prefix="speedproof-", ignore_cleanup_errors=True
        )
        self.import_s = 0.0

    def begin(self) -> None:
        """Start importing without waiting for it."""
        if self._process is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "harness.nursery", self.framework.value, str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "TMPDIR": self._scratch.name, **self._environment},
            start_new_session=True,  # Ctrl-C is for the parent, which ends its workers in order
        )
        theirs.close()
        self._control = ours

    def ready(self) -> None:
        """Wait until the framework is imported; raises :class:`WorkerFailure` where that fails."""
        self.begin()
        if self.import_s:
            return
        assert self._control is not None
        try:
            answer = _receive(self._control, START_LIMIT_S)
        except TimeoutError:
            raise WorkerFailure(Status.TIMEOUT, f"importing {self.framework} took over {START_LIMIT_S:g} s") from None
        if answer is None:
            raise WorkerFailure(Status.ERROR, f"importing {self.framework} failed: {self.last_words(0)}")
        self.import_s = answer["ready"]

    def spawn(self) -> WorkerProcess:
        """Fork a worker; raises :class:`NurseryGone` where the nursery has died."""
        self.ready()
        assert self._control is not None
        started = time.perf_counter()
        try:
            self._control.send(b'{"op": "fork"}')
            if not select.select([self._control], [], [], FORK_LIMIT_S)[0]:
                raise NurseryGone(f"the {self.framework} nursery did not fork within {FORK_LIMIT_S:g} s")
            message, fds, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
        except ConnectionError:
            message, fds = b"", []
        if not message:
            raise NurseryGone(f"the {self.framework} nursery has ended: {self.last_words(0) or 'no last words'}")
        channel = socket.socket(fileno=fds[0])
        return WorkerProcess(self, json.loads(message)["pid"], channel, time.perf_counter() - started)

    def reap(self, pid: int, limit_s: float = 5.0) -> int | None:
        """Exit code of a dead worker; ``None`` where it cannot be had."""
        assert self._control is not None
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            try:
                self._control.send(json.dumps({"op": "reap", "pid": pid}).encode())
                answer = _receive(self._control, limit_s)
            except (OSError, TimeoutError):
                return None
            if answer is None:
                return None
            if answer["exit"] is not None:
                return int(answer["exit"])
            time.sleep(0.005)
        return None

    def log_size(self) -> int:
        """Bytes that the nursery and its workers have written so far."""
        return os.fstat(self._log.fileno()).st_size

    def last_words(self, since: int) -> str:
        """The last line written since a log size, cut to 300 characters."""
        size = self.log_size()
        tail = os.pread(self._log.fileno(), 8192, max(since, size - 8192)).decode(errors="replace")
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""

    def close(self) -> None:
        """End the nursery for good; the kernel ends its workers with it."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._log.close()
        self._scratch.cleanup()
        self.import_s = 0.0
