"""Every column of results/ once: name, type, unit, meaning, when it may be null.

The reader, the writer, ``results/README.md`` and the Frictionless ``datapackage.json`` are all made from this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.spec import Framework, Mode, Status
from harness.techniques import TOGGLES

SCHEMA_VERSION = 2

Kind = Literal["string", "integer", "number", "boolean"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One CSV column. ``null_when`` says when a cell may be empty (never, if it is); ``one_of`` what is allowed.

    A column that came ``later`` than its table is empty in the files that were written before it.
    """

    name: str
    kind: Kind
    meaning: str
    unit: str = ""
    null_when: str = ""
    one_of: tuple[str, ...] = ()
    later: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One CSV file of a run."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """Column names in file order."""
        return [c.name for c in self.columns]

    @property
    def file(self) -> str:
        """The file's name inside a run folder."""
        return f"{self.name}.csv"


def toggle_column(toggle: str) -> str:
    """The column that holds a toggle's level. A file written before the toggle existed reads as its default level."""
    return f"toggle_{toggle}"


_CELL = (
    Column(name="run_id", kind="string", meaning="the run folder's name"),
    Column(name="comparison", kind="string", meaning="study/framework/workload: the cells that took turns"),
    Column(name="study", kind="string", meaning="id of the study"),
    Column(name="framework", kind="string", meaning="who trained", one_of=tuple(Framework)),
    Column(name="workload", kind="string", meaning="what was trained"),
    Column(
        name="arm",
        kind="string",
        meaning="label of the arm; 'control' is the A/A twin of the baseline",
    ),
    Column(name="size", kind="integer", unit="pixels or tokens", meaning="image edge or sequence length"),
    *(
        Column(
            name=toggle_column(t.name),
            kind="string",
            meaning=f"level of the toggle: {t.question}",
            one_of=t.levels,
        )
        for t in TOGGLES.values()
    ),
)

_NOT_OK = "the trial's status is not ok"
_NO_STEP = "nothing is trained, or the status is not ok"
_NO_LOADER = "the cell reads nothing from storage"
_NO_LOADER_OR_NOT_OK = f"{_NO_LOADER}, or the status is not ok"
_UNKNOWN = "the framework cannot tell it apart, or the status is not ok"

SAMPLES = Table(
    name="samples",
    meaning="one timed block of training steps",
    columns=(
        *_CELL,
        Column(name="launch", kind="integer", meaning="which set of fresh processes, from 0"),
        Column(name="round", kind="integer", meaning="which round of turns in the launch, from 0"),
        Column(name="turn", kind="integer", meaning="place in the round's random order, from 0"),
        Column(name="steps", kind="integer", unit="steps", meaning="training steps in the block"),
        Column(name="items", kind="integer", unit="examples", meaning="examples trained in the block"),
        Column(name="seconds", kind="number", unit="s", meaning="wall time of the block, synchronised at both ends"),
        Column(
            name="loader_start_s",
            kind="number",
            unit="s",
            meaning="start of the loader's workers for this block; not in its seconds",
            null_when=_NO_LOADER,
        ),
        Column(
            name="wait_s",
            kind="number",
            unit="s",
            meaning="part of the block's seconds spent waiting for a batch",
            null_when=_NO_LOADER,
        ),
        # Last, since it is never empty: the reader sees by it that no line was cut short.
        Column(
            name="drain_s",
            kind="number",
            unit="s",
            meaning="time to fetch the last loss after the block; long means that the block was not synchronised",
        ),
    ),
)

