"""The TensorFlow backend: every workload under every level of every technique takes real steps that show the level.

TensorFlow runs in processes of its own (tests/probes/tensorflow_probe.py), which report; the tests read their reports.
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
    pytest.mark.tensorflow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

ROOT = Path(__file__).parent.parent
SIZES = {"image": 32, "text": 16}
DEVICES = ("cpu", "gpu")
DTYPES = {"fp32": "float32", "tf32": "float32+tf32", "bf16": "bfloat16", "fp16": "float16"}

OTHERS = {"lr_rule": "linear", "batch": "3", "null": "on", "extra_work": "tenth"}

# A name for each level of each technique, and what it sets. The baseline is the default of every toggle.
LEVELS: dict[str, dict[str, str]] = {
    "baseline": {},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fp16-unscaled": {"precision": "fp16", "scaling": "off"},
    "channels_last": {"layout": "channels_last"},
    "linear": {"lr_rule": "linear", "batch": "2"},
    "batch": {"batch": "6"},
    "null": {"null": "on"},
    "extra_work": {"extra_work": "tenth"},
    "bf16-others": {"precision": "bf16", **OTHERS},
    "fp16-others": {"precision": "fp16", **OTHERS},
}
# Tracing a deep network takes seconds: these take together what one step can show, and no kind of layer misses a level.
DEEP: dict[str, tuple[str, ...]] = {
    "resnet50": ("baseline", "tf32", "channels_last", "fp16-others"),
    "mobilenet_v2": ("baseline", "tf32", "channels_last", "fp16", "bf16-others"),
    "text_distilbert": ("baseline", "tf32", "channels_last", "bf16-others"),
    "text_small": ("baseline", "tf32", "channels_last", "fp16", "bf16-others"),
}
WORKLOADS = workloads.stepped(Framework.TENSORFLOW)
CELLS = [(w, d, level) for w in WORKLOADS for d in DEVICES for level in DEEP.get(w, LEVELS)]
MEANINGLESS = (("cpu", "tf32"), ("cpu", "channels_last"), ("gpu", "channels_last"))
CASES = [case for case in CELLS if case[1:] not in MEANINGLESS]

# Processes that run side by side: workloads, questions.
PROCESSES = (
    (("resnet50", "mobilenet_v2"), ("preload", "checks", "describe", "without_keras_hub", "errors")),
    (
        ("cnn_fashion", "text_distilbert", "text_small"),
        ("environment", "epochs", "first_losses", "fit_cnn", "fit_text", "padding"),
    ),
)


def cell(workload: str, device: str, sets: dict[str, str]) -> Cell:
    toggles = {name: toggle.default for name, toggle in techniques.TOGGLES.items()}
    return Cell(
        study="test",
        mode=Mode.STEADY,
        comparison=f"test/tensorflow/{workload}",
        arm="arm",
        framework=Framework.TENSORFLOW,
        workload=workload,
        size=SIZES[workloads.load(workload).task],
        toggles={**toggles, "device": device, "batch": "4", **sets},
    )


def probe(file: Path, names: tuple[str, ...], questions: tuple[str, ...]) -> dict[str, Any]:
    """What one process says of the cells of some workloads, and to some questions."""
    cells = {f"{w}-{d}-{level}": cell(w, d, LEVELS[level]).as_json() for w, d, level in CELLS if w in names}
    file.write_text(json.dumps(cells))
    done = subprocess.run(
        [sys.executable, ROOT / "tests/probes/tensorflow_probe.py", file, *questions],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "torch"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All reports and answers."""
    folder = tmp_path_factory.mktemp("tensorflow")
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(probe, folder / f"{i}.json", *work) for i, work in enumerate(PROCESSES)]
        return {name: found for process in running for name, found in process.result().items()}


def answer(answers: dict[str, Any], name: str) -> Any:
    found = answers[name]
    assert not (isinstance(found, dict) and "raised" in found), found["raised"]
    return found


