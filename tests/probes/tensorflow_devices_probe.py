"""What several devices do in TensorFlow, as JSON on stdout: run by tests/test_tensorflow_devices.py.

``python tensorflow_devices_probe.py QUESTION…``. A question is answered in a process of its own where its devices must
be configured before TensorFlow starts.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import psutil

from harness import techniques
from harness.backends import tensorflow_backend as backend
from harness.backends import tensorflow_replicas as replicas
from harness.backends.tensorflow_group import KerasGroup
from harness.backends.tensorflow_session import KerasSession
from harness.backends.tensorflow_step import keras, tf
from harness.measure import steady
from harness.measure.neighbour import Neighbour
from harness.spec import Cell, Framework, Mode

BATCH = 16


def cell(mode: Mode = Mode.STEADY, **sets: str) -> Cell:
    toggles = {name: toggle.default for name, toggle in techniques.TOGGLES.items()}
    return Cell(
        study="test",
        mode=mode,
        comparison="test/tensorflow/cnn_fashion",
        arm="arm",
        framework=Framework.TENSORFLOW,
        workload="cnn_fashion",
        size=28,
        toggles={**toggles, "device": "cpu", "batch": str(BATCH), **sets},
    )


def _opened(asked: Cell) -> KerasSession:
    session = backend.open_session(asked, seed=3, data_limit=None)
    assert isinstance(session, KerasSession)
    return session


def _report(**sets: str) -> dict[str, Any]:
    asked = cell(Mode.STEADY, **sets)
    assert backend.unavailable(asked) is None
    session = _opened(asked)
    call = asked.steps_per_call
    session.steps(call)
    session.synchronize()
    observed = session.observe()
    steady.check_level(asked, observed, session.items_per_step)
    before = int(tf.convert_to_tensor(session._model.optimizer.iterations))
    cpu, wall = time.process_time(), time.perf_counter()
    session.steps(16 * call)
    session.synchronize()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    model = session._model
    held = model.distribute_strategy.experimental_local_results(model.trainable_variables[0].value)
    return {
        "observed": dataclasses.asdict(observed),
        "items": session.items_per_step,
        "loss": session.fetch_loss(),
        "iterations": int(tf.convert_to_tensor(model.optimizer.iterations)) - before,
        "cores": cpu / wall,
        "equal": all(bool(np.array_equal(held[0].numpy(), other.numpy())) for other in held),
        "devices": len({part.device for part in held}),
    }


def two() -> dict[str, Any]:
    """Two logical devices."""
    return _report(strategy="mirrored", devices="2")


def strong() -> dict[str, Any]:
    """Four that share a batch."""
    return _report(strategy="mirrored", devices="4", scale="strong", batch="32")


def alone() -> dict[str, Any]:
    """The baseline of scaling."""
    return _report(strategy="mirrored")


def calls() -> dict[str, Any]:
    """Four steps in a call."""
    return _report(steps_per_execution="4")


def both() -> dict[str, Any]:
    """Four steps in a call on two devices."""
    return _report(steps_per_execution="4", strategy="mirrored", devices="2")


def union() -> dict[str, Any]:
    """Two replicas, and one device on the same examples, after two steps from the same weights."""
    asked = cell(Mode.STEADY, strategy="mirrored", devices="2")
    session, single = _opened(asked), _opened(cell(Mode.STEADY, batch=str(2 * BATCH)))
    single._model.set_weights(session._model.get_weights())
    for each in (session, single):
        each.steps(2)
        each.synchronize()
    pairs = zip(session._model.get_weights(), single._model.get_weights(), strict=True)
    return {"apart": max(float(np.abs(a - b).max()) for a, b in pairs)}


def processes() -> dict[str, Any]:
    """Two processes, weak and strong, and their losses beside those of two replicas in one process."""
    found: dict[str, Any] = {}
    for name, sets in (("weak", {}), ("strong", {"scale": "strong", "batch": "32"})):
        asked = cell(Mode.STEADY, strategy="multiworker", devices="2", **sets)
        assert backend.unavailable(asked) is None
        session = backend.open_session(asked, seed=3, data_limit=None)
        session.reset_memory()
        observed = session.observe()
        steady.check_level(asked, observed, session.items_per_step)
        found[name] = {
            "observed": dataclasses.asdict(observed),
            "items": session.items_per_step,
            "peak": session.memory().peak,
            "loss": session.fetch_loss(),
        }
    # Processes before replicas: those start TensorFlow in this process.
    found["losses"] = {
        name: _losses(strategy) for name, strategy in (("processes", "multiworker"), ("replicas", "mirrored"))
    }
    return found


def _losses(strategy: str) -> list[float]:
    session = backend.open_session(cell(Mode.STEADY, strategy=strategy, devices="2"), seed=3, data_limit=None)
    losses = []
    for _ in range(6):
        session.steps(1)
        session.synchronize()
        losses.append(session.fetch_loss())
    return losses


def killed() -> dict[str, Any]:
    """What is said when a process of the group is killed in the middle of steps."""

    def kill(session: KerasGroup) -> None:
        session.steps(1)
        session.synchronize()
        session.steps(2000)
        os.kill(session._pids[1], signal.SIGKILL)
        session.synchronize()

    return _failing(lambda: kill(_group()))


def unbuilt() -> dict[str, Any]:
    """What is said when one cannot be built."""
    real = backend._open

    def raising(kind: Any, *arguments: Any) -> Any:
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            raise ValueError("rank 1 cannot be built")
        return real(kind, *arguments)

    with mock.patch.object(backend, "_open", raising):
        return _failing(_group)


def _group() -> KerasGroup:
    asked = cell(Mode.STEADY, strategy="multiworker", devices="2")
    session = backend.open_session(asked, seed=0, data_limit=None)
    assert isinstance(session, KerasGroup)
    return session


def _failing(action: Callable[[], object]) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        action()
    except Exception as error:  # its text is the answer
        answer = {"text": str(error), "status": backend.classify(error).value}
    else:
        answer = {"text": "", "status": "ok"}
    left = [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
    return {**answer, "seconds": time.perf_counter() - started, "left": len(left)}


def tpu() -> dict[str, Any]:
    """The order in which a TPU is found, with stand-ins, and the model that is built under its strategy."""
    seen: list[str] = []

    class Resolver:
        def __init__(self, tpu: str) -> None:
            seen.append(f"resolver {tpu}")

    def strategy(_: Resolver) -> Any:
        seen.append("strategy")
        return tf.distribute.OneDeviceStrategy("CPU:0")

    with (
        mock.patch.dict(os.environ, {"TPU_NAME": "there"}),
        mock.patch.object(tf.config, "experimental_connect_to_cluster", side_effect=lambda _: seen.append("connect")),
        mock.patch.object(
            tf.tpu.experimental, "initialize_tpu_system", side_effect=lambda _: seen.append("initialize")
        ),
    ):
        made = replicas.tpu_strategy(Resolver, strategy)
    with mock.patch.object(replicas, "tpu_strategy", return_value=made):
        session = _opened(cell(Mode.STEADY, strategy="tpu"))
    session.steps(1)
    found = {
        "order": seen,
        "under": session._model.distribute_strategy is made,
        "here": replicas.no_tpu(),
        "loss": session.fetch_loss(),
    }
    with mock.patch.dict(os.environ, {"TPU_NAME": "there"}):
        found["hangs"] = replicas.no_tpu("import time; time.sleep(60)", 0.5)
        found["fails"] = replicas.no_tpu("raise SystemExit('no such TPU')")
        found["works"] = replicas.no_tpu("pass")
    return found


def unavailable() -> dict[str, str | None]:
    """Why a level does not run here."""
    asked = {
        "single on two": cell(devices="2"),
        "ddp": cell(strategy="ddp", devices="2"),
        "fsdp": cell(strategy="fsdp", devices="2"),
        "dp": cell(strategy="dp", devices="2"),
        "processes": cell(strategy="multiworker", devices="8"),
        "pipeline": cell(strategy="pipeline", devices="2"),
        "gpus": cell(strategy="mirrored", devices="64", device="gpu"),
        "uneven": cell(strategy="mirrored", devices="3", scale="strong"),
        "after": cell(strategy="mirrored", devices="2", gradient_sync="after"),
        "bf16": cell(strategy="mirrored", devices="2", gradient_dtype="bfloat16"),
        "calls in epochs": cell(Mode.CONVERGENCE, steps_per_execution="8"),
        "several in epochs": cell(Mode.CONVERGENCE, strategy="mirrored", devices="2"),
        "beside several": cell(strategy="mirrored", devices="2", neighbour="training"),
        "eight": cell(strategy="mirrored", devices="8"),
    }
    return {name: backend.unavailable(c) for name, c in asked.items()}


def neighbour() -> dict[str, Any]:
    """Whether a neighbour trains beside its block."""
    beside = Neighbour(lambda: backend.open_session(cell(), seed=1, data_limit=None))
    session = backend.open_session(cell(), seed=0, data_limit=None)
    session.steps(1)
    with beside:
        session.steps(20)
        session.synchronize()
    beside.close()
    return {"steps": beside.steps}


QUESTIONS: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (two, strong, alone, calls, both, union, processes, killed, unbuilt, tpu, unavailable, neighbour)
}


def main(questions: list[str]) -> dict[str, Any]:
    """Every answer, each of a process of its own; one that raises is its traceback."""
    answers = {}
    for name in questions:
        done = subprocess.run([sys.executable, __file__, "--", name], capture_output=True, text=True, check=False)
        answers[name] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {"raised": done.stderr}
    return answers


def answer(name: str) -> Any:
    """One answer."""
    backend.configure(2)
    try:
        return QUESTIONS[name]()
    except Exception:  # the test that reads this answer fails with the traceback
        return {"raised": traceback.format_exc()}


if __name__ == "__main__":
    assert keras.backend.backend() == "tensorflow"
    print(json.dumps(answer(sys.argv[2]) if sys.argv[1] == "--" else main(sys.argv[1:])))  # noqa: T201
