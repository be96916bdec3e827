"""What the TensorFlow backend does, as JSON on stdout: run by tests/test_tensorflow.py in a process of its own.

``python tensorflow_probe.py CELLS QUESTION…`` answers the questions, then reports on every cell of the JSON file.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import traceback
from inspect import getclosurevars
from pathlib import Path
from typing import Any

import numpy as np

from harness import data as datasets
from harness import techniques, workloads
from harness.backends import tensorflow_backend as backend
from harness.backends.tensorflow_session import KerasSession
from harness.backends.tensorflow_step import Step, build_optimizer, compile_model, keras, tf
from harness.errors import SpeedproofError
from harness.spec import Cell, Framework, Mode

SEED = 7


def cell(workload: str, size: int, batch: int, mode: Mode = Mode.STEADY, **sets: str) -> Cell:
    toggles = {name: toggle.default for name, toggle in techniques.TOGGLES.items()}
    return Cell(
        study="test",
        mode=mode,
        comparison="test",
        arm="arm",
        framework=Framework.TENSORFLOW,
        workload=workload,
        size=size,
        toggles={**toggles, "device": "cpu", "batch": str(batch), **sets},
    )


SMALL = {"cnn_fashion": cell("cnn_fashion", 28, 4), "text_small": cell("text_small", 16, 4)}
EPOCHS = cell("cnn_fashion", 28, 4, Mode.CONVERGENCE)
LIMIT = (22, 300)  # five batches and two examples more; two evaluation batches, the second not full


def open_session(asked: Cell, seed: int = SEED, limit: tuple[int, int] | None = None) -> KerasSession:
    session = backend.open_session(asked, seed=seed, data_limit=limit)
    assert isinstance(session, KerasSession)
    return session


def weights(model: Any) -> list[Any]:
    return [v.numpy() for v in model.trainable_variables]


def same(one: list[Any], other: list[Any]) -> bool:
    """Bit for bit."""
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def traces(session: KerasSession) -> int:
    count: int = getclosurevars(session._train).nonlocals["multi_step_on_iterator"].experimental_get_tracing_count()
    return count


def report(asked: Cell) -> dict[str, Any]:
    """Two steps, the second under observation, or why there are none."""
    if reason := backend.unavailable(asked):
        return {"unavailable": reason}
    session = open_session(asked)
    session.reset_memory()
    session.steps(1)
    session.synchronize()
    losses = [session.fetch_loss()]
    observed = session.observe()
    losses.append(session.fetch_loss())
    return {
        "losses": losses,
        "memory": dataclasses.asdict(session.memory()),
        "observed": dataclasses.asdict(observed),
        "items_per_step": session.items_per_step,
        "trace_s": session.trace_s,
        "traces": traces(session),
        "head": session._model.layers[-1].compute_dtype,
        "variables": sorted({v.dtype for v in session._model.trainable_variables}),
        "tf32_allowed": tf.config.experimental.tensor_float_32_execution_enabled(),
    }


def first_losses() -> dict[str, float]:
    """The first loss under the same seed twice, and under another."""
    found = {}
    for name, seed in (("once", 1), ("again", 1), ("other", 2)):
        session = open_session(SMALL["cnn_fashion"], seed)
        session.steps(1)
        found[name] = session.fetch_loss()
    return found


def fitted(asked: Cell, x: Any, y: Any, orders: list[Any]) -> Any:
    """The model that plain Keras trains: compile and fit over real batches, with nothing of the session."""
    workload = workloads.load(asked.workload)
    keras.utils.set_random_seed(SEED)
    classes = datasets.load(workload.data, size=asked.size).classes
    model = workloads.part(asked.workload, Framework.TENSORFLOW).build(workload, asked.size, classes)
    compile_model(model, build_optimizer(workload.optimizer), Step())
    for order in orders:
        batches = tf.data.Dataset.from_tensor_slices((x[order], y[order]))
        model.fit(batches, epochs=1, shuffle=False, verbose=0)
    return model


def block_against_fit(name: str) -> dict[str, Any]:
    """Four steps of a session, and fit over the batches that it should have seen."""
    asked = SMALL[name]
    workload = workloads.load(name)
    session = open_session(asked)
    before = weights(session._model)
    session.steps(4)
    arrays = datasets.load(workload.data, size=asked.size)
    rows = datasets.epoch_order(len(arrays.train_y), 1, SEED, 0).ravel()[:16]
    x: Any = arrays.train_x[rows]
    if workload.task == "image":
        x = datasets.prepare_images(x, asked.size, workload.channels)
    model = fitted(asked, x, arrays.train_y[rows], [np.arange(16).reshape(4, 4)])
    after = weights(session._model)
    return {"moved": not same(before, after), "same": same(after, weights(model))}


def epochs() -> dict[str, Any]:
    """Two epochs and an evaluation of a session, against fit over the same order and predict by hand."""
    session = open_session(EPOCHS, limit=LIMIT)
    items = [session.train_epoch(epoch) for epoch in (1, 2)]
    session.synchronize()
    trained = weights(session._model)
    found = session.evaluate()
    arrays = datasets.load("fashion_mnist", size=28)
    train, test = (datasets.prepare_images(x, 28, 1) for x in (arrays.train_x[: LIMIT[0]], arrays.test_x[: LIMIT[1]]))
    orders = [datasets.epoch_order(LIMIT[0], 4, SEED, epoch) for epoch in (1, 2)]
    model = fitted(EPOCHS, train, arrays.train_y[: LIMIT[0]], orders)
    logits = model.predict(test, verbose=0).astype(np.float64)
    y = arrays.test_y[: LIMIT[1]]
    shifted = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]
    return {
        "items": items,
        "same_as_fit": same(trained, weights(model)),
        "traces": traces(session),
        "accuracy": [found.accuracy, float(np.mean(logits.argmax(axis=1) == y))],
        "loss": [found.loss, float(losses.mean())],
        "untouched": same(trained, weights(session._model)),
    }


def padding() -> float:
    """How far a text's logits move when its row is filled up with padding."""
    workload = workloads.load("text_small")
    model = workloads.part("text_small", Framework.TENSORFLOW).build(workload, None, 10)
    tokens = np.array([[2, 5, 9, 4]], np.int32)
    longer = np.pad(tokens, ((0, 0), (0, 6)))
    return float(np.abs(model(tokens, training=False) - model(longer, training=False)).max())


