"""What is derived from the raw rows: the name, scale, unit and meaning of every metric."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.spec import Mode


class Kind(StrEnum):
    """The scale of a metric, and with it the one on which intervals are symmetric."""

    RATIO = "ratio"  # treatment / baseline, logarithmic
    DIFFERENCE = "difference"  # treatment - baseline
    VALUE = "value"  # of the arm alone, computed or counted
    MEAN = "mean"  # of the arm alone, one number a launch


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """``modes`` are the modes of the studies that produce it.

    A ``counted`` metric that comes out the same each time is a fact, not a sample without spread. ``rests_on`` are
    metrics made of the same seconds: where their A/A control fails, this one is invalid as well.
    """

    kind: Kind
    modes: tuple[Mode, ...]
    meaning: str
    unit: str = ""
    counted: bool = False
    rests_on: tuple[str, ...] = ()


_STEADY, _CONVERGENCE, _FIT, _CHECK = (Mode.STEADY,), (Mode.CONVERGENCE,), (Mode.FIT,), (Mode.CHECK,)
_TRAINED, _STORED = (Mode.STEADY, Mode.END_TO_END), (Mode.LOADING, Mode.END_TO_END)


def _check(meaning: str) -> Metric:
    return Metric(kind=Kind.VALUE, modes=_CHECK, meaning=meaning)


METRICS: dict[str, Metric] = {
    "throughput": Metric(
        kind=Kind.RATIO, modes=_TRAINED, unit="x", meaning="examples trained a second; above 1 the treatment is faster"
    ),
    "scaling_efficiency": Metric(
        kind=Kind.RATIO,
        modes=_STEADY,
        unit="x",
        meaning="throughput on N devices over N times the throughput on one; 1 is linear",
        rests_on=("throughput",),
    ),
    "communication_share": Metric(
        kind=Kind.MEAN,
        modes=_STEADY,
        meaning="share of a data-parallel step that is gone when no gradients are exchanged",
        rests_on=("throughput",),
    ),
    "step_time": Metric(
        kind=Kind.RATIO, modes=_STEADY, unit="x", meaning="computing time for each example; below 1 is less"
    ),
    "load": Metric(
        kind=Kind.RATIO,
        modes=(Mode.LOADING,),
        unit="x",
        meaning="examples loaded a second with nothing trained; above 1 the treatment is faster",
    ),
    "stall_share": Metric(
        kind=Kind.MEAN,
        modes=(Mode.END_TO_END,),
        meaning="share of the training time spent waiting for a batch",
        rests_on=("throughput",),
    ),
    "best_workers_per_core": Metric(
        kind=Kind.VALUE,
        modes=_STORED,
        meaning="loader processes for each core where loading is fastest; from the fewest to the most that are not "
        "slower than the best",
        rests_on=("load", "throughput"),
    ),
    "stored_bytes": Metric(
        kind=Kind.RATIO, modes=_STORED, unit="x", counted=True, meaning="bytes of the stored set on the disk"
    ),
    "memory": Metric(
        kind=Kind.RATIO, modes=_STEADY, unit="x", counted=True, meaning="peak memory in training; below 1 is less"
    ),
    "parameters": Metric(kind=Kind.RATIO, modes=_STEADY, unit="x", counted=True, meaning="parameters of the model"),
    "energy": Metric(
        kind=Kind.RATIO, modes=_STEADY, unit="x", meaning="GPU energy for each example; null without an energy counter"
    ),
    "accuracy": Metric(
        kind=Kind.DIFFERENCE,
        modes=_CONVERGENCE,
        unit="percentage points",
        meaning="test accuracy after the last epoch, on shared seeds",
    ),
    "accuracy_relative": Metric(
        kind=Kind.DIFFERENCE,
        modes=_CONVERGENCE,
        unit="% of the baseline's accuracy",
        meaning="test accuracy after the last epoch, on shared seeds",
    ),
    "time_to_target": Metric(
        kind=Kind.RATIO,
        modes=_CONVERGENCE,
        unit="x",
        meaning="training time until the target accuracy, on seeds where both reach it; below 1 is sooner",
    ),
    "epoch_time": Metric(
        kind=Kind.RATIO, modes=_CONVERGENCE, unit="x", meaning="median training time of an epoch; below 1 is shorter"
    ),
    "largest_batch": Metric(
        kind=Kind.RATIO,
        modes=_FIT,
        unit="x",
        counted=True,
        meaning="largest batch that trained in the memory there is",
    ),
    "fits_at_baseline_oom": Metric(
        kind=Kind.VALUE,
        modes=_FIT,
        meaning="1 where the arm trains at the smallest batch at which the baseline does not; of the baseline itself: "
        "1 where half and quarter of that batch train",
    ),
    "checks": _check("stands for the values of a check study that produced none"),
    **{f"eps_{t}": _check(f"distance from 1 to the next {t} number") for t in ("float16", "float32", "float64")},
    **{
        f"eps_ratio_{t}": _check(f"resolution of {t}, measured over the documents' figure")
        for t in ("float16", "float32", "float64")
    },
    "policy_one_line": _check("1 where one line switches a whole model to mixed precision"),
    "policy_variables_float32": _check("1 where the weights stay float32 under the mixed policy"),
    "policy_softmax_float32": _check("1 where softmax computes in float32 under the mixed policy by itself"),
    "policy_layer_override": _check("1 where one layer's dtype argument takes it out of the mixed policy"),
    "policy_statements_true": _check("share of the documents' statements on the mixed policy that hold"),
    "equality": _check("1 where replicas on shards and the whole batch give equal weights in float64, else 0"),
    "shards_difference": _check("largest relative difference of a weight between shards and the whole batch"),
    "shards_difference_unmerged": _check("the same where a shard is left out: what an error would look like"),
    "shards_difference_batchnorm": _check("the same with BatchNorm, which sees its own shard only"),
    "mirrored_one_line": _check("1 where building the model in the strategy's scope has fit train on every device"),
    "link_latency": _check("seconds that a message between two ranks takes beside its bytes"),
    "link_bandwidth": _check("bytes a second between two ranks"),
    "stolen_share": _check("share of a transfer's time that computing beside it loses"),
    "backward_share": _check("share of a training step in its backward pass"),
    "beside_ratio": _check("step of a rank beside another that trains too, over its step alone, nothing exchanged"),
    "underflow_unscaled": _check("share of nonzero float32 gradient entries that are zero in unscaled fp16"),
    "underflow_scaled": _check("the same share with loss scaling"),
    "underflow_prevented": _check("share of the entries lost without loss scaling that are kept with it"),
}


def kind_of(metric: str) -> Kind:
    """The scale of a metric; a check that is not listed is a plain value."""
    return METRICS[metric].kind if metric in METRICS else Kind.VALUE


def is_exact(metric: str, low: float, high: float) -> bool:
    """Whether bounds of this metric are those of computed or counted numbers, to be compared instead of tested."""
    if kind_of(metric) is Kind.VALUE:
        return True
    return METRICS[metric].counted and low == high


def metrics_of(mode: Mode) -> tuple[str, ...]:
    """The metrics that a study of this mode produces."""
    return tuple(name for name, metric in METRICS.items() if mode in metric.modes)
