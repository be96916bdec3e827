"""The claims file and its judge: every id is there, every mistake is named, every verdict can be reached."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from harness import stats
from harness.claims import Claim, RunFacts, Verdict, judge, load_claims
from harness.errors import ConfigError
from harness.schema import EFFECT_COLUMNS, VERDICT_COLUMNS
from harness.spec import Arm, Mode, Study
from harness.studies import load_studies

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

IDS = set(
    """
    accum-equiv adam-sgd amp-2-3x amp-3x amp-acc amp-half amp-mem amp-policy amp-scaling amp-speed amp-turing
    async-tfdata batch-harm batch-up bg-procs ckpt combine dali data-wait ddp-equiv distill dp-vs-ddp early-stop
    empty-cache few-layers fp-eps free-gpu global-batch gpu-vs-cpu hpo hw-first in-ram iterate lamb light-acc
    light-qual light-speed lr-linear mirrored model-parallel near-linear npy-cache offline-prep oom-fix
    packed-format pin-memory plateau profiler prune quant rmsprop-big scale-2 scale-4 scale-8 scale-range steps-exec
    tf-cloud tfidf-half tpu-colab tpu-cost tpu-gpu tpu-input tpu-p100 warm-cos workers-1x workers-2x
    """.split()  # noqa: SIM905
)

STUDY = Study(
    id="speed",
    title="",
    question="",
    mode=Mode.STEADY,
    axis="precision",
    workloads=("cnn",),
    baseline=Arm(name="fp32"),
    treatments=(Arm(name="fp16"), Arm(name="bf16")),
)
GPU = RunFacts(kinds={"torch": frozenset({"cpu", "gpu"})}, gpu="NVIDIA H200", capability=9.0, gpus=1, cores=8)
CPU = RunFacts(kinds={"torch": frozenset({"cpu"})}, cores=2)


# --- the file ---


@pytest.fixture(scope="module")
def claims() -> dict[str, Claim]:
    """The project's own claims by id."""
    return {c.id: c for c in load_claims(BENCHMARKS / "claims.yaml", load_studies(BENCHMARKS))}


def test_every_claim_of_the_documents_is_there_once(claims):
    assert len(IDS) == 66
    assert sorted(claims) == sorted(IDS)


def test_both_readings_of_the_ambiguous_wording_are_kept(claims):
    ranges = {
        id_: {name: (r.low, r.high) for name, r in claims[id_].measures[0].readings.items()}
        for id_ in ("amp-speed", "amp-3x", "light-speed", "tpu-gpu", "tpu-p100", "tpu-cost")
    }
    assert ranges == {
        "amp-speed": {"literal": (2, 3), "loose": (1, 2)},
        "amp-3x": {"literal": (4, 4), "loose": (3, 3)},
        "light-speed": {"literal": (3, 4), "loose": (2, 3)},
        "tpu-gpu": {"literal": (6, 11), "loose": (5, 10)},
        "tpu-p100": {"literal": (16, 16), "loose": (15, 15)},
        "tpu-cost": {"literal": (4, 4), "loose": (3, 3)},
    }


def test_what_no_program_can_measure_says_why(claims):
    assert {id_ for id_, c in claims.items() if c.scope.never} == {"free-gpu", "tpu-colab", "tf-cloud"}


def test_every_study_answers_a_claim_or_says_what_it_is_for(claims):
    used = {m.study for c in claims.values() for m in c.measures}
    beside = yaml.safe_load((BENCHMARKS / "claims.yaml").read_text())["studies_beside"]
    assert {s.id for s in load_studies(BENCHMARKS)} - used == set(beside)


def test_a_claim_of_no_loss_is_judged_by_equivalence(claims):
    assert all(m.no_loss for id_ in ("amp-acc",) for m in claims[id_].measures)
    assert all(m.minimum_seeds >= 5 for c in claims.values() for m in c.measures)


# --- mistakes in the file ---

GOOD = """\
planned_metrics: {size: bytes of the model}
claims:
  - id: fast
    documents: [D0]
    says: fp16 is faster
    measures:
      - metric: throughput
        study: speed
        arms: [fp16]
        readings: {stated: {low: 2, high: 3}}
"""


def load_text(folder: Path, text: str | bytes) -> tuple[Claim, ...]:
    """Load a claims file of this content."""
    path = folder / "claims.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_claims(path, [STUDY])


