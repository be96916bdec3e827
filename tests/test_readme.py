"""The README shows what results/ holds, and its commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import cli, readme

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line, comments=True) for line in re.findall(r"^\$ (.+)$", TEXT, flags=re.MULTILINE)]


def test_every_block_is_what_the_results_make_of_it() -> None:
    assert readme.filled(TEXT, ROOT) == TEXT, "run python -m harness.readme"


@pytest.mark.parametrize("command", [c for c in COMMANDS if c[0] == "speedproof"], ids=" ".join)
def test_its_commands_and_their_options_exist(command: list[str]) -> None:
    names = command[1 : 3 if command[1] == "data" else 2]
    told = CliRunner().invoke(cli.app, [*names, "--help"])
    assert told.exit_code == 0, told.output
    for option in (word for word in command[2:] if word.startswith("--")):
        assert option in told.output


@pytest.mark.parametrize("command", [c for c in COMMANDS if c[0] == "make"], ids=" ".join)
def test_its_make_targets_exist(command: list[str]) -> None:
    assert re.search(rf"^{command[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c[0] == "pytest"], ids=" ".join)
def test_its_pytest_options_exist(command: list[str], request: pytest.FixtureRequest) -> None:
    known = {option for group in request.config._parser._groups for o in group.options for option in o.names()}
    anonymous = request.config._parser._anonymous.options
    known |= {option for o in anonymous for option in o.names()}
    for option in (word for word in command[1:] if word.startswith("-")):
        assert option in known


def test_its_links_and_folders_are_there() -> None:
    for path in re.findall(r"\]\(([^)#]+)\)|`((?:harness|benchmarks)/[\w./*]+)`", TEXT):
        name = path[0] or path[1]
        if "NAME" in name:
            continue
        assert list(ROOT.glob(name.rstrip("/"))), f"{name} is not there"
