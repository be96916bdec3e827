"""Figures: they show the data they are given, say where it comes from, and depend on nothing else."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
import synthetic  # type: ignore[import-not-found]
from matplotlib.figure import Figure

from harness import projected, store
from harness.claims import Claim, RunFacts, judge, load_claims
from harness.errors import ResultsError
from harness.plots import (
    accuracy,
    batch,
    communication,
    draw_all,
    forest,
    formats,
    loads,
    scaling,
    stalls,
    style,
    tradeoff,
    workers,
)
from harness.results_columns import ResultsWarning
from harness.results_reader import RunData
from harness.stats import effects
from harness.studies import load_studies

CPU_ONLY = RunFacts(kinds={"torch": frozenset({"cpu"}), "tensorflow": frozenset({"cpu"})})
STUDIES = ("batch-fp32", "precision", "numerics", "model-image")
Drawn = tuple[RunData, pd.DataFrame, pd.DataFrame, tuple[Claim, ...]]


def derived(run: Path, claimed: str = synthetic.CLAIMS) -> Drawn:
    """A run with what is judged of it."""
    data = store.read(run)
    (header,) = data.headers.values()
    made = effects(data.samples, data.trials, data.convergence, data.checks, baselines=header["baselines"])
    path = run.parent / "claims.yaml"
    path.write_text(claimed, encoding="utf-8")
    claims = load_claims(path, load_studies())
    return data, made, judge(claims, made, CPU_ONLY), claims


def drawn_into(found: Drawn, out: Path) -> dict[str, Path]:
    """Every figure of a run that holds some of the studies, by file name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResultsWarning)  # it names the figures of the other studies
        return {p.name: p for p in draw_all(*found, out)}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    return derived(synthetic.write_run(tmp_path_factory.mktemp("plots"), only=STUDIES))


