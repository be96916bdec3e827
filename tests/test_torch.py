"""The PyTorch backend: every workload under every level of every technique takes real steps that show the level.

PyTorch runs in processes of its own (tests/probes/torch_probe.py), which report; the tests read their reports.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness import techniques, workloads
from harness.spec import Cell, Framework, Mode

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]

ROOT = Path(__file__).parent.parent
SIZES = {"image": 32, "text": 16}
DEVICES = ("cpu", "gpu")
TEXT = ("text_distilbert", "text_small")
BATCH = {"resnet50": 2, "text_distilbert": 1}  # a CPU without 16-bit units needs over a second for each example
HEAVY = ("resnet50", "text_distilbert")

# A name for each level of each technique, and what it sets. The baseline is the default of every toggle.
LEVELS: dict[str, dict[str, str]] = {
    "baseline": {},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fp16-unscaled": {"precision": "fp16", "scaling": "off"},
    "channels_last": {"layout": "channels_last"},
    "bf16-channels_last": {"precision": "bf16", "layout": "channels_last"},
    "linear": {"lr_rule": "linear", "batch": "2"},
    "batch": {"batch": "6"},
    "null": {"null": "on"},
    "extra_work": {"extra_work": "tenth"},
    "all-others": {"lr_rule": "linear", "batch": "3", "null": "on", "extra_work": "tenth"},
}
HEAVY_LEVELS = {
    "resnet50": ("baseline", "tf32", "bf16-channels_last", "fp16", "channels_last", "all-others"),
    "text_distilbert": ("baseline", "tf32", "bf16", "fp16", "channels_last", "all-others"),
}
WORKLOADS = workloads.stepped(Framework.TORCH)
CASES = [(w, d, level) for w in WORKLOADS for d in DEVICES for level in HEAVY_LEVELS.get(w, LEVELS)]
LIGHT = tuple(w for w in WORKLOADS if w not in HEAVY)
QUESTIONS = (
    "checks",
    "describe",
    "epoch",
    "errors",
    "first_losses",
    "first_losses_text",
    "padding",
    "strict",
    "without_torchvision",
)


def cell(workload: str, device: str, sets: dict[str, str]) -> Cell:
    toggles = {name: toggle.default for name, toggle in techniques.TOGGLES.items()}
    return Cell(
        study="test",
        mode=Mode.STEADY,
        comparison=f"test/torch/{workload}",
        arm="arm",
        framework=Framework.TORCH,
        workload=workload,
        size=SIZES[workloads.load(workload).task],
        toggles={**toggles, "device": device, "batch": str(BATCH.get(workload, 4)), **sets},
    )


def probe(file: Path, names: tuple[str, ...], questions: tuple[str, ...]) -> dict[str, Any]:
    """What one process says of the cells of some workloads, and to some questions."""
    cells = {f"{w}-{d}-{level}": cell(w, d, LEVELS[level]).as_json() for w, d, level in CASES if w in names}
    file.write_text(json.dumps(cells))
    done = subprocess.run(
        [sys.executable, ROOT / "tests/probes/torch_probe.py", file, *questions],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The heavy workloads in one process, the others and the questions in another, side by side."""
    folder = tmp_path_factory.mktemp("torch")
    with ThreadPoolExecutor() as pool:
        heavy = pool.submit(probe, folder / "heavy.json", HEAVY, ())
        light = pool.submit(probe, folder / "light.json", LIGHT, QUESTIONS)
        return {**heavy.result(), **light.result()}


def answer(answers: dict[str, Any], name: str) -> Any:
    found = answers[name]
    assert not (isinstance(found, dict) and "raised" in found), found["raised"]
    return found


