"""The engine from plan to rows, on the fake backend: real processes, scripted clock, known answers."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from harness.backends import Observed
from harness.backends.fake_backend import CONVERT_S, PASS_STEPS
from harness.errors import MeasurementError
from harness.launch import EPOCHS
from harness.measure.steady import check_level
from harness.plan import plan
from harness.profiles import Hardware, Profile, Training
from harness.report import facts_of
from harness.results_reader import RunData
from harness.runner import Nurseries, Run, Site
from harness.spec import Arm, Comparison, Framework, Mode, Status, Study
from harness.stats import effects
from harness.store import RunStore, read
from harness.workers import Nursery

HARDWARE = Hardware(
    looks=(6,),
    half_width=0.01,
    rounds=5,
    block_s=0.2,
    window_s=0.1,
    warm_up_s=5.0,
    budget_s=60.0,
    timeout_s=5.0,
    training={"cnn_fashion": Training(epochs=2, seeds=3, train=100, test=50)},
    largest_batch=4096,
)
BASE = Arm(name="fp32", sets={"precision": "fp32"})


class Quiet:
    """A reporter that says nothing."""

    def begin(self, comparison: str, launches: int) -> None: ...

    def launched(self, done: int, ratio: str) -> None: ...

    def tick(self) -> None: ...


def study(*arms: Arm, mode: Mode = Mode.STEADY, checks: tuple[str, ...] = ()) -> Study:
    return Study(
        id="study",
        title="t",
        question="q?",
        mode=mode,
        axis="precision",
        workloads=("cnn_fashion",),
        baseline=BASE,
        treatments=arms,
        frameworks=(Framework.FAKE,),
        checks=checks,
    )


@pytest.fixture
def nurseries():
    opened = Nurseries()
    yield opened
    opened.close()


@dataclasses.dataclass
class Bench:
    """Runs studies of the fake backend into one store."""

    nurseries: Nurseries
    store: RunStore
    hardware: Hardware = HARDWARE

    def planned(self, declared: Study) -> Comparison:
        profile = Profile(name="test", cpu=self.hardware, gpu=self.hardware)
        (comparison,) = plan([declared], profile, {Framework.FAKE: "cpu"})
        return comparison

    def run(self, declared: Study) -> RunData:
        comparison = self.planned(declared)
        profile = Profile(name="test", cpu=self.hardware, gpu=self.hardware)
        site = Site(devices={Framework.FAKE: "cpu"}, missing={}, descriptions={}, threads=2)
        Run(store=self.store, profile=profile, site=site, nurseries=self.nurseries, reporter=Quiet()).measure(
            comparison
        )
        return read(self.store.path)


@pytest.fixture
def bench(nurseries, tmp_path) -> Bench:
    header = {"command": "test", "profile": {"name": "test"}}
    return Bench(nurseries=nurseries, store=RunStore.create(tmp_path, header))


def ratio(data: RunData, arm: str, metric: str = "throughput"):
    baselines = {"study/fake/cnn_fashion": "fp32", "study/fake/cnn_photos": "files"}
    table = effects(data.samples, data.trials, data.convergence, data.checks, baselines=baselines)
    return table[(table["arm"] == arm) & (table["metric"] == metric)].iloc[0]


def test_a_known_speedup_comes_back_with_an_interval_that_covers_it(bench):
    data = bench.run(study(Arm(name="bf16", sets={"precision": "bf16"})))
    found = ratio(data, "bf16")
    assert found["low"] < 2.0 < found["high"]
    assert found["n"] == 6
    assert set(data.trials["status"]) == {"ok"}


def test_every_steady_comparison_carries_an_a_a_arm_that_covers_one(bench):
    found = ratio(bench.run(study()), "control")
    assert found["low"] < 1.0 < found["high"]


def test_injected_extra_work_shows_as_a_ratio_of_one_over_one_point_one(bench):
    data = bench.run(study(Arm(name="slower", sets={"extra_work": "tenth"})))
    found = ratio(data, "slower")
    assert found["low"] < 1 / 1.1 < found["high"]
    items = data.samples[data.samples["arm"] == "slower"]
    assert (items["steps"] % 10 == 0).all()
    assert (items["items"] == items["steps"] * 64).all()


def test_arms_take_turns_in_a_random_order_within_every_round(bench):
    samples = bench.run(study(Arm(name="bf16", sets={"precision": "bf16"}))).samples
    turns = samples.groupby(["launch", "round"])["turn"].apply(lambda t: sorted(t) == [0, 1, 2])
    assert turns.all()
    first = samples[samples["turn"] == 0]["arm"].value_counts()
    assert set(first.index) == {"fp32", "bf16", "control"}


@pytest.mark.parametrize(
    ("arm", "status", "says"),
    [
        ("oom", Status.OOM, "MemoryError"),
        ("segfault", Status.ERROR, "SIGSEGV"),
        ("killed", Status.ERROR, "SIGKILL"),
        ("raises", Status.ERROR, "ValueError: scripted second line"),
        ("hang", Status.TIMEOUT, "no answer within 0.5 s"),
        ("unavailable", Status.UNAVAILABLE, "no such device"),
        ("unsynchronised", Status.ERROR, "not synchronised"),
        ("miscounts", Status.ERROR, "items counted in a step"),
    ],
)
def test_a_failing_arm_is_a_row_with_its_reason_and_its_neighbours_go_on(bench, arm, status, says):
    bench.hardware = HARDWARE.model_copy(update={"timeout_s": 0.5} if arm == "hang" else {})
    data = bench.run(study(Arm(name=arm, sets={"precision": "bf16"}), Arm(name="fp16", sets={"precision": "fp16"})))
    rows = data.trials[data.trials["arm"] == arm]
    assert set(rows["status"]) == {status}
    assert rows["reason"].str.contains(says, regex=False).all()
    assert len(data.samples[data.samples["arm"] == arm]) == 0
    assert len(data.samples[data.samples["arm"] == "fp16"]) == 6 * 5
    assert math.isnan(ratio(data, arm)["estimate"])


def test_a_level_that_has_no_effect_is_an_error_not_a_ratio_of_one(bench):
    data = bench.run(study(Arm(name="no_effect", sets={"precision": "bf16"})))
    reason = data.trials[data.trials["arm"] == "no_effect"]["reason"].iloc[0]
    assert "had no effect: asked for 'bfloat16', but the step shows 'float32'" in reason


def test_convergence_gives_every_arm_the_same_seeds_and_every_epoch_a_row(bench):
    data = bench.run(study(Arm(name="bf16", sets={"precision": "bf16"}), mode=Mode.CONVERGENCE))
    seeds = data.convergence.groupby("arm")["seed"].unique().map(sorted)
    assert list(seeds["fp32"]) == list(seeds["bf16"]) == [0, 1, 2]
    assert len(data.convergence) == 2 * 3 * 2
    assert (data.convergence.groupby(["arm", "seed"])["train_s"].diff().dropna() > 0).all()


def test_the_fit_search_doubles_from_64_until_memory_ends(bench):
    data = bench.run(study(mode=Mode.FIT))
    probes = data.checks[data.checks["check"] == "fits"]
    assert list(probes["toggle_batch"]) == [64, 128, 256, 512, 1024]
    assert list(probes["value"]) == [1.0] * 4 + [0.0]
    assert list(data.trials["toggle_batch"]) == [512]


def test_the_level_largest_runs_at_the_batch_that_the_search_found(bench):
    data = bench.run(study(Arm(name="largest", sets={"precision": "fp16", "batch": "largest"})))
    assert set(data.samples[data.samples["arm"] == "largest"]["toggle_batch"]) == {512}


def test_checks_are_values_in_rows(bench):
    data = bench.run(study(mode=Mode.CHECK, checks=("float_eps", "mixed_policy")))
    assert dict(zip(data.checks["check"], data.checks["value"], strict=True)) == {"float_eps": 1.0, "mixed_policy": 1.0}


def loading_study(*arms: Arm, mode: Mode = Mode.LOADING, axis: str = "format", **sets: str) -> Study:
    """Loose files against ``arms``, each with ``sets``."""
    fixed = {"format": "files", **sets}
    return Study(
        id="study",
        title="t",
        question="q?",
        mode=mode,
        axis=axis,
        workloads=("cnn_photos",),
        baseline=Arm(name="files", sets=fixed),
        treatments=tuple(Arm(name=arm.name, sets={**fixed, **arm.sets}) for arm in arms),
        frameworks=(Framework.FAKE,),
    )


LMDB = Arm(name="lmdb", sets={"format": "lmdb"})


def test_a_format_that_loads_twice_as_fast_comes_back_with_an_interval_that_covers_it(bench):
    data = bench.run(loading_study(LMDB))
    found = ratio(data, "lmdb", "load")
    assert found["low"] < 2.0 < found["high"]
    assert found["n"] == 6
    control = ratio(data, "control", "load")
    assert control["low"] < 1.0 < control["high"]


def test_rows_of_a_loader_carry_its_start_its_wait_and_its_stored_set(bench):
    data = bench.run(loading_study(LMDB))
    assert data.samples["loader_start_s"].tolist() == pytest.approx([0.02] * len(data.samples))
    assert data.samples["wait_s"].tolist() == pytest.approx(data.samples["seconds"].tolist())
    assert (data.samples["items"] == 32 * data.samples["steps"]).all()
    assert set(data.trials["convert_s"]) == {CONVERT_S}
    assert set(data.trials["stored_bytes"]) == {1000 * 32 * PASS_STEPS}
    assert set(data.trials["stored_sha256"]) == {"scripted"}
    assert set(data.trials["observed_workers"]) == {2}
    assert data.trials[["observed_device", "observed_dtype", "parameters"]].isna().all(axis=None)
    bytes_ = ratio(data, "lmdb", "stored_bytes")
    assert (bytes_["estimate"], bytes_["low"], bytes_["high"]) == (1, 1, 1)


def test_training_end_to_end_notices_a_format_less_and_knows_its_share_of_waiting(bench):
    data = bench.run(loading_study(LMDB, mode=Mode.END_TO_END))
    found = ratio(data, "lmdb")
    assert found["low"] < (0.002 + 0.01) / (0.001 + 0.01) < found["high"]
    for arm, wait in (("files", 0.002), ("lmdb", 0.001)):
        share = ratio(data, arm, "stall_share")
        assert share["low"] < wait / (wait + 0.01) < share["high"]
        assert share["n"] == 6
    assert set(data.trials["observed_device"]) == {"cpu"}


def test_the_best_number_of_workers_is_found_and_what_is_not_slower(bench):
    arms = [Arm(name=name, sets={"workers": name}) for name in ("cores", "quadruple")]
    found = ratio(bench.run(loading_study(*arms, axis="workers", workers="none")), "files", "best_workers_per_core")
    assert {found["low"], found["high"]} == {1.0, 4.0}  # both load as fast, with 2 and 8 workers on 2 cores
    assert found["reason"].count("quadruple") == found["reason"].count("cores") == 1


def test_a_comparison_ends_when_no_treatment_is_left(bench):
    data = bench.run(study(Arm(name="unavailable", sets={"precision": "bf16"})))
    assert list(data.trials["launch"].unique()) == [0]
    assert list(data.trials.loc[data.trials["arm"] == "unavailable", "status"]) == [Status.UNAVAILABLE]


def test_a_set_that_cannot_be_written_is_a_row_with_its_reason_and_the_others_go_on(bench):
    data = bench.run(loading_study(Arm(name="unwritable", sets={"format": "lmdb"}), LMDB))
    lost = data.trials[data.trials["arm"] == "unwritable"]
    assert set(lost["status"]) == {Status.ERROR}
    assert lost["reason"].str.contains("No space left on device: 'fake-set'", regex=False).all()
    assert len(data.samples[data.samples["arm"] == "unwritable"]) == 0
    assert ratio(data, "lmdb", "load")["n"] == 6
    assert math.isnan(ratio(data, "unwritable", "load")["estimate"])


def test_a_loader_that_cannot_start_or_has_no_effect_is_a_row_too(bench):
    data = bench.run(loading_study(Arm(name="raises"), Arm(name="no_effect"), page_cache="cold"))
    reasons = data.trials.drop_duplicates("arm").set_index("arm")["reason"]
    assert reasons["raises"] == "OSError: scripted: the shard train-000.tar is truncated"
    assert "asked for 'cold', but 100% of the set was cached" in reasons["no_effect"]
    assert set(data.trials.loc[data.trials["arm"] == "files", "status"]) == {Status.OK}


def test_cells_of_one_setting_have_the_same_number_of_passes_in_a_block(bench):
    data = bench.run(loading_study(LMDB))
    steps = data.samples.pivot_table(index=["launch", "round"], columns="arm", values="steps", observed=True)
    assert (steps["files"] == steps["control"]).all()
    assert (steps["lmdb"] > 1.8 * steps["files"]).all()
    assert (steps % PASS_STEPS == 0).all(axis=None)
    steady = bench.run(study()).samples
    steps = steady[steady["comparison"] == "study/fake/cnn_fashion"]
    steps = steps.pivot_table(index=["launch", "round"], columns="arm", values="steps", observed=True)
    assert (steps["fp32"] == steps["control"]).all()


def test_a_cold_block_is_one_pass_since_a_second_would_find_the_set_cached(bench):
    cold = bench.run(loading_study(LMDB, page_cache="cold")).samples
    assert set(cold["steps"]) == {PASS_STEPS}


def test_a_study_of_what_happens_between_passes_has_several_in_a_block(bench):
    kept = bench.run(loading_study(Arm(name="ends", sets={"persistent": "off"}), axis="persistent")).samples
    assert set(kept["steps"]) == {EPOCHS * PASS_STEPS}


def test_resuming_repeats_nothing(bench):
    declared = study(Arm(name="bf16", sets={"precision": "bf16"}))
    bench.hardware = HARDWARE.model_copy(update={"looks": (2,)})
    before = bench.run(declared).samples
    bench.hardware = HARDWARE
    after = bench.run(declared).samples
    assert len(after) == 3 * len(before)
    assert after.head(len(before)).equals(before)


def test_ctrl_c_marks_the_launch_as_interrupted_and_keeps_what_was_measured(bench):
    bench.hardware = HARDWARE.model_copy(update={"timeout_s": 60.0})
    hanging = study(Arm(name="hang"))
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        bench.run(hanging)
    data = read(bench.store.path)
    assert set(data.trials["status"]) == {"interrupted"}
    assert bench.store.done() == set()


def test_a_nursery_that_is_killed_is_started_again(bench):
    nursery = bench.nurseries.of(Framework.FAKE)
    nursery.ready()
    assert nursery._process is not None
    os.kill(nursery._process.pid, signal.SIGKILL)
    nursery._process.wait()
    data = bench.run(study())
    assert set(data.trials["status"]) == {"ok"}


def test_workers_die_with_their_nursery(nurseries):
    nursery = Nursery(Framework.FAKE)
    worker = nursery.spawn()
    assert nursery._process is not None
    os.kill(nursery._process.pid, signal.SIGKILL)
    nursery._process.wait()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{worker.pid}").exists() and time.monotonic() < deadline:
        state = Path(f"/proc/{worker.pid}/stat").read_text().split()[2] if Path(f"/proc/{worker.pid}").exists() else "Z"
        if state == "Z":
            break
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{worker.pid}").exists()
    worker.close()
    nursery.close()


def test_a_framework_that_is_missing_is_a_row_for_every_arm_with_the_install_line(bench):
    reason = "torch is not installed: pip install 'speedproof[torch]'"
    profile = Profile(name="test", cpu=HARDWARE, gpu=HARDWARE)
    site = Site(devices={Framework.FAKE: "cpu"}, missing={Framework.FAKE: reason}, descriptions={}, threads=2)
    run = Run(store=bench.store, profile=profile, site=site, nurseries=bench.nurseries, reporter=Quiet())
    run.measure(bench.planned(study(Arm(name="bf16", sets={"precision": "bf16"}))))
    trials = read(bench.store.path).trials
    assert list(trials["arm"]) == ["fp32", "bf16", "control"]
    assert set(trials["reason"]) == {reason}


def test_a_spawned_worker_is_ready_at_once(nurseries):
    nursery = Nursery(Framework.FAKE)
    nursery.ready()
    worker = nursery.spawn()
    assert worker.start_s < 0.2
    worker.close()
    nursery.close()


def test_run_facts_come_from_the_header_and_a_tpu_from_what_trained():
    header = {"machine": {"cores": 2, "gpus": [], "frameworks": {"torch": {"devices": {"cpu": "x", "gpu": None}}}}}
    trials = pd.DataFrame({"toggle_strategy": ["single", "tpu"], "status": ["ok", "unavailable"]})
    facts = facts_of(header, trials)
    assert facts.kinds == {"torch": frozenset({"cpu"})}
    assert not facts.tpu, "no TPU was there"
    assert facts_of(header, trials.assign(status="ok")).tpu


def test_a_tpu_has_as_many_cores_as_it_has_and_must_be_where_the_step_ran(bench):
    plain = bench.planned(study(Arm(name="tpu", sets={"precision": "bf16", "strategy": "tpu"}))).cells
    seen = Observed(
        device="cpu+tpu", dtype="bfloat16", layout="nhwc", batch=plain[1].batch, scaled=False, learning_rate=0.1,
        parameters=1, devices=8,
    )  # fmt: skip
    check_level(plain[1], seen, seen.batch)
    with pytest.raises(MeasurementError, match="device had no effect: asked for 'tpu'"):
        check_level(plain[1], dataclasses.replace(seen, device="cpu"), seen.batch)
    with pytest.raises(MeasurementError, match="devices had no effect: asked for 1"):
        check_level(plain[0], dataclasses.replace(seen, device="cpu", dtype="float32"), seen.batch)