@pytest.fixture(scope="module")
def files(drawn: Drawn, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return drawn_into(drawn, tmp_path_factory.mktemp("out"))


DATA_STUDIES = ("format-", "workers-")


@pytest.fixture(scope="module")
def data_path(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    run = synthetic.write_run(tmp_path_factory.mktemp("data"), only=DATA_STUDIES)
    return derived(run, synthetic.DATA_CLAIMS)


@pytest.fixture(scope="module")
def data_files(data_path: Drawn, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return drawn_into(data_path, tmp_path_factory.mktemp("out"))


@pytest.fixture
def styled() -> Iterator[None]:
    with style.styled():
        yield


def words(svg: Path) -> str:
    """All text of an SVG, as a reader sees it."""
    texts = ET.parse(svg).iter("{http://www.w3.org/2000/svg}text")
    return re.sub(r"\s+", " ", " ".join("".join(t.itertext()) for t in texts))


def lines(figure: Figure, axes: int = 0) -> list[Any]:
    """The lines of one panel."""
    return list(figure.axes[axes].lines)


def test_every_kind_of_figure_is_drawn_as_svg_and_png(files: dict[str, Path]):
    stems = {name.rsplit(".", 1)[0] for name in files}
    assert {"claims", "batch_cnn_fashion", "batch_resnet50", "memory_speedup_precision"} <= stems
    assert "accuracy_time_precision-accuracy" in stems
    assert {f"{stem}.{suffix}" for stem in stems for suffix in ("svg", "png")} == set(files)
    assert all(path.read_bytes().startswith(b"\x89PNG") for name, path in files.items() if name.endswith("png"))


def test_figures_lie_in_a_folder_of_their_run(drawn: Drawn, files: dict[str, Path]):
    (run_id,) = drawn[0].headers
    assert {path.parent.name for path in files.values()} == {run_id}


def test_the_data_path_has_its_figures(data_files: dict[str, Path]):
    assert set(data_files) == {
        f"{stem}.{suffix}"
        for stem in ("claims", "formats_cnn_photos", "workers_cnn_photos", "stalls_cnn_photos")
        for suffix in ("svg", "png")
    }


@pytest.mark.parametrize("fixtures", [("drawn", "files"), ("data_path", "data_files")])
def test_every_caption_names_machine_versions_n_interval_commit_and_command(
    fixtures: tuple[str, str], request: pytest.FixtureRequest
):
    found, files = (request.getfixturevalue(name) for name in fixtures)
    (run_id,) = found[0].headers
    for name, path in files.items():
        if name.endswith(".svg"):
            text = words(path)
            for said in ("Example CPU & Sons #1_x", "torch 0.0-made-up", "n = 6", run_id, "0123456789ab with"):
                assert said in text, f"{name} does not say {said!r}"
            assert re.search(r"95%|smallest and largest seed", text), name
            assert 'Command: pytest benchmarks/ --benchmark-only -k "made_up & 100%"' in text


def test_forest_plot_names_each_claim_and_what_was_not_run(files: dict[str, Path]):
    text = words(files["claims.svg"])
    for said in ("supported", "below (literal), supported (loose)", "out of scope", "amp-gpu"):
        assert said in text
    assert "Without a measurement: 3 of 9 claims." in text
    assert "2: no study yet | 1: not measurable by a program: a service, not a technique" in text
    assert "fp-eps" in text
    assert "percentage points" in text


def test_forest_plot_draws_proxies_hollow_and_grey(drawn: Drawn, styled: None):
    _, _, verdicts, claims = drawn
    (figure,) = forest.figures(verdicts, claims, ["caption"]).values()
    label = {t.get_text(): -i for i, t in enumerate(figure.axes[0].get_yticklabels())}
    proxy = label["amp-gpu"]
    marks = [m for m in lines(figure) if m.get_marker() in "os" and abs(m.get_ydata()[0] - proxy) < 0.4]
    assert len(marks) == 6
    assert {(m.get_markerfacecolor(), m.get_color()) for m in marks} == {("white", style.GREY)}


def test_forest_plot_tells_frameworks_apart_by_marker(drawn: Drawn, styled: None):
    _, _, verdicts, claims = drawn
    (figure,) = forest.figures(verdicts, claims, ["caption"]).values()
    colours = {m.get_marker(): m.get_color() for m in lines(figure) if m.get_color() != style.GREY}
    assert colours["o"] == style.BLUE
    assert colours["s"] == style.VERMILION


def test_a_moved_interval_moves_the_forest_plot(drawn: Drawn, tmp_path: Path, styled: None):
    _, _, verdicts, claims = drawn
    moved = verdicts.copy()
    chosen = (moved["claim"] == "light-speed") & (moved["framework"] == "torch")
    moved.loc[chosen, ["estimate", "low", "high"]] *= 1.05
    assert chosen.sum() == 2
    for name, rows in (("before", verdicts), ("after", moved)):
        (figure,) = forest.figures(rows, claims, ["caption"]).values()
        style.save(figure, tmp_path, name)
    assert (tmp_path / "before.svg").read_bytes() != (tmp_path / "after.svg").read_bytes()
    assert (tmp_path / "before.png").read_bytes() != (tmp_path / "after.png").read_bytes()


def test_the_same_data_gives_the_same_bytes(drawn: Drawn, tmp_path: Path):
    for out in ("a", "b"):
        with style.styled():
            for name, figure in accuracy.figures(drawn[0].convergence, ["caption"]).items():
                style.save(figure, tmp_path / out, name)
            for name, figure in forest.figures(drawn[2], drawn[3], ["caption"]).items():
                style.save(figure, tmp_path / out, name)
    first = sorted((tmp_path / "a").iterdir())
    assert len(first) >= 4
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in sorted((tmp_path / "b").iterdir())]
    assert not any(b"<dc:date>" in p.read_bytes() for p in first)


def test_batch_curves_hold_every_size_and_mark_what_ran_out_of_memory(drawn: Drawn, styled: None):
    data, made, *_ = drawn
    figure = batch.figures(data.samples, data.trials, made, ["caption"])["batch_resnet50"]
    assert [t.get_text() for t in figure.axes[2].get_xticklabels()] == [str(2**i) for i in range(3, 11)]
    curve = next(line for line in lines(figure) if len(line.get_xdata()) > 1)
    assert list(curve.get_xdata()) == [8, 16, 32, 64, 128, 256, 512]
    assert [line.get_xdata()[0] for line in lines(figure) if line.get_marker() == "x"] == [1024]


def marks(figure: Figure, axes: int, colour: str, marker: str) -> dict[float, float]:
    """By height, the places of the marks of one colour and shape in a panel."""
    chosen = (m for m in lines(figure, axes) if (m.get_color(), m.get_marker()) == (colour, marker))
    return {round(float(m.get_ydata()[0]), 2): float(m.get_xdata()[0]) for m in chosen}


def rate(data: RunData, comparison: str, arm: str) -> float:
    """Images a second: geometric mean over launches of the launch's median, computed plainly."""
    own = data.samples[(data.samples["comparison"] == comparison) & (data.samples["arm"] == arm)]
    launches = (own["items"] / own["seconds"]).groupby(own["launch"]).median()
    return math.exp(sum(math.log(v) for v in launches) / len(launches))


def test_formats_show_cold_warm_and_training_rates_with_intervals_over_launches(data_path: Drawn, styled: None):
    data = data_path[0]
    figure = formats.figures(data.samples, data.trials, ["caption"])["formats_cnn_photos"]
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["PyTorch", "TensorFlow"]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [*synthetic.FORMATS]
    for study, colour, marker, beside in (
        ("format-load-cold", style.SKY, "v", 0.27),
        ("format-load", style.BLUE, "o", 0.09),
        ("format-train", style.VERMILION, "s", -0.09),
    ):
        found = marks(figure, 0, colour, marker)
        assert len(found) == len(synthetic.FORMATS)
        for i, arm in enumerate(synthetic.FORMATS):
            place = found[round(beside - i, 2)]
            assert place == pytest.approx(rate(data, f"{study}/torch/cnn_photos", arm))
            bars = [m for m in lines(figure) if len(m.get_xdata()) == 2 and m.get_ydata()[0] == beside - i]
            low, high = bars[0].get_xdata()
            assert low < place < high


def test_what_did_not_run_is_named_with_its_reason_and_has_no_mark(data_path: Drawn, data_files: dict[str, Path]):
    reason = "unavailable: webdataset is a loader of PyTorch"
    for name in ("formats_cnn_photos.svg", "stalls_cnn_photos.svg"):
        assert f"Not drawn: TensorFlow webdataset ({reason})." in words(data_files[name])
    assert "Not drawn: PyTorch half (unavailable: half of 2 cores" in words(data_files["workers_cnn_photos.svg"])
    data = data_path[0]
    with style.styled():
        figure = formats.figures(data.samples, data.trials, ["caption"])["formats_cnn_photos"]
    row = synthetic.FORMATS.index("webdataset")
    for axes, there in ((0, 3), (1, 0)):
        near = [m for m in lines(figure, axes) if len(m.get_xdata()) == 1 and abs(m.get_ydata()[0] + row) < 0.4]
        assert len(near) == there


def test_an_arm_that_failed_in_one_study_only_is_named_with_it(data_path: Drawn):
    trials = data_path[0].trials.copy()
    lost = (trials["study"] == "format-load-cold") & (trials["arm"] == "npy") & (trials["framework"] == "torch")
    trials = trials.astype({"status": object, "reason": object})
    trials.loc[lost, ["status", "reason"]] = ["error", "100% was cached"]
    assert "Not drawn: PyTorch npy in format-load-cold (error: 100% was cached)." in loads.not_drawn(
        loads.sweep(trials, "format")
    )


def test_workers_mark_both_recommendations_and_the_fastest(data_path: Drawn, styled: None):
    data, made, *_ = data_path
    ((_, header),) = data.headers.items()
    figure = workers.figures(data.samples, data.trials, header["baselines"], ["caption"])["workers_cnn_photos"]
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        "PyTorch, loading alone",
        "PyTorch, training end to end",
    ]
    for axes, kind in ((0, "load"), (1, "train")):
        upright = [m for m in lines(figure, axes) if m.get_linestyle() in (":", "--")]
        assert [m.get_xdata()[0] for m in upright] == [2, 4]
        assert [t.get_text() for t in figure.axes[axes].texts] == ["cores", "2 × cores"]
        curves = [m for m in lines(figure, axes) if len(m.get_xdata()) > 2]
        assert [list(m.get_xdata()) for m in curves] == [[0, 1, 2, 4, 8]] * 3
        assert curves[0].get_ydata()[2] == pytest.approx(rate(data, f"workers-{kind}/torch/cnn_photos", "cores"))
        rings: dict[bool, list[float]] = {}
        for m in lines(figure, axes):
            if m.get_markerfacecolor() == "none":
                rings.setdefault(m.get_markeredgewidth() > 2, []).append(m.get_xdata()[0] / synthetic.CORES)
        best = made[
            (made["metric"] == "best_workers_per_core") & made["study"].isin(f"workers{s}-{kind}" for s in KINDS)
        ]
        assert sorted(rings[True]) == sorted(best["estimate"])
        assert sorted(set(rings[True] + rings[False])) == sorted({*best["low"], *best["high"]})


KINDS = ("", "-costly", "-slow")


def test_stall_shares_are_the_effects_by_format_and_by_workers(data_path: Drawn, styled: None):
    data, made, *_ = data_path
    figure = stalls.figures(made, data.trials, ["caption"])["stalls_cnn_photos"]
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        "by format (workers: cores)",
        "by workers (format: files)",
    ]
    labels = [t.get_text() for t in figure.axes[1].get_yticklabels()]
    assert labels == ["none (0)", "one (1)", "half", "cores (2)", "double (4)", "quadruple (8)"]
    shares = made[made["metric"] == "stall_share"].set_index(["study", "framework", "arm"])["estimate"]
    torch = marks(figure, 0, style.BLUE, "o")
    assert [torch[round(0.09 - i, 2)] for i in range(8)] == [
        shares["format-train", "torch", f] for f in synthetic.FORMATS
    ]
    plain = marks(figure, 1, style.GREEN, "^")
    assert plain[0.18] == shares["workers-train", "torch", "none"]
    assert not any(abs(y + 2) < 0.4 for y in plain), "the level half has no value"
    assert figure.axes[1].get_xlim() == (-0.02, 1.02)


