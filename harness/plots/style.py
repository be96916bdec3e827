"""How every figure looks and is saved: palette, markers, captions, files that depend on nothing but the data."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.errors import ResultsError
from harness.summary import natural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# Okabe and Ito's palette, told apart by every kind of colour vision (jfly.uni-koeln.de/color), darkest contrast first.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, YELLOW = PALETTE
GREY = "#767676"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
FRAMEWORK_MARKERS: Mapping[str, str] = {"torch": "o", "tensorflow": "s", "sklearn": "D", "fake": "^"}
FRAMEWORK_TITLES: Mapping[str, str] = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "sklearn": "scikit-learn",
    "fake": "fake backend",
}
WIDTH = 9.0  # inches; a README shows it about 830 pixels wide
_CAPTION_LINE = 0.165  # inches
_CAPTION_CHARACTERS = 136
_TITLE = 0.42  # inches
_LEGEND_ROW = 0.24
_PANEL_TITLE = 0.3
_AXIS_LABELS = 0.52
_ROW_GAP = 0.45
_COLUMN_GAP = 0.3

_RC: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "speedproof",  # else matplotlib draws the ids of an SVG at random
    "svg.fonttype": "none",  # text stays text: searchable, and readable by a screen reader
    "figure.facecolor": "white",
    "savefig.dpi": 160,
}


class NothingToDraw(ResultsError):
    """The results do not hold what a figure shows; the message names what is missing."""


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save inside this, so that a user's own matplotlib settings cannot change a figure."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def grid(
    rows: Sequence[float],
    columns: int,
    *,
    caption: Sequence[str],
    title: str,
    legend: Sequence[Artist],
    legend_columns: int = 7,
    margins: tuple[float, float] = (0.85, 0.15),
    **subplots: Any,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of axes with its title and legend above and its caption below.

    ``rows`` are the heights of the axes in inches, ``margins`` what is left free beside them. ``caption`` lines are
    wrapped; the figure grows by what they need. All is fixed in inches: it looks the same whatever the data, and no
    layout has to be solved.
    """
    lines = wrap(caption)
    below = _CAPTION_LINE * len(lines) + 0.12 + _AXIS_LABELS
    above = _TITLE + _LEGEND_ROW * -(-len(legend) // legend_columns) + _PANEL_TITLE
    height = above + sum(rows) + _ROW_GAP * (len(rows) - 1) + below
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    inner = (WIDTH - sum(margins) - _COLUMN_GAP * (columns - 1)) / columns
    placed = figure.add_gridspec(
        len(rows), columns, left=margins[0] / WIDTH, right=1 - margins[1] / WIDTH, top=1 - above / height,
        bottom=below / height, wspace=_COLUMN_GAP / inner, hspace=_ROW_GAP * len(rows) / sum(rows),
        height_ratios=rows,
    )  # fmt: skip
    axes = placed.subplots(squeeze=False, **subplots)
    figure.text(0.012, 1 - 0.12 / height, title, fontsize=12, fontweight="bold", va="top")
    figure.legend(
        handles=legend, loc="upper left", bbox_to_anchor=(0.004, 1 - (_TITLE - 0.04) / height), ncols=legend_columns,
        columnspacing=1.4, borderaxespad=0,
    )  # fmt: skip
    for i, line in enumerate(lines):
        y = (below - _AXIS_LABELS - 0.04 - _CAPTION_LINE * i) / height
        figure.text(0.012, y, line, fontsize=8, color="#333333", va="top")
    return figure, [list(row) for row in axes]


def label_inches(text: str) -> float:
    """Room that a label of an axis takes, on the safe side."""
    return 0.07 * len(text)


def wrap(caption: Sequence[str]) -> list[str]:
    """Break each line of a caption where the figure's width ends."""
    return [part for line in caption for part in textwrap.wrap(line, _CAPTION_CHARACTERS, subsequent_indent="   ")]


def save(figure: Figure, out_dir: Path, name: str) -> list[Path]:
    """Write ``name``.svg and ``name``.png; the same data gives the same bytes, so no dates and no version in them.

    Raises :class:`~harness.errors.ResultsError` where the folder cannot be written.
    """
    paths = [out_dir / f"{name}.svg", out_dir / f"{name}.png"]
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        figure.savefig(paths[0], metadata={"Date": None, "Creator": None})
        figure.savefig(paths[1], metadata={"Software": None})
    except OSError as error:
        raise ResultsError(
            f"{out_dir}: cannot write the figure {name}: {error.strerror or error}; choose another folder with --out."
        ) from error
    return paths


def counts(n: Iterable[float]) -> str:
    """``n = 6``, or ``n = 6 to 10`` where it differs."""
    known = sorted({int(v) for v in n if v > 0})
    if not known:
        return "n = 0"
    return f"n = {known[0]}" + (f" to {known[-1]}" if known[-1] != known[0] else "")


def colour_of(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each name, in natural order (b8 before b16); a pair repeats after 56 names."""
    ordered = sorted(set(names), key=natural)
    return {n: (PALETTE[i % 7], MARKERS[i % 8]) for i, n in enumerate(ordered)}


def in_order(frameworks: Iterable[str]) -> list[str]:
    """The frameworks that there are, PyTorch first."""
    there = set(frameworks)
    return [f for f in FRAMEWORK_TITLES if f in there]


def key(colours: Mapping[str, tuple[str, str]], *, line: bool) -> list[Line2D]:
    """Legend entries of :func:`colour_of`."""
    width = 1.5 if line else 0.0
    return [Line2D([], [], color=c, marker=m, linewidth=width, label=name) for name, (c, m) in colours.items()]
