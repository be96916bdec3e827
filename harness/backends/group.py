"""What a group of processes that train together is in either framework: measured in steps, and failing as one."""

from __future__ import annotations

from harness.backends import Evaluation
from harness.errors import ConfigError, MeasurementError

_STEPS_ONLY = "several devices are measured in steps; ask for convergence on one device"


class GroupError(MeasurementError):
    """A rank failed; ``out_of_memory`` where that is why."""

    def __init__(self, reason: str, *, out_of_memory: bool) -> None:
        super().__init__(reason)
        self.out_of_memory = out_of_memory


class StepsOnly:
    """The part of :class:`harness.backends.Session` that a group has no use for."""

    def train_epoch(self, epoch: int) -> int:
        """Not for several devices: convergence is asked of one device with the same global batch."""
        raise ConfigError(f"epoch {epoch}: {_STEPS_ONLY}")

    def evaluate(self) -> Evaluation:
        """Not for several devices, see :meth:`train_epoch`."""
        raise ConfigError(_STEPS_ONLY)