def checks() -> dict[str, Any]:
    """Every check's values, and what an unknown one gets."""
    asked = SMALL["cnn_fashion"]
    before = keras.config.dtype_policy().name
    names = ("float_eps", "mixed_policy", "gradient_underflow")
    values = {check.name: check.value for name in names for check in backend.checks(asked, name)}
    try:
        backend.checks(asked, "float_epps")
    except SpeedproofError as error:
        refused = [type(error).__name__, str(error)]
    return {"values": values, "refused": refused, "policy_kept": keras.config.dtype_policy().name == before}


def errors() -> dict[str, str]:
    """What real and made failures are classified as."""

    def host() -> None:
        tf.zeros([1 << 45])

    def shapes() -> None:
        tf.ones([2, 3]) @ tf.ones([2, 3])

    found = {}
    for failing in (host, shapes):
        try:
            failing()
        except Exception as error:  # whatever it is, is the question
            found[failing.__name__] = backend.classify(error).value
    onednn = "Operation received an exception:Status: 1, message: could not create a memory object"
    found["onednn"] = backend.classify(tf.errors.AbortedError(None, None, onednn)).value
    found["cuda"] = backend.classify(
        tf.errors.InternalError(None, None, "CUDA_ERROR_OUT_OF_MEMORY: out of memory")
    ).value
    found["python"] = backend.classify(MemoryError()).value
    found["value"] = backend.classify(ValueError("out of memory")).value
    return found


def without_keras_hub() -> list[str | None]:
    """Why cells cannot run where keras-hub is missing."""
    kept = sys.modules.pop("keras_hub", None)
    sys.modules["keras_hub"] = None  # type: ignore[assignment]
    try:
        return [backend.unavailable(cell(name, 32, 4)) for name in ("resnet50", "text_small", "mobilenet_v2")]
    finally:
        del sys.modules["keras_hub"]
        if kept is not None:
            sys.modules["keras_hub"] = kept


def environment() -> dict[str, Any]:
    """What the user's environment could have changed, and may not."""
    open_session(SMALL["cnn_fashion"])
    return {
        "backend": keras.backend.backend(),
        "layout": keras.config.image_data_format(),
        "torch": "torch" in sys.modules,
    }


def preload() -> dict[str, Any]:
    """Import what a nursery imports, fork, and train in the child."""
    for name in backend.PRELOAD:
        importlib.import_module(name)
    context = importlib.import_module("tensorflow.python.eager.context").context()
    started = context._initialized
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            backend.configure(1)
            session = open_session(SMALL["cnn_fashion"])
            session.steps(1)
            code = 0 if np.isfinite(session.fetch_loss()) else 2
        finally:
            os._exit(code)
    return {"started": started, "child_exit": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}


QUESTIONS: dict[str, Any] = {
    "checks": checks,
    "describe": backend.describe,
    "environment": environment,
    "epochs": epochs,
    "errors": errors,
    "first_losses": first_losses,
    "fit_cnn": lambda: block_against_fit("cnn_fashion"),
    "fit_text": lambda: block_against_fit("text_small"),
    "padding": padding,
    "without_keras_hub": without_keras_hub,
}


def attempt(ask: Any) -> Any:
    try:
        return ask()
    except Exception:  # the test that asked shows it
        return {"raised": traceback.format_exc()}


def main(file: Path, questions: list[str]) -> None:
    found = {}
    if "preload" in questions:  # first: after it, this process runs operations
        questions.remove("preload")
        found["preload"] = attempt(preload)
    backend.configure(2)
    for name in questions:
        found[name] = attempt(QUESTIONS[name])
    # Two steps do not repay the seconds that optimising a deep network's graph costs.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    for name, fields in json.loads(file.read_text()).items():
        found[name] = attempt(lambda fields=fields: report(Cell.from_json(fields)))
    print(json.dumps(found))  # noqa: T201 - the report


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
