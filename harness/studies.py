"""The studies of a checkout: the ``STUDIES`` of every ``benchmarks/test_*.py``, loaded by path."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

from harness.errors import ConfigError, SpeedproofError, unknown
from harness.spec import Study

FOLDER = "benchmarks"


def benchmarks_folder() -> Path:
    """The folder of the declarations: of the working directory if it has one, else of the checkout around the package.

    An installation without a checkout carries a copy beside its programs. Raises
    :class:`~harness.errors.ConfigError` where there is none.
    """
    candidates = [
        Path.cwd() / FOLDER,
        Path(__file__).resolve().parent.parent / FOLDER,
        Path(sys.prefix) / "share" / "speedproof" / FOLDER,
    ]
    for folder in candidates:
        if any(folder.glob("test_*.py")):
            return folder
    tried = ", ".join(str(c) for c in candidates)
    raise ConfigError(f"no studies found: looked for test_*.py in {tried}; run in the checkout of Speedproof.")


def load_studies(folder: Path | None = None) -> tuple[Study, ...]:
    """Every declared study, in the order of the files' names, then of their declaration.

    Raises :class:`~harness.errors.ConfigError` for a file that cannot be imported, has no tuple ``STUDIES``, or
    declares an id that another study already has.
    """
    found: dict[str, tuple[Study, Path]] = {}
    for path in sorted((folder or benchmarks_folder()).glob("test_*.py")):
        for study in studies_in(path):
            if study.id in found:
                other = found[study.id][1]
                raise ConfigError(f"{path}: study id {study.id!r} is already declared in {other}; give it another id.")
            found[study.id] = (study, path)
    return tuple(study for study, _ in found.values())


def find_study(studies: tuple[Study, ...], study_id: str) -> Study:
    """The study with this id; raises :class:`~harness.errors.ConfigError` with the nearest id if there is none."""
    by_id = {s.id: s for s in studies}
    if study_id not in by_id:
        raise unknown("study", study_id, by_id)
    return by_id[study_id]


def studies_in(path: Path) -> tuple[Study, ...]:
    """The ``STUDIES`` of one file; raises :class:`~harness.errors.ConfigError` where it has none."""
    # The name carries a hash of the path: two folders may hold files of the same name in one process.
    name = f"speedproof_benchmarks_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SpeedproofError:
        raise
    except Exception as error:  # whatever a user's file raises is told with its place, not swallowed
        raise ConfigError(f"{path}: cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        del sys.modules[name]
    studies = getattr(module, "STUDIES", None)
    if not isinstance(studies, tuple) or not all(isinstance(s, Study) for s in studies):
        raise ConfigError(
            f"{path}: needs STUDIES = (Study(...), ...), a tuple of harness.spec.Study; found {studies!r}."
        )
    return studies
