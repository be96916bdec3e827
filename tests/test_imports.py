"""Who may import whom: no framework in the parent process, one framework in a worker, and layers that point one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

import harness

PACKAGE = Path(harness.__file__).parent
TESTS = Path(__file__).parent

FRAMEWORKS = {
    "torch": {"torch", "torchvision", "transformers"},
    "tensorflow": {"tensorflow", "keras", "keras_hub"},
    "sklearn": {"sklearn", "threadpoolctl"},
}
EVERY_FRAMEWORK = set().union(*FRAMEWORKS.values())

# From the top down: a module imports its own layer and those below it. The parent process measures nothing itself, a
# worker judges nothing: they meet in the layers that both stand on, and in messages.
PARENT = (
    {"cli", "data_cli", "pytest_plugin", "readme", "rehearsal"},
    {"selfcheck", "bench", "data_fetch", "slurm"},
    {"selfcheck_scripts", "selfcheck_conversion", "selfcheck_projection"},
    {"selfcheck_bench"},
    {"audit"},
    {"report", "tables", "plots", "plots.*", "inventory", "claim_cards"},
    {"runner"},
    {"launch", "meeting"},
    {"workers", "machine", "hazards", "limits", "nvml", "store", "results_*", "provenance"},
    {"claims", "claim_file", "stats", "inference", "summary", "metrics", "projected", "projection_published"},
    {"plan", "profiles", "studies"},
)
WORKER = (
    {"nursery"},
    {"worker"},
    {"techniques.*.*", "workloads.*.*", "backends.*"},
    {"measure", "measure.*"},
    {"backends", "data", "data.*", "data.formats.*"},
)
SHARED = (
    {"schema"},
    {"techniques", "techniques.*", "workloads", "workloads.*"},
    {"spec", "hosts", "projection"},
    {"errors", ""},
)

# The audit breaks the measurement's rules on the scripted device, in its own process: it stands on both sides. So do
# the commands for the stored data, which make, list and remove what workers read.
BOTH_SIDES = {
    *(("data_cli", name) for name in ("data", "data.cache", "data.formats", "data.photos")),
    *(("data_fetch", name) for name in ("data", "data.cache", "data.formats.base", "data.photos")),
    *(("selfcheck_conversion", name) for name in ("data", "data.cache", "data.formats", "data.formats.base")),
    ("selfcheck_conversion", "data.photos"),
    ("selfcheck_scripts", "data"),
    ("selfcheck_scripts", "data.formats"),
    ("audit", "backends"),
    ("audit", "backends.fake_backend"),
    ("audit", "measure"),
    ("audit", "measure.steady"),
}


def sources() -> dict[str, Path]:
    """Every module of the package: its dotted name below ``harness`` ("" for the package itself), and its file."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(file: Path) -> set[str]:
    """Every module that a file imports, at the top or inside functions, by statement or by ``import_module("…")``."""
    return set(_imports(ast.parse(file.read_text("utf-8"))))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):  # never executed
                continue
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield module
        yield from _imports(node)


def framework_of(file: Path) -> str | None:
    """The framework whose code a file of the package is, by its name."""
    return next((f for f in FRAMEWORKS if file.name == f"{f}.py" or file.name.startswith(f"{f}_")), None)


def layer(name: str) -> tuple[str, int]:
    """The side and the height of a module; a name that matches two patterns has the place of the longer one."""
    heights = [
        (len(pattern), side, len(PARENT) + len(WORKER) + len(SHARED) - row)
        for side, first, layers in (
            ("parent", 0, PARENT),
            ("worker", len(PARENT), WORKER),
            ("shared", len(PARENT) + len(WORKER), SHARED),
        )
        for row, patterns in enumerate(layers, start=first)
        for pattern in patterns
        if fnmatch(name, pattern) and name.count(".") == pattern.count(".")
    ]
    assert heights, f"harness.{name} has no place in the layers: add it to PARENT, WORKER or SHARED in {__file__}"
    _, side, height = max(heights)
    return side, height


def own_imports(name: str, file: Path) -> set[str]:
    """The modules of the package that a module imports; ``from harness import x`` counts as ``harness.x``."""
    known = sources()
    found = {i.removeprefix("harness").removeprefix(".") for i in imports(file) if i.split(".")[0] == "harness"}
    return {i for i in found if i in known} - {name, ""}


def may_import(importer: str, imported: str) -> bool:
    """Whether the layers allow it."""
    if (importer, imported) in BOTH_SIDES:
        return True
    (side, height), (other_side, other_height) = layer(importer), layer(imported)
    return other_side in (side, "shared") and other_height <= height


@pytest.mark.parametrize("name", sorted(sources()))
def test_a_module_imports_only_what_lies_below_it(name: str) -> None:
    wrong = {imported for imported in own_imports(name, sources()[name]) if not may_import(name, imported)}
    assert not wrong, f"harness.{name} may not import {sorted(wrong)}: it lies above, or across the process boundary"


def test_the_layers_forbid_what_they_should() -> None:
    assert may_import("runner", "launch")
    assert not may_import("launch", "runner")
    assert not may_import("stats", "store")
    assert not may_import("spec", "schema")
    assert not may_import("runner", "worker")
    assert not may_import("worker", "stats")
    assert may_import("worker", "measure.steady")
    assert not may_import("techniques.precision", "techniques.precision.torch")


@pytest.mark.parametrize("name", sorted(sources()))
def test_a_file_imports_the_framework_that_it_is_named_after_and_no_other(name: str) -> None:
    file = sources()[name]
    allowed = FRAMEWORKS.get(framework_of(file) or "", set())
    wrong = {i for i in imports(file) if i.split(".")[0] in EVERY_FRAMEWORK - allowed}
    assert not wrong


@pytest.mark.parametrize("file", sorted(TESTS.glob("*.py")), ids=lambda file: file.name)
def test_no_test_imports_a_framework_into_the_process_that_runs_all_tests(file: Path) -> None:
    assert not {i for i in imports(file) if i.split(".")[0] in EVERY_FRAMEWORK}


def test_imports_are_found_wherever_they_hide(tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import keras\n"
        "def f():\n    import torch.nn as nn\n    from tensorflow import keras\n"
        "import importlib\nx = importlib.import_module('transformers')\n"
    )
    assert imports(file) == {
        "typing",
        "typing.TYPE_CHECKING",
        "importlib",
        "torch.nn",
        "tensorflow",
        "tensorflow.keras",
        "transformers",
    }


def test_importing_everything_but_the_framework_files_imports_no_framework() -> None:
    names = [f"harness.{n}".rstrip(".") for n, file in sorted(sources().items()) if framework_of(file) is None]
    code = (
        "import importlib, sys\n"
        "loaded_by = {}\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        f"    for framework in {sorted(EVERY_FRAMEWORK)!r}:\n"
        "        if framework in sys.modules: loaded_by.setdefault(framework, name)\n"
        "print(loaded_by)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "{}\n"), done.stderr