TRIALS = Table(
    name="trials",
    meaning="one cell in one launch (of a convergence study: one seed)",
    columns=(
        *_CELL,
        Column(name="mode", kind="string", meaning="what was measured", one_of=tuple(Mode)),
        Column(name="launch", kind="integer", meaning="which set of fresh processes, from 0; the seed in convergence"),
        Column(name="status", kind="string", meaning="how the trial ended", one_of=tuple(Status)),
        Column(name="reason", kind="string", meaning="why the status is not ok", null_when="the status is ok"),
        Column(name="start_s", kind="number", unit="s", meaning="from request to a ready worker", null_when=_NOT_OK),
        Column(
            name="build_s",
            kind="number",
            unit="s",
            meaning="data, model and optimizer; arms are built side by side on the machine's cores",
            null_when=_NOT_OK,
        ),
        Column(
            name="trace_s",
            kind="number",
            unit="s",
            meaning="tracing the step into a graph; arms trace side by side",
            null_when="the framework does not trace, or the status is not ok",
        ),
        Column(
            name="first_step_s",
            kind="number",
            unit="s",
            meaning="the first training step; beside the build where the framework compiles it",
            null_when=_NOT_OK,
        ),
        Column(
            name="warmup_steps",
            kind="integer",
            unit="steps",
            meaning="untimed steps before the blocks",
            null_when=_NOT_OK,
        ),
        Column(
            name="settled",
            kind="boolean",
            meaning="whether two successive warm-up windows agreed",
            null_when="the mode has no warm-up, or the status is not ok",
        ),
        Column(
            name="peak_bytes",
            kind="integer",
            unit="bytes",
            meaning="peak in training: allocated on the device, or on a CPU the worker's memory beyond its start",
            null_when=_NOT_OK,
        ),
        Column(
            name="parameter_bytes", kind="integer", unit="bytes", meaning="the model's parameters", null_when=_UNKNOWN
        ),
        Column(
            name="optimizer_bytes", kind="integer", unit="bytes", meaning="the optimizer's state", null_when=_UNKNOWN
        ),
        Column(
            name="activation_bytes",
            kind="integer",
            unit="bytes",
            meaning="tensors kept for the backward pass of one step",
            null_when=_UNKNOWN,
        ),
        Column(
            name="energy_j",
            kind="number",
            unit="J",
            meaning="energy of the GPU over the timed blocks, from NVML",
            null_when="there is no NVML energy counter, or the status is not ok",
        ),
        Column(
            name="parameters", kind="integer", meaning="trainable and fixed parameters of the model", null_when=_NO_STEP
        ),
        Column(name="observed_device", kind="string", meaning="where the step ran", null_when=_NO_STEP),
        Column(
            name="observed_dtype", kind="string", meaning="dtype that the first product put out", null_when=_NO_STEP
        ),
        Column(name="observed_layout", kind="string", meaning="memory order of that output", null_when=_NO_STEP),
        Column(name="observed_batch", kind="integer", meaning="examples that reached the model", null_when=_NOT_OK),
        Column(name="observed_scaled", kind="boolean", meaning="whether the loss was scaled", null_when=_NO_STEP),
        Column(name="observed_lr", kind="number", meaning="learning rate in force", null_when=_NO_STEP),
        Column(
            name="observed_devices",
            kind="integer",
            meaning="devices that took part in the step",
            null_when=_NO_STEP,
            later=True,
        ),
        Column(
            name="observed_hosts",
            kind="integer",
            meaning="hosts on which those devices were",
            null_when=_NO_STEP,
            later=True,
        ),
        Column(
            name="oversubscribed",
            kind="boolean",
            meaning="whether more CPU devices trained together than there are cores: no verdict rests on the row",
            null_when=_NO_STEP,
            later=True,
        ),
        Column(
            name="observed_workers",
            kind="integer",
            meaning="processes or parallel calls that loaded beside this process",
            null_when=_NO_LOADER_OR_NOT_OK,
        ),
        Column(
            name="observed_decoder",
            kind="string",
            meaning="what made the pixels; 'none' where they are stored",
            null_when=_NO_LOADER_OR_NOT_OK,
        ),
        Column(
            name="observed_cached",
            kind="number",
            meaning="share of the stored set in the page cache as a pass began",
            null_when="the set is in the worker's own memory, the cell reads nothing, or the status is not ok",
        ),
        Column(
            name="convert_s",
            kind="number",
            unit="s",
            meaning="writing the stored set, when it was made",
            null_when=_NO_LOADER_OR_NOT_OK,
        ),
        Column(
            name="stored_bytes",
            kind="integer",
            unit="bytes",
            meaning="the stored set on the disk",
            null_when=_NO_LOADER_OR_NOT_OK,
        ),
        Column(
            name="stored_examples",
            kind="integer",
            unit="examples",
            meaning="examples in the stored set",
            null_when=_NO_LOADER_OR_NOT_OK,
        ),
        Column(
            name="stored_sha256",
            kind="string",
            meaning="hash of the content that the stored set was made from, the same for every format",
            null_when=_NO_LOADER_OR_NOT_OK,
        ),
        Column(
            name="threads",
            kind="integer",
            meaning="compute threads of the worker; of several devices, of each",
            null_when=_NOT_OK,
        ),
    ),
)

CONVERGENCE = Table(
    name="convergence",
    meaning="one cell after one epoch, for each seed",
    columns=(
        *_CELL,
        Column(name="seed", kind="integer", meaning="initialisation and data order; shared by all arms"),
        Column(name="epoch", kind="integer", meaning="epochs done, from 1"),
        Column(name="train_s", kind="number", unit="s", meaning="training time so far, evaluation left out"),
        Column(name="items", kind="integer", unit="examples", meaning="examples trained so far"),
        Column(name="accuracy", kind="number", meaning="share of the test set classified correctly"),
        Column(name="loss", kind="number", meaning="test loss", null_when="the loss is not finite"),
        Column(name="target_accuracy", kind="number", meaning="accuracy whose time is asked for"),
    ),
)

CHECKS = Table(
    name="checks",
    meaning="one named value: of a check study, or a probed batch of a fit study",
    columns=(
        *_CELL,
        Column(name="launch", kind="integer", meaning="which set of fresh processes, from 0"),
        Column(name="check", kind="string", meaning="name of the value; 'fits' is 1 where the batch trained, else 0"),
        Column(name="value", kind="number", meaning="the value", null_when="the value is not a finite number"),
        Column(name="unit", kind="string", meaning="its unit", null_when="it has none"),
        Column(name="detail", kind="string", meaning="what was seen", null_when="there is no more to say"),
    ),
)

TABLES: tuple[Table, ...] = (SAMPLES, TRIALS, CONVERGENCE, CHECKS)

# Derived, never stored: what harness.stats makes of the tables above, and what claims, plots and tables read.
EFFECT_COLUMNS = (
    "comparison",
    "study",
    "framework",
    "workload",  # of the arm
    "arm",
    "baseline",  # label of the baseline arm
    "metric",  # see harness.stats.METRICS
    "kind",  # "ratio" (treatment / baseline), "difference" (treatment - baseline), "value" or "mean"
    "estimate",
    "low",  # 95% interval
    "high",
    "order_low",  # order-statistic interval over launches, with its exact coverage
    "order_high",
    "order_coverage",
    "n",  # launches or seeds
    "status",  # of the arm: ok, or the worst that befell it
    "reason",
    "unfit",  # why no verdict may rest on it; empty where one may
)

VERDICT_COLUMNS = (
    "claim",
    "reading",
    "framework",
    "study",
    "workload",
    "arm",
    "metric",
    "estimate",
    "low",
    "high",
    "n",
    "range_low",
    "range_high",
    "verdict",
    "reason",
)