def test_a_share_has_a_panel_of_its_own_among_the_claims(data_path: Drawn, styled: None):
    _, made, verdicts, claims = data_path
    (figure,) = forest.figures(verdicts, claims, ["caption"]).values()
    panel = figure.axes[1]
    assert panel.get_xlabel() == "share of the training time spent waiting for a batch"
    share = made[(made["metric"] == "stall_share") & (made["study"] == "format-train") & (made["arm"] == "files")]
    places = {m.get_xdata()[0] for m in lines(figure, 1) if m.get_marker() in "os" and len(m.get_xdata()) == 1}
    assert places == set(share["estimate"])


def test_scaling_is_drawn_against_the_devices_and_what_is_oversubscribed_is_hollow(tmp_path: Path, styled: None):
    data, made, _, claims = derived(synthetic.write_run(tmp_path, only=("ddp-", "mirrored-")), synthetic.SCALE_CLAIMS)
    ((_, header),) = data.headers.items()
    figure = scaling.figures(made, data, header["baselines"], claims, ["caption"])["scaling_cnn_fashion"]
    assert not [line for line in lines(figure, 0) if line.get_linestyle() == "--"], "no exchange was measured"
    drawn = lines(figure, 0)
    assert any(list(line.get_ydata()) == [2.0, 7.3] for line in drawn if line.get_marker() == "D")
    filled, hollow = (
        [
            n
            for m in drawn
            if m.get_marker() in "os" and (m.get_markerfacecolor() == "white") is white
            for n in m.get_xdata()
        ]
        for white in (False, True)
    )
    assert set(filled) == {2}
    assert set(hollow) == {4, 8}
    efficiency = [y for m in lines(figure, 2) if m.get_marker() == "o" for y in m.get_ydata()]
    assert efficiency
    assert max(efficiency) < 1.1


