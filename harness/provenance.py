"""What a reader needs to trust a number: the machine, versions, commit and command of a run, in one line each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Where a run's numbers come from; an entry that the run did not record reads "not recorded"."""

    run_id: str
    machine: str
    versions: str
    commit: str
    profile: str
    command: str

    @property
    def lines(self) -> tuple[str, ...]:
        """The caption's lines, the same for figures and tables."""
        return (
            f"Machine: {self.machine}",
            f"Software: {self.versions}",
            f"Run {self.run_id}, profile {self.profile}, commit {self.commit}",
            f"Command: {self.command}",
        )


_MISSING = "not recorded"


def provenance(header: Mapping[str, Any]) -> Provenance:
    """Read the header of a run (its ``run.yaml``, see :class:`harness.results_header.RunHeader`)."""
    git = header.get("git") or {}
    commit = str(git.get("commit") or _MISSING)[:12]
    if git.get("dirty"):
        commit += " with uncommitted changes"
    versions = {name: version for name, version in (header.get("versions") or {}).items() if version}
    return Provenance(
        run_id=str(header["run_id"]),
        machine=_machine(header.get("machine") or {}),
        versions=", ".join(f"{name} {version}" for name, version in versions.items()) or _MISSING,
        commit=commit,
        profile=str(header["profile"]["name"]),
        command=str(header["command"]),
    )


def _machine(machine: Mapping[str, Any]) -> str:
    """A line on the recorded machine (:func:`harness.machine.fingerprint`): GPUs, processor, cores, driver."""
    gpus = [str(gpu.get("name")) for gpu in machine.get("gpus") or []]
    parts = [
        *(f"{gpus.count(name)}x {name}" for name in dict.fromkeys(gpus)),
        f"{machine['cores']} cores of {machine.get('cpu') or 'an unknown CPU'}" if "cores" in machine else "",
        f"driver {machine['driver']}" if machine.get("driver") else "",
        str(machine.get("os") or ""),
    ]
    return ", ".join(p for p in parts if p) or _MISSING
