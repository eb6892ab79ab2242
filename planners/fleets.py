"""How many instances there should be: by a plan, or while a run decides as it goes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtune.placement import can_train

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.planners.following import Itinerary
    from cloudtune.strategies.base import View


class Unplanned:
    """The base of rules without stages: they don't know what a run will cost in the end."""

    stage = 0

    def could_ask(self, view: View) -> Collection[Offer]:
        """Return none but what is the target now."""
        return ()

    def can_train(self, view: View, instances: Mapping[Offer, int]) -> bool:
        """Whether there is any instance: a trial that doesn't fit goes on with fewer GPUs."""
        return any(instances.values())

    def leaving(self, view: View, needed: float) -> Collection[str]:
        """Return none: an instance goes when it is empty."""
        return ()

    def dollars_to_come(self, view: View, at: float) -> float | None:
        """Return None: what trains, and for how long, is decided as results come in."""
        return None


@dataclass(frozen=True)
class ConstantFleet(Unplanned):
    """The same instances from the begin of a run to its end.

    If the cloud refuses the offer, the first of `standins` that isn't refused takes its place.
    """

    offer: Offer
    instances: int
    standins: tuple[Offer, ...] = ()
    name: str = "constant"

    def could_ask(self, view: View) -> Collection[Offer]:
        """Return the offer and those that may stand in for it."""
        return (self.offer, *self.standins)

    def max_gpus(self, view: View) -> int:
        """Return all GPUs of the fleet."""
        return self.instances * self.offer.gpus

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the whole fleet, whatever is needed."""
        return stood_in_for(view, (self.offer, *self.standins), self.max_gpus(view))


@dataclass(frozen=True)
class NaiveFleet(Unplanned):
    """A constant fleet whose idle instances are given back, and rented again when needed.

    If the cloud refuses the offer, the first of `standins` that isn't refused takes its place. With
    `consolidates` trials move together when their next epoch is done, so that instances get empty.
    """

    offer: Offer
    instances: int
    standins: tuple[Offer, ...] = ()
    name: str = "naive"
    consolidates: bool = False

    def could_ask(self, view: View) -> Collection[Offer]:
        """Return the offer and those that may stand in for it."""
        return (self.offer, *self.standins)

    def max_gpus(self, view: View) -> int:
        """Return all GPUs that the fleet may grow to."""
        return self.instances * self.offer.gpus

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return as many instances as are needed, up to the fleet's size."""
        wanted = min(needed, self.max_gpus(view))
        return stood_in_for(view, (self.offer, *self.standins), wanted)

    def leaving(self, view: View, needed: float) -> Collection[str]:
        """Return the emptiest instances that are too many, if their trials fit elsewhere."""
        return tuple(emptied(view, self.target(view, needed))) if self.consolidates else ()


def emptied(view: View, target: Mapping[Offer, int]) -> Iterator[str]:
    """Yield the emptiest of the instances that exceed a target, if their trials fit elsewhere."""
    for offer, held in view.held.items():
        usable = [r.instance for r in view.fleet.usable() if r.offer == offer and r.instance]
        load = {name: _load(view, name) for name in usable}
        elsewhere = sum(offer.gpus - gpus for gpus in load.values())
        too_many = max(0, held - target.get(offer, 0))
        for name in sorted(load, key=lambda name: (load[name], name))[:too_many]:
            elsewhere -= offer.gpus - load[name]
            if load[name] > elsewhere:
                break
            elsewhere -= load[name]
            yield name


def _load(view: View, instance: str) -> float:
    """Return the GPUs of an instance that trials sit on."""
    pieces = (piece for trial in view.running for piece in trial.placement)
    return sum(piece.gpus for piece in pieces if piece.instance == instance)


def stood_in_for(view: View, offers: Sequence[Offer], gpus: float) -> Mapping[Offer, int]:
    """Return how many instances of each offer make up so many GPUs.

    Held instances count first, in the order of `offers`; the GPUs that are missing come from the
    first offer that isn't refused now, or from the very first if all are.
    """
    target: dict[Offer, int] = {}
    for offer in offers:
        target[offer] = min(view.held.get(offer, 0), _instances(offer, gpus))
        gpus -= target[offer] * offer.gpus
    willing = next((offer for offer in offers if not view.avoided(offer)), offers[0])
    target[willing] += _instances(willing, gpus)
    return {offer: count for offer, count in target.items() if count > 0}


def _instances(offer: Offer, gpus: float) -> int:
    return max(0, math.ceil(gpus / offer.gpus - 1e-6))


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
        groups = self._itinerary.stage_plan.groups
        planned = Counter({group.offer: group.instances for group in groups})
        expected = planned | Counter(view.held)
        usable = {rented.instance for rented in view.fleet.usable()}
        going = sum(
            trial.width
            for trial in view.running
            if (trial.status == "stopping" and trial.after != "waiting")
            or any(piece.instance not in usable for piece in trial.placement)
        )
        return sum(offer.gpus * n for offer, n in expected.items()) + math.ceil(going)

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the stage's instances, or only those held, while the rest waits for room.

        Besides them those that are asked for while the plan goes on without (`probes`).
        """
        it = self._itinerary
        wanted = it.needed(view)
        return wanted & Counter(view.held) if it.held_back(view) else wanted + it.probes

    def could_ask(self, view: View) -> Collection[Offer]:
        """Return all that can be rented, as long as another plan is to be had; else the stage's."""
        if self._itinerary.stuck:
            return tuple(group.offer for group in self._itinerary.stage_plan.groups)
        return tuple(each.offer for each in view.rentables)

    def can_train(self, view: View, instances: Mapping[Offer, int]) -> bool:
        """Whether a group of the stage could train a trial on so many instances."""
        return any(can_train(group, instances) for group in self._itinerary.stage_plan.groups)

    def leaving(self, view: View, needed: float) -> Collection[str]:
        """Return the instances that the stage doesn't need."""
        found, self._itinerary.leaving = self._itinerary.leaving, frozenset()
        return found

    def dollars_to_come(self, view: View, at: float) -> float | None:
        """Return what the rest of the plan costs."""
        it = self._itinerary
        if not it.stage_began:
            return 0.0
        now = it.stage_plan
        left = max(0.0, 1 - (at - it.stage_began[-1]) / now.seconds)
        return left * now.dollars + sum(stage.dollars for stage in it.plan.stages[it.stage + 1 :])