def test_scaling_needs_several_devices(data_path: Drawn):
    data, made, _, claims = data_path
    with pytest.raises(style.NothingToDraw, match="no comparison varies the devices"):
        scaling.figures(made, data, {}, claims, ["caption"])


def test_a_projection_is_dashed_beside_what_was_measured(tmp_path: Path, styled: None):
    data, made, _, claims = derived(synthetic.write_run(tmp_path, only=("ddp-", "mirrored-")), synthetic.SCALE_CLAIMS)
    ((_, header),) = data.headers.items()
    costs = dict.fromkeys(projected.NEEDED, 0.0) | {"link_bandwidth": 1e12, "beside_ratio": 1.25}
    checks = pd.DataFrame([{"workload": "cnn_fashion", "check": name, "value": cost} for name, cost in costs.items()])
    with_costs = replace(data, checks=checks)
    drawn = scaling.figures(made, with_costs, header["baselines"], claims, ["caption"])
    for column in (0, 1):
        (dashed,) = [line for line in lines(drawn["scaling_cnn_fashion"], column) if line.get_linestyle() == "--"]
        speedups = [float(n / (1 if n == 1 else 1.25)) for n in dashed.get_xdata()]
        assert list(dashed.get_ydata()) == pytest.approx(speedups, rel=1e-3), "a free link leaves the memory's share"
    assert not [line for line in lines(drawn["scaling_resnet50"], 0) if line.get_linestyle() == "--"]


