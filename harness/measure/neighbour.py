"""A second program that trains on the same device, and only while it should.

It is a process of its own with a session of its own. It trains between :meth:`Neighbour.__enter__` and
:meth:`Neighbour.__exit__` and stands still otherwise, so that it disturbs its own cell and no other.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable

from harness.backends import Session
from harness.errors import MeasurementError
from harness.measure.parent import die_with_parent

BUILD_LIMIT_S = 300.0
STOP_LIMIT_S = 60.0  # that the step which is under way may take


class Neighbour:
    """Forks a process, which calls ``build``; make it before this process has run anything in parallel.

    Raises :class:`~harness.errors.MeasurementError` where that process ends, or made no step while it should have.
    """

    def __init__(self, build: Callable[[], Session]) -> None:
        self.steps = 0
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._channel.close()
            code = 1
            try:
                die_with_parent(parent)
                code = _train(build(), theirs)
            finally:
                os._exit(code)
        theirs.close()

    def __enter__(self) -> Neighbour:
        """Have it train; returns when its first step is done."""
        self._say(b"go")
        self._hear(BUILD_LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        """Have it stop; returns when its device has nothing left to do."""
        self._say(b"stop")
        made = int(self._hear(STOP_LIMIT_S))
        if not made:
            raise MeasurementError(
                "the neighbour made no step during the block: nothing was shared; lengthen the block"
            )
        self.steps += made

    def close(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._channel.close()

    def _say(self, message: bytes) -> None:
        try:
            self._channel.send(message)
        except OSError:
            raise self._gone() from None

    def _hear(self, limit_s: float) -> bytes:
        if not select.select([self._channel], [], [], limit_s)[0]:
            raise MeasurementError(f"the neighbour did not answer within {limit_s:g} s")
        try:
            message = self._channel.recv(64)
        except ConnectionError:
            message = b""
        if not message:
            raise self._gone()
        return message

    def _gone(self) -> MeasurementError:
        return MeasurementError("the neighbour, which trains on the same device, has ended; see its last words above")


def _train(session: Session, channel: socket.socket) -> int:
    """Train step by step between "go" and "stop"; say when the first step is done, and at the end how many since."""
    while channel.recv(64) == b"go":
        session.steps(1)
        session.synchronize()
        channel.send(b"1")
        made = 0
        while not select.select([channel], [], [], 0)[0]:
            session.steps(1)
            session.synchronize()
            made += 1
        channel.recv(64)
        channel.send(str(made).encode())
    return 0
