"""The projected scaling curves of a run, from its own rows: never a measurement, never a verdict.

A curve stands on the step of one device (the baseline of a study that varies the devices), on the bytes of its
gradients, and on what the check ``exchange_cost`` found: the link of two ranks, the backward pass's share of the step,
what a transfer steals from computing, and what a step loses beside another's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from harness import projection
from harness.projection import Link, Network, Training
from harness.spec import Status

NEEDED = ("link_latency", "link_bandwidth", "stolen_share", "backward_share", "beside_ratio")
FLOAT32 = 4  # bytes of a gradient
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20  # bytes, PyTorch's own: a small one first, so that sending starts early

COLUMNS = ["comparison", "workload", "scale", "devices", "speedup", "efficiency"]


def curves(
    samples: pd.DataFrame,
    trials: pd.DataFrame,
    checks: pd.DataFrame,
    baselines: Mapping[str, str],
    devices: Sequence[int],
) -> pd.DataFrame:
    """Columns :data:`COLUMNS`: a row for each comparison that varies the devices, and each number of them.

    Speedups are over one device by itself. A workload whose exchange was not measured in this run has no row.
    """
    costs = checks[checks["check"].isin(NEEDED)].pivot_table(index="workload", columns="check", values="value")
    ok = trials[(trials["status"] == Status.OK) & trials["observed_devices"].notna()]
    rows = []
    for comparison, group in ok.groupby(ok["comparison"].astype(str)):
        one = group[group["arm"].astype(str) == baselines.get(comparison)]
        known = len(one) and one["observed_devices"].eq(1).all() and group["observed_devices"].nunique() > 1
        if not known or one["toggle_strategy"].iloc[0] != "ddp":
            continue
        workload = str(one["workload"].iloc[0])
        if workload not in costs.index or costs.loc[workload].reindex(NEEDED).isna().any():
            continue
        cost = dict(zip(NEEDED, costs.loc[[workload], list(NEEDED)].to_numpy(dtype=float)[0].tolist(), strict=True))
        blocks = samples[(samples["comparison"] == comparison) & (samples["arm"] == baselines[comparison])]
        alone_s = float(np.median((blocks["seconds"] / blocks["steps"]).to_numpy(dtype=float)))
        scale = projection.Scale(one["toggle_scale"].iloc[0])
        training = Training(
            step_s=alone_s * cost["beside_ratio"],
            backward=cost["backward_share"],
            buckets=buckets(FLOAT32 * float(one["parameters"].iloc[0])),
            stolen=cost["stolen_share"],
        )
        network = Network(link=Link(latency_s=cost["link_latency"], bandwidth=cost["link_bandwidth"]))
        for point in projection.curve(training, network, scale=scale, devices=devices):
            speedup = point.speedup / cost["beside_ratio"]
            rows.append((comparison, workload, scale.value, point.devices, speedup, speedup / point.devices))
    return pd.DataFrame(rows, columns=COLUMNS)


def buckets(total: float) -> tuple[projection.Bucket, ...]:
    """``total`` bytes in the buckets that DistributedDataParallel makes of them unless told otherwise."""
    first = min(total, FIRST_BUCKET)
    whole, rest = divmod(total - first, BUCKET)
    return projection.buckets([first, *[BUCKET] * int(whole), *([rest] if rest else [])])