@pytest.fixture(params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest, answers: dict[str, Any]) -> tuple[Cell, dict[str, Any]]:
    """A cell and its report; skipped where the device is missing."""
    workload, device, level = request.param
    report = answer(answers, f"{workload}-{device}-{level}")
    if device == "gpu" and "gpu" not in answer(answers, "describe")["devices"]:
        assert "GPU" in report["unavailable"]
        pytest.skip("no GPU here")
    return cell(workload, device, LEVELS[level]), report


def test_two_steps_train_as_the_level_says(case: tuple[Cell, dict[str, Any]]) -> None:
    cell, report = case
    workload, toggles, seen = workloads.load(cell.workload), cell.toggles, report["observed"]
    assert all(math.isfinite(loss) for loss in report["losses"])
    assert report["losses"][0] != report["losses"][1]
    assert seen["device"] == toggles["device"]
    assert seen["dtype"] == DTYPES[toggles["precision"]]
    assert report["tf32_allowed"] == (toggles["precision"] == "tf32")
    assert seen["batch"] == report["items_per_step"] == cell.batch
    assert seen["scaled"] == (toggles["precision"] == "fp16" and toggles["scaling"] == "auto")
    assert seen["layout"] == ("nhwc" if workload.task == "image" else "none")
    factor = cell.batch / workload.base_batch if toggles["lr_rule"] == "linear" else 1
    assert seen["learning_rate"] == pytest.approx(workload.optimizer.learning_rate * factor)


@pytest.mark.parametrize("workload", workloads.stepped(Framework.TENSORFLOW))
def test_a_level_without_a_meaning_says_why(answers: dict[str, Any], workload: str) -> None:
    assert answer(answers, f"{workload}-cpu-tf32") == {"unavailable": "a CPU has no TF32 units"}
    assert "already is channels_last" in answer(answers, f"{workload}-cpu-channels_last")["unavailable"]


def test_weights_and_logits_stay_float32(case: tuple[Cell, dict[str, Any]]) -> None:
    _, report = case
    assert report["variables"] == ["float32"]
    assert report["head"] == "float32"


def test_a_step_is_traced_once_and_apart(case: tuple[Cell, dict[str, Any]]) -> None:
    _, report = case
    assert report["trace_s"] > 0
    assert report["traces"] == 1


def test_memory_is_what_the_model_needs(case: tuple[Cell, dict[str, Any]]) -> None:
    cell, report = case
    memory, weights = report["memory"], 4 * report["observed"]["parameters"]
    states = {"sgd": 1, "adamw": 2}[workloads.load(cell.workload).optimizer.name]
    assert memory["parameters"] == weights
    assert memory["optimizer"] == states * weights
    assert memory["activations"] is None
    assert memory["peak"] >= weights


@pytest.mark.parametrize("level", ["null", "extra_work"])
def test_a_level_that_is_not_tensorflows_changes_nothing(answers: dict[str, Any], level: str) -> None:
    off, on = (answer(answers, f"cnn_fashion-cpu-{name}") for name in ("baseline", level))
    assert on["losses"] == off["losses"]
    assert on["observed"] == off["observed"]


@pytest.mark.parametrize("level", ["bf16", "fp16"])
def test_the_first_loss_in_16_bits_is_near_float32s(answers: dict[str, Any], level: str) -> None:
    full, half = (answer(answers, f"cnn_fashion-cpu-{name}") for name in ("baseline", level))
    assert half["losses"][0] == pytest.approx(full["losses"][0], rel=0.05)
    assert half["losses"][0] != full["losses"][0]


def test_the_seed_fixes_the_first_loss(answers: dict[str, Any]) -> None:
    loss = answer(answers, "first_losses")
    assert loss["once"] == loss["again"]
    assert loss["once"] != loss["other"]


@pytest.mark.parametrize("name", ["fit_cnn", "fit_text"])
def test_a_block_trains_bit_for_bit_what_fit_trains(answers: dict[str, Any], name: str) -> None:
    assert answer(answers, name) == {"moved": True, "same": True}


