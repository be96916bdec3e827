"""The workloads: one folder each, found by being there.

A workload folder declares ``WORKLOAD`` in ``__init__.py`` (standard library only); ``torch.py`` and ``tensorflow.py``
define ``build(workload, size, classes)``, which returns a freshly initialised model that puts out float32 logits.
``sklearn.py`` defines ``build(texts, labels, max_features)``, which returns a step, and ``train`` where it has a
convergence study; for a set of features it defines ``FILE``, ``computer``, ``save`` and ``load``.
A workload outside this package is named ``module:attribute``.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from types import ModuleType

from harness.errors import unknown
from harness.spec import Framework, Workload


def names() -> tuple[str, ...]:
    """Every workload that ships with the package."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__)))


def stepped(framework: Framework) -> tuple[str, ...]:
    """The workloads with a part in a framework whose data is embedded, so that their steps need no loader."""

    def belongs(name: str) -> bool:
        has_part = importlib.util.find_spec(f"{__name__}.{name}.{framework.value}") is not None
        return has_part and load(name).data != "photos"

    return tuple(name for name in names() if belongs(name))


def load(name: str) -> Workload:
    """The declaration of a workload; raises :class:`~harness.errors.ConfigError` for an unknown name."""
    module, _, attribute = name.partition(":")
    if attribute:
        found = getattr(importlib.import_module(module), attribute)
        assert isinstance(found, Workload)
        return found
    if name not in names():
        raise unknown("workload", name, names())
    declared = importlib.import_module(f"{__name__}.{name}").WORKLOAD
    assert isinstance(declared, Workload)
    return declared


def part(name: str, framework: Framework) -> ModuleType:
    """The framework's part of a workload. Imports the framework."""
    package = name.partition(":")[0] if ":" in name else f"{__name__}.{name}"
    return importlib.import_module(f"{package}.{framework.value}")


def missing(name: str, framework: Framework, install: str) -> str | None:
    """Which packages of the part's ``REQUIRES`` are not installed, with the line that installs them, or ``None``."""
    required = getattr(part(name, framework), "REQUIRES", ())
    absent = [package for package in required if importlib.util.find_spec(package) is None]
    return f"{name} needs {' and '.join(absent)}, not installed: {install}" if absent else None
