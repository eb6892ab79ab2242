"""Simulated worlds that have something which the world of forecasts lacks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloudtune.engine.simulator import SimWorld
from cloudtune.model.commands import Command, StartTrial
from cloudtune.model.events import EpochDone, Event, TrialFailed
from cloudtune.model.plans import Rentable
from cloudtune.model.trial import Width


class Cramped(SimWorld):
    """A world of GPUs with memory: a trial has `mib` of it.

    At most so wide a share, by instance type, trials run out of memory a second after their start.
    """

    def __init__(
        self,
        rentables: Sequence[Rentable],
        *given: Any,
        mib: float | None = None,
        cramped: Mapping[str, Width] | None = None,
        **more: Any,
    ) -> None:
        self._mib = mib
        self._cramped = cramped or {}
        super().__init__(rentables, *given, **more)

    def schedule(self, event: Event) -> None:
        super().schedule(
            replace(event, memory_mib=self._mib) if isinstance(event, EpochDone) else event
        )

    def apply(self, command: Command) -> None:
        super().apply(command)
        if isinstance(command, StartTrial):
            kind = self._profiles[command.placement[0].instance].instance_type
            if command.width <= self._cramped.get(kind, 0.0):
                full = TrialFailed(self.now + 1, command.session, "full", "", out_of_memory=True)
                self.schedule(full)
