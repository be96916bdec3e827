"""The only writer of results/, and the door to its reader: one folder a run, one CSV a table, one run.yaml.

A launch lands with one write a table, samples before trials, under a lock; so what is on disk is whole launches, and a
launch counts as done when its trials are there. Reading goes through :func:`read` and :func:`read_all`.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import re
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness import results_docs, results_header
from harness.errors import ResultsError, unknown
from harness.results_columns import LAUNCH_COLUMN, ResultsWarning, nearest, render, warn
from harness.results_files import (
    HEADER_FILE,
    append_lines,
    csv_line,
    existing_folder,
    lock,
    locked,
    replace_text,
    rows,
    run_folders,
    told,
    whole_size,
)
from harness.results_header import plan_of
from harness.schema import SCHEMA_VERSION, TABLES, TRIALS, Table
from harness.spec import Status

if TYPE_CHECKING:
    from harness.results_reader import RunData

__all__ = ["ResultsWarning", "RunStore", "plan_of", "read", "read_all", "run_folders", "write_docs"]

_TABLE = {t.name: t for t in TABLES}
# Trials last: a launch whose trials are there is whole.
_WRITE_ORDER = (*(t.name for t in TABLES if t is not TRIALS), TRIALS.name)


def read(paths: str | Path | Sequence[str | Path]) -> RunData:
    """Read one or several run folders; see :mod:`harness.results_reader`. Imports pandas."""
    from harness import results_reader

    return results_reader.read(paths)


def read_all(results_dir: str | Path) -> RunData:
    """Read every run folder of ``results_dir``, oldest first. Raises ResultsError where there is none."""
    from harness import results_reader

    return results_reader.read_all(results_dir)


def write_docs(results_dir: str | Path) -> None:
    """Write results/README.md and the datapackage.json of every run folder."""
    with told(Path(results_dir)):
        results_docs.write(Path(results_dir))


class RunStore:
    """One run folder, open for writing. Made by :meth:`create`, :meth:`open` or :meth:`latest`."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        self._header = header
        self._owner: int | None = None

    @classmethod
    def create(cls, results_dir: str | Path, header: Mapping[str, Any]) -> RunStore:
        """Make a new run folder, which no other run can share, and own it.

        ``header`` needs ``command`` and ``profile`` ({name, content}); run_id, started, state and schema_version are
        filled in. The fields are those of :class:`harness.results_header.RunHeader`.

        Raises:
            ResultsError: the folder cannot be made, or a field is wrong.
        """
        root, now = Path(results_dir), datetime.datetime.now(datetime.UTC)
        stem = f"{now:%Y-%m-%dT%H%MZ}-{_machine_label(header.get('machine') or {})}"
        fixed = {"schema_version": SCHEMA_VERSION, "state": "running", "started": f"{now:%Y-%m-%dT%H:%M:%SZ}"}
        run_id = f"{stem}-{secrets.token_hex(3)}"
        checked = results_header.checked({**header, **fixed, "run_id": run_id}, where="the header of a new run")
        path = root / run_id
        with told(root):
            root.mkdir(parents=True, exist_ok=True)
            path.mkdir()  # exclusive: it fails where another run has the name
            store = cls(path, checked)
            store._own()
            store._write_header(checked)
        if not (root / "README.md").exists():
            write_docs(root)
        return store

    @classmethod
    def open(cls, path: str | Path) -> RunStore:
        """Open a run folder that exists. Raises ResultsError where it is none."""
        path = Path(path)
        existing_folder(path)
        return cls(path, results_header.load(path))

    @classmethod
    def latest(cls, results_dir: str | Path, unfinished: bool = True) -> RunStore | None:
        """The newest run, or ``None``.

        With ``unfinished`` the newest that can go on: not finished and not owned by a living process. It is opened
        with :meth:`resume`.
        """
        for run_dir in reversed(run_folders(results_dir)):
            store = cls.open(run_dir)
            if not unfinished:
                return store
            if store.header["state"] != "finished" and store._own():
                store.resume()
                return store
            store.close()
        return None

    @property
    def run_id(self) -> str:
        """The folder's name when it was made."""
        return str(self._header["run_id"])

    @property
    def header(self) -> dict[str, Any]:
        """The content of run.yaml; change it with :meth:`update_header`."""
        return dict(self._header)

    def update_header(self, **fields: Any) -> None:
        """Replace fields of run.yaml, all or none, and write datapackage.json again.

        A state other than running sets ``ended``. A new plan makes the baselines new.

        Raises:
            ResultsError: a field is unknown or of the wrong type, or the file cannot be written.
        """
        if fields.get("state", "running") != "running" and "ended" not in fields:
            fields["ended"] = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
        merged = {**self._header, **fields}
        if "plan" in fields and "baselines" not in fields:
            merged["baselines"] = {}
        self._write_header(results_header.checked(merged, where=str(self.path / HEADER_FILE)))

    def append(self, table: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Append rows of one table; all of them land, or none. See :meth:`append_many`."""
        self.append_many({table: rows})

    def append_many(self, tables: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
        """Append the rows of a launch, trials last. ``run_id`` may be left out of the rows.

        A row names every column of its table except ``run_id`` and those that may be empty. Where any table cannot
        be written, what this call wrote to the others is taken back.

        Raises:
            ResultsError: a table, column or value is wrong, or the disk, the folder or its rights forbid writing.
        """
        for name in tables:
            if name not in _TABLE:
                raise ResultsError(str(unknown("table", name, _TABLE, where=str(self.path))))
        texts = {name: self._text(_TABLE[name], tables[name]) for name in _WRITE_ORDER if tables.get(name)}
        written: list[tuple[int, int]] = []
        with contextlib.ExitStack() as files:
            try:
                for name in texts:
                    path = self.path / _TABLE[name].file
                    with told(path):
                        fd = files.enter_context(locked(path))
                        written.append((fd, _cut_half_row(fd, path)))
                for (name, text), (fd, size) in zip(texts.items(), written, strict=True):
                    path = self.path / _TABLE[name].file
                    with told(path):
                        append_lines(fd, _TABLE[name], text, size=size, path=path)
            except BaseException:
                for fd, size in written:
                    os.ftruncate(fd, size)
                raise

    def done(self) -> set[tuple[str, int]]:
        """The (comparison, launch) pairs that need not run again.

        A launch is done when its trials are there and none was interrupted. An arm of the plan may be missing only
        where another launch of the comparison says that it is not ok.
        """
        seen: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
        for row in rows(self.path / TRIALS.file, TRIALS):
            seen[row["comparison"], int(row["launch"])][row["arm"]] = row["status"]
        fine = (Status.OK, Status.INTERRUPTED)
        broken = {(c, arm) for (c, _), arms in seen.items() for arm, status in arms.items() if status not in fine}
        planned = {p["comparison"]: set(p["arms"]) for p in self._header["plan"]}
        return {
            (comparison, launch)
            for (comparison, launch), arms in seen.items()
            if Status.INTERRUPTED not in arms.values()
            and all((comparison, arm) in broken for arm in planned.get(comparison, set()) - arms.keys())
        }

    def resume(self) -> None:
        """Own the run, drop the rows of launches that are not done, and set its state to running.

        Raises:
            ResultsError: another process is writing this run.
        """
        if not self._own():
            raise ResultsError(f"{self.path}: another process is writing this run; wait for it, or stop it first.")
        done = self.done()
        for table in TABLES:
            self._keep_only(table, done)
        self.update_header(state="running", ended=None)

    def close(self) -> None:
        """Let another process own the run. Rows already written stay."""
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _own(self) -> bool:
        """Take the run for this process; false where a living process has it. The system frees it when we die."""
        if self._owner is None:
            with told(self.path):
                fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                if not lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    os.close(fd)
                    return False
                self._owner = fd
        return True

    def _write_header(self, header: dict[str, Any]) -> None:
        with told(self.path):
            replace_text(self.path / HEADER_FILE, results_header.dump(header))
            results_docs.write_datapackage(self.path, header)
        self._header = header

    def _text(self, table: Table, rows: Sequence[Mapping[str, object]]) -> str:
        return "".join(self._row_text(table, row, place=f"row {i + 1} of {len(rows)}") for i, row in enumerate(rows))

    def _row_text(self, table: Table, row: Mapping[str, object], *, place: str) -> str:
        where = f"{self.path / table.file}: {place}: "
        for name in row:
            if name not in table.names:
                hint = nearest(name, table.names)
                raise ResultsError(f"{where}unknown column {name!r}; allowed: {', '.join(table.names)}.{hint}")
        if row.get("run_id", self.run_id) != self.run_id:
            raise ResultsError(f"{where}run_id is {row['run_id']!r}; allowed: {self.run_id!r}, the run of this folder.")
        full = {**row, "run_id": self.run_id}
        for column in table.columns:
            if column.name not in full and not column.null_when:
                raise ResultsError(f"{where}column {column.name!r} is missing; give it a value.")
        try:
            return csv_line([render(column, full.get(column.name)) for column in table.columns])
        except ResultsError as error:
            raise ResultsError(f"{where}{error}") from None

    def _keep_only(self, table: Table, done: set[tuple[str, int]]) -> None:
        path = self.path / table.file
        if not path.exists():
            return
        with told(path), locked(path) as fd:
            _cut_half_row(fd, path)
            launch = LAUNCH_COLUMN.get(table.name, "launch")
            found = list(rows(path, table))
            kept = [r for r in found if (r["comparison"], int(r[launch])) in done]
            if len(kept) < len(found):
                lines = (csv_line([row[name] for name in table.names]) for row in kept)
                replace_text(path, csv_line(table.names) + "".join(lines))
                warn(f"{path}: dropped {len(found) - len(kept)} rows of unfinished launches; they are measured again")


def _machine_label(machine: Mapping[str, Any]) -> str:
    gpus = machine.get("gpus") or []
    if gpus:
        words = re.sub(r"nvidia|geforce|tesla", " ", str(gpus[0].get("name", "gpu")).lower())
        return re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:20].strip("-") + (f"x{len(gpus)}" if len(gpus) > 1 else "")
    return f"cpu{machine['cores']}" if "cores" in machine else "run"


def _cut_half_row(fd: int, path: Path) -> int:
    """Cut what a killed writer left of a row; return the file's size in bytes."""
    size = whole_size(fd, path)
    os.ftruncate(fd, size)
    return size
