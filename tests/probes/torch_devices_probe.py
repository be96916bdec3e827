"""What several PyTorch processes do, as JSON on stdout: run by tests/test_torch_devices.py in a process of its own.

``python torch_devices_probe.py QUESTION…``. A question runs in a fork, as a worker does: it forks in its turn, and
nothing parallel may have run before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any
from unittest import mock

import psutil
import torch  # noqa: TID251 - this process runs PyTorch and nothing else
import torch.distributed as dist  # noqa: TID251

from harness import techniques
from harness.backends import Session, torch_group
from harness.backends import torch_backend as backend
from harness.backends.torch_session import TorchSession
from harness.measure import steady
from harness.measure.neighbour import Neighbour
from harness.spec import Cell, Framework, Mode

BATCH = 16


def cell(mode: Mode = Mode.STEADY, *, workload: str = "cnn_fashion", **sets: str) -> Cell:
    toggles = {name: toggle.default for name, toggle in techniques.TOGGLES.items()}
    return Cell(
        study="test",
        mode=mode,
        comparison=f"test/torch/{workload}",
        arm="arm",
        framework=Framework.TORCH,
        workload=workload,
        size=28 if workload == "cnn_fashion" else 32,
        toggles={**toggles, "device": "cpu", "batch": str(BATCH), "strategy": "ddp", **sets},
    )


LEVELS: dict[str, dict[str, str]] = {
    "one": {},
    "ddp": {"devices": "2"},
    "after": {"devices": "2", "gradient_sync": "after"},
    "none": {"devices": "2", "gradient_sync": "none"},
    "bf16": {"devices": "2", "gradient_dtype": "bfloat16"},
    "fsdp": {"devices": "2", "strategy": "fsdp"},
    "strong": {"devices": "2", "scale": "strong", "batch": "32"},
    "pipeline": {"devices": "2", "strategy": "pipeline"},
    "unsplit": {"strategy": "pipeline"},
}


def _fingerprints(session: Session) -> dict[str, Any]:
    """Stands in for ``memory`` in a rank: of its weights, and of what it exchanged in a step."""
    assert isinstance(session, TorchSession)
    sent: list[list[Any]] = []
    real = dist.all_reduce

    def noting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append([str(tensor.dtype), tensor.numel()])
        return real(tensor, *args, **kwargs)

    with mock.patch.object(dist, "all_reduce", noting):
        session.steps(1)
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in session._model.parameters()]
    flat = torch.cat([w.detach().flatten() for w in weights])
    return {
        "weights": hashlib.md5(flat.numpy().tobytes()).hexdigest(),
        "sum": float(flat.double().sum()),
        "sent": sent,
        "images": hashlib.md5(session._batches[0][0].numpy().tobytes()).hexdigest(),
        "pid": os.getpid(),
    }


def levels() -> dict[str, Any]:
    """Two steps and an observed one of every level, and what its ranks then hold."""
    found: dict[str, Any] = {}
    for name, sets in LEVELS.items():
        asked = cell(Mode.STEADY, **sets)
        assert backend.unavailable(asked) is None
        session = backend.open_session(asked, seed=3, data_limit=None)
        session.steps(2)
        session.synchronize()
        observed = session.observe()
        steady.check_level(asked, observed, session.items_per_step)
        session.reset_memory()
        memory = session.memory()
        found[name] = {
            "observed": dataclasses.asdict(observed),
            "items": session.items_per_step,
            "loss": session.fetch_loss(),
            "memory": dataclasses.asdict(memory),
        }
    return found


def ranks() -> dict[str, Any]:
    """The weights that the ranks hold after steps from the same start."""
    found = {}
    with mock.patch.object(torch_group, "_OPS", (*torch_group._OPS[:-2], "fingerprint", "observe")):
        TorchSession.fingerprint = _fingerprints  # type: ignore[attr-defined]
        for name in ("ddp", "after", "none", "bf16", "fsdp"):
            session = backend.open_session(cell(Mode.STEADY, **LEVELS[name]), seed=3, data_limit=None)
            assert isinstance(session, torch_group.GroupSession)
            session.steps(3)
            session.synchronize()
            found[name] = session._ask(torch_group._MEMORY)
    return found


def failures() -> dict[str, Any]:
    """What is said when a rank is killed, raises or runs out of memory, how soon, and that no process is left."""
    found: dict[str, Any] = {}

    def failing(name: str, action: Callable[[torch_group.GroupSession], None], **sets: str) -> None:
        before = {p.pid for p in psutil.Process().children(recursive=True)}
        session = backend.open_session(cell(Mode.STEADY, **{"devices": "2", **sets}), seed=0, data_limit=None)
        assert isinstance(session, torch_group.GroupSession)
        session.steps(1)
        session.synchronize()
        started = time.perf_counter()
        try:
            action(session)
        except Exception as error:  # its text is the answer
            answer = {"text": str(error), "status": backend.classify(error).value}
        else:
            answer = {"text": "", "status": "ok"}
        answer["seconds"] = time.perf_counter() - started  # type: ignore[assignment]
        time.sleep(0.2)
        left = {p.pid for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE}
        found[name] = {**answer, "left": len(left - before)}

    def kill(session: torch_group.GroupSession) -> None:
        agent = psutil.Process(session._agent)
        victim = max(agent.children(recursive=True), key=lambda p: p.pid)
        os.kill(victim.pid, signal.SIGKILL)
        session.steps(50)
        session.synchronize()

    def limited(session: torch_group.GroupSession) -> None:
        session.limit_memory(8_000_000)
        session.steps(3)
        session.synchronize()

    failing("killed", kill)
    failing("out of memory", limited, batch="512")
    real = backend._open

    def raising(cell: Cell, seed: int, limit: Any, shard: Any = (0, 1)) -> Any:
        if shard[0] == 1:
            raise ValueError("rank 1 cannot be built")
        return real(cell, seed, limit, shard)

    with mock.patch.object(backend, "_open", raising):
        try:
            backend.open_session(cell(devices="2"), seed=0, data_limit=None)
        except Exception as error:
            found["unbuilt"] = {"text": str(error), "status": backend.classify(error).value, "seconds": 0.0, "left": 0}
    return found


def unavailable() -> dict[str, str | None]:
    """Why a level does not run here."""
    asked = {
        "single on two": cell(strategy="single", devices="2"),
        "mirrored": cell(strategy="mirrored"),
        "multiworker": cell(strategy="multiworker", devices="2"),
        "tpu": cell(strategy="tpu"),
        "dp": cell(strategy="dp", devices="2"),
        "gpus": cell(devices="64", device="gpu"),
        "uneven": cell(devices="3", scale="strong"),
        "after alone": cell(gradient_sync="after"),
        "bf16 alone": cell(gradient_dtype="bfloat16"),
        "bf16 after": cell(devices="2", gradient_dtype="bfloat16", gradient_sync="after"),
        "calls": cell(strategy="single", steps_per_execution="8"),
        "uncut": cell(workload="mobilenet_v2", strategy="pipeline", devices="2"),
        "parts": cell(strategy="pipeline", devices="2", batch="6"),
        "half": cell(strategy="pipeline", devices="2", precision="bf16"),
        "convergence": cell(Mode.CONVERGENCE, devices="2"),
        "beside several": cell(devices="2", neighbour="training"),
        "eight": cell(devices="8"),
        "beside one": cell(strategy="single", neighbour="training"),
    }
    return {name: backend.unavailable(c) for name, c in asked.items()}


def neighbour() -> dict[str, Any]:
    """Whether the neighbour trains inside its block and nowhere else."""
    plain = cell(strategy="single")
    beside = Neighbour(lambda: backend.open_session(plain, seed=1, data_limit=None))
    session = backend.open_session(plain, seed=0, data_limit=None)
    process = psutil.Process(beside.pid)
    found: dict[str, Any] = {"steps": []}
    for _ in range(2):
        with beside:
            session.steps(20)
            session.synchronize()
        found["steps"].append(beside.steps)
    before = process.cpu_times()
    session.steps(20)
    after = process.cpu_times()
    found["idle_s"] = after.user + after.system - before.user - before.system
    os.kill(beside.pid, signal.SIGKILL)
    try:
        with beside:
            session.steps(1)
    except Exception as error:
        found["dead"] = str(error)
    return found


QUESTIONS: dict[str, Callable[[], Any]] = {f.__name__: f for f in (levels, ranks, failures, unavailable, neighbour)}


def main(questions: list[str]) -> dict[str, Any]:
    """Every answer; one that raises is its traceback."""
    backend.configure(2)
    answers = {}
    for name in questions:
        try:
            answers[name] = QUESTIONS[name]()
        except Exception:  # the test that reads this answer fails with the traceback
            answers[name] = {"raised": traceback.format_exc()}
    return answers


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))  # noqa: T201
