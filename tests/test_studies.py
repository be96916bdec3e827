"""Loading the declared studies from a checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigError
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
