"""Loading the declared studies from a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from harness.errors import ConfigError
from harness.plan import plan, thin_controls
from harness.profiles import load_profile
from harness.spec import CONTROL, Framework, Mode
from harness.studies import benchmarks_folder, find_study, load_studies

STUDY = """
from harness.spec import Arm, Mode, Study

STUDIES = (
    Study(id={id!r}, title="t", question="q", mode=Mode.STEADY, axis="batch", workloads=("w",), baseline=Arm(name="b")),
)
"""


def test_the_checkout_declares_studies_with_distinct_ids():
    ids = [s.id for s in load_studies()]
    assert "precision" in ids
    assert len(set(ids)) == len(ids)


def test_the_working_directory_comes_before_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "test_mine.py").write_text(STUDY.format(id="mine"))
    monkeypatch.chdir(tmp_path)
    assert [s.id for s in load_studies()] == ["mine"]


def test_without_benchmarks_here_the_checkout_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert benchmarks_folder().joinpath("test_precision.py").exists()


def test_an_id_declared_twice_names_both_files(tmp_path: Path):
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(STUDY.format(id="same"))
    with pytest.raises(ConfigError, match=r"test_b\.py: study id 'same' is already declared in .*test_a\.py"):
        load_studies(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("STUDIES = [1]", "needs STUDIES"),
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("x = (", "SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, said: str):
    (tmp_path / "test_bad.py").write_text(text)
    with pytest.raises(ConfigError, match=rf"test_bad\.py: .*{said}"):
        load_studies(tmp_path)


def test_an_unknown_study_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'precision'"):
        find_study(load_studies(), "precisoin")


def test_a_short_profile_has_one_control_for_each_framework_workload_and_mode_where_most_arms_are():
    studies = load_studies()
    devices: dict[Framework, Literal["cpu", "gpu"]] = dict.fromkeys(Framework, "cpu")
    for name, each in (("quick", False), ("full", True)):
        profile = load_profile(name, benchmarks_folder())
        comparisons = thin_controls(plan(studies, profile, devices), profile)
        turns = [c for c in comparisons if c.study.mode.takes_turns]
        kinds = [(c.framework, c.baseline.workload, c.study.mode) for c in turns]
        with_control = [k for k, c in zip(kinds, turns, strict=True) if c.cells[-1].arm == CONTROL]
        assert set(with_control) == set(kinds)
        assert (len(with_control) == len(kinds)) is each
        if not each:
            assert len(with_control) == len(set(kinds)) < len(kinds)
        widest = max(
            (c for c, k in zip(turns, kinds, strict=True) if k == (Framework.TORCH, "cnn_photos", Mode.LOADING)),
            key=lambda c: len({cell.arm for cell in c} - {CONTROL}),
        )
        assert widest.cells[-1].arm == CONTROL
