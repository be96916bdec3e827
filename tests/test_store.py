"""results/: what is written can be read back as it was, and what is broken is named in one line."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from harness import results_docs
from harness.errors import ResultsError
from harness.schema import SAMPLES, SCHEMA_VERSION, TABLES, TRIALS, toggle_column
from harness.spec import Status
from harness.store import ResultsWarning, RunStore, read, read_all, write_docs
from harness.techniques import TOGGLES

ROOT = Path(__file__).resolve().parents[1]
COMPARISON = "precision/torch/cnn_fashion"
HEADER = {"command": "pytest benchmarks/ --benchmark-only", "profile": {"name": "smoke", "content": {"launches": 2}}}
PLAN = [{"comparison": COMPARISON, "baseline": "fp32", "arms": ["fp32", "bf16", "control"]}]


def cell(arm: str = "fp32", **more: object) -> dict[str, object]:
    levels = {**{t.name: t.default for t in TOGGLES.values()}, "device": "cpu", "batch": "32"}
    return {
        "comparison": COMPARISON,
        "study": "precision",
        "framework": "torch",
        "workload": "cnn_fashion",
        "arm": arm,
        "size": 28,
        **{toggle_column(name): level for name, level in levels.items()},
        **more,
    }


def sample(arm: str = "fp32", launch: int = 0, number: int = 0, **more: object) -> dict[str, object]:
    timing = {"steps": 10, "items": 320, "seconds": 0.1 + number / 3, "drain_s": 1e-05}
    return cell(arm, launch=launch, round=number, turn=0, **timing) | more


def trial(arm: str = "fp32", launch: int = 0, **more: object) -> dict[str, object]:
    return cell(arm, mode="steady", launch=launch, status="ok", settled=True, peak_bytes=2**33, start_s=0.25) | more


def whole_launch(
    launch: int, arms: tuple[str, ...] = ("fp32", "bf16", "control")
) -> dict[str, list[dict[str, object]]]:
    return {
        "trials": [trial(a, launch) for a in arms],
        "samples": [sample(a, launch, n) for n in range(3) for a in arms],
    }


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "results", HEADER | {"plan": PLAN})


# --- what is written comes back


def test_rows_come_back_with_their_types_and_values(store: RunStore) -> None:
    store.append_many({"samples": [sample(number=n) for n in range(4)], "trials": [trial(energy_j=None)]})
    data = read(store.path)
    assert list(data.samples["seconds"]) == [0.1 + n / 3 for n in range(4)]  # exactly, to the last bit
    assert data.samples["launch"].dtype == "int64"
    assert data.samples["arm"].dtype == "category"
    assert data.trials["peak_bytes"].dtype == "Int64"
    assert data.trials["peak_bytes"][0] == 2**33
    assert data.trials["settled"].dtype == "boolean"
    assert data.trials["settled"][0] == True  # noqa: E712 - a nullable boolean
    assert data.trials[["energy_j", "reason", "parameters", "observed_scaled"]].isna().all(axis=None)
    assert (data.samples["run_id"] == store.run_id).all()
    assert data.headers[store.run_id]["profile"] == HEADER["profile"]


def test_the_level_none_is_a_name_and_not_null(store: RunStore) -> None:
    store.append_many({"trials": [trial()], "samples": [sample()]})
    assert read(store.path).samples["toggle_extra_work"][0] == "none"


def test_a_table_ends_in_a_column_that_is_never_empty() -> None:
    """Else every steady sample, which has no loader, sends the reader through the rows one by one."""
    assert not SAMPLES.columns[-1].null_when


def test_a_loader_s_times_are_kept_and_the_columns_of_a_step_stay_empty(store: RunStore) -> None:
    loaded = cell("files", launch=0, mode="loading", status="ok", observed_workers=2, stored_bytes=10**7)
    store.append("trials", [loaded, trial(framework="sklearn")])
    store.append("samples", [sample("files", loader_start_s=0.02, wait_s=0.09), sample()])
    data = read(store.path)
    assert data.samples["wait_s"].tolist()[0] == 0.09
    assert data.samples[["wait_s", "loader_start_s"]].iloc[1].isna().all()
    assert data.trials["observed_workers"].dtype == "Int64"
    assert data.trials["stored_bytes"][0] == 10**7
    assert pd.isna(data.trials["observed_dtype"][0])
    assert data.trials["framework"][1] == "sklearn"


def test_numpy_scalars_and_enums_are_values(store: RunStore) -> None:
    row = trial(
        status=Status.OOM, reason="no memory", peak_bytes=np.int64(7), start_s=np.float32(0.5), settled=np.True_
    )
    store.append("trials", [row])
    trials = read(store.path).trials
    assert (trials["status"][0], trials["peak_bytes"][0], trials["start_s"][0]) == ("oom", 7, 0.5)


def test_a_number_that_is_not_finite_is_null_where_null_is_allowed(store: RunStore) -> None:
    store.append("trials", [trial()])
    store.append("checks", [cell(launch=0, check="overflow", value=float("inf"), detail="fp16 without scaling")])
    assert read(store.path).checks["value"].isna().all()


def test_a_text_with_line_breaks_quotes_and_control_characters_stays_one_row(store: RunStore) -> None:
    store.append("trials", [trial(status="error", reason='a "b",\r\n  c\x00d é \udc80'), trial("bf16")])
    assert (store.path / "trials.csv").read_bytes().count(b"\n") == 3
    assert read(store.path).trials["reason"][0] == 'a "b", / c d é ?'


def test_a_table_without_rows_reads_as_an_empty_frame_of_the_right_types(store: RunStore) -> None:
    data = read(store.path)
    for table in TABLES:
        frame = getattr(data, table.name)
        assert list(frame.columns) == table.names
        assert len(frame) == 0
    assert data.samples["seconds"].dtype == "float64"


def test_runs_read_together_keep_text_categorical(tmp_path: Path) -> None:
    for arms in (("fp32", "bf16"), ("tf32", "fp32"), ()):
        store = RunStore.create(tmp_path, HEADER)
        if arms:
            store.append_many(whole_launch(0, arms))
    data = read_all(tmp_path)
    assert data.samples["arm"].dtype == "category"
    assert len(data.headers) == 3
    assert sorted(data.trials["arm"]) == ["bf16", "fp32", "fp32", "tf32"]


def test_a_toggle_younger_than_the_file_reads_as_its_default(store: RunStore) -> None:
    store.append_many(whole_launch(0))
    frame = pd.read_csv(store.path / "samples.csv", keep_default_na=False)
    frame.drop(columns="toggle_layout").to_csv(store.path / "samples.csv", index=False)
    assert (read(store.path).samples["toggle_layout"] == "native").all()


def test_a_column_younger_than_the_file_is_empty(store: RunStore) -> None:
    store.append_many(whole_launch(0))
    frame = pd.read_csv(store.path / "trials.csv", keep_default_na=False)
    frame.drop(columns=["observed_devices", "oversubscribed"]).to_csv(store.path / "trials.csv", index=False)
    found = read(store.path).trials
    assert found["oversubscribed"].isna().all()
    assert found["oversubscribed"].dtype == "boolean"
    assert found["observed_devices"].isna().all()


def test_many_samples_read_fast_and_small(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, HEADER)
    store.append_many({"samples": [sample(number=n) for n in range(1000)], "trials": [trial()]})
    path = store.path / "samples.csv"
    header, _, rows = path.read_text().partition("\n")
    path.write_text(header + "\n" + rows * 200)
    code = """
        import sys, time
        from harness.machine import parent_peak_bytes
        from harness.store import read
        import harness.results_reader
        start = time.process_time()
        data = read(sys.argv[1])
        print(len(data.samples), time.process_time() - start, parent_peak_bytes())
    """
    count, seconds, peak = python(code, str(store.path)).stdout.split()
    assert int(count) == 200_000
    assert float(seconds) < 1.2 + 0.5  # a million rows in 6 s of one core; half a second for what does not grow
    assert int(peak) < 300e6


# --- what may not be written


@pytest.mark.parametrize(
    ("table", "row", "words"),
    [
        ("sample", {}, ["unknown table 'sample'", "Did you mean 'samples'"]),
        ("samples", sample(second=1.0), ["unknown column 'second'", "Did you mean 'seconds'"]),
        ("samples", {k: v for k, v in sample().items() if k != "drain_s"}, ["'drain_s' is missing"]),
        ("samples", sample(seconds=None), ["'seconds'", "None", "never empty"]),
        ("samples", sample(seconds=float("nan")), ["'seconds'", "nan", "a finite number"]),
        ("samples", sample(seconds="0.1"), ["'seconds'", "'0.1'", "a finite number"]),
        ("samples", sample(steps=1.5), ["'steps'", "1.5", "a whole number"]),
        ("samples", sample(steps=True), ["'steps'", "True", "a whole number"]),
        ("samples", sample(toggle_precision="bf61"), ["'bf61'", "fp32, tf32, bf16, fp16", "Did you mean 'bf16'"]),
        ("samples", sample(toggle_batch="0"), ["'toggle_batch'", "'0'", "a whole number above 0"]),
        ("samples", sample(run_id="another"), ["'another'", "the run of this folder"]),
        ("trials", trial(settled="yes"), ["'settled'", "'yes'", "true or false"]),
        ("trials", trial(status="fine"), ["'fine'", "ok, unavailable, oom"]),
    ],
)
def test_a_wrong_row_is_refused_with_place_value_and_what_is_allowed(
    store: RunStore, table: str, row: dict[str, object], words: list[str]
) -> None:
    good = {"samples": sample(), "trials": trial()}.get(table, row)
    with pytest.raises(ResultsError) as caught:
        store.append(table, [good, row])
    for word in words:
        assert word in str(caught.value)
    assert not list(store.path.glob("*.csv"))  # the good row before it did not land alone


# --- run.yaml


def test_two_runs_in_the_same_minute_have_two_folders(tmp_path: Path) -> None:
    machine = {"machine": {"cores": 2, "gpus": []}}
    names = {RunStore.create(tmp_path, HEADER | machine).run_id for _ in range(5)}
    assert len(names) == 5
    assert all("Z-cpu2-" in name for name in names)


def test_the_folder_is_named_after_the_gpus(tmp_path: Path) -> None:
    gpus = [{"name": "NVIDIA H200"}] * 2
    assert "Z-h200x2-" in RunStore.create(tmp_path, HEADER | {"machine": {"cores": 2, "gpus": gpus}}).run_id


def test_header_keeps_the_command_and_hides_paths(tmp_path: Path) -> None:
    command = f"pytest {ROOT}/benchmarks"
    machine = {"note": f"read from {ROOT}/harness and {Path.home()}/x", "cores": 1}
    text = (RunStore.create(tmp_path, HEADER | {"command": command, "machine": machine}).path / "run.yaml").read_text()
    assert yaml.safe_load(text)["command"] == command
    assert yaml.safe_load(text)["machine"]["note"] == "read from ./harness and ~/x"


def test_update_replaces_fields_and_says_when_it_ended(store: RunStore) -> None:
    timing = {"wall_s": 10, "measured_s": 7.5, "measured_share": 0.75, "parent_peak_bytes": 10**8}
    spent = {"comparisons": {COMPARISON: {"wall_s": 9.0, "measured_s": 7.5}}}
    store.update_header(state="finished", timing={**timing, **spent})
    header = RunStore.open(store.path).header
    assert header["timing"] == {**timing, **spent}
    assert header["state"] == "finished"
    assert header["ended"] >= header["started"]
    assert header["baselines"] == {COMPARISON: "fp32"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stat": "finished"}, ["run.yaml", "'stat'", "Did you mean 'state'"]),
        ({"state": "done"}, ["'state'", "'done'", "'running', 'finished' or 'interrupted'"]),
        ({"timing": {"wall": 1.0}}, ["'timing.wall'", "Did you mean 'wall_s'"]),
        ({"git": {"commit": 7}}, ["'git.commit'", "7", "string"]),
    ],
)
def test_a_wrong_header_field_is_refused_and_the_file_stays(
    store: RunStore, fields: dict[str, object], words: list[str]
) -> None:
    before = (store.path / "run.yaml").read_text()
    with pytest.raises(ResultsError) as caught:
        store.update_header(**fields)
    for word in words:
        assert word in str(caught.value)
    assert (store.path / "run.yaml").read_text() == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [1,\n", ["line 2", "not plain YAML"]),
        (b"- 1\n", ["list", "a mapping"]),
        (b"command: \xff\n", ["0xff", "position 9", "UTF-8"]),
        (b"!!python/object/apply:os.getcwd []\n", ["not plain YAML"]),
        (b"schema_version: 99\n", ["schema_version is 99", f"reads {SCHEMA_VERSION}"]),
        (f"schema_version: {SCHEMA_VERSION}\n".encode(), ["'run_id' is missing"]),
    ],
)
def test_a_bad_run_yaml_is_one_line_with_file_and_place(store: RunStore, content: bytes, words: list[str]) -> None:
    (store.path / "run.yaml").write_bytes(content)
    with pytest.raises(ResultsError) as caught:
        read(store.path)
    for word in ["run.yaml", *words]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


# --- broken files


@pytest.mark.parametrize("cut", [1, 10, 60, 150])
def test_a_half_written_last_row_is_dropped_with_a_warning_and_nothing_else(store: RunStore, cut: int) -> None:
    store.append_many(whole_launch(0))
    path = store.path / "samples.csv"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.warns(ResultsWarning, match=r"samples.csv: dropped a half-written last row"):
        data = read(store.path)
    assert len(data.samples) == 8
    assert len(data.trials) == 3


def test_a_last_row_with_too_few_fields_is_dropped_too(store: RunStore) -> None:
    store.append_many(whole_launch(0))
    path = store.path / "trials.csv"
    path.write_text(path.read_text() + "run,precision/torch\n")
    with pytest.warns(ResultsWarning, match=r"trials.csv: dropped"):
        assert len(read(store.path).trials) == 3


@pytest.mark.parametrize("file", ["samples.csv", "trials.csv"])
def test_too_few_fields_elsewhere_are_an_error(store: RunStore, file: str) -> None:
    store.append_many(whole_launch(0))
    lines = (store.path / file).read_text().splitlines()
    lines[2] = lines[2].rpartition(",")[0]
    (store.path / file).write_text("\n".join(lines) + "\n")
    with pytest.raises(ResultsError, match=rf"{file}: line 3: has \d+ fields; allowed: \d+"):
        read(store.path)


def test_a_writer_goes_on_after_a_half_written_row(store: RunStore) -> None:
    store.append_many(whole_launch(0))
    path = store.path / "samples.csv"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.warns(ResultsWarning, match="half-written"):
        store.append_many(whole_launch(1))
    assert len(read(store.path).samples) == 8 + 9


def corrupt(store: RunStore, column: str, value: str, line: int = 3, file: str = "samples.csv") -> None:
    path = store.path / file
    rows = [row.split(",") for row in path.read_text().splitlines()]
    rows[line - 1][rows[0].index(column)] = value
    path.write_text("\n".join(",".join(row) for row in rows) + "\n", errors="surrogateescape")


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("seconds", "fast", ["line 3", "'seconds'", "'fast'", "a finite number"]),
        ("seconds", "inf", ["line 3", "'seconds'", "'inf'"]),
        ("seconds", "", ["line 3", "'seconds'", "never empty"]),
        ("launch", "1.5", ["line 3", "'launch'", "'1.5'", "a whole number"]),
        ("launch", "9" * 30, ["line 3", "'launch'", "a whole number"]),
        ("framework", "tensorflw", ["line 3", "'framework'", "torch, tensorflow", "Did you mean 'tensorflow'"]),
        ("toggle_batch", "many", ["line 3", "'toggle_batch'", "'many'", "a whole number above 0"]),
        ("arm", "", ["line 3", "'arm'", "never empty"]),
        ("workload", "\udcff\udcfe", ["line 3", "column 5", "0xff", "UTF-8"]),
        ("run_id", "another", ["'run_id'", "'another'"]),
        ("arm", "a,b", ["line 3", f"{len(SAMPLES.names) + 1} fields"]),
        ("arm", '"a', ["line", "not CSV"]),
    ],
)
def test_a_wrong_value_is_one_error_with_file_place_value_and_what_is_allowed(
    store: RunStore, column: str, value: str, words: list[str]
) -> None:
    store.append_many(whole_launch(0))
    corrupt(store, column, value)
    with pytest.raises(ResultsError) as caught:
        read(store.path)
    for word in ["samples.csv", *words]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_boolean_and_a_trial_twice_are_errors(store: RunStore) -> None:
    store.append_many(whole_launch(0))
    corrupt(store, "arm", "fp32", line=3, file="trials.csv")
    with pytest.raises(ResultsError, match=r"arm 'fp32', launch 0 is there twice"):
        read(store.path)
    corrupt(store, "settled", "perhaps", line=2, file="trials.csv")
    with pytest.raises(
        ResultsError, match=r"line 2: column 'settled': 'perhaps' is not allowed; allowed: true or false"
    ):
        read(store.path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seconds", "secnds", ["unknown column 'secnds'", "Did you mean 'seconds'"]),
        ("turn,", "", ["column 'turn' is missing"]),
        ("toggle_device,", "", ["column 'toggle_device' is missing"]),  # it has no default to stand for it
        ("turn", "round", ["'round' is there twice"]),
    ],
)
def test_wrong_columns_are_named(store: RunStore, old: str, new: str, words: list[str]) -> None:
    store.append_many(whole_launch(0))
    path = store.path / "samples.csv"
    header, _, rows = path.read_text().partition("\n")
    path.write_text(header.replace(old, new) + "\n" + rows)
    with pytest.raises(ResultsError) as caught:
        read(store.path)
    for word in ["samples.csv: line 1", *words]:
        assert word in str(caught.value)


# --- going on


def test_samples_without_their_trial_are_left_out_with_a_warning(store: RunStore) -> None:
    store.append_many(whole_launch(0))
    store.append("samples", [sample("bf16", launch=1)])
    convergence = {"epoch": 1, "train_s": 1.0, "items": 6000, "accuracy": 0.8, "target_accuracy": 0.85}
    store.append("convergence", [cell("bf16", seed=seed, **convergence) for seed in (0, 7)])
    with pytest.warns(ResultsWarning, match=r"left out 1 rows of launches that have no trial"):
        data = read(store.path)
    assert set(data.samples["launch"]) == {0}
    assert list(data.convergence["seed"]) == [0]


def test_a_launch_is_done_when_every_arm_has_its_trial(store: RunStore) -> None:
    store.append_many(whole_launch(0))
    store.append_many(whole_launch(1, ("fp32", "bf16")))
    store.append("samples", [sample(launch=2)])
    assert store.done() == {(COMPARISON, 0)}


def test_an_arm_that_failed_once_may_be_missing_later(store: RunStore) -> None:
    failed = trial("bf16", status="unavailable", reason="no such device")
    store.append("trials", [trial("fp32"), trial("control"), failed])
    store.append("trials", [trial("fp32", 1), trial("control", 1)])
    assert store.done() == {(COMPARISON, 0), (COMPARISON, 1)}


def test_resume_drops_what_was_cut_short_and_keeps_the_rest(store: RunStore) -> None:
    store.append_many(whole_launch(0))
    store.append("samples", [sample(launch=1)])
    store.append(
        "trials", [trial(launch=2, status="interrupted", reason="Ctrl-C"), trial("bf16", 2), trial("control", 2)]
    )
    store.update_header(state="interrupted")
    store.close()
    with pytest.warns(ResultsWarning, match="rows of unfinished launches"):
        again = RunStore.latest(store.path.parent)
    assert again is not None
    assert again.path == store.path
    assert again.done() == {(COMPARISON, 0)}
    assert (again.header["state"], again.header["ended"]) == ("running", None)
    again.append_many(whole_launch(1))
    data = read(again.path)
    assert data.samples.groupby("launch").size().to_dict() == {0: 9, 1: 9}


def test_latest_leaves_finished_runs_and_those_of_living_processes_alone(tmp_path: Path) -> None:
    assert RunStore.latest(make(tmp_path / "none")) is None
    finished, living = RunStore.create(tmp_path, HEADER), RunStore.create(tmp_path, HEADER)
    finished.update_header(state="finished")
    finished.close()
    assert RunStore.latest(tmp_path) is None
    with pytest.raises(ResultsError, match="another process is writing this run"):
        RunStore.open(living.path).resume()
    living.close()
    again = RunStore.latest(tmp_path)
    assert again is not None
    assert again.path == living.path


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


# --- several writers, killed writers, full disks


def _append_launches(path: Path, first: int, count: int) -> None:
    store = RunStore.open(path)
    for launch in range(first, first + count):
        store.append_many(whole_launch(launch))


def test_two_processes_append_at_once_and_no_row_is_lost_or_mixed(store: RunStore) -> None:
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=_append_launches, args=(store.path, first, 40)) for first in (0, 40)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    data = read(store.path)
    assert data.samples.groupby(["launch", "arm"], observed=True).size().tolist() == [3] * 240
    assert store.done() == {(COMPARISON, launch) for launch in range(80)}


def test_a_killed_writer_leaves_whole_launches(store: RunStore) -> None:
    writer = multiprocessing.get_context("fork").Process(target=_append_launches, args=(store.path, 0, 10**6))
    writer.start()
    while not (store.path / "trials.csv").exists() or (store.path / "trials.csv").stat().st_size < 20_000:
        assert writer.is_alive()
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResultsWarning)  # it says what the kill cut short, if anything
        store.resume()
    data = read(store.path)
    launches = len(store.done())
    assert launches > 0
    assert len(data.trials) == 3 * launches
    assert len(data.samples) == 9 * launches


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)


def test_a_file_that_may_not_grow_keeps_what_it_had(store: RunStore) -> None:
    """The real thing: the system writes a part of the launch and refuses the rest."""
    store.append_many(whole_launch(0))
    before = {p.name: p.read_bytes() for p in store.path.glob("*.csv")}
    code = """
        import resource, sys
        sys.path.insert(0, "tests")
        from test_store import RunStore, whole_launch
        from pathlib import Path
        from harness.errors import ResultsError
        path = Path(sys.argv[1])
        size = (path / "trials.csv").stat().st_size + 100
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            RunStore.open(path).append_many({"trials": whole_launch(1)["trials"]})
        except ResultsError as error:
            print(error)
    """
    message = python(code, str(store.path)).stdout
    assert "trials.csv: the file-size limit is reached" in message
    assert "--resume" in message
    assert {p.name: p.read_bytes() for p in store.path.glob("*.csv")} == before


def test_a_full_disk_takes_back_the_whole_launch(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append_many(whole_launch(0))
    before = {p.name: p.read_bytes() for p in store.path.glob("*.csv")}
    write, left = os.write, [2000]

    def until_full(fd: int, data: bytes) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        part = data[: left[0]]
        left[0] -= len(part)
        return write(fd, part)

    monkeypatch.setattr(os, "write", until_full)
    with pytest.raises(ResultsError, match=r"the disk is full; free some space.*--resume.*Nothing written"):
        store.append_many(whole_launch(1))
    assert {p.name: p.read_bytes() for p in store.path.glob("*.csv")} == before


def test_a_full_disk_leaves_run_yaml_as_it_was(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (store.path / "run.yaml").read_text()

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultsError, match="the disk is full"):
        store.update_header(state="finished")
    assert (store.path / "run.yaml").read_text() == before
    assert store.header["state"] == "running"
    assert not [p.name for p in store.path.iterdir() if p.name.startswith(".")]


def test_folders_that_cannot_be_used_are_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for call in (RunStore.create, lambda p, _: RunStore.latest(p), lambda p, _: read_all(p)):
        with pytest.raises(ResultsError, match=r"file.*(is a file|there is a file).*--results DIR"):
            call(file, HEADER)
    with pytest.raises(ResultsError, match=r"a part of the path is a file"):
        RunStore.create(file / "results", HEADER)
    with pytest.raises(ResultsError, match=r"none: there is no such folder; run `make bench`"):
        read_all(tmp_path / "none")
    with pytest.raises(ResultsError, match=r"holds no run yet"):
        read_all(tmp_path)
    with pytest.raises(ResultsError, match=r"is not a run folder"):
        read(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ResultsError, match=r"cannot write .*results: there is no permission.*--results DIR"):
        RunStore.create(tmp_path / "results", HEADER)


def test_a_folder_that_disappears_during_the_run_is_one_line(store: RunStore) -> None:
    store.path.rename(store.path.with_name("moved"))
    with pytest.raises(ResultsError, match=r"samples.csv: the folder is gone"):
        store.append_many(whole_launch(0))


# --- what results/ says about itself


def test_the_committed_readme_is_what_the_schema_says() -> None:
    assert (ROOT / "results/README.md").read_text() == results_docs.readme(), (
        "run python -m harness.results_docs results"
    )


def test_the_readme_names_every_column() -> None:
    for table in TABLES:
        for column in table.columns:
            assert f"| `{column.name}` | {column.kind} |" in results_docs.readme()


def test_the_datapackage_describes_the_files_as_they_are(store: RunStore) -> None:
    store.append_many(whole_launch(0))
    write_docs(store.path.parent)
    package = json.loads((store.path / "datapackage.json").read_text())
    assert package["profile"] == "tabular-data-package"
    assert package["licenses"][0]["name"] == "MIT"
    assert [r["path"] for r in package["resources"]] == ["samples.csv", "trials.csv"]
    for resource in package["resources"]:
        header = (store.path / resource["path"]).read_text().partition("\n")[0]
        assert [f["name"] for f in resource["schema"]["fields"]] == header.split(",")
        assert resource["schema"]["missingValues"] == [""]
    status = next(f for f in package["resources"][1]["schema"]["fields"] if f["name"] == "status")
    assert status["constraints"] == {"required": True, "enum": list(Status)}
    assert {c.name for c in TRIALS.columns if c.null_when} == {
        f["name"] for f in package["resources"][1]["schema"]["fields"] if not f["constraints"]["required"]
    }


def test_only_reading_imports_pandas() -> None:
    code = "import sys, harness.store; print([m for m in ('pandas', 'torch', 'tensorflow') if m in sys.modules])"
    assert python(code).stdout.strip() == "[]"
