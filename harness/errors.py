"""The exceptions of the package: every message names the value, what is allowed, and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpeedproofError(Exception):
    """Anything that the user is told in one line, without a traceback."""


class ConfigError(SpeedproofError):
    """A declaration (claims, profile, study, command line) cannot be used as written."""


class ResultsError(SpeedproofError):
    """A results folder or file cannot be read or written."""


class MeasurementError(SpeedproofError):
    """A worker or a launch could not be measured."""


class Unavailable(SpeedproofError):
    """This machine or installation cannot run a cell; the message is the recorded reason."""


def unknown(kind: str, value: str, allowed: Iterable[str], *, where: str = "") -> ConfigError:
    """Build the error for a name that does not exist, with the nearest one that does.

    ``where`` names the file and place that held the value; empty for the command line.
    """
    names = sorted(allowed)
    near = difflib.get_close_matches(value, names, n=1)
    place = f"{where}: " if where else ""
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ConfigError(f"{place}unknown {kind} {value!r}; allowed: {', '.join(names) or 'none'}.{hint}")
