"""Simulated worlds that have something which the world of forecasts lacks, and measuring in one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld
from cloudtune.infra.provider import Cloud, Endpoint
from cloudtune.lifecycle import dry_run, measuring
from cloudtune.lifecycle.outcomes import Swept
from cloudtune.lifecycle.runner import Runner
from cloudtune.model.commands import Command, StartTrial
from cloudtune.model.events import EpochDone, Event, TrialFailed
from cloudtune.model.plans import Rentable
from cloudtune.model.scaling import ScalingProfile
from cloudtune.model.trial import Width
from cloudtune.policy.measure import MeasurePolicy


def measure_in(
    patch: pytest.MonkeyPatch,
    world: Callable[[Rentable], SimWorld],
    truth: ScalingProfile,
    note: Callable[[MeasurePolicy], object] = lambda _policy: None,
) -> None:
    """Let measurements rent nothing, and train by this truth in such a world in virtual time."""

    def go(_runner: Any, policy: MeasurePolicy, _path: Any, _header: Any, watch: Any) -> Swept:
        run(policy, world(Rentable(policy.offer, truth, 1)), MemoryLedger(), watch)
        note(policy)
        return Swept(0.0)

    cloud = Cloud(Endpoint("us-east-1"), {}, {})
    patch.setattr(measuring, "open_cloud", lambda *_, **__: cloud)
    patch.setattr(dry_run, "check_script", lambda *_, **__: dry_run.Tried())
    patch.setattr(Runner, "go", go)


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