def test_the_share_of_communication_and_each_way_to_exchange_are_drawn(tmp_path: Path, styled: None):
    run = synthetic.write_run(tmp_path, only=("gradient-exchange",))
    _, made, *_ = derived(run, synthetic.SCALE_CLAIMS)
    figure = communication.figures(made, ["caption"])["communication"]
    left, right = figure.axes
    assert [t.get_text() for t in left.get_yticklabels()] == ["cnn_fashion", "resnet50"]
    assert [t.get_text().split("\n")[0] for t in right.get_yticklabels()] == ["after", "none", "bf16"]
    shares = made[made["metric"] == "communication_share"].sort_values("workload")["estimate"]
    assert sorted(m.get_xdata()[0] for m in lines(figure, 0)) == pytest.approx(sorted(shares))
    with pytest.raises(style.NothingToDraw, match="-k gradient-exchange"):
        communication.figures(made[made["metric"] == "throughput"], ["caption"])


def test_the_batch_of_several_devices_is_not_drawn_among_those_of_one(drawn: Drawn):
    data = drawn[0]
    swept = batch.batch_trials(data.trials)
    assert set(swept["toggle_strategy"]) == {"single"}
    assert len(batch.batch_trials(data.trials.assign(toggle_strategy="ddp"))) == 0


def test_claims_measured_twice_say_in_which_study(data_path: Drawn, data_files: dict[str, Path]):
    text = words(data_files["claims.svg"])
    for said in ("packed-format load format-load lmdb", "packed-format load format-load-cold lmdb"):
        assert said in text
    assert re.search(r"workers-1x, best_workers_per_core: .*\(torch, workers-slow-load\)", text)


def test_the_figures_of_the_data_path_need_a_sweep(data_path: Drawn):
    data, made, *_ = data_path
    few = data.trials[data.trials["arm"].isin(["files", "lmdb", "none", "cores"])]
    with pytest.raises(style.NothingToDraw, match="no trial sweeps toggle_format"):
        formats.figures(data.samples, few, ["caption"])
    with pytest.raises(style.NothingToDraw, match="no trial sweeps toggle_workers"):
        workers.figures(data.samples, few, {}, ["caption"])
    with pytest.raises(style.NothingToDraw, match="no training end to end with a value sweeps"):
        stalls.figures(made, few, ["caption"])


def test_a_sweep_without_any_value_is_not_an_empty_figure(data_path: Drawn):
    data = data_path[0]
    ((_, header),) = data.headers.items()
    lost = data.trials.assign(status="error", reason="the disk is full")
    for make in (
        lambda: formats.figures(data.samples.iloc[:0], lost, ["caption"]),
        lambda: workers.figures(data.samples.iloc[:0], lost, header["baselines"], ["caption"]),
    ):
        with pytest.raises(style.NothingToDraw, match=r"no arm has a value.*the disk is full"):
            make()


def test_throughput_bands_are_over_launches_not_blocks():
    blocks = [(launch, 10.0 * (1 + launch)) for launch in range(3) for _ in range(50)]
    samples = pd.DataFrame(
        {
            "comparison": "c",
            "arm": "a",
            "launch": [b[0] for b in blocks],
            "items": 100,
            "seconds": [b[1] for b in blocks],
        }
    )
    (row,) = batch.throughput(samples).to_dict("records")
    assert row["n"] == 3
    assert row["high"] / row["low"] > 4  # fifty blocks a launch would make it narrow


