"""A strategy, an allocator and a fleet rule, by their names: what an elastic run is driven by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtune.elastic import ElasticPolicy
from cloudtune.errors import UsageError
from cloudtune.planners.fleets import ConstantFleet, NaiveFleet
from cloudtune.planners.widths import SameWidth
from cloudtune.strategies.asha import Asha
from cloudtune.wording import nearest, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloudtune.bookkeeping import Brakes, Metric
    from cloudtune.catalog import Offer
    from cloudtune.plan import Limits, Rentable
    from cloudtune.strategies.base import Allocator, FleetRule, Sampler, Strategy
    from cloudtune.trial import Mode


@dataclass(frozen=True)
class Setup:
    """What strategies, allocators and fleet rules are made from.

    `trials` caps how many are started. Trials train from `min_epochs`, where they are first
    compared, to `max_epochs` at most.
    """

    rentables: tuple[Rentable, ...]
    max_instances: int
    limits: Limits
    mode: Mode
    min_epochs: int
    max_epochs: int
    eta: int = 3
    trials: int | None = None
    seed: int = 0

    @property
    def cheapest(self) -> Rentable:
        """The rentable on which an epoch at the narrowest width of 1 or more costs least."""
        return min(self.rentables, key=_epoch_dollars)


def _epoch_dollars(rentable: Rentable) -> float:
    widths = [width for width in rentable.profile.widths if width >= 1] or rentable.profile.widths
    seconds = rentable.epoch_seconds(widths[0])
    return seconds * widths[0] / rentable.gpus * rentable.offer.usd_per_second


@dataclass(frozen=True)
class Tactic:
    """Three choices that an `ElasticPolicy` carries out together."""

    strategy: Strategy
    allocator: Allocator
    fleet_rule: FleetRule


def _asha(setup: Setup, sampler: Sampler) -> Strategy:
    return Asha(
        sampler,
        min_epochs=setup.min_epochs,
        max_epochs=setup.max_epochs,
        eta=setup.eta,
        mode=setup.mode,
    )


def _same_width(setup: Setup) -> Allocator:
    widths = setup.cheapest.profile.widths
    return SameWidth(1.0 if 1.0 in widths else widths[0])


STRATEGIES: dict[str, Callable[[Setup, Sampler], Strategy]] = {
    "asha": _asha,
}
ALLOCATORS: dict[str, Callable[[Setup], Allocator]] = {
    "same": _same_width,
}
FLEETS: dict[str, Callable[[Offer, int], FleetRule]] = {
    "constant": ConstantFleet,
    "naive": NaiveFleet,
}


def named(kind: str, name: str, known: Mapping[str, object]) -> str:
    """Return the name if it is known.

    Raises:
        UsageError: it isn't; the message has the nearest.
    """
    if name in known:
        return name
    there_are = ", ".join(known)
    raise UsageError(
        f"there is no {kind} {shown(name)}; there are {there_are}.{nearest(name, known)}"
    )


def affordable_instances(setup: Setup) -> int:
    """Return how many of the cheapest instance the budget pays for from now to the deadline."""
    limits, offer = setup.limits, setup.cheapest.offer
    if limits.budget is None or limits.deadline is None:
        return setup.max_instances
    count = math.floor(limits.budget / (limits.deadline * offer.usd_per_second) + 1e-9)
    return max(1, min(setup.max_instances, count))


def fleet_rule(setup: Setup, name: str) -> FleetRule:
    """Return a fleet rule by its name, as in "constant", "naive:8".

    Without a number the fleet is as large as the budget pays for until the deadline.

    Raises:
        UsageError: no such rule, or a size that isn't a whole number above 0.
    """
    kind, _, size = name.partition(":")
    named("fleet", kind, FLEETS)
    if size and not (size.isdecimal() and int(size) > 0):
        raise UsageError(f"fleet {shown(name)}: write a whole number of instances, as in {kind}:4")
    count = min(int(size), setup.max_instances) if size else affordable_instances(setup)
    return FLEETS[kind](setup.cheapest.offer, count)


def tactic(
    setup: Setup, sampler: Sampler, strategy: str, allocator: str = "", fleet: str = ""
) -> Tactic:
    """Return the three choices by their names; without a name, what suits the strategy.

    Raises:
        UsageError: there is no choice of such a name.
    """
    made = STRATEGIES[named("strategy", strategy, STRATEGIES)](setup, sampler)
    width = ALLOCATORS[named("allocator", allocator or "same", ALLOCATORS)](setup)
    return Tactic(made, width, fleet_rule(setup, fleet or "naive"))


def elastic_policy(
    setup: Setup, tactic: Tactic, metric: Metric, brakes: Brakes, **options: Any
) -> ElasticPolicy:
    """Return the policy of a run that is driven by a tactic; `options` are `ElasticPolicy`'s."""
    return ElasticPolicy(
        strategy=tactic.strategy,
        allocator=tactic.allocator,
        fleet_rule=tactic.fleet_rule,
        rentables=setup.rentables,
        max_instances=setup.max_instances,
        metric=metric,
        limits=setup.limits,
        brakes=brakes,
        **options,
    )
