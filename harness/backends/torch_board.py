"""The board at which hosts meet: a TCP store of PyTorch's, kept by a process of its own for as long as a run lasts.

The elastic launchers of all hosts find one another in it. Beside that it holds what they are to launch: a worker of the
first host writes an order for each cell, the others follow. What ranks of other hosts said before they ended is left
there too.

``python -m harness.backends.torch_board serve ENDPOINT HOSTS FACTS`` keeps it and prints the facts of every host that
came; it ends with its standard input. ``… follow ENDPOINT FACTS`` prints what is to be done, a line an order.
Lines are JSON, ``FACTS`` a JSON object that says what a host is.
"""

from __future__ import annotations

import datetime
import json
import socket
import sys
import time
from typing import Any

import psutil
import torch
from torch.distributed import DistNetworkError, DistStoreError, TCPStore

from harness import hosts as several
from harness.errors import SpeedproofError
from harness.hosts import Hosts
from harness.measure.parent import die_with_parent

JOIN_LIMIT = datetime.timedelta(minutes=10)  # that the first host waits for the others, and they for it
ANSWER_LIMIT = datetime.timedelta(seconds=10)
LEAVE_LIMIT_S = 3.0

_ALIKE = ("torch", "speedproof")  # facts in which hosts must agree


def connect(endpoint: str, timeout: datetime.timedelta = ANSWER_LIMIT) -> TCPStore:
    """The board at an address."""
    name, port = several.split(endpoint)
    return TCPStore(name, port, is_master=False, wait_for_workers=False, timeout=timeout)


def order(hosts: Hosts, what: dict[str, Any]) -> None:
    """Have every other host do something."""
    _order(connect(hosts.endpoint), what)


def _order(board: TCPStore, what: dict[str, Any]) -> None:
    board.set(f"order/{board.add('orders', 1) - 1}", json.dumps(what))


def leave_words(hosts: Hosts, group: str, host: int, said: list[dict[str, Any]]) -> None:
    """Leave what the ranks of host number ``host`` said before the group ended."""
    connect(hosts.endpoint).set(f"words/{group}/{host}", json.dumps(said))


def words(hosts: Hosts, group: str, timeout: datetime.timedelta) -> list[dict[str, Any]]:
    """What the ranks of the other hosts left, with ``host`` in each; a host that left nothing in time is told too."""
    board = connect(hosts.endpoint)
    deadline = time.monotonic() + timeout.total_seconds()
    found: list[dict[str, Any]] = []
    for host in range(1, hosts.count):
        left = datetime.timedelta(seconds=max(0.1, deadline - time.monotonic()))
        try:
            board.wait([f"words/{group}/{host}"], left)
        except DistStoreError:
            text = f"host {host} of {hosts.count} (counted from 0) did not answer any more"
            found.append({"by": "launcher", "signal": False, "gone": True, "host": host, "text": text})
        else:
            found += [{**word, "host": host} for word in json.loads(board.get(f"words/{group}/{host}"))]
    return found


def own_address(peer: str) -> str:
    """The address of this host on the way to another one.

    What a host's own name resolves to is no answer: on many systems that is a loopback address.
    """
    family, kind, *_, there = socket.getaddrinfo(peer, several.PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(there)  # sends nothing: it only asks for the route
        return str(probe.getsockname()[0])


def interface(address: str) -> str | None:
    """The network interface that has an address; gloo and NCCL would take that of the host's name."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address == address for a in addresses):
            return name
    return None


def serve(endpoint: str, count: int, facts: dict[str, Any]) -> None:
    """Keep the board; say who came, once all are there, and end with the standard input."""
    name, port = several.split(endpoint)
    board = TCPStore(name, port, is_master=True, wait_for_workers=False, timeout=JOIN_LIMIT)
    board.set("main", json.dumps({**facts, "torch": torch.__version__, "count": count}))
    _tell(open=True)
    names = [f"host/{i}" for i in range(1, count)]
    board.wait(names, JOIN_LIMIT)
    _tell(hosts=[json.loads(board.get(n)) for n in names])
    sys.stdin.read()
    _order(board, {"end": True})
    deadline = time.monotonic() + LEAVE_LIMIT_S
    while board.add("left", 0) < count - 1 and time.monotonic() < deadline:
        time.sleep(0.02)


def follow(endpoint: str, facts: dict[str, Any]) -> None:
    """Join as a further host, then print every order until the run ends."""
    board = connect(endpoint, JOIN_LIMIT)
    main = json.loads(board.get("main"))
    facts = {**facts, "torch": torch.__version__, "address": own_address(several.split(endpoint)[0])}
    for name in _ALIKE:
        if facts[name] != main[name]:
            _tell(refused=f"this host has {name} {facts[name]}, the first one {main[name]}: make them equal")
            return
    number = board.add("hosts", 1)
    if number >= main["count"]:
        _tell(refused=f"the run has its {main['count']} hosts already")
        return
    board.set(f"host/{number}", json.dumps(facts))
    _tell(joined=number, count=main["count"], main=main)
    following = 0
    while True:
        try:
            board.wait([f"order/{following}"], JOIN_LIMIT)
        except DistNetworkError:
            raise
        except DistStoreError:  # nothing for so long: the first host measures something else
            continue
        what = json.loads(board.get(f"order/{following}"))
        if what.get("end"):
            board.add("left", 1)
            return
        _tell(order=what)
        following += 1


def _tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - answers its parent


def main(arguments: list[str]) -> int:
    """Serve or follow; what goes wrong is a line too."""
    die_with_parent()
    try:
        if arguments[0] == "serve":
            serve(arguments[1], int(arguments[2]), json.loads(arguments[3]))
        else:
            follow(arguments[1], json.loads(arguments[2]))
    except (SpeedproofError, OSError, RuntimeError) as error:
        _tell(failed=" ".join(str(error).split())[:300])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
