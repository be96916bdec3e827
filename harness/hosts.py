"""Several hosts that train together: what each of their processes must know. Standard library only.

One host runs pytest, asks the questions and alone writes; each of the others runs ``speedproof join``. They meet at
an address of the first, where a store of PyTorch's answers (:mod:`harness.backends.torch_board`).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from harness.errors import ConfigError

PORT = 29400  # torchrun's own default

_VARIABLE = "SPEEDPROOF_HOSTS"  # inherited by every worker


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosts:
    """``count`` hosts that met at ``endpoint`` ("name:port"), with ``cores`` CPU cores in all.

    Hosts that are one machine (containers, network namespaces) have its cores once. ``peer`` is another host's name or
    address: the way to it says which network interface this one has towards the others.
    """

    endpoint: str
    count: int
    cores: int
    peer: str

    @property
    def address(self) -> tuple[str, int]:
        """Name and port of :attr:`endpoint`."""
        return split(self.endpoint)

    def put(self) -> None:
        """Tell every process that this one starts from now on."""
        os.environ[_VARIABLE] = json.dumps(asdict(self))


def from_environment() -> Hosts | None:
    """The hosts that train together; ``None`` where this is the only one."""
    found = os.environ.get(_VARIABLE)
    return Hosts(**json.loads(found)) if found else None


def forget() -> None:
    """Undo :meth:`Hosts.put`."""
    os.environ.pop(_VARIABLE, None)


def split(endpoint: str) -> tuple[str, int]:
    """``"name"`` or ``"name:port"`` as name and port; raises :class:`ConfigError` for anything else."""
    name, port = endpoint.rsplit(":", 1) if ":" in endpoint else (endpoint, str(PORT))
    name = name.removeprefix("[").removesuffix("]")
    if not name or not port.isdecimal() or not 0 < int(port) <= 65535:  # noqa: PLR2004 - the largest port
        raise ConfigError(f"--rdzv-endpoint {endpoint!r}: must be NAME or NAME:PORT, as in node0:{PORT}")
    return name, int(port)
