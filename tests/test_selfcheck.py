"""What the selfcheck makes of the runs that there are, and how it holds conversions against their parts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from harness import selfcheck, selfcheck_conversion


def test_the_parts_of_a_quick_run_are_told_by_the_files_that_declare_their_studies() -> None:
    comparisons = {
        "precision/torch/cnn_fashion": {"wall_s": 400.0, "measured_s": 300.0},
        "model-image/torch/resnet50": {"wall_s": 200.0, "measured_s": 100.0},
        "format-load/torch/cnn_photos": {"wall_s": 600.0, "measured_s": 60.0},
    }
    found = {f.name: (f.measured, f.passed, f.detail) for f in selfcheck._parts(comparisons, "run")}
    assert found == {
        "quick, training on one device": ("10.0 min", True, "run"),
        "share of wall time in timed blocks, quick, training on one device": ("67%", True, "run"),
        "quick, the data path": ("10.0 min", False, "run"),
        "share of wall time in timed blocks, quick, the data path": ("10%", False, "run"),
    }


def test_without_a_run_nothing_is_claimed(tmp_path: Path) -> None:
    figures = list(selfcheck._last_runs(tmp_path))
    assert [(f.name, f.passed) for f in figures] == [("smoke run", None), ("quick run", None)]


@pytest.mark.skipif(importlib.util.find_spec("skimage") is None, reason="scikit-image is not installed")
@pytest.mark.parametrize("name", ["npy", "tfrecord"])
def test_a_conversion_is_timed_whole_and_in_parts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPEEDPROOF_CACHE", str(tmp_path))
    monkeypatch.delenv("SPEEDPROOF_IMAGES", raising=False)
    selfcheck_conversion.main(name, 64, 2)
    found = json.loads(capsys.readouterr().out)
    assert len(found["conversion"]) == len(found["alone"]) == 2
    assert all(seconds > 0 for seconds in found["conversion"] + found["alone"])
    assert 10e6 < found["peak"] < 2e9
