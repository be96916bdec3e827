"""The twins of a workload are the same network: counts, initial weights, outputs, steps and what they learn."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import workloads
from harness.spec import Framework

pytestmark = [
    pytest.mark.torch,
    pytest.mark.tensorflow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(m) is None for m in ("torch", "torchvision", "transformers", "keras_hub")),
        reason="not all libraries of both frameworks are installed",
    ),
]

ROOT = Path(__file__).parent.parent

# With ten classes: what torchvision, transformers, keras-hub and keras.applications agree on.
PARAMETERS = {"resnet50": 23_528_522, "mobilenet_v2": 2_236_682}


def probe(framework: str, folder: Path) -> dict[str, Any]:
    """The report of one framework in a process of its own."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests/probes/twin_probe.py", framework, folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report of PyTorch, which copies the weights that TensorFlow writes, and that of TensorFlow."""
    folder = tmp_path_factory.mktemp("twins")
    tensorflow = probe("tensorflow", folder)
    return probe("torch", folder), tensorflow


Twins = tuple[dict[str, Any], dict[str, Any]]


@pytest.mark.parametrize("name", workloads.stepped(Framework.TORCH))
def test_both_have_as_many_parameters(twins: Twins, name: str) -> None:
    torch, tensorflow = (report["parameters"][name] for report in twins)
    assert torch == tensorflow
    assert torch == PARAMETERS.get(name, torch)


@pytest.mark.parametrize("name", workloads.stepped(Framework.TORCH))
def test_both_draw_their_weights_alike(twins: Twins, name: str) -> None:
    """The deviation of each tensor of weights."""
    torch, tensorflow = (np.array(report["starts"][name]) for report in twins)
    assert len(torch) == len(tensorflow)
    np.testing.assert_allclose(torch, tensorflow, rtol=0.15)


@pytest.mark.parametrize("name", ["cnn_fashion", "resnet50", "text_small"])
def test_equal_weights_give_equal_outputs(twins: Twins, name: str) -> None:
    assert twins[0]["apart"][name] < 1e-4


def test_equal_weights_learn_equally(twins: Twins) -> None:
    """Five steps of momentum SGD on one batch, the loss before each."""
    torch, tensorflow = twins[0]["losses"]["cnn_fashion"]
    assert torch[-1] < torch[0]
    np.testing.assert_allclose(torch, tensorflow, rtol=1e-3)


def test_both_reach_the_same_accuracy_within_the_noise_of_seeds(twins: Twins) -> None:
    torch, tensorflow = (np.array(report["accuracy"]) for report in twins)
    assert torch.min() > 0.7
    assert abs(torch.mean() - tensorflow.mean()) < 0.06


@pytest.mark.parametrize("name", workloads.stepped(Framework.TORCH))
def test_what_still_differs_is_stated(name: str) -> None:
    assert len(workloads.load(name).differences.split()) >= 8
