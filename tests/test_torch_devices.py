"""Several devices in PyTorch: they train as one, each level does what it says, and a rank that fails is named.

PyTorch runs in processes of its own (tests/probes/torch_devices_probe.py), which report; the tests read their reports.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]

PROBE = "torch_devices_probe"
QUESTIONS = (("levels", "unavailable"), ("ranks", "failures"), ("neighbour",))
BATCH = 16
DEVICES = {"one": 1, "unsplit": 1}
GLOBAL = {"one": BATCH, "unsplit": BATCH, "pipeline": BATCH, "strong": 32}
LEVELS = ("one", "ddp", "after", "none", "bf16", "fsdp", "strong", "pipeline", "unsplit")


@pytest.mark.asks("levels")
@pytest.mark.parametrize("name", LEVELS)
def test_every_level_trains_on_its_devices_one_thread_each(answer: Any, name: str) -> None:
    seen = answer[name]
    observed = seen["observed"]
    assert (observed["devices"], observed["threads"]) == (DEVICES.get(name, 2), 1)
    assert observed["batch"] == seen["items"] == GLOBAL.get(name, 2 * BATCH)
    assert observed["parameters"] == answer["one"]["observed"]["parameters"]
    assert observed["device"] == "cpu"
    assert 0 < seen["loss"] < 5


@pytest.mark.asks("levels")
def test_sharded_parameters_and_spread_layers_take_less_of_each_device(answer: Any) -> None:
    whole = answer["ddp"]["memory"]["parameters"]
    assert answer["fsdp"]["memory"]["parameters"] < 0.6 * whole
    assert answer["fsdp"]["memory"]["optimizer"] < 0.6 * whole
    assert answer["pipeline"]["memory"]["parameters"] < whole


@pytest.mark.asks("levels")
def test_spread_layers_compute_what_the_whole_model_does(answer: Any) -> None:
    """Without BatchNorm, micro-batches change the rounding only."""
    assert answer["pipeline"]["loss"] == pytest.approx(answer["unsplit"]["loss"], rel=1e-4)


@pytest.mark.asks("ranks")
@pytest.mark.parametrize("name", ["ddp", "after", "bf16", "fsdp"])
def test_ranks_hold_equal_weights_and_train_on_other_images(answer: Any, name: str) -> None:
    first, second = answer[name]
    assert first["pid"] != second["pid"]
    assert first["weights"] == second["weights"]
    assert first["images"] != second["images"]


@pytest.mark.asks("ranks")
def test_overlapped_and_later_exchange_make_the_same_update_and_no_exchange_another(answer: Any) -> None:
    total = {name: answer[name][0]["sum"] for name in ("ddp", "after", "none", "bf16", "fsdp")}
    assert total["after"] == pytest.approx(total["ddp"], rel=1e-5)
    assert total["fsdp"] == pytest.approx(total["ddp"], rel=1e-5)
    assert total["bf16"] != total["ddp"]
    assert total["bf16"] == pytest.approx(total["ddp"], rel=0.01)
    apart = answer["none"]
    assert apart[0]["weights"] != apart[1]["weights"]


@pytest.mark.asks("ranks")
def test_after_sends_all_gradients_at_once_and_none_sends_nothing(answer: Any) -> None:
    parameters = 50_186
    assert answer["after"][0]["sent"] == [["torch.float32", parameters]]
    assert answer["none"][0]["sent"] == []
    assert answer["bf16"][0]["sent"], "the hook goes through the same call"
    assert {dtype for dtype, _ in answer["bf16"][0]["sent"]} == {"torch.bfloat16"}
    assert sum(n for _, n in answer["bf16"][0]["sent"]) == parameters


@pytest.mark.asks("failures")
@pytest.mark.parametrize(
    ("name", "said", "status"),
    [
        ("killed", "rank 1 was ended by SIGKILL", "error"),
        ("out of memory", "rank", "oom"),
        ("unbuilt", "rank 1 of 2: ValueError: rank 1 cannot be built", "error"),
    ],
)
def test_a_rank_that_fails_ends_the_others_and_is_named(answer: Any, name: str, said: str, status: str) -> None:
    found = answer[name]
    assert said in found["text"]
    assert found["status"] == status
    assert found["seconds"] < 30
    assert found["left"] == 0


@pytest.mark.asks("unavailable")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("single on two", "has one device, not 2"),
        ("mirrored", "belongs to TensorFlow"),
        ("multiworker", "belongs to TensorFlow"),
        ("tpu", "torch_xla"),
        ("dp", "does not say so"),
        ("uneven", "cannot be shared out evenly among 3 devices"),
        ("after alone", "on two devices or more"),
        ("bf16 alone", "on two devices or more"),
        ("bf16 after", "on two devices or more"),
        ("calls", "belongs to Keras"),
        ("uncut", "does not say where its layers can be cut"),
        ("parts", "no 4 equal parts"),
        ("half", "outside autocast"),
        ("convergence", "not in mode 'convergence'"),
        ("beside several", "beside training steps on one device"),
    ],
)
def test_a_level_that_means_nothing_here_says_why(answer: Any, name: str, said: str) -> None:
    assert said in answer[name]


@pytest.mark.asks("unavailable")
def test_more_gpus_than_there_are_and_more_processes_than_cores_are_two_things(answer: Any) -> None:
    assert answer["gpus"]
    assert answer["eight"] is None
    assert answer["beside one"] is None


@pytest.mark.asks("neighbour")
def test_a_neighbour_trains_beside_its_block_and_stands_still_otherwise(answer: Any) -> None:
    first, second = answer["steps"]
    assert 0 < first < second
    assert answer["idle_s"] < 0.02


@pytest.mark.asks("neighbour")
def test_a_neighbour_that_died_is_an_error(answer: Any) -> None:
    assert "neighbour" in answer["dead"]
    assert "has ended" in answer["dead"]