MISTAKES = {
    "wrong type": ("low: 2", "low: two", r":10: claim 'fast': measures.0.readings.stated.low: 'two' .*valid number"),
    "number for text": ("id: fast", "id: 3", r":3: claim 3: id: 3 .*valid string"),
    "quoted number": ("low: 2", "low: '2'", r"'2' cannot be used: input should be a valid number"),
    "unknown key": ("metric:", "metrik:", r"unknown key 'metrik'; allowed: .*metric.*Did you mean 'metric'\?"),
    "missing key": ("    says: fp16 is faster\n", "", r":3: claim 'fast': the key 'says' is missing"),
    "unknown document": ("[D0]", "[D7]", r"documents.0: 'D7' .*'D0', 'D1' or 'D4'"),
    "unknown study": ("study: speed", "study: sped", r":7: .*unknown study 'sped'; allowed: speed.*mean 'speed'\?"),
    "unknown arm": (
        "[fp16]",
        "[fp61]",
        r"claim 'fast', study 'speed': unknown arm 'fp61'; allowed: bf16, fp16.*'fp16'\?",
    ),
    "baseline as arm": ("[fp16]", "[fp32]", r"unknown arm 'fp32'"),
    "no arms": ("        arms: [fp16]\n", "", r"name the arms that are judged; allowed: fp16, bf16"),
    "metric of another mode": (
        "throughput",
        "accuracy",
        r"unknown metric 'accuracy'; allowed: communication_share, energy, memory",
    ),
    "unknown workload": ("arms:", "workloads: [cn]\n        arms:", r"unknown workload 'cn'.*'cnn'\?"),
    "unknown framework": (
        "arms:",
        "frameworks: [jax]\n        arms:",
        r"unknown framework 'jax'; allowed: tensorflow, torch",
    ),
    "range upside down": ("low: 2, high: 3", "low: 3, high: 2", r"low 3 lies above high 2"),
    "range without bounds": ("{low: 2, high: 3}", "{}", r"needs low, high or both"),
    "infinite bound": ("high: 3", "high: .inf", r"finite number"),
    "negative tolerance": ("arms:", "tolerance: -1\n        arms:", r"tolerance: -1 .*greater than or equal to 0"),
    "no loss of speed": ("arms:", "no_loss: true\n        arms:", r"no_loss is for the metrics accuracy"),
    "key given twice": (
        "study: speed",
        "study: speed\n        study: x",
        r":9: the key 'study' is given twice.*line 8",
    ),
    "not yaml": ("[D0]", "[D0", r":\d+, column \d+: not valid YAML: "),
    "python object": (
        "fp16 is faster",
        "!!python/object/apply:os.getcwd []",
        r":5, .*could not determine a constructor",
    ),
    "planned metric misspelt": (
        "metric: throughput\n        study: speed\n        arms: [fp16]",
        "metric: szie",
        r"unknown metric 'szie'.*Did you mean 'size'\?",
    ),
    "unknown study beside": (
        "claims:\n",
        "studies_beside: {spede: for a figure}\nclaims:\n",
        r":2: studies_beside: unknown study 'spede'; allowed: speed. Did you mean 'speed'\?",
    ),
    "arms without study": ("        study: speed\n", "", r"arms \['fp16'\] need a study"),
    "published of memory": (
        "    measures:",
        "    published: [{value: 1, mark: R}]\n    measures:",
        r"published.0.metric",
    ),
    "empty": (GOOD, "", r"must be a mapping with the key 'claims', found NoneType"),
    "a list": (GOOD, "- 1", r"must be a mapping"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_message_with_file_place_and_what_is_allowed(tmp_path, name):
    right, wrong, message = MISTAKES[name]
    assert right in GOOD
    with pytest.raises(ConfigError, match=message) as caught:
        load_text(tmp_path, GOOD.replace(right, wrong, 1))
    assert str(caught.value).startswith(f"{tmp_path / 'claims.yaml'}:")
    assert "\n" not in str(caught.value)


def test_a_recalled_figure_is_refused(tmp_path):
    entry = "{metric: throughput, value: 1, setting: s, source: s, mark: R}"
    with pytest.raises(ConfigError, match=r"published.0.mark: 'R' cannot be used: input should be 'V' or 'C'"):
        load_text(tmp_path, GOOD.replace("    measures:", f"    published: [{entry}]\n    measures:"))


def test_a_duplicate_id_names_both_places(tmp_path):
    twice = GOOD + GOOD.partition("claims:\n")[2]
    with pytest.raises(ConfigError, match=r":11: claim id 'fast' is given twice, first on line 3"):
        load_text(tmp_path, twice)


def test_bytes_that_are_not_utf8_name_their_line(tmp_path):
    with pytest.raises(ConfigError, match=r":5: byte 0xff is not UTF-8"):
        load_text(tmp_path, GOOD.encode().replace(b"fp16 is", b"\xff is"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none.yaml: cannot read the claims file: No such file"):
        load_claims(tmp_path / "none.yaml", [STUDY])


# --- judging ---


def claim(**changes: object) -> Claim:
    """A claim of 2-3x on the arm fp16; ``changes`` go to its measure, those named scope and id to the claim."""
    measure = {
        "metric": "throughput",
        "study": "speed",
        "arms": ["fp16"],
        "readings": {"stated": {"low": 2.0, "high": 3.0}},
    }
    outer = {k: changes.pop(k) for k in ("scope", "id") if k in changes}
    return Claim.model_validate({"id": "c", "documents": ["D0"], "says": "s", "measures": [measure | changes], **outer})


def row(
    estimate: float = 2.5, spread: float = 0.01, n: int = 6, *, kind: str = "ratio", **fields: object
) -> dict[str, object]:
    """An effect with a 95% interval of ± ``spread`` (relative for a ratio)."""
    up = (lambda v: v * math.exp(spread)) if kind == "ratio" else (lambda v: v + spread)
    down = (lambda v: v * math.exp(-spread)) if kind == "ratio" else (lambda v: v - spread)
    common = {
        "comparison": "speed/torch/cnn",
        "study": "speed",
        "framework": "torch",
        "workload": "cnn",
        "arm": "fp16",
        "baseline": "fp32",
        "metric": "throughput",
        "kind": kind,
        "estimate": estimate,
        "low": down(estimate),
        "high": up(estimate),
        "order_low": math.nan,
        "order_high": math.nan,
        "order_coverage": math.nan,
        "n": n,
        "status": "ok",
        "reason": "",
        "unfit": "",
    }
    return common | fields


def accuracy(estimate: float, spread: float, n: int) -> dict[str, object]:
    """An effect on accuracy, in points."""
    return row(estimate, spread, n, kind="difference", metric="accuracy")


def verdicts(claims: list[Claim], rows: list[dict[str, object]], facts: RunFacts = GPU) -> pd.DataFrame:
    """Judge and check the columns."""
    table = judge(claims, pd.DataFrame(rows, columns=list(EFFECT_COLUMNS)), facts)
    assert tuple(table.columns) == VERDICT_COLUMNS
    return table


def verdict(claim_: Claim, *rows: dict[str, object], facts: RunFacts = GPU) -> tuple[str, str]:
    """The only verdict and its reason."""
    table = verdicts([claim_], list(rows), facts)
    assert len(table) == 1
    return str(table.loc[0, "verdict"]), str(table.loc[0, "reason"])


@pytest.mark.parametrize(
    ("estimate", "spread", "expected"),
    [
        (2.5, 0.05, Verdict.SUPPORTED),
        (1.5, 0.05, Verdict.BELOW),
        (4.0, 0.05, Verdict.ABOVE),
        (2.02, 0.05, Verdict.INCONCLUSIVE),
        (1.98, 0.05, Verdict.INCONCLUSIVE),
        (2.5, 0.40, Verdict.INCONCLUSIVE),
        (3.02, 0.05, Verdict.INCONCLUSIVE),
    ],
)
def test_a_range_and_an_interval(estimate, spread, expected):
    assert verdict(claim(), row(estimate, spread))[0] == expected


def test_a_single_row_is_judged_by_its_95_percent_interval():
    just_inside, just_outside = 2 * math.exp(0.0501), 2 * math.exp(0.0499)
    assert verdict(claim(), row(just_inside, 0.05))[0] == Verdict.SUPPORTED
    assert verdict(claim(), row(just_outside, 0.05))[0] == Verdict.INCONCLUSIVE


def test_an_open_range_asks_for_one_side_only():
    faster = claim(readings={"stated": {"low": 1.0}})
    assert verdict(faster, row(50.0, 0.3))[0] == Verdict.SUPPORTED
    assert verdict(faster, row(0.9, 0.02))[0] == Verdict.BELOW
    assert verdict(faster, row(1.01, 0.02))[0] == Verdict.INCONCLUSIVE
    smaller = claim(metric="memory", readings={"stated": {"high": 1.0}})
    assert verdict(smaller, row(0.5, metric="memory"))[0] == Verdict.SUPPORTED
    assert verdict(smaller, row(1.2, metric="memory"))[0] == Verdict.ABOVE


def test_the_tolerance_widens_the_judged_range_and_not_the_shown_one():
    about_two = claim(readings={"stated": {"low": 2.0, "high": 2.0}}, tolerance=0.05)
    table = verdicts([about_two], [row(2.05, 0.01)])
    assert table.loc[0, "verdict"] == Verdict.SUPPORTED
    assert (table.loc[0, "range_low"], table.loc[0, "range_high"]) == (2, 2)
    assert verdict(claim(readings={"stated": {"low": 2.0, "high": 2.0}}), row(2.05, 0.01))[0] == Verdict.ABOVE


def test_both_readings_have_their_row():
    both = claim(readings={"literal": {"low": 2.0, "high": 3.0}, "loose": {"low": 1.0, "high": 2.0}})
    table = verdicts([both], [row(2.5)])
    assert dict(zip(table["reading"], table["verdict"], strict=True)) == {"literal": "supported", "loose": "above"}


def test_every_framework_workload_and_arm_has_its_row():
    rows = [
        row(arm=arm, framework=framework, workload=workload, comparison=f"speed/{framework}/{workload}")
        for arm in ("fp16", "bf16")
        for framework in ("torch", "tensorflow")
        for workload in ("cnn", "resnet")
    ]
    assert len(verdicts([claim(arms=["fp16", "bf16"])], rows)) == 8
    assert len(verdicts([claim(arms=["fp16"], workloads=["cnn"], frameworks=["torch"])], rows)) == 1


def test_a_claim_without_a_study_is_not_run():
    claim_ = claim(study=None, arms=[], readings={"a": {"low": 1.0}, "b": {"low": 2.0}})
    table = verdicts([claim_], [row()])
    assert table["verdict"].tolist() == ["not_run", "not_run"]
    assert set(table["reason"]) == {"no study yet"}


@pytest.mark.parametrize("status", ["unavailable", "oom", "timeout", "error", "interrupted"])
def test_an_arm_without_a_value_is_not_run_and_never_a_pass(status):
    gap = row(math.nan, n=0, status=status, reason="because")
    for reading in ({"low": -9.0}, {"high": 9.0}, {"low": 0.0, "high": 9.0}):
        found, reason = verdict(claim(readings={"stated": reading}), gap)
        assert found == Verdict.NOT_RUN
        assert status in reason
        assert "because" in reason


def test_what_is_not_in_the_run_is_not_run():
    assert verdict(claim(), row(study="other"))[:2] == ("not_run", "study speed is not part of this run")
    found, reason = verdict(claim(), row(metric="memory", status="error", reason="raised"))
    assert found == Verdict.NOT_RUN
    assert reason == "no value throughput in this run; raised"
    assert verdict(claim())[0] == Verdict.NOT_RUN


def test_one_launch_is_never_a_verdict():
    single = row(2.5, n=1, low=math.nan, high=math.nan, reason="one launch or seed: no interval")
    found, reason = verdict(claim(), single)
    assert found == Verdict.INCONCLUSIVE
    assert "one launch" in reason


@pytest.mark.parametrize(
    ("scope", "facts", "reason"),
    [
        ({"device": "gpu"}, CPU, "speaks of a GPU"),
        ({"device": "gpu", "devices": 2}, GPU, "speaks of 2 GPUs, this run had 1"),
        ({"tpu": True}, GPU, "speaks of a TPU"),
        ({"gpu": "P100"}, GPU, "speaks of P100, this run had NVIDIA H200"),
        ({"capability_below": 7.5}, GPU, "below 7.5, this GPU has 9.0"),
        ({"capability_from": 9.5}, GPU, "9.5 and up, this GPU has 9.0"),
        ({"capability_from": 7.5}, CPU, "this run had none"),
        ({"never": "a quota"}, GPU, "a quota"),
    ],
)
def test_other_hardware_than_the_claim_speaks_of_is_out_of_scope(scope, facts, reason):
    found, why = verdict(claim(scope=scope), row(), facts=facts)
    assert found == Verdict.OUT_OF_SCOPE
    assert reason in why


def test_a_framework_that_sees_no_gpu_is_out_of_scope_beside_one_that_does():
    rows = [row(), row(framework="tensorflow", comparison="speed/tensorflow/cnn")]
    facts = RunFacts(kinds={"torch": frozenset({"cpu", "gpu"}), "tensorflow": frozenset({"cpu"})}, gpus=1)
    table = verdicts([claim(scope={"device": "gpu"})], rows, facts)
    assert dict(zip(table["framework"], table["verdict"], strict=True)) == {
        "torch": "supported",
        "tensorflow": "out_of_scope",
    }


def test_out_of_scope_still_shows_its_estimate():
    table = verdicts([claim(scope={"device": "gpu"})], [row(1.2)], CPU)
    assert table.loc[0, "estimate"] == 1.2
    assert table.loc[0, "verdict"] == Verdict.OUT_OF_SCOPE


def test_more_devices_than_cores_are_shown_and_not_judged():
    crowded = row(unfit="oversubscribed: 4 devices on fewer cores")
    assert verdict(claim(), crowded) == ("out_of_scope", "oversubscribed: 4 devices on fewer cores")
    table = verdicts([claim()], [crowded], CPU)
    assert "Holm" not in str(table.loc[0, "reason"])


def test_a_proxy_is_shown_and_not_judged():
    assert verdict(claim(proxy="another pair of models"), row()) == ("out_of_scope", "another pair of models")


def test_a_bad_control_makes_what_stands_beside_it_invalid():
    control = row(1.05, 0.01, arm="control")
    found, reason = verdict(claim(), row(), control)
    assert found == Verdict.INVALID
    assert "the A/A arm shows 1.040 to 1.061 instead of 1" in reason


@pytest.mark.parametrize("estimate", [1.025, 0.975, 1.0])
def test_a_control_within_2_percent_or_straddling_1_condemns_nothing(estimate):
    assert verdict(claim(), row(), row(estimate, 0.01, arm="control"))[0] == Verdict.SUPPORTED
    assert verdict(claim(), row(), row(1.3, 0.5, arm="control"))[0] == Verdict.SUPPORTED


def test_a_control_speaks_for_its_own_comparison_and_metric():
    elsewhere = row(1.5, arm="control", comparison="speed/torch/resnet")
    other_metric = row(1.5, arm="control", metric="memory")
    assert verdict(claim(), row(), elsewhere, other_metric)[0] == Verdict.SUPPORTED


def test_a_comparison_without_a_control_of_its_own_shares_that_of_its_workload():
    shared = row(1.05, 0.01, arm="control", comparison="other/torch/cnn", study="other")
    assert verdict(claim(), row(), shared)[0] == Verdict.INVALID
    assert verdict(claim(), row(), shared, row(1.0, 0.01, arm="control"))[0] == Verdict.SUPPORTED
    assert verdict(claim(), row(), row(1.05, 0.01, arm="control", comparison="other/tensorflow/cnn"))[0] == (
        Verdict.SUPPORTED
    )


NO_LOSS = {"metric": "accuracy", "no_loss": True, "readings": {"kept": {"low": -1.0, "high": 1.0}}}


@pytest.mark.parametrize(
    ("estimate", "spread", "n", "expected"),
    [
        (0.1, 0.3, 6, Verdict.SUPPORTED),
        (0.0, 0.3, 4, Verdict.ACCURACY_UNVERIFIED),  # too few seeds
        (0.1, 3.0, 8, Verdict.ACCURACY_UNVERIFIED),  # too noisy
        (-1.2, 0.5, 8, Verdict.ACCURACY_UNVERIFIED),  # straddles the margin
        (-3.0, 0.5, 8, Verdict.BELOW),
        (-3.0, 0.5, 3, Verdict.BELOW),  # few seeds can still show a loss
        (3.0, 0.5, 8, Verdict.ABOVE),
    ],
)
def test_no_loss_needs_equivalence_and_enough_seeds(estimate, spread, n, expected):
    found, reason = verdict(claim(**NO_LOSS), accuracy(estimate, spread, n))
    assert found == expected
    assert n != 4 or "4 shared seeds, at least 5 are needed" in reason


def test_identical_accuracy_on_few_seeds_is_not_equal_accuracy():
    same = accuracy(0.0, 0.0, 2)
    assert verdict(claim(**NO_LOSS), same)[0] == Verdict.ACCURACY_UNVERIFIED
    plain = claim(metric="accuracy", readings={"stated": {"low": -2.0, "high": -1.0}})
    assert verdict(plain, accuracy(-1.5, 0.0, 2))[0] == Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("value", "expected"), [(1.0, Verdict.SUPPORTED), (0.0, Verdict.BELOW), (2.0, Verdict.ABOVE)])
def test_a_computed_value_is_compared_not_tested(value, expected):
    exact = claim(metric="policy_one_line", readings={"stated": {"low": 1.0, "high": 1.0}})
    assert verdict(exact, row(value, 0.0, 1, kind="value", metric="policy_one_line"))[0] == expected


def test_values_that_differ_between_launches_and_straddle_are_inconclusive():
    exact = claim(metric="policy_one_line", readings={"stated": {"low": 1.0, "high": 1.0}})
    mixed = row(1.0, 0.0, 2, kind="value", metric="policy_one_line", low=0.0)
    assert verdict(exact, mixed)[0] == Verdict.INCONCLUSIVE


STALLED = Study(
    id="data",
    title="",
    question="",
    mode=Mode.END_TO_END,
    axis="format",
    workloads=("cnn",),
    baseline=Arm(name="files"),
    treatments=(Arm(name="lmdb"),),
)


def stall(estimate: float, spread: float, n: int = 6, **fields: object) -> dict[str, object]:
    """An effect on the share of waiting."""
    where = {"study": "data", "comparison": "data/torch/cnn", "arm": "files", "baseline": "files"}
    return row(estimate, spread, n, kind="mean", metric="stall_share", **{**where, **fields})


WAITS = {"metric": "stall_share", "study": "data", "arms": ["files"], "readings": {"stated": {"low": 0.1}}}


@pytest.mark.parametrize(
    ("estimate", "spread", "expected"),
    [
        (0.2, 0.05, Verdict.SUPPORTED),
        (0.05, 0.02, Verdict.BELOW),
        (0.12, 0.05, Verdict.INCONCLUSIVE),  # a mean of launches is tested with its interval, not compared
        (0.08, 0.05, Verdict.INCONCLUSIVE),
    ],
)
def test_a_mean_over_launches_is_tested_with_its_interval(estimate, spread, expected):
    found, reason = verdict(claim(**WAITS), stall(estimate, spread))
    assert found == expected
    assert "p = " in reason


def test_a_mean_of_one_launch_is_no_verdict():
    assert verdict(claim(**WAITS), stall(0.9, 0, 1, low=math.nan, high=math.nan))[0] == Verdict.INCONCLUSIVE


def test_a_tolerance_on_a_mean_is_in_its_own_unit():
    half = claim(**{**WAITS, "readings": {"stated": {"low": 0.5, "high": 0.5}}}, tolerance=0.1)
    assert verdict(half, stall(0.58, 0.01))[0] == Verdict.SUPPORTED
    assert verdict(half, stall(0.62, 0.01))[0] == Verdict.ABOVE


def test_what_a_baseline_has_of_its_own_can_be_claimed_of_it(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(GOOD.replace("throughput", "stall_share").replace("speed", "data").replace("fp16]", "files]"))
    assert load_claims(path, [STALLED])[0].measures[0].arms == ["files"]


def test_a_bad_control_makes_what_is_made_of_the_same_seconds_invalid_too():
    control = row(1.05, 0.01, arm="control", study="data", comparison="data/torch/cnn")
    found, reason = verdict(claim(**WAITS), stall(0.2, 0.01), control)
    assert found == Verdict.INVALID
    assert "instead of 1" in reason
    best = {"metric": "best_workers_per_core", "readings": {"stated": {"low": 1.0, "high": 1.0}}}
    place = row(1.0, 0.0, kind="value", metric="best_workers_per_core")
    assert verdict(claim(**best), place)[0] == Verdict.SUPPORTED
    assert verdict(claim(**best), place, row(1.05, 0.01, arm="control", metric="load"))[0] == Verdict.INVALID


@pytest.mark.parametrize(("low", "expected"), [(1.0, Verdict.SUPPORTED), (0.5, Verdict.INCONCLUSIVE)])
def test_an_optimum_that_other_numbers_of_workers_share_is_not_the_claimed_one_alone(low, expected):
    best = claim(metric="best_workers_per_core", readings={"stated": {"low": 1.0, "high": 1.0}})
    assert verdict(best, row(1.0, 0.0, kind="value", metric="best_workers_per_core", low=low))[0] == expected


def test_memory_that_is_the_same_each_time_is_a_fact():
    half = claim(metric="memory", readings={"stated": {"low": 0.5, "high": 0.5}})
    assert verdict(half, row(0.5, 0.0, 3, metric="memory"))[0] == Verdict.SUPPORTED


def test_holm_asks_more_of_a_row_the_more_rows_a_run_judges():
    weak = row(2 * math.exp(0.055), 0.05)
    assert verdict(claim(), weak)[0] == Verdict.SUPPORTED
    others = [claim(id=f"other{i}", readings={"stated": {"low": 2.1, "high": 3.0}}) for i in range(3)]
    table = verdicts([claim(), *others], [weak])
    first = table[table["claim"] == "c"].iloc[0]
    assert first["verdict"] == Verdict.INCONCLUSIVE
    assert first["reason"].startswith("supported is not shown: p = ")
    assert "Holm over 4 tests" in first["reason"]


def test_strong_rows_survive_holm_among_many():
    many = [claim(id=f"c{i}") for i in range(100)]
    assert set(verdicts(many, [row(2.5, 0.01)])["verdict"]) == {"supported"}


def test_false_verdicts_of_a_whole_run_stay_below_one_in_twenty():
    """At the edge of the range of 20 claims, with nothing to be found, Holm lets hardly any run say anything."""
    rng = np.random.default_rng(2)
    edges = [claim(id=f"c{i}", frameworks=[], workloads=[f"w{i}"], readings={"s": {"low": 2.0}}) for i in range(20)]
    false_runs = 0
    for _ in range(80):
        rows = []
        for i in range(20):
            found = stats.ratio_interval(rng.normal(math.log(2), 0.03, 8))
            where = {"workload": f"w{i}", "comparison": f"speed/torch/w{i}"}
            rows.append(row(found.estimate, 0, 8, low=found.low, high=found.high, **where))
        false_runs += bool((verdicts(edges, rows)["verdict"] != "inconclusive").any())
    assert false_runs <= 10  # both sides count: expected 4, and 10 is three deviations above


def test_the_whole_file_against_an_empty_run_has_no_pass(claims):
    table = verdicts(list(claims.values()), [], CPU)
    assert set(table["claim"]) == set(IDS)
    assert set(table["verdict"]) == {"not_run", "out_of_scope"}
    assert (table["reason"] != "").all()


def test_raw_rows_to_verdicts():
    """The path of a whole run: blocks, launches, effects, verdict."""
    rng = np.random.default_rng(4)
    rows = [
        ("speed/torch/cnn", arm, launch, turn, 64, 64 * t * math.exp(rng.normal(0, 0.01)))
        for launch in range(6)
        for turn in range(5)
        for arm, t in (("fp32", 0.025), ("fp16", 0.01), ("control", 0.025))
    ]
    samples = pd.DataFrame(rows, columns=["comparison", "arm", "launch", "round", "items", "seconds"])
    trials = samples[["comparison", "arm", "launch"]].drop_duplicates()
    trials = trials.assign(study="speed", framework="torch", workload="cnn", mode="steady", status="ok", reason=None)
    trials = trials.assign(settled=True, peak_bytes=100, parameters=1, energy_j=math.nan)
    trials = trials.assign(oversubscribed=False, observed_devices=1, toggle_gradient_sync="overlap")
    baselines = {"speed/torch/cnn": "fp32"}
    effects = stats.effects(samples, trials, pd.DataFrame(), pd.DataFrame(), baselines=baselines)
    table = judge([claim()], effects, GPU)
    assert table["verdict"].tolist() == ["supported"]
    assert table.loc[0, "estimate"] == pytest.approx(2.5, rel=0.02)