def test_epochs_train_what_fit_trains_in_the_order_that_seed_and_epoch_fix(answers: dict[str, Any]) -> None:
    found = answer(answers, "epochs")
    assert found["items"] == [20, 20]
    assert found["same_as_fit"]
    assert found["traces"] == 1


def test_evaluation_covers_the_test_set_and_changes_nothing(answers: dict[str, Any]) -> None:
    found = answer(answers, "epochs")
    measured, by_hand = found["accuracy"]
    assert measured == pytest.approx(by_hand)
    measured, by_hand = found["loss"]
    assert measured == pytest.approx(by_hand, rel=1e-5)
    assert found["untouched"]


def test_padding_does_not_reach_the_first_token(answers: dict[str, Any]) -> None:
    assert answer(answers, "padding") < 1e-5


def test_float_types_resolve_what_ieee_754_says(answers: dict[str, Any]) -> None:
    values = answer(answers, "checks")["values"]
    assert values["eps_float16"] == 2**-10
    assert values["eps_float32"] == 2**-23
    assert values["eps_float64"] == 2**-52
    assert values["eps_ratio_float32"] == pytest.approx(2**-23 / 1e-7)


def test_mixed_precision_sets_what_it_sets_but_leaves_softmax_in_16_bits(answers: dict[str, Any]) -> None:
    found = answer(answers, "checks")
    values = {name: value for name, value in found["values"].items() if name.startswith("policy_")}
    assert values == {
        "policy_one_line": 1,
        "policy_variables_float32": 1,
        "policy_softmax_float32": 0,
        "policy_layer_override": 1,
        "policy_statements_true": 0.75,
    }
    assert found["policy_kept"]


def test_loss_scaling_keeps_gradients_from_vanishing(answers: dict[str, Any]) -> None:
    values = answer(answers, "checks")["values"]
    assert 0 < values["underflow_unscaled"] < 1
    assert 0 <= values["underflow_scaled"] < values["underflow_unscaled"]
    assert values["underflow_prevented"] == pytest.approx(1 - values["underflow_scaled"] / values["underflow_unscaled"])


def test_an_unknown_check_is_refused_with_the_nearest(answers: dict[str, Any]) -> None:
    assert answer(answers, "checks")["refused"] == [
        "ConfigError",
        "unknown check 'float_epps'; allowed: float_eps, gradient_underflow, mixed_policy, shards_equal_batch. "
        "Did you mean 'float_eps'?",
    ]


def test_only_a_refused_allocation_is_out_of_memory(answers: dict[str, Any]) -> None:
    assert answer(answers, "errors") == {
        "host": "oom",
        "shapes": "error",
        "onednn": "oom",
        "cuda": "oom",
        "python": "oom",
        "value": "error",
    }


def test_a_missing_package_is_named_with_its_install_line(answers: dict[str, Any]) -> None:
    line = "not installed: pip install 'speedproof[tensorflow]'"
    assert answer(answers, "without_keras_hub") == [
        f"resnet50 needs keras_hub, {line}",
        f"text_small needs keras_hub, {line}",
        None,
    ]


def test_the_users_environment_does_not_choose_the_backend(answers: dict[str, Any]) -> None:
    assert answer(answers, "environment") == {"backend": "tensorflow", "layout": "channels_last", "torch": False}


def test_preloading_runs_no_operation_and_leaves_a_process_that_can_fork(answers: dict[str, Any]) -> None:
    assert answer(answers, "preload") == {"started": False, "child_exit": 0}


def test_the_installation_is_described(answers: dict[str, Any]) -> None:
    facts = answer(answers, "describe")
    assert facts["devices"]["cpu"]
    assert facts["threads"] == facts["interop_threads"] == 2
    assert facts["version"].split(".")[0] == "2"
    assert isinstance(facts["onednn"], bool)
