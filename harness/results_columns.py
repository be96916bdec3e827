"""How one value of a column becomes text, and what is wrong with a text: the rules the writer and the reader share."""

from __future__ import annotations

import difflib
import functools
import math
import operator
import re
import warnings
from pathlib import Path

from harness.errors import ResultsError
from harness.schema import Column, toggle_column
from harness.techniques import TOGGLES

_TOGGLE_OF = {toggle_column(t.name): t for t in TOGGLES.values()}
_BREAKS = re.compile(r"\s*[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+\s*")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
LAUNCH_COLUMN = {"convergence": "seed"}  # by table: the column that holds the launch, where it is not called so
_LONGEST = 2000  # characters of one value; a longer text is a log, not a reason


class ResultsWarning(UserWarning):
    """Something in results/ was left out; the message names the file and what is missing."""


def warn(message: str) -> None:
    """Tell the user that something was left out of what was read or kept."""
    warnings.warn(message, ResultsWarning, stacklevel=3)


def allowed(column: Column) -> str:
    """What a column may hold, in words."""
    if column.one_of:
        kind = ", ".join(column.one_of)
    elif column.name in _TOGGLE_OF:
        kind = "a whole number above 0"
    else:
        kind = {
            "string": "text",
            "integer": "a whole number",
            "number": "a finite number",
            "boolean": "true or false",
        }[column.kind]
    return f"{kind}; empty when {column.null_when}" if column.null_when else f"{kind}; never empty"


def nearest(value: str, names: list[str]) -> str:
    """`` Did you mean 'x'?`` for the closest of ``names``, or nothing."""
    near = difflib.get_close_matches(value, names, n=1)
    return f" Did you mean {str(near[0])!r}?" if near else ""


def default_level(column: Column) -> str:
    """The level that a toggle column missing from an older file stands for; empty where nothing may stand for it."""
    toggle = _TOGGLE_OF.get(column.name)
    return toggle.default if toggle else ""


def level_allowed(column: Column, text: str) -> bool:
    """Whether a non-empty text of a string column is one of its values."""
    if column.one_of:
        return text in column.one_of
    toggle = _TOGGLE_OF.get(column.name)
    return toggle.allows(text) if toggle else True


def fault(column: Column, text: str) -> bool:
    """Whether ``text``, as it stands in a file, breaks the column's rule."""
    if text == "":
        return not column.null_when
    match column.kind:
        case "string":
            return not level_allowed(column, text)
        case "boolean":
            return text.lower() not in ("true", "false")
        case "integer":
            return _INTEGER.fullmatch(text.strip()) is None or not -(2**63) <= int(text) < 2**63
        case "number":
            try:
                return not math.isfinite(float(text))
            except ValueError:
                return True


def render(column: Column, value: object) -> str:
    """The text of a value. None, "" and, where the column may be empty, a number that is not finite, are empty.

    Raises:
        ResultsError: the value is not one of the column's; the caller adds the place.
    """
    text = _text(column, value)
    if text is None or fault(column, text):
        hint = nearest(text or "", [str(v) for v in column.one_of])
        raise ResultsError(f"column {column.name!r}: {value!r} is not allowed; allowed: {allowed(column)}.{hint}")
    return text


def _text(column: Column, value: object) -> str | None:
    """The text of a value of the right type; ``None`` for another type."""
    if value is None:
        return ""
    is_bool = isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")
    match column.kind:
        case "string":
            return _one_line(str(value)) if isinstance(value, str) else None
        case "boolean":
            return str(bool(value)).lower() if is_bool else None
        case "integer":
            return None if is_bool or not hasattr(value, "__index__") else str(operator.index(value))
        case "number":
            if is_bool or isinstance(value, str) or not hasattr(value, "__float__"):
                return None
            number = float(value)
            return "" if column.null_when and not math.isfinite(number) else repr(number)


@functools.lru_cache(maxsize=4096)
def _one_line(text: str) -> str:
    """One line of a file is one row, so line breaks become `` / `` and other control characters a space."""
    line = _CONTROL.sub(" ", _BREAKS.sub(" / ", text.strip()))
    line = line.encode(errors="replace").decode()
    return without_paths(line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…")


@functools.cache
def _private_paths() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Folders that say whose machine this is, the deepest first, and what stands for them."""
    folders = {str(Path(__file__).resolve().parents[1]): ".", str(Path.cwd()): "."}
    for name in (str(Path.home()), str(Path.home().resolve())):
        folders.setdefault(name, "~")
    deep = sorted((f for f in folders if f != "/"), key=len, reverse=True)
    return tuple((re.compile(rf"(?<![\w.~/-]){re.escape(f)}(?=/|\W|$)"), folders[f]) for f in deep)


def without_paths(text: str) -> str:
    """``text`` with the checkout and the working folder as ``.`` and the home folder as ``~``."""
    if "/" in text:
        for pattern, short in _private_paths():
            text = pattern.sub(short, text)
    return text
