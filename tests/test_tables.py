"""Tables: verdicts that fit a terminal, and tables to cite in Markdown, LaTeX and CSV."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import synthetic  # type: ignore[import-not-found]
from rich.cells import cell_len

from harness import store, summary, tables
from harness.claims import RunFacts, judge, load_claims
from harness.errors import ConfigError, ResultsError
from harness.selfcheck import Figure
from harness.stats import effects
from harness.studies import load_studies

CPU_ONLY = RunFacts(kinds={"torch": frozenset({"cpu"}), "tensorflow": frozenset({"cpu"})})


@pytest.fixture(scope="module")
def header(run: Path) -> dict[str, Any]:
    (found,) = store.read(run).headers.values()
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written: Path = synthetic.write_run(
        tmp_path_factory.mktemp("tables"), only=("batch-fp32", "precision", "numerics", "device")
    )
    return written


@pytest.fixture(scope="module")
def made(run: Path, header: dict[str, Any]) -> pd.DataFrame:
    data = store.read(run)
    return effects(data.samples, data.trials, data.convergence, data.checks, baselines=header["baselines"])


@pytest.fixture(scope="module")
def verdicts(made: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    path = tmp_path_factory.mktemp("claims") / "claims.yaml"
    path.write_text(synthetic.CLAIMS, encoding="utf-8")
    return judge(load_claims(path, load_studies()), made, CPU_ONLY)


def test_the_verdict_table_fits_80_columns_and_has_no_colour_in_a_pipe(verdicts: pd.DataFrame):
    text = tables.terminal(verdicts)
    table = text.split("Without a measurement")[0]
    assert max(cell_len(line) for line in table.splitlines()) <= 80
    assert "\x1b" not in text
    assert "\x1b[" in tables.terminal(verdicts, colour=True)


def test_the_verdict_table_shows_claim_range_interval_n_and_verdict(verdicts: pd.DataFrame):
    row = next(
        r for r in summary.measurements(verdicts).to_dict("records") if (r["claim"], r["arm"]) == ("batch-up", "b64")
    )
    text = tables.terminal(verdicts)
    assert re.search(r"^batch-up +≥1x", text, re.MULTILINE)
    interval = re.escape(summary.interval(row["estimate"], row["low"], row["high"], "throughput"))
    assert re.search(rf"b64 +{interval} +6 +supported", text)


def test_claims_without_a_measurement_are_one_line_a_reason(verdicts: pd.DataFrame):
    lines = tables.terminal(verdicts).splitlines()
    assert "Without a measurement: 4 of 9 claims." in lines
    assert "no study yet (2): workers-1x, npy-cache" in lines


def test_readings_that_disagree_are_both_told(verdicts: pd.DataFrame):
    rows = summary.measurements(verdicts)
    speed = rows[(rows["claim"] == "amp-speed") & (rows["metric"] == "throughput") & (rows["arm"] == "bf16")]
    assert set(speed["verdict"]) == {"below (literal), supported (loose)"}
    assert set(speed["group"]) == {summary.DIFFER}


def test_markdown_has_one_table_a_study_with_everything_to_cite_it(made: pd.DataFrame, header: dict[str, Any]):
    (table,) = tables.citable(made, header, study="batch-fp32")
    text = tables.markdown(table)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in rows} == {len(table.columns) + 1}
    assert rows[0].split(" | ")[3] == "n"
    for said in ("Example CPU", "torch 0.0-made-up", "0123456789ab", header["run_id"], "pytest benchmarks/", "b32"):
        assert said in text
    assert len(tables.citable(made, header)) == made["study"].nunique()


def test_failures_are_rows_with_their_status_and_reason(made: pd.DataFrame, header: dict[str, Any]):
    (table,) = tables.citable(made, header, study="batch-fp32")
    assert ("torch", "resnet50", "b1024", "0", "oom", "oom", "oom") in table.rows
    assert any("not enough memory for a batch of 1024" in note for note in table.notes)


def test_a_step_time_is_not_told_beside_the_throughput_that_it_turns_upside_down(made: pd.DataFrame, header: Any):
    assert (made["metric"] == "step_time").any()
    assert not any("step time" in table.columns for table in tables.citable(made, header))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """Effects, verdicts and header of a made-up run of the data path."""
    run = synthetic.write_run(tmp_path_factory.mktemp("loaded"), only=("format-", "workers-load", "workers-slow-load"))
    data = store.read(run)
    (header,) = data.headers.values()
    made = effects(data.samples, data.trials, data.convergence, data.checks, baselines=header["baselines"])
    path = run.parent / "claims.yaml"
    path.write_text(synthetic.DATA_CLAIMS, encoding="utf-8")
    return made, judge(load_claims(path, load_studies()), made, CPU_ONLY), header


def test_a_claim_measured_in_two_studies_says_in_which(loaded: tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]):
    _, verdicts, header = loaded
    text = tables.terminal(verdicts, width=120)
    assert re.search(r"^ torch format-load lmdb +1\.", text, re.MULTILINE)
    assert re.search(r"^ torch format-load-cold lmdb +1\.", text, re.MULTILINE)
    assert re.search(r"^ torch cnn_photos files +0\.1\d\d \[", text, re.MULTILINE), "one study needs no name"
    cited = tables.citable_verdicts(verdicts, header)
    assert cited.columns[2] == "study"
    assert {row[2] for row in cited.rows if row[0] == "packed-format"} == {"format-load", "format-load-cold"}


def test_a_baseline_has_its_own_row_where_a_value_is_of_one_arm_alone(
    loaded: tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]],
):
    made, _, header = loaded
    (trained,) = tables.citable(made, header, study="format-train")
    files = next(row for row in trained.rows if row[:3] == ("torch", "cnn_photos", "files"))
    assert files[trained.columns.index("throughput")] == "–"
    assert re.fullmatch(r"0\.1\d\d \[0\.\d+, 0\.\d+\]", files[trained.columns.index("stall share")])
    (workers,) = tables.citable(made, header, study="workers-load")
    none = next(row for row in workers.rows if row[2] == "none")
    assert none[3] == "6", "n counts launches, not the arms that tie"
    assert none[workers.columns.index("best workers per core")].startswith(("1.00 [1.00, 2.00]", "2.00 [1.00, 2.00]"))


def test_arms_stand_in_natural_order_pytorch_first_the_twin_last(made: pd.DataFrame, header: dict[str, Any]):
    (table,) = tables.citable(made, header, study="batch-fp32")
    assert table.rows[0][0] == "torch"
    first = [row[2] for row in table.rows if row[:2] == ("torch", "cnn_fashion")]
    assert first == ["b8", "b16", "b64", "b128", "b256", "b512", "b1024", "control"]


def test_latex_is_balanced_and_escaped(made: pd.DataFrame, verdicts: pd.DataFrame, header: dict[str, Any]):
    for table in [*tables.citable(made, header), tables.citable_verdicts(verdicts, header)]:
        text = tables.latex(table)
        for opened in re.findall(r"\\begin\{(\w+)\}", text):
            assert text.count(rf"\end{{{opened}}}") == 1
        assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
        body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
        assert {len(re.findall(r"(?<!\\)&", row)) for row in body.split(r"\\") if row.strip()} == {
            len(table.columns) - 1
        }
        assert not re.search(r"(?<!\\)[_%#]", text)
        assert text.isascii(), sorted({c for c in text if not c.isascii()})


def test_tex_escapes_every_special_character():
    assert tables.tex("50% of a_b & $1 #2 {x} ~^\\") == (
        r"50\% of a\_b \& \$1 \#2 \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{}"
    )


def test_csv_reads_back_and_each_row_stands_alone(made: pd.DataFrame, header: dict[str, Any]):
    back = pd.read_csv(io.StringIO(tables.as_csv(made, header)), keep_default_na=False, na_values=[""])
    assert len(back) == len(made)
    pd.testing.assert_series_equal(back["estimate"], made["estimate"])
    assert set(back["command"]) == {header["command"]}
    assert set(back["run_id"]) == {header["run_id"]}
    assert not back[["machine", "versions", "commit", "profile"]].isna().any().any()


def test_an_unknown_study_names_the_nearest(made: pd.DataFrame, header: dict[str, Any]):
    with pytest.raises(ConfigError, match="Did you mean 'precision'"):
        tables.citable(made, header, study="precison")


def test_a_run_without_effects_says_so(made: pd.DataFrame, header: dict[str, Any]):
    with pytest.raises(ResultsError, match="nothing to tabulate"):
        tables.citable(made.iloc[:0], header)


@pytest.mark.parametrize(
    ("low", "high", "metric", "said"),
    [
        (2.0, 3.0, "throughput", "2 to 3x"),
        (1.0, math.nan, "throughput", "≥1x"),
        (-math.inf, 0.5, "memory", "≤0.5x"),
        (0.5, 0.5, "memory", "0.5x"),
        (-2.0, -1.0, "accuracy", "-2 to -1 pp"),
        (-1.0, 0.0, "accuracy_relative", "-1 to 0%"),
        (0.0009, 0.0011, "eps_float16", "0.0009 to 0.0011"),
    ],
)
def test_claimed_ranges_in_words(low: float, high: float, metric: str, said: str):
    assert summary.bounds(low, high, metric) == said


@pytest.mark.parametrize(
    ("values", "metric", "said"),
    [
        ((1.2345, 1.2, 1.3), "throughput", "1.23x [1.20, 1.30]"),
        ((123.4, 99.9, 150.0), "throughput", "123x [99.9, 150]"),
        ((-0.125, -0.5, 0.25), "accuracy", "-0.12 pp [-0.50, +0.25]"),
        ((1.5, math.nan, math.nan), "throughput", "1.50x [no interval]"),
        ((math.nan, math.nan, math.nan), "throughput", "–"),
        ((1.19e-7, 1.19e-7, 1.19e-7), "eps_float32", "1.19e-07 [1.19e-07, 1.19e-07]"),
    ],
)
def test_measured_intervals_in_words(values: tuple[float, float, float], metric: str, said: str):
    assert summary.interval(*values, metric) == said


def test_a_missed_target_of_the_audit_stands_out():
    figures = [
        Figure(name="overhead, torch", target="within 1%", measured="1.002", passed=True),
        Figure(name="null toggle", target="36 of 40", measured="30 of 40", passed=False),
        Figure(name="parent process", target="300 MB", measured="", passed=None, detail="no quick run yet"),
    ]
    text = tables.targets(figures)
    assert re.search(r"overhead, torch +within 1% +1\.002 +ok", text)
    assert re.search(r"null toggle +36 of 40 +30 of 40 +MISSED", text)
    assert re.search(r"parent process +300 MB +no quick run yet +-", text)
    assert max(cell_len(line) for line in text.splitlines()) <= 80
