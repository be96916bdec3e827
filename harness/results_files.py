"""Files of results/: refusals of the system in one line, locks, whole appends, and rows read strictly one by one."""

from __future__ import annotations

import contextlib
import csv
import errno
import fcntl
import io
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.errors import ResultsError
from harness.results_columns import allowed, default_level, fault, nearest, warn
from harness.schema import SCHEMA_VERSION, TABLES, Table

HEADER_FILE = "run.yaml"
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)
_CHUNK = 65536
_RIGHTS = "there is no permission; change its rights, or write elsewhere with --results DIR"
_CAUSES = {
    errno.ENOSPC: "the disk is full; free some space, then go on with --resume",
    errno.EDQUOT: "the disk quota is used up; free some space, then go on with --resume",
    errno.EFBIG: "the file-size limit is reached; raise it (`ulimit -f`), then go on with --resume",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "the file system is read-only; write elsewhere with --results DIR",
    errno.ENOTDIR: "a part of the path is a file, not a folder; name a folder with --results DIR",
    errno.EEXIST: "there is a file or another run of that name; name another folder with --results DIR",
    errno.ENOENT: "the folder is gone; put it back, or write elsewhere with --results DIR",
    errno.EISDIR: "it is a folder where a file belongs; move it away",
}


@contextlib.contextmanager
def told(path: Path, *, doing: str = "write") -> Iterator[None]:
    """Turn the system's refusal into one ResultsError with the path, the cause and the fix."""
    try:
        yield
    except OSError as error:
        cause = _CAUSES.get(error.errno or 0, f"{error.strerror or error}; use another folder with --results DIR")
        lost = " Nothing written before is lost." if doing == "write" else ""
        raise ResultsError(f"cannot {doing} {path}: {cause}.{lost}") from error


def existing_folder(path: Path) -> None:
    """Raise ResultsError unless ``path`` is a folder."""
    if path.is_dir():
        return
    if path.exists():
        raise ResultsError(f"{path}: is a file, not a folder; name a folder with --results DIR.")
    raise ResultsError(f"{path}: there is no such folder; run `make bench` first, or name one with --results DIR.")


def run_folders(results_dir: str | Path) -> list[Path]:
    """The run folders of ``results_dir``, oldest first. Raises ResultsError where it is no readable folder."""
    root = Path(results_dir)
    existing_folder(root)
    with told(root, doing="read"):
        folders = [p for p in root.iterdir() if p.is_dir()]
    marks = (HEADER_FILE, *(t.file for t in TABLES))
    return sorted((p for p in folders if any((p / m).exists() for m in marks)), key=lambda p: p.name)


def replace_text(path: Path, text: str) -> None:
    """Put ``text`` in place of a file's content, whole or not at all. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(3)}")
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def lock(fd: int, how: int) -> bool:
    """``flock`` a file; false where another has it. Where the file system has no locks, we are the only writer."""
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
    return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """A descriptor that appends to ``path``, which no other writer has until the end of the block. Raises OSError."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            lock(fd, fcntl.LOCK_EX)
            # While we waited, another may have put a new file in its place (replace_text).
            if path.exists() and os.path.samestat(os.fstat(fd), path.stat()):
                yield fd
                return
        finally:
            os.close(fd)


def whole_size(fd: int, path: Path) -> int:
    """Bytes of a CSV file up to its last whole row; warns of a last row that is only half there."""
    size = os.fstat(fd).st_size
    end = _after_line_break(fd, size)
    if end:
        first = _after_line_break(fd, end - 1)
        if first:  # not the header: a last row cut at a separator still lacks fields
            columns = len(next(csv.reader([_first_line(fd)])))
            last = os.pread(fd, end - first, first).decode(errors="replace")
            if last.strip() and last.count('"') % 2 == 0 and len(next(csv.reader([last]))) < columns:
                end = first
    if end < size:
        warn(f"{path}: dropped a half-written last row ({size - end} bytes)")
    return end


def _after_line_break(fd: int, end: int) -> int:
    """Where the last line of the first ``end`` bytes begins."""
    while end > 0:
        start = max(0, end - _CHUNK)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def _first_line(fd: int) -> str:
    return os.pread(fd, _CHUNK, 0).split(b"\n", 1)[0].decode("utf-8-sig", errors="replace").rstrip("\r")


