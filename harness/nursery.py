"""A process that imports one framework once and forks a ready worker from it on request.

Importing a framework costs seconds; a fork of a process that has it costs hundredths, and measures no noisier than a
new interpreter. The nursery itself never runs an operation of the framework (a fork after that can deadlock) and
imports nothing of the suite but the worker. Both ends speak JSON in datagrams; nothing is unpickled.

Run by :mod:`harness.workers` as ``python -m harness.nursery FRAMEWORK FD``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
import time

from harness.backends import backend_name
from harness.measure.parent import die_with_parent
from harness.spec import Framework
from harness.worker import serve

MESSAGE_BYTES = 1 << 16


def _fork(control: socket.socket, framework: Framework) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nursery = os.getpid()
    pid = os.fork()
    if pid == 0:
        control.close()
        ours.close()
        die_with_parent(nursery)
        code = 1
        try:
            code = serve(theirs, framework)
        finally:
            os._exit(code)
    theirs.close()
    socket.send_fds(control, [json.dumps({"pid": pid}).encode()], [ours.fileno()])
    ours.close()


def _reap(pid: int) -> int | None:
    """Exit code of a child, negative for a signal; ``None`` while it lives."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def main(framework: Framework, control: socket.socket) -> None:
    """Import, report, then fork and reap until the other end closes."""
    die_with_parent()
    started = time.perf_counter()
    backend = importlib.import_module(backend_name(framework))
    for name in backend.PRELOAD:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise  # the module is there and broken: say so, rather than measure without it
    gc.collect()
    gc.freeze()  # keep the garbage collector from touching, and so copying, the pages shared with the workers
    control.send(json.dumps({"ready": time.perf_counter() - started}).encode())
    while message := control.recv(MESSAGE_BYTES):
        request = json.loads(message)
        if request["op"] == "fork":
            _fork(control, framework)
        else:
            control.send(json.dumps({"exit": _reap(int(request["pid"]))}).encode())


if __name__ == "__main__":
    main(Framework(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
