"""The techniques: one folder each, found by being there.

A technique folder declares ``TOGGLE`` in ``__init__.py`` (standard library only) and may hold ``torch.py`` and
``tensorflow.py``. Those define functions for the stages that the technique touches; the backend applies all
techniques stage by stage (environment, data, model, optimizer, step), within a stage in the order of :data:`TOGGLES`:

    unavailable(level, cell) -> str | None            why this level cannot run here
    environment(level, cell) -> None                  process-wide settings, before anything is built
    data(level, data, cell) -> data
    model(level, model, cell) -> model
    optimizer(level, optimizer, cell) -> optimizer    a harness.spec.Optimizer, before it is built
    step(level, step, cell) -> step                   the backend's Step, which says how one step is run
    loader(level, plan, cell) -> plan                 the backend's Plan of a loader, where the cell loads
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from harness.spec import Cell, Framework, Toggle


def _discover() -> dict[str, Toggle]:
    found = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        toggle = importlib.import_module(f"{__name__}.{info.name}").TOGGLE
        if toggle.name != info.name:
            raise ValueError(f"the technique in {info.name}/ declares a toggle named {toggle.name!r}")
        found[toggle.name] = toggle
    return found


TOGGLES: dict[str, Toggle] = _discover()


@functools.cache
def part(toggle: str, framework: Framework) -> ModuleType | None:
    """The framework's part of a technique, or ``None`` where it needs none. Imports the framework."""
    name = f"{__name__}.{toggle}.{framework.value}"
    if importlib.util.find_spec(name) is None:
        return None
    return importlib.import_module(name)


def stages(name: str, cell: Cell) -> Iterator[tuple[Callable[..., Any], str]]:
    """The functions of one stage in the cell's framework, in the order of the toggles, each with the cell's level."""
    for toggle in TOGGLES:
        stage = getattr(part(toggle, cell.framework), name, None)
        if stage is not None:
            yield stage, cell.toggles[toggle]


def apply(name: str, thing: Any, cell: Cell) -> Any:
    """Pass ``thing`` (the data, the model, …) through every technique that touches the stage."""
    for stage, level in stages(name, cell):
        thing = stage(level, thing, cell)
    return thing


def unavailable(cell: Cell) -> str | None:
    """The first technique's reason why the cell cannot run here, or ``None``."""
    reasons = (stage(level, cell) for stage, level in stages("unavailable", cell))
    return next((reason for reason in reasons if reason), None)
