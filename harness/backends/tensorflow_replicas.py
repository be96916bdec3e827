"""The strategies under which a Keras model is built and trained on several devices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.backends.tensorflow_step import tf
from harness.spec import Cell

TPU_LIMIT_S = 60.0  # that finding a TPU may take: at an address where nobody answers it hangs for longer

_FIND_TPU = "from harness.backends.tensorflow_replicas import tpu_strategy; tpu_strategy()"
_WANTED = "a Cloud TPU VM with tensorflow-tpu, or TPU_NAME set to the TPU's name or address, would run it"


def strategy_of(cell: Cell) -> Any:
    """The strategy of a cell; the default one, which does nothing, where a single device trains."""
    match cell.toggles["strategy"]:
        case "mirrored" if cell.devices > 1:
            kind = cell.toggles["device"].upper()
            # The default merges with a collective that cannot run several steps a call on CPU devices.
            merge = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
            return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(cell.devices)], merge)
        case "multiworker" if cell.devices > 1:  # each device in a process of its own, which TF_CONFIG has told
            ring = tf.distribute.experimental.CommunicationImplementation.RING
            options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        case "tpu":
            return tpu_strategy()
    return tf.distribute.get_strategy()


def tpu_strategy(
    resolver: Callable[..., Any] = tf.distribute.cluster_resolver.TPUClusterResolver,
    strategy: Callable[[Any], Any] = tf.distribute.TPUStrategy,
) -> Any:
    """Find the TPU, connect, initialise it, and make its strategy; the arguments are for tests, which have no TPU."""
    found = resolver(tpu=os.environ.get("TPU_NAME", "local"))
    tf.config.experimental_connect_to_cluster(found)
    tf.tpu.experimental.initialize_tpu_system(found)
    return strategy(found)


def no_tpu(command: str = _FIND_TPU, limit_s: float = TPU_LIMIT_S) -> str | None:
    """Why there is no TPU here, or ``None``; found out in another process, since the attempt may hang."""
    if "TPU_NAME" not in os.environ and not any(Path("/dev").glob("accel*")):
        return f"this machine has no TPU (no /dev/accel*, TPU_NAME is not set): {_WANTED}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", command], capture_output=True, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return f"the TPU did not answer within {limit_s:g} s: {_WANTED}"
    if done.returncode == 0:
        return None
    words = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"no TPU could be reached ({words[:200]}): {_WANTED}"
