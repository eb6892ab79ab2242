"""A strategy, an allocator and a fleet rule, by their names: what an elastic run is driven by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cloudtune import samplers
from cloudtune.elastic import ElasticPolicy
from cloudtune.errors import UsageError
from cloudtune.planners.fleets import ConstantFleet, NaiveFleet
from cloudtune.planners.fluid_widths import DynamicFluid, StaticFluid
from cloudtune.planners.hypersched import POLICIES, HyperSchedAllocator
from cloudtune.planners.seer_elastic import SeerAllocator, SeerFleet
from cloudtune.planners.widths import SameWidth
from cloudtune.strategies.asha import Asha
from cloudtune.strategies.bohb import Bohb, SyncBohb
from cloudtune.strategies.grid import GridSearch, Sequential
from cloudtune.strategies.halving import Halving
from cloudtune.strategies.hyperband import Hyperband
from cloudtune.strategies.hypersched import HyperSched
from cloudtune.strategies.median import MedianStopping
from cloudtune.strategies.pbt import PopulationBased
from cloudtune.strategies.random_search import RandomSearch
from cloudtune.strategies.rungs import rung_epochs
from cloudtune.strategies.seer import Seer
from cloudtune.wording import nearest, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloudtune.bookkeeping import Brakes, Metric
    from cloudtune.catalog import Offer
    from cloudtune.plan import Limits, Rentable
    from cloudtune.strategies.base import Allocator, FleetRule, Sampler, Strategy
    from cloudtune.trial import Mode, Width


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


def _rungs(setup: Setup) -> dict[str, Any]:
    """Return what strategies with rungs are made from."""
    return {
        "min_epochs": setup.min_epochs,
        "max_epochs": setup.max_epochs,
        "eta": setup.eta,
        "mode": setup.mode,
    }


def _random(setup: Setup, sampler: Sampler) -> Strategy:
    return RandomSearch(sampler, max_epochs=setup.max_epochs)


def _grid(setup: Setup, sampler: Sampler) -> Strategy:
    return GridSearch(sampler, max_epochs=setup.max_epochs)


def _sequential(setup: Setup, sampler: Sampler) -> Strategy:
    return Sequential(sampler, max_epochs=setup.max_epochs)


def _median(setup: Setup, sampler: Sampler) -> Strategy:
    return MedianStopping(
        sampler, min_epochs=setup.min_epochs, max_epochs=setup.max_epochs, mode=setup.mode
    )


def _sha(setup: Setup, sampler: Sampler) -> Strategy:
    """Return one bracket of the job's trials; without a number of them, one small one by one."""
    smallest = setup.eta ** (len(rung_epochs(setup.min_epochs, setup.max_epochs, setup.eta)) - 1)
    repeat = setup.trials is None
    return Halving(sampler, trials=setup.trials or smallest, repeat=repeat, **_rungs(setup))


def _hyperband(setup: Setup, sampler: Sampler) -> Strategy:
    return Hyperband(sampler, **_rungs(setup))


def _bohb(setup: Setup, sampler: Sampler) -> Strategy:
    return Bohb(sampler, **_rungs(setup))


def _sync_bohb(setup: Setup, sampler: Sampler) -> Strategy:
    return SyncBohb(sampler, **_rungs(setup))


def _pbt(setup: Setup, sampler: Sampler) -> Strategy:
    """Return one whose clones the sampler perturbs, where it can; others take its next trials."""
    return PopulationBased(
        sampler,
        max_epochs=setup.max_epochs,
        mode=setup.mode,
        explore=getattr(sampler, "explore", None),
        seed=setup.seed,
    )


def _asha(setup: Setup, sampler: Sampler) -> Strategy:
    return Asha(sampler, **_rungs(setup))


def _asha_stopping(setup: Setup, sampler: Sampler) -> Strategy:
    return Asha(sampler, kind="stopping", **_rungs(setup))


def _hypersched(setup: Setup, sampler: Sampler) -> Strategy:
    return HyperSched(sampler, atom=_one_gpu(setup), **_rungs(setup))


def _seer(setup: Setup, sampler: Sampler, *, constant: bool = False) -> Strategy:
    return Seer(
        sampler,
        min_epochs=setup.min_epochs,
        max_epochs=setup.max_epochs,
        mode=setup.mode,
        rentables=sorted(setup.rentables, key=_epoch_dollars),
        max_instances=setup.max_instances,
        limits=setup.limits,
        constant=constant,
    )


def _one_gpu(setup: Setup) -> Width:
    """Return a width of one GPU, or the narrowest that was measured."""
    widths = setup.cheapest.profile.widths
    return 1.0 if 1.0 in widths else widths[0]