@pytest.fixture(params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest, answers: dict[str, Any]) -> tuple[Cell, dict[str, Any]]:
    """A cell and its report; skipped where the whole device is missing, or where the level has no meaning."""
    workload, device, level = request.param
    if device == "gpu" and "gpu" not in answer(answers, "describe")["devices"]:
        assert "CUDA" in answer(answers, f"{workload}-gpu-{level}")["unavailable"]
        pytest.skip("no GPU here")
    if level == "tf32" and device == "cpu":
        assert answer(answers, f"{workload}-cpu-tf32") == {"unavailable": "a CPU has no TF32 units"}
        pytest.skip("no TF32 on a CPU")
    if "channels_last" in level and workload in TEXT:
        assert "no convolution" in answer(answers, f"{workload}-{device}-{level}")["unavailable"]
        pytest.skip("no convolution")
    return cell(workload, device, LEVELS[level]), answer(answers, f"{workload}-{device}-{level}")


def test_two_steps_train_as_the_level_says(case: tuple[Cell, dict[str, Any]]) -> None:
    cell, report = case
    workload, toggles, seen = workloads.load(cell.workload), cell.toggles, report["observed"]
    assert all(math.isfinite(loss) for loss in report["losses"])
    assert report["losses"][0] != report["losses"][1]
    assert seen["device"] == toggles["device"]
    assert (
        seen["dtype"]
        == {"fp32": "float32", "tf32": "float32+tf32", "bf16": "bfloat16", "fp16": "float16"}[toggles["precision"]]
    )
    image = {"native": "nchw", "channels_last": "nhwc"}[toggles["layout"]]
    assert seen["layout"] == (image if workload.task == "image" else "none")
    assert seen["batch"] == report["items_per_step"] == cell.batch
    assert seen["scaled"] == (toggles["precision"] == "fp16" and toggles["scaling"] == "auto")
    factor = cell.batch / workload.base_batch if toggles["lr_rule"] == "linear" else 1
    assert seen["learning_rate"] == pytest.approx(workload.optimizer.learning_rate * factor)
    assert report["float32"] == ["tf32" if toggles["precision"] == "tf32" else "ieee"]
    if workload.task == "image":  # an image of one channel has two right strides: only these tell the layouts apart
        assert (report["input_strides"][1] == 1) == (toggles["layout"] == "channels_last")


def test_memory_is_what_the_model_needs(case: tuple[Cell, dict[str, Any]]) -> None:
    cell, report = case
    memory, weights = report["memory"], 4 * report["observed"]["parameters"]
    states = {"sgd": 1, "adamw": 2}[workloads.load(cell.workload).optimizer.name]
    assert memory["parameters"] == weights
    assert memory["optimizer"] == pytest.approx(states * weights, rel=0.001)
    assert memory["activations"] > 0
    assert memory["peak"] >= weights


def test_a_step_waits_for_no_host_and_leaves_no_hook(case: tuple[Cell, dict[str, Any]]) -> None:
    _, report = case
    assert report["waits"] == []
    assert report["hooks_left"] == 0


@pytest.mark.parametrize("level", ["null", "extra_work"])
@pytest.mark.parametrize("workload", LIGHT)
def test_a_level_that_is_not_torchs_changes_nothing(answers: dict[str, Any], workload: str, level: str) -> None:
    off, on = (answer(answers, f"{workload}-cpu-{name}") for name in ("baseline", level))
    assert on["losses"] == off["losses"]
    assert on["observed"] == off["observed"]
    assert on["memory"]["activations"] == off["memory"]["activations"]


@pytest.mark.parametrize("level", ["bf16", "fp16"])
@pytest.mark.parametrize("workload", ["cnn_fashion", "text_small"])
def test_the_first_loss_in_16_bits_is_near_float32s(answers: dict[str, Any], workload: str, level: str) -> None:
    full, half = (answer(answers, f"{workload}-cpu-{name}") for name in ("baseline", level))
    assert half["losses"][0] == pytest.approx(full["losses"][0], rel=0.05)
    assert half["losses"][0] != full["losses"][0]


