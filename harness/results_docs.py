"""What results/ says about itself: README.md from the schema, and a Frictionless datapackage.json for each run.

``python -m harness.results_docs results`` writes both again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import SpeedproofError
from harness.results_columns import allowed, default_level
from harness.results_files import header_of, replace_text, run_folders, told
from harness.schema import SCHEMA_VERSION, TABLES, Column, Table

PACKAGE_FILE = "datapackage.json"
_LICENSE = {"name": "MIT", "title": "MIT License", "path": "https://opensource.org/license/mit"}

_FILES = "".join(f"| `{t.file}` | {t.meaning} |\n" for t in TABLES)
_INTRO = f"""\
# Results

<!-- Generated from harness/schema.py by `python -m harness.results_docs results`; do not edit. -->

One folder is one run on one machine. Its name is the time of the start (UTC), the device and a random end.

| file | one row is |
|---|---|
{_FILES}\
| `run.yaml` | the run: command, profile, machine, hazards, versions, commit, plan, timing |
| `datapackage.json` | the same description for tools that read [Frictionless](https://frictionlessdata.io) packages |

A table without rows has no file. The schema version is {SCHEMA_VERSION}. Files are UTF-8 CSV with commas; an empty
field is null, and nothing else is: `none` is the name of a level. So read them with

```python
from harness.store import read_all

samples = read_all("results").samples
```

or, with pandas alone, `pandas.read_csv(path, keep_default_na=False, na_values=[""])`.

Each row stands alone: it holds every toggle's level, so one filter finds any curve. Only what was measured is stored;
ratios are derived. A row of `samples`, `convergence` or `checks` counts only where `trials` has its comparison, arm and
launch (in `convergence` the seed): the trials of a launch are written last.
"""


def readme() -> str:
    """The text of results/README.md."""
    return "\n".join([_INTRO, *(_section(t) for t in TABLES)])


def _section(table: Table) -> str:
    head = f"## {table.file}\n\n{table.meaning[0].upper()}{table.meaning[1:]}.\n\n"
    head += "| column | type | unit | meaning | may hold |\n|---|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(_cells(c))} |\n" for c in table.columns)


def _cells(column: Column) -> tuple[str, ...]:
    default = default_level(column)
    missing = f"; a file without the column means {default}" if default else ""
    missing = "; a file without the column knows nothing of it" if column.later else missing
    cells = (f"`{column.name}`", column.kind, column.unit, column.meaning, allowed(column) + missing)
    return tuple(c.replace("|", "\\|") for c in cells)


def datapackage(run_dir: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """The Frictionless tabular data package of a run folder: a resource for each table that has rows."""
    machine = header.get("machine") or {}
    return {
        "profile": "tabular-data-package",
        "name": str(header["run_id"]).lower(),
        "title": f"Speedproof run {header['run_id']}",
        "description": f"{header['command']} on {machine.get('cpu', 'an unnamed machine')}; see run.yaml.",
        "created": header["started"],
        "version": str(SCHEMA_VERSION),
        "licenses": [_LICENSE],
        "resources": [_resource(t, names) for t in TABLES if (names := _columns(run_dir / t.file, t))],
    }


def _columns(path: Path, table: Table) -> list[str]:
    return header_of(path, table) if path.exists() else []


def _resource(table: Table, names: list[str]) -> dict[str, Any]:
    by_name = {c.name: c for c in table.columns}
    return {
        "profile": "tabular-data-resource",
        "name": table.name,
        "path": table.file,
        "title": table.meaning,
        "format": "csv",
        "mediatype": "text/csv",
        "encoding": "utf-8",
        "dialect": {"delimiter": ",", "quoteChar": '"', "doubleQuote": True, "header": True},
        "schema": {"fields": [_field(by_name[n]) for n in names], "missingValues": [""]},
    }


def _field(column: Column) -> dict[str, Any]:
    field: dict[str, Any] = {"name": column.name, "type": column.kind, "description": column.meaning}
    if column.unit:
        field["unit"] = column.unit
    if column.kind == "boolean":
        field |= {"trueValues": ["true"], "falseValues": ["false"]}
    constraints: dict[str, Any] = {"required": not column.null_when}
    if column.one_of:
        constraints["enum"] = [str(v) for v in column.one_of]
    return field | {"constraints": constraints}


def write_datapackage(run_dir: Path, header: Mapping[str, Any]) -> None:
    """Write datapackage.json into a run folder. Raises OSError."""
    text = json.dumps(datapackage(run_dir, header), indent=2, ensure_ascii=False)
    replace_text(run_dir / PACKAGE_FILE, text + "\n")


def write(results_dir: Path) -> None:
    """Write README.md, and datapackage.json for every run folder. Raises ResultsError."""
    from harness import results_header

    with told(results_dir):
        replace_text(results_dir / "README.md", readme())
    for folder in run_folders(results_dir):
        header = results_header.load(folder)
        with told(folder):
            write_datapackage(folder, header)


if __name__ == "__main__":
    try:
        write(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
    except SpeedproofError as problem:
        sys.exit(str(problem))