def _same_width(setup: Setup) -> Allocator:
    return SameWidth(_one_gpu(setup))


def _ilp_widths(_setup: Setup) -> Allocator:
    from cloudtune.planners.ilp_widths import IlpWidths  # noqa: PLC0415  the solver takes long

    return IlpWidths()


def _hypersched_widths(setup: Setup, policy: str = "UNIFORM") -> Allocator:
    return HyperSchedAllocator(policy=policy, atom=_one_gpu(setup), seed=setup.seed)


MODEL_BASED: dict[str, float] = {"bohb": 1 / 3, "sync-bohb": 1 / 3}
"""Strategies that need a sampler that learns, and the part of its asks that are random."""

STRATEGIES: dict[str, Callable[[Setup, Sampler], Strategy]] = {
    "random": _random,
    "grid": _grid,
    "sequential": _sequential,
    "median": _median,
    "sha": _sha,
    "halving": _sha,  # as above, where a run planned beforehand has that name
    "hyperband": _hyperband,
    "bohb": _bohb,
    "sync-bohb": _sync_bohb,
    "pbt": _pbt,
    "asha": _asha,
    "asha-stopping": _asha_stopping,
    "hypersched": _hypersched,
    "seer": _seer,
    "seer-constant": partial(_seer, constant=True),
}
ALLOCATORS: dict[str, Callable[[Setup], Allocator]] = {
    "same": _same_width,
    "static-fluid": lambda _setup: StaticFluid(),
    "static-fluid:published": lambda _setup: StaticFluid(published=True),
    "dynamic-fluid": lambda _setup: DynamicFluid(),
    "dynamic-fluid:published": lambda _setup: DynamicFluid(published=True),
    "ilp": _ilp_widths,
    "hypersched": _hypersched_widths,
    **{f"hypersched:{name}": partial(_hypersched_widths, policy=name) for name in POLICIES},
}
FLEETS: dict[str, Callable[[Offer, int, tuple[Offer, ...]], FleetRule]] = {
    "constant": ConstantFleet,
    "naive": NaiveFleet,
}

OWN = "own"
"""The allocator and the fleet that belong to a strategy, and see what it sees."""
SUITED: dict[str, tuple[str, str]] = {
    "hypersched": ("hypersched", "constant"),
    "seer": (OWN, OWN),
    "seer-constant": (OWN, OWN),
}
"""The allocator and the fleet of strategies that "same" and "naive" don't suit."""


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


def sampler_for(strategy: str, asked: str = "") -> tuple[str, float]:
    """Return the kind of sampler that a strategy gets, and which part of its asks are random.

    Where none is asked for, that is TPE for BOHB, which is nothing without a model, else "random".

    Raises:
        UsageError: there is no such sampler, or the strategy needs one that learns.
    """
    if strategy not in MODEL_BASED:
        return samplers.sampler_kind(asked or "random"), 0.0
    if samplers.sampler_kind(asked or "tpe") not in samplers.MODEL_BASED:
        raise UsageError(
            f"{strategy} with the sampler {asked} is Hyperband: take the strategy hyperband, or "
            f"one of the samplers {', '.join(samplers.MODEL_BASED)}"
        )
    return asked or "tpe", MODEL_BASED[strategy]


def affordable_instances(setup: Setup) -> int:
    """Return how many of the cheapest instance the budget pays for from now to the deadline."""
    limits, offer = setup.limits, setup.cheapest.offer
    if limits.budget is None or not limits.deadline or offer.usd_per_second == 0:
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
    offers = [each.offer for each in sorted(setup.rentables, key=_epoch_dollars)]
    return FLEETS[kind](offers[0], count, tuple(offers[1:]))


def tactic(
    setup: Setup, sampler: Sampler, strategy: str, allocator: str = "", fleet: str = ""
) -> Tactic:
    """Return the three choices by their names; without a name, what suits the strategy.

    Raises:
        UsageError: there is no choice of such a name.
    """
    made = STRATEGIES[named("strategy", strategy, STRATEGIES)](setup, sampler)
    suited = SUITED.get(strategy, ("same", "naive"))
    allocator, fleet = allocator or suited[0], fleet or suited[1]
    if isinstance(made, Seer):
        own = SeerAllocator(made)
        widths = own if allocator == OWN else ALLOCATORS[_allocator(allocator)](setup)
        rule = SeerFleet(made, own) if fleet == OWN else fleet_rule(setup, fleet)
        return Tactic(made, widths, rule)
    return Tactic(made, ALLOCATORS[_allocator(allocator)](setup), fleet_rule(setup, fleet))


def _allocator(name: str) -> str:
    return named("allocator", name, ALLOCATORS)


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
