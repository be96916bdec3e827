"""A run under Slurm: one task on each host, through submitit. The first runs pytest, the others join it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.errors import ConfigError, Unavailable
from harness.studies import benchmarks_folder

INSTALL = "pip install 'speedproof[slurm]'"


def task(arguments: Sequence[str], port: int) -> int:
    """What each task of the job does; returns the exit code of pytest, or of the host that joins it."""
    job = importlib.import_module("submitit").JobEnvironment()
    endpoint = f"{job.hostnames[0]}:{port}"
    if job.global_rank == 0:
        several = ["--nnodes", str(job.num_tasks), "--rdzv-endpoint", endpoint] if job.num_tasks > 1 else []
        command = ["pytest", str(benchmarks_folder()), "--benchmark-only", *several, *arguments]
    else:
        command = ["harness.cli", "join", "--rdzv-endpoint", endpoint]
    # Slurm says how many tasks there are, and the launcher of each host says it anew for its ranks.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_PROCID", "SLURM_LOCALID"))}
    return subprocess.run([sys.executable, "-m", *command], check=False, env=inherited).returncode


def submit(arguments: Sequence[str], *, nodes: int, folder: Path, cluster: str, port: int, **limits: Any) -> Any:
    """Submit a run on ``nodes`` hosts and return submitit's job.

    ``arguments`` are pytest's; ``cluster`` is "slurm", or "local" for tasks on this machine; ``limits`` are submitit's
    parameters of a job (``timeout_min``, ``gpus_per_node``, ``cpus_per_task``, ``slurm_partition``).
    """
    if nodes < 1:
        raise ConfigError(f"--nodes {nodes}: must be at least 1")
    try:
        submitit = importlib.import_module("submitit")
    except ModuleNotFoundError:
        raise Unavailable(f"submitit is not installed: {INSTALL}") from None
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
    except RuntimeError as error:
        raise Unavailable(f"no job can be submitted here: {error}") from None
    tasks = {"nodes": nodes, "tasks_per_node": 1} if cluster == "slurm" else {"nodes": 1, "tasks_per_node": nodes}
    executor.update_parameters(name="speedproof", **tasks, **{k: v for k, v in limits.items() if v is not None})
    return executor.submit(task, tuple(arguments), port)
