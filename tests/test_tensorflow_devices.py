"""Several devices in TensorFlow: replicas train as one, a call holds its steps, and what is not there says why.

TensorFlow runs in processes of its own (tests/probes/tensorflow_devices_probe.py), which report.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

PROBE = "tensorflow_devices_probe"
QUESTIONS = (
    ("two", "strong", "alone", "calls", "unavailable"),
    ("both", "union", "tpu", "neighbour"),
    ("processes", "killed", "unbuilt"),
)
BATCH = 16


@pytest.mark.parametrize(
    ("devices", "items"),
    [
        pytest.param(2, 2 * BATCH, marks=pytest.mark.asks("two")),
        pytest.param(4, 32, marks=pytest.mark.asks("strong")),
        pytest.param(1, BATCH, marks=pytest.mark.asks("alone")),
    ],
)
def test_replicas_hold_equal_weights_on_devices_of_one_thread(answer: Any, devices: int, items: int) -> None:
    observed = answer["observed"]
    assert (observed["devices"], observed["threads"], answer["devices"]) == (devices, 1, devices)
    assert observed["batch"] == answer["items"] == items
    assert answer["equal"]
    assert answer["iterations"] == 16
    assert 0 < answer["loss"] < 5


@pytest.mark.asks("alone")
def test_one_device_computes_on_one_core(answer: Any) -> None:
    assert answer["cores"] < 1.15


@pytest.mark.parametrize(
    "devices", [pytest.param(1, marks=pytest.mark.asks("calls")), pytest.param(2, marks=pytest.mark.asks("both"))]
)
def test_a_call_holds_its_steps(answer: Any, devices: int) -> None:
    assert answer["iterations"] == 64
    assert answer["observed"]["batch"] == answer["items"] == devices * BATCH


@pytest.mark.asks("union")
def test_two_replicas_make_the_update_of_their_examples_together(answer: Any) -> None:
    assert answer["apart"] < 1e-6


@pytest.mark.asks("processes")
def test_processes_train_as_one_on_a_device_and_a_thread_each(answer: Any) -> None:
    for name, items in (("weak", 2 * BATCH), ("strong", 32)):
        observed = answer[name]["observed"]
        assert (observed["devices"], observed["threads"], observed["device"]) == (2, 1, "cpu")
        assert observed["batch"] == answer[name]["items"] == items
        assert 0 < answer[name]["loss"] < 5
    assert answer["weak"]["peak"] > 0


@pytest.mark.asks("processes")
def test_two_processes_make_the_update_of_their_examples_together(answer: Any) -> None:
    first, second = answer["losses"]["processes"], answer["losses"]["replicas"]
    assert first == pytest.approx(second, rel=1e-4), "the same weights, the same batches, step after step"
    assert first[-1] < first[0]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        pytest.param("of 2 ranks, rank 1 was ended by SIGKILL", "error", marks=pytest.mark.asks("killed")),
        pytest.param("rank 1 of 2: ValueError: rank 1 cannot be built", "error", marks=pytest.mark.asks("unbuilt")),
    ],
)
def test_a_process_that_fails_ends_the_others_and_is_named(answer: Any, said: str, status: str) -> None:
    assert said in answer["text"]
    assert answer["status"] == status
    assert answer["seconds"] < 30
    assert answer["left"] == 0


@pytest.mark.asks("tpu")
def test_a_tpu_is_found_connected_and_initialised_before_its_strategy_is_made(answer: Any) -> None:
    assert answer["order"] == ["resolver there", "connect", "initialize", "strategy"]
    assert answer["under"]
    assert 0 < answer["loss"] < 5


@pytest.mark.asks("tpu")
def test_without_a_tpu_the_reason_says_what_would_run_it(answer: Any) -> None:
    assert "TPU_NAME is not set" in answer["here"]
    assert "tensorflow-tpu" in answer["here"]
    assert "did not answer within 0.5 s" in answer["hangs"]
    assert "no such TPU" in answer["fails"]
    assert answer["works"] is None


@pytest.mark.asks("unavailable")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("single on two", "has one device, not 2"),
        ("ddp", "belongs to PyTorch"),
        ("fsdp", "belongs to PyTorch"),
        ("dp", "belongs to PyTorch"),
        ("pipeline", "TensorFlow has no pipeline"),
        ("uneven", "cannot be shared out evenly among 3 devices"),
        ("after", "no switch"),
        ("bf16", "no hook"),
        ("calls in epochs", "not in mode 'convergence'"),
        ("several in epochs", "not in mode 'convergence'"),
        ("beside several", "beside training steps on one device"),
    ],
)
def test_a_level_that_means_nothing_here_says_why(answer: Any, name: str, said: str) -> None:
    assert said in answer[name]


@pytest.mark.asks("unavailable")
def test_more_gpus_than_there_are_and_more_logical_devices_than_cores_are_two_things(answer: Any) -> None:
    assert answer["gpus"]
    assert answer["eight"] is None
    assert answer["processes"] is None


@pytest.mark.asks("neighbour")
def test_a_neighbour_trains_beside_its_block(answer: Any) -> None:
    assert answer["steps"] > 0