def test_memory_against_speedup_has_the_baseline_at_one_and_no_twin(drawn: Drawn, styled: None):
    figure = tradeoff.figures(drawn[1], ["caption"])["memory_speedup_precision"]
    crosses = [m for m in lines(figure) if m.get_marker() == "+"]
    assert [(m.get_xdata()[0], m.get_ydata()[0]) for m in crosses] == [(1, 1)]
    assert "control" not in [t.get_text() for t in figure.legends[0].get_texts()]
    corners = {t.get_text() for t in figure.axes[0].texts}
    assert corners == {f"{s}, {m} memory" for s in ("faster", "slower") for m in ("more", "less")}


def test_accuracy_shows_every_seed_and_the_target(drawn: Drawn, styled: None):
    figure = accuracy.figures(drawn[0].convergence, ["caption"])["accuracy_time_precision-accuracy"]
    thin = [line for line in lines(figure) if line.get_marker() == "."]
    assert len(thin) == 3 * synthetic.SEEDS
    assert all(len(line.get_xdata()) == synthetic.EPOCHS for line in thin)
    assert any(list(line.get_ydata()) == [0.8, 0.8] for line in lines(figure))


def test_a_figure_without_rows_is_left_out_and_named(drawn: Drawn, tmp_path: Path):
    data, made, verdicts, claims = drawn
    bare = replace(data, convergence=data.convergence.iloc[:0], trials=data.trials.iloc[:0])
    with pytest.warns(ResultsWarning, match="left out") as told:
        paths = draw_all(bare, made.iloc[:0], verdicts, claims, tmp_path)
    assert [p.name for p in paths] == ["claims.svg", "claims.png"]
    assert re.search(r"convergence\.csv has no rows", " ".join(str(w.message) for w in told))
    assert re.search(r"no trial sweeps toggle_batch", " ".join(str(w.message) for w in told))


def test_nothing_to_draw_is_an_error_that_says_what_is_missing(drawn: Drawn, tmp_path: Path):
    data, made, verdicts, claims = drawn
    bare = replace(data, convergence=data.convergence.iloc[:0], trials=data.trials.iloc[:0])
    with pytest.raises(ResultsError, match=r"nothing to draw.*no claim has a measurement"):
        draw_all(bare, made.iloc[:0], verdicts.iloc[:0], claims, tmp_path)
    assert not list(tmp_path.rglob("*.*"))


def test_a_figure_that_lost_its_data_does_not_stay(drawn: Drawn, tmp_path: Path):
    data, made, verdicts, claims = drawn
    (run_id,) = data.headers
    stale, foreign = tmp_path / run_id / "batch_gone.svg", tmp_path / run_id / "mine.svg"
    stale.parent.mkdir()
    stale.write_text("old")
    foreign.write_text("kept")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bare = replace(data, convergence=data.convergence.iloc[:0], trials=data.trials.iloc[:0])
        draw_all(bare, made.iloc[:0], verdicts, claims, tmp_path)
    assert not stale.exists()
    assert foreign.read_text() == "kept"


def test_an_unwritable_folder_is_told_in_one_line(drawn: Drawn, tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ResultsError, match="choose another folder with --out") as raised:
        draw_all(*drawn, blocked)
    assert "\n" not in str(raised.value)


def test_runs_are_never_mixed_in_one_figure(drawn: Drawn, tmp_path: Path):
    data, made, verdicts, claims = drawn
    ((run_id, header),) = data.headers.items()
    two = replace(data, headers={run_id: header, "other": header})
    with pytest.raises(ResultsError, match="one run at a time"):
        draw_all(two, made, verdicts, claims, tmp_path)


def test_arms_are_coloured_in_natural_order_and_told_apart_twice():
    made = style.colour_of(["b128", "b8", "b16"])
    assert list(made) == ["b8", "b16", "b128"]
    assert len(set(style.colour_of([f"b{i}" for i in range(56)]).values())) == 56
