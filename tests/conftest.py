"""What holds for every test, and the answers of the probes that run a framework in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings errors: for the tests only, so a warning never stops somebody's measurement.

    A shell starts what runs in its background with Ctrl-C ignored, and the tests of Ctrl-C would wait for nothing.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("filterwarnings", "error")
    config.addinivalue_line("markers", "asks(question): the fixture `answer` is what the module's PROBE says to it")


def _ask(probe: str, folder: Path, questions: tuple[str, ...]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, ROOT / f"tests/probes/{probe}.py", *questions],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPEEDPROOF_CACHE": str(folder), "SPEEDPROOF_IMAGES": ""},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the module's ``PROBE`` says to its ``QUESTIONS``: a process for each group, with its own cache folder."""
    groups = request.module.QUESTIONS
    with ThreadPoolExecutor() as pool:
        folders = [tmp_path_factory.mktemp("cache") for _ in groups]
        found = pool.map(_ask, [request.module.PROBE] * len(groups), folders, groups)
        return {name: answer for answers in found for name, answer in answers.items()}


@pytest.fixture
def answer(request: pytest.FixtureRequest, answers: dict[str, Any]) -> Any:
    """What the probe says to the question of the test's mark ``asks``."""
    mark = request.node.get_closest_marker("asks")
    found = answers[mark.args[0]]
    assert not (isinstance(found, dict) and "raised" in found), found["raised"]
    return found
