"""The scikit-learn backend: what its steps and passes do, and that a level without effect is refused.

scikit-learn runs in processes of its own (tests/probes/sklearn_probe.py, and workers), which report.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import techniques
from harness.data import docstrings
from harness.plan import plan
from harness.profiles import load_profile
from harness.runner import Nurseries, Run, survey
from harness.spec import Cell, Framework, Mode, Status
from harness.store import RunStore, read
from harness.studies import benchmarks_folder, find_study, load_studies
from harness.workers import missing

pytestmark = [
    pytest.mark.sklearn,
    pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed"),
]

ROOT = Path(__file__).parent.parent
TEXTS = 400  # they hold some 14,000 terms


def cell(workload: str, mode: Mode, **sets: str) -> dict[str, object]:
    toggles = {name: toggle.default for name, toggle in techniques.TOGGLES.items()}
    return Cell(
        study="test",
        mode=mode,
        comparison=f"test/sklearn/{workload}",
        arm="arm",
        framework=Framework.SKLEARN,
        workload=workload,
        size=64,
        toggles={**toggles, "device": "cpu", "batch": str(TEXTS), **sets},
    ).as_json()


CELLS = {
    **{
        f"{workload}-{n}": cell(workload, Mode.STEADY, max_features=str(n))
        for workload in ("tfidf_vectorize", "tfidf_fit")
        for n in (10_000, 5_000, 1_000_000)
    },
    **{f"{w}-{f}": cell(w, Mode.LOADING, features=f) for w in ("tfidf_features", "token_ids") for f in
       ("computed", "saved")},
    "accuracy": cell("tfidf_fit", Mode.CONVERGENCE, max_features="5000"),
    "accuracy-other-batch": cell("tfidf_fit", Mode.CONVERGENCE, batch="500"),
    "too-few-terms": cell("tfidf_features", Mode.LOADING, batch="100", features="saved"),
    "too-many-texts": cell("token_ids", Mode.LOADING, batch="3601"),
    "gpu": cell("tfidf_fit", Mode.STEADY, device="gpu"),
}  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the tests' own, which holds the texts already."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        texts = docstrings.texts()
        patch.setenv("SPEEDPROOF_CACHE", str(folder))
        file = docstrings.cache_file()
        assert file is not None
        docstrings.write_cache(file, texts)
    return folder


@pytest.fixture(scope="module")
def answers(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("sklearn") / "cells.json"
    file.write_text(json.dumps(CELLS))
    done = subprocess.run(
        [sys.executable, ROOT / "tests/probes/sklearn_probe.py", file],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPEEDPROOF_CACHE": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("features", [10_000, 5_000])
@pytest.mark.parametrize("workload", ["tfidf_vectorize", "tfidf_fit"])
def test_a_step_handles_every_text_and_keeps_the_features_asked_for(answers, workload: str, features: int):
    found = answers[f"{workload}-{features}"]
    observed = found["observed"]
    assert (observed["device"], observed["dtype"], observed["layout"]) == ("cpu", "float32", "none")
    assert observed["batch"] == found["items_per_step"] == TEXTS
    classes = len(docstrings.PACKAGES)
    assert observed["parameters"] == (features if workload == "tfidf_vectorize" else classes * (features + 1))
    assert found["memory"]["peak"] > 0


@pytest.mark.parametrize("workload", ["tfidf_vectorize", "tfidf_fit"])
def test_a_step_starts_anew_and_its_number_depends_on_the_texts(answers, workload: str):
    found = answers[f"{workload}-10000"]
    assert found["again"][0] == found["again"][1]
    assert found["again"][0] != found["other_seed"]
    assert found["again"][0] != answers[f"{workload}-5000"]["again"][0]


@pytest.mark.parametrize("workload", ["tfidf_vectorize", "tfidf_fit"])
def test_more_features_than_the_texts_have_terms_are_refused_with_both_numbers(answers, workload: str):
    raised = answers[f"{workload}-1000000"]["raised"]
    assert raised.startswith("MeasurementError: max_features had no effect: asked for 1000000, but the 400 texts hold")


def test_a_seed_is_a_split_and_its_result_repeats(answers):
    first, again, other = answers["accuracy"]["scores"]
    assert first == again
    assert first != other
    assert answers["accuracy"]["sizes"] == [400, 300]
    assert answers["accuracy"]["shared"] == 0
    seen, accuracy, loss = first
    assert seen == TEXTS
    assert 0.4 < accuracy < 0.8  # 11% is guessing
    assert 0 < loss < 2


def test_training_on_other_texts_than_the_batch_says_is_refused_with_the_fix(answers):
    raised = answers["accuracy-other-batch"]["raised"]
    assert "ConfigError" in raised
    assert raised.endswith("set batches: {test/tfidf_fit: 400}")


@pytest.mark.parametrize(
    ("workload", "features"), [("tfidf_features", [[400, 10_000], "float32"]), ("token_ids", [[400, 64], "int32"])]
)
def test_saved_features_equal_computed_ones_bit_for_bit(answers, workload: str, features: list[Any]):
    computed, saved = answers[f"{workload}-computed"], answers[f"{workload}-saved"]
    assert computed["features"] == saved["features"] == features
    assert len({*computed["hashes"], *saved["hashes"]}) == 1


@pytest.mark.parametrize("workload", ["tfidf_features", "token_ids"])
def test_a_pass_is_observed_and_the_stored_set_is_made_once(answers, cache: Path, workload: str):
    computed, saved = answers[f"{workload}-computed"], answers[f"{workload}-saved"]
    for found, share in ((computed, None), (saved, 1.0)):
        observed = found["observed"]
        assert (observed["format"], observed["decoder"], observed["device"]) == ("resident", "none", None)
        assert observed["batch"] == TEXTS
        assert observed["cached"] == share
        assert observed["order"] == found["hashes"][0]
        assert found["waited"] > 0
    first, second = saved["stored"]
    assert first == second  # the seconds too: it was not written again
    assert first["seconds"] > 0
    assert first["bytes"] in {f.stat().st_size for f in (cache / "features").glob(f"{workload}-*/*") if f.is_file()}
    nothing = computed["stored"][0]
    assert (nothing["bytes"], nothing["seconds"]) == (0, 0.0)
    assert nothing["sha256"] == first["sha256"]
    assert nothing["examples"] == first["examples"] == TEXTS


def test_what_cannot_be_measured_says_why(answers):
    assert "max_features had no effect: asked for 10000" in answers["too-few-terms"]["raised"]
    assert "a batch of 3601; there are 3600 training texts" in answers["too-many-texts"]["raised"]
    assert answers["gpu"] == {"unavailable": "device gpu: scikit-learn computes on the CPU only"}


def test_the_installation_is_described_and_its_threads_limited(answers):
    described = answers["describe"]
    assert set(described["devices"]) == {"cpu"}
    assert described["threads"] == 1
    assert described["version"]


def test_a_missing_scikit_learn_comes_with_its_install_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing(Framework.SKLEARN) == "sklearn is not installed: pip install 'speedproof[data]'"


class Quiet:
    """A reporter that says nothing."""

    def begin(self, comparison: str, launches: int) -> None: ...

    def launched(self, done: int, ratio: str) -> None: ...

    def tick(self) -> None: ...


@pytest.mark.slow
def test_every_text_study_runs_through_the_engine(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPEEDPROOF_CACHE", str(cache))
    profile = load_profile("smoke", benchmarks_folder())
    declared = load_studies()
    studies = [find_study(declared, name) for name in ("npy-cache", "tfidf-vectorize", "tfidf-fit", "tfidf-accuracy")]
    nurseries = Nurseries()
    try:
        site = survey(nurseries, [Framework.SKLEARN], 2)
        store = RunStore.create(tmp_path, {"command": "test", "profile": {"name": "smoke"}})
        run = Run(store=store, profile=profile, site=site, nurseries=nurseries, reporter=Quiet())
        comparisons = plan(studies, profile, site.devices)
        for comparison in comparisons:
            run.measure(comparison)
    finally:
        nurseries.close()
    data = read(store.path)
    store.close()
    assert len(comparisons) == 5
    assert set(data.trials["comparison"]) == {c.id for c in comparisons}
    # Where other work takes the processor just after a block, the block is refused: that is no fault of the arm.
    failed = [r for r in data.trials["reason"].dropna() if "was not synchronised" not in r]
    assert not failed
    assert (data.trials["status"] == Status.OK).mean() > 0.5
    assert sorted(data.convergence["arm"]) == ["f10000", "f5000"]
    saved = data.samples[data.samples["arm"] == "saved"]
    assert (saved["wait_s"] <= saved["seconds"]).all()