def append_lines(fd: int, table: Table, lines: str, *, size: int, path: Path) -> None:
    """Put lines at the end of a file of ``size`` bytes with one write, below the column names.

    Raises:
        OSError: not all of it landed; the caller cuts the file back.
        ResultsError: the file has other columns.
    """
    names = csv_line(table.names)
    if size and _first_line(fd) != names.rstrip("\n"):
        raise ResultsError(
            f"{path}: line 1: its columns are not those of schema version {SCHEMA_VERSION}, so nothing can be added; "
            "start a new run without --resume."
        )
    data = (lines if size else names + lines).encode()
    done = os.write(fd, data)
    while done < len(data):  # the system stopped half-way; trying to go on says why
        done += os.write(fd, data[done:])
    os.fsync(fd)  # some file systems tell only now that the disk is full


def csv_line(values: Sequence[str]) -> str:
    """One line of CSV with its line break."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
    return buffer.getvalue()


class _Head(io.RawIOBase):
    """The first ``size`` bytes of a file, for reading once."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self._at, self._end = fd, 0, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = os.pread(self._fd, min(len(buffer), self._end - self._at), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


@contextlib.contextmanager
def whole_rows(path: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a CSV file up to its last whole row."""
    with told(path, doing="read"):
        fd = os.open(path, os.O_RDONLY)
    try:
        yield io.BufferedReader(_Head(fd, whole_size(fd, path)), _CHUNK * 4)
    finally:
        os.close(fd)


def header_of(path: Path, table: Table) -> list[str]:
    """The column names of a CSV file, empty for an empty file.

    Raises:
        ResultsError: a column is unknown, there twice, or missing without a default.
    """
    with told(path, doing="read"), path.open("rb") as file:
        first = file.readline()
    if not first.endswith(b"\n"):  # a writer was killed before its first row
        return []
    try:
        names = next(csv.reader([first.decode("utf-8-sig")]), [])
    except UnicodeDecodeError as error:
        raise ResultsError(_not_utf8(path, 1, error)) from None
    for name in names:
        where = f"{path}: line 1: "
        if name not in table.names:
            hint = nearest(name, table.names)
            raise ResultsError(f"{where}unknown column {name!r}; allowed: {', '.join(table.names)}.{hint}")
        if names.count(name) > 1:
            raise ResultsError(f"{where}column {name!r} is there twice; remove one.")
    for column in table.columns:
        if names and column.name not in names and not (column.later or default_level(column)):
            raise ResultsError(f"{path}: line 1: column {column.name!r} is missing; add it, or measure again.")
    return names


def rows(path: Path, table: Table) -> Iterator[dict[str, str]]:
    """The whole rows of a table as checked text, by column; none where there is no file.

    Raises:
        ResultsError: naming file, line, column, value and what is allowed.
    """
    if not path.exists():
        return
    names = header_of(path, table)
    defaults = {c.name: default_level(c) for c in table.columns if c.name not in names}
    columns = [next(c for c in table.columns if c.name == n) for n in names]
    with whole_rows(path) as file:
        reader = csv.reader(_decoded(file, path), strict=True)
        next(reader, None)
        try:
            for values in reader:
                if not values:
                    continue
                where = f"{path}: line {reader.line_num}: "
                if len(values) != len(names):
                    raise ResultsError(f"{where}has {len(values)} fields; allowed: {len(names)}; remove the line.")
                for column, text in zip(columns, values, strict=True):
                    if fault(column, text):
                        hint = nearest(text, list(column.one_of))
                        raise ResultsError(
                            f"{where}column {column.name!r}: {text!r} is not allowed; allowed: {allowed(column)}.{hint}"
                        )
                yield dict(zip(names, values, strict=True)) | defaults
        except csv.Error as error:
            raise ResultsError(f"{path}: line {reader.line_num}: not CSV: {error}; remove the line.") from None


def _decoded(file: io.BufferedReader, path: Path) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ResultsError(_not_utf8(path, number, error)) from None


def _not_utf8(path: Path, line: int, error: UnicodeDecodeError) -> str:
    place = f"column {error.object[: error.start].count(b',') + 1}, byte {error.start + 1}"
    return f"{path}: line {line}, {place}: {error.object[error.start]:#04x} is not UTF-8 text; save the file as UTF-8."