@pytest.mark.parametrize("level", ["bf16", "fp16"])
def test_16_bits_keep_smaller_activations(answers: dict[str, Any], level: str) -> None:
    full, half = (answer(answers, f"cnn_fashion-cpu-{name}")["memory"] for name in ("baseline", level))
    assert half["activations"] < 0.9 * full["activations"]


@pytest.mark.parametrize("name", ["first_losses", "first_losses_text"])
def test_the_seed_fixes_the_first_loss(answers: dict[str, Any], name: str) -> None:
    loss = answer(answers, name)
    assert loss["once"] == loss["again"]
    assert loss["once"] != loss["other"]


def test_an_epoch_trains_the_order_that_seed_and_epoch_fix(answers: dict[str, Any]) -> None:
    epoch = answer(answers, "epoch")
    assert epoch["same_examples"]
    assert epoch["batches"] == [4] * 5
    assert epoch["items"] == 20


def test_evaluation_covers_the_test_set_and_changes_nothing(answers: dict[str, Any]) -> None:
    epoch = answer(answers, "epoch")
    found, by_hand = epoch["accuracy"]
    assert found == pytest.approx(by_hand)
    found, by_hand = epoch["loss"]
    assert found == pytest.approx(by_hand, rel=1e-5)
    assert epoch["training_again"]
    assert epoch["untouched"]


def test_padding_does_not_reach_the_first_token(answers: dict[str, Any]) -> None:
    assert answer(answers, "padding") < 1e-5


def test_float32_is_strict_in_all_three_places_unless_tf32_is_asked_for(answers: dict[str, Any]) -> None:
    assert answer(answers, "strict") == {"tf32": ["tf32"] * 3, "fp32": ["ieee"] * 3, "bf16": ["ieee"] * 3}


def test_only_a_refused_allocation_is_out_of_memory(answers: dict[str, Any]) -> None:
    assert answer(answers, "errors") == {
        "cuda": "oom",
        "python": "oom",
        "host": "oom",
        "other": "error",
        "type": "error",
    }


def test_float_types_resolve_what_ieee_754_says(answers: dict[str, Any]) -> None:
    values = answer(answers, "checks")["values"]
    assert values["eps_float16"] == 2**-10
    assert values["eps_float32"] == 2**-23
    assert values["eps_float64"] == 2**-52
    assert values["eps_ratio_float16"] == pytest.approx(2**-10 / 1e-3)


def test_loss_scaling_keeps_gradients_from_vanishing(answers: dict[str, Any]) -> None:
    values = answer(answers, "checks")["values"]
    assert 0 < values["underflow_unscaled"] < 1
    assert 0 <= values["underflow_scaled"] < values["underflow_unscaled"]
    assert values["underflow_prevented"] == pytest.approx(1 - values["underflow_scaled"] / values["underflow_unscaled"])


def test_a_check_that_is_not_torchs_says_why(answers: dict[str, Any]) -> None:
    refused = answer(answers, "checks")["refused"]
    assert refused["mixed_policy"][0] == "Unavailable"
    assert "Keras" in refused["mixed_policy"][1]
    assert refused["float_epps"] == [
        "ConfigError",
        "unknown check 'float_epps'; allowed: exchange_cost, float_eps, gradient_underflow, mixed_policy, "
        "shards_equal_batch. Did you mean 'float_eps'?",
    ]


def test_a_missing_package_is_named_with_its_install_line(answers: dict[str, Any]) -> None:
    assert answer(answers, "without_torchvision") == (
        "mobilenet_v2 needs torchvision, not installed: pip install 'speedproof[torch]'"
    )


def test_preloading_leaves_a_process_that_can_fork(answers: dict[str, Any]) -> None:
    assert answer(answers, "preload") == {"cuda_counted": 0, "cuda_started": False, "child_exit": 0}


def test_the_installation_is_described(answers: dict[str, Any]) -> None:
    facts = answer(answers, "describe")
    assert facts["devices"]["cpu"]
    assert facts["threads"] == 1
    assert facts["version"].split(".")[0] == "2"
