"""The fleet of a plan of stages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cloudtune.model.placement import can_train

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cloudtune.model.catalog import Offer
    from cloudtune.policy.plan_executor import Itinerary
    from cloudtune.strategies.base import View


def _going(view: View) -> float:
    """Return the GPUs of trials that stop, or sit on instances that are to go."""
    usable = view.fleet.usable()
    if not view.running.stopping and len(usable) == sum([r.joined for r in view.fleet.alive()]):
        return 0.0
    names = {rented.instance for rented in usable}
    return sum(
        trial.width
        for trial in view.running
        if (trial.status == "stopping" and trial.after != "waiting")
        or any(piece.instance not in names for piece in trial.placement)
    )


class PlannedFleet:
    """The instances of a plan, stage by stage."""

    name = "planned"

    def __init__(self, itinerary: Itinerary) -> None:
        self._itinerary = itinerary

    @property
    def stage(self) -> int:
        """The stage of the plan, from 0."""
        return self._itinerary.stage

    def max_gpus(self, view: View) -> int:
        """Return the GPUs of the stage, of what else is held, and those about to be free.

        Trials that stop for the new stage, or sit on instances that are to go, count besides the
        stage's own GPUs: the next trials are asked for now, and take over as soon as those are
        gone.
        """
        fleet = self._itinerary.stage_plan.fleet
        held = view.held
        expected = held if fleet.items() == held.items() else fleet | held
        return sum([offer.gpus * n for offer, n in expected.items()]) + math.ceil(_going(view))

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the stage's instances, or only those held, while the rest waits for room.

        Besides them those that are asked for while the plan goes on without (`probes`).
        """
        itinerary = self._itinerary
        wanted = itinerary.needed(view)
        if itinerary.held_back(view):
            return wanted & view.held
        return wanted + itinerary.probes if itinerary.probes else wanted

    def could_ask(self, view: View) -> Collection[Offer]:
        """Return all that can be rented, as long as there may be another plan; else the stage's."""
        if self._itinerary.stuck:
            return tuple(group.offer for group in self._itinerary.stage_plan.groups)
        return tuple(rentable.offer for rentable in view.rentables)

    def can_train(self, view: View, instances: Mapping[Offer, int]) -> bool:
        """Whether a group of the stage could train a trial on these instances."""
        return any(can_train(group, instances) for group in self._itinerary.stage_plan.groups)

    def leaving(self, view: View, needed: float) -> Collection[str]:
        leaving = self._itinerary.leaving
        self._itinerary.leaving = frozenset()
        return leaving

    def dollars_to_come(self, view: View, at: float) -> float | None:
        itinerary = self._itinerary
        if not itinerary.stage_began:
            return 0.0
        now = itinerary.stage_plan
        left = max(0.0, 1 - (at - itinerary.stage_began[-1]) / now.seconds)
        return left * now.dollars + sum(
            stage.dollars for stage in itinerary.plan.stages[itinerary.stage + 1 :]
        )
