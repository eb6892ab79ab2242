"""Strategies, allocators and fleet rules by name, and the policy composed of them.

One table per kind: the core's are here, packages add theirs by entry points (`cloudtune.plugins`).
The names mean the same in experiment files, on the command line and in comparisons on recorded
curves.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cloudtune.errors import UsageError, nearest, quote
from cloudtune.model import menu
from cloudtune.model.plans import BY_PLAN, Charges, Plan
from cloudtune.model.trial import Trial
from cloudtune.plugins import Registry
from cloudtune.policy.base import Brakes, Components, Metric
from cloudtune.policy.context import BuildContext
from cloudtune.policy.entries import AllocatorEntry, StrategyEntry
from cloudtune.policy.run import RunPolicy
from cloudtune.policy.schedule.stages import Planning, follow
from cloudtune.policy.state import RunState
from cloudtune.strategies.allocators.best import BestAllocator
from cloudtune.strategies.allocators.fluid import DynamicFluid
from cloudtune.strategies.allocators.same import SameWidth
from cloudtune.strategies.asha import Asha
from cloudtune.strategies.base import FleetRule, Sampler, Strategy
from cloudtune.strategies.best import BestSearch
from cloudtune.strategies.bohb import Bohb, SyncBohb
from cloudtune.strategies.fleets import (
    BackToSpot,
    ConstantFleet,
    NaiveFleet,
    SpendingFleet,
)
from cloudtune.strategies.grid import GridSearch, Sequential
from cloudtune.strategies.hyperband import Hyperband
from cloudtune.strategies.median import MedianStopping
from cloudtune.strategies.offers import Offers
from cloudtune.strategies.pbt import PopulationBased
from cloudtune.strategies.random_search import RandomSearch
from cloudtune.strategies.rungs import rung_epochs
from cloudtune.strategies.samplers import sampler as samplers
from cloudtune.strategies.spending import EvenSpending
from cloudtune.strategies.successive_halving import Halving
from cloudtune.strategies.worth import means_within


def _rungs(context: BuildContext) -> dict[str, Any]:
    """Return the arguments of strategies with rungs."""
    return {
        "min_epochs": context.min_epochs,
        "max_epochs": context.max_epochs,
        "eta": context.eta,
        "mode": context.mode,
    }


def _by_rungs(kind: Callable[..., Strategy], context: BuildContext, sampler: Sampler) -> Strategy:
    return kind(sampler, **_rungs(context))


def _median(context: BuildContext, sampler: Sampler) -> Strategy:
    return MedianStopping(
        sampler, min_epochs=context.min_epochs, max_epochs=context.max_epochs, mode=context.mode
    )


def _halving(context: BuildContext, sampler: Sampler) -> Strategy:
    """Return one bracket of `trials` trials, or small brackets one by one if it isn't set."""
    repeat = context.trials is None
    return Halving(sampler, trials=_bracket_trials(context), repeat=repeat, **_rungs(context))


def _bracket_trials(context: BuildContext) -> int:
    """Return the trials of a bracket: as many as are set, or as few as fill all rungs."""
    rungs = rung_epochs(context.min_epochs, context.max_epochs, context.eta)
    return context.trials or context.eta ** (len(rungs) - 1)


def _trials_at_once(context: BuildContext, choice: "Choice") -> float:
    """Return how many trials train at once on average, if there are GPUs for all.

    Without a bound where idle GPUs make trials wider.
    """
    if choice.allocator != "same":
        return math.inf
    most = min(context.trials or math.inf, context.max_concurrent or math.inf)
    if not STRATEGIES[choice.strategy].one_bracket:
        return most
    trials = _bracket_trials(context)
    epochs = before = 0
    for rung in rung_epochs(context.min_epochs, context.max_epochs, context.eta):
        epochs += trials * (rung - before)
        before = rung
        trials = max(1, trials // context.eta)
    return min(most, epochs / context.max_epochs)


def _pbt(context: BuildContext, sampler: Sampler) -> Strategy:
    """Return PBT; the sampler perturbs clones if it can, otherwise they are its next trials."""
    explore = getattr(sampler, "explore", None)
    if explore is not None and context.inherit:
        explore = partial(explore, inherit=True)
    return PopulationBased(
        sampler,
        max_epochs=context.max_epochs,
        mode=context.mode,
        explore=explore,
        seed=context.seed,
    )


def _best_search(
    context: BuildContext, sampler: Sampler, *, constant: bool, full: bool
) -> Strategy:
    return BestSearch(
        sampler,
        min_epochs=context.min_epochs,
        max_epochs=context.max_epochs,
        mode=context.mode,
        rentables=context.rentables,
        limits=context.limits,
        max_instances=context.max_instances,
        until_limits=context.trials is None,
        constant=constant,
        full=full,
        stands_for=context.stands_for,
    )


def planned_entry(planning: Planning, *, origin: str = "") -> StrategyEntry:
    """Return a strategy whose stages are planned; where nothing goes by a plan, it is `halving`."""
    return StrategyEntry(
        _halving, BY_PLAN, BY_PLAN, planning=planning, one_bracket=True, origin=origin
    )


def _bohb(kind: Callable[..., Strategy], *, one_bracket: bool = False) -> StrategyEntry:
    return StrategyEntry(partial(_by_rungs, kind), random_share=1 / 3, one_bracket=one_bracket)


def _in_full(kind: Callable[..., Strategy]) -> StrategyEntry:
    """Return a strategy that trains every trial to its last epoch."""
    return StrategyEntry(
        lambda context, sampler: kind(sampler, max_epochs=context.max_epochs), pauses=False
    )


def _best_entry(origin: str = "", *, constant: bool = False, full: bool = False) -> StrategyEntry:
    build = partial(_best_search, constant=constant, full=full)
    return StrategyEntry(build, SEER, SEER, origin=origin)


# The default search: its name, and its name before 0.3.
SEARCHES = ("best", "seer")
# The allocator and the fleet rule that are parts of `best`, by its name before 0.3.
SEER = "seer"
_AIM = "a method of our own with SEER's aim; the paper's algorithm is another, and unknown to us"

STRATEGIES: Registry[StrategyEntry] = Registry(
    "cloudtune.strategies",
    {
        "random": _in_full(RandomSearch),
        "grid": _in_full(GridSearch),
        "sequential": _in_full(Sequential),
        "median": StrategyEntry(_median, pauses=False, every_epoch=True),
        "sha": planned_entry(Planning("exact")),
        "halving": StrategyEntry(_halving, one_bracket=True),
        "hyperband": StrategyEntry(partial(_by_rungs, Hyperband)),
        "bohb": _bohb(Bohb),
        "sync-bohb": _bohb(SyncBohb, one_bracket=True),
        "pbt": StrategyEntry(_pbt, every_epoch=True),
        "asha": StrategyEntry(partial(_by_rungs, Asha)),
        "asha-stopping": StrategyEntry(
            partial(_by_rungs, partial(Asha, kind="stopping")), pauses=False
        ),
        "best": _best_entry(),
        "seer": _best_entry(f"now called best: {_AIM}"),  # its name before 0.3
        "seer-constant": _best_entry(_AIM, constant=True),
        "seer-full": _best_entry(_AIM, full=True),
    },
    StrategyEntry,
)
ALLOCATORS: Registry[AllocatorEntry] = Registry(
    "cloudtune.allocators",
    {
        "same": AllocatorEntry(lambda context: SameWidth(context.one_gpu), whole_gpus=True),
        "fluid": AllocatorEntry(lambda _context: DynamicFluid()),
    },
    AllocatorEntry,
)
# The options of each fleet rule (`SpendingFleet`).
FLEETS: dict[str, dict[str, bool]] = {
    "constant": {},
    "naive": {"returns_idle": True},
    "consolidating": {"returns_idle": True, "moves_together": True},
}


@dataclass(frozen=True)
class Choice:
    """The names of a run's strategy, allocator and fleet rule."""

    strategy: str
    allocator: str
    fleet: str

    @property
    def planning(self) -> Planning | None:
        """How the strategy's stages are planned; None if it decides as results come in."""
        return STRATEGIES[self.strategy].planning

    @property
    def has_rules(self) -> bool:
        """Whether the strategy or the allocator goes by `strategy.rules`."""
        entry = self._allocator_entry
        return STRATEGIES[self.strategy].has_rules or (entry is not None and entry.has_rules)

    @property
    def whole_gpus(self) -> bool:
        """Whether the allocator never lets trials share a GPU."""
        entry = self._allocator_entry
        return entry is not None and entry.whole_gpus

    @property
    def _allocator_entry(self) -> AllocatorEntry | None:
        """The allocator's record; None if the allocator is a part of a strategy or of a plan."""
        return ALLOCATORS.get(self.allocator)

    @property
    def planned(self) -> bool:
        """Whether the widths or the fleet follow a plan of stages, so that there must be one."""
        return BY_PLAN in {self.allocator, self.fleet}


def planned_names() -> list[str]:
    """Return the strategies whose stages are planned."""
    return [name for name in STRATEGIES if has_stages(name)]


def has_stages(strategy: str) -> bool:
    """Whether a strategy has stages that are planned."""
    return STRATEGIES[strategy].planning is not None


def origin(strategy: str) -> str:
    """Return the paper behind a reconstruction; "" for the others and for unknown names."""
    return STRATEGIES[strategy].origin if strategy in STRATEGIES else ""


def explores(strategy: str) -> bool:
    """Whether the number of trials is part of a strategy's plan."""
    planning = STRATEGIES[strategy].planning
    return planning is not None and planning.explores


def replans(strategy: str) -> bool:
    """Whether the rest of a strategy's plan is replanned when speeds differ from the profile."""
    planning = STRATEGIES[strategy].planning
    return planning is not None and planning.replans


def check_name(kind: str, name: str, names: Collection[str]) -> str:
    """Return the name if it is one of `names`.

    Raises:
        UsageError: it isn't; the message suggests the nearest.
    """
    if name in names:
        return name
    names_shown = {"strategy": menu.STRATEGIES, "allocator": menu.ALLOCATORS}.get(kind)
    others = " (cloudtune docs papers lists the published variants)" if names_shown else ""
    raise UsageError(
        f"unknown {kind} {quote(name)}; choose one of {', '.join(names_shown or names)}{others}."
        f"{nearest(name, names)}"
    )


def choose_sampler(strategy: str, asked: str = "") -> tuple[str, float]:
    """Return the sampler of a strategy, and the share of its asks that is random.

    By default BOHB gets "tpe", since it needs a model, the search gets "adaptive", and any other
    strategy "random".

    Raises:
        UsageError: there is no such sampler, or the strategy needs one that learns.
    """
    random_share = STRATEGIES[strategy].random_share
    if random_share is None:
        usual = samplers.ADAPTIVE if strategy in SEARCHES else "random"
        return samplers.sampler_kind(asked or usual), 0.0
    if samplers.sampler_kind(asked or "tpe") not in samplers.MODEL_BASED:
        raise UsageError(
            f"{strategy} with the sampler {asked} is Hyperband: take the strategy hyperband, or "
            f"one of the samplers {', '.join(samplers.MODEL_BASED)}"
        )
    return asked or "tpe", random_share


def fleet_rule(context: BuildContext, choice: Choice) -> FleetRule:
    """Return the fleet rule of a choice by its name, as in "constant", "naive:8".

    With a number the fleet has at most as many instances of the offer that buys most. Without one
    it has what the budget pays for until the deadline.

    Raises:
        UsageError: no such rule, or a size that isn't a whole number above 0.
    """
    name = choice.fleet
    kind, _, size = name.partition(":")
    check_name("fleet", kind, FLEETS)
    means = means_within(
        context.limits,
        context.max_instances,
        context.max_epochs,
        _trials_at_once(context, choice),
    )
    offers = Offers(context.rentables, means, until_limits=context.trials is None)
    if not size:
        spending = EvenSpending(offers, context.one_gpu)
        return _back_to_spot(offers, SpendingFleet(spending, kind, **FLEETS[kind]))
    if not (size.isdecimal() and int(size) > 0):
        raise UsageError(f"fleet {quote(name)}: write a whole number of instances, as in {kind}:4")
    count = min(int(size), context.max_instances)
    first, *standins = offers.in_order
    if kind == "constant":
        return _back_to_spot(offers, ConstantFleet(first, count, tuple(standins)))
    together = FLEETS[kind].get("moves_together", False)
    naive = NaiveFleet(first, count, tuple(standins), name=kind, consolidates=together)
    return _back_to_spot(offers, naive)


def _back_to_spot(offers: Offers, rule: FleetRule) -> FleetRule:
    """Return the rule, with the way back to spot if there are both markets."""
    both = len({offer.market for offer in offers.in_order}) > 1
    return BackToSpot(rule, offers) if both else rule


def chosen(strategy: str, allocator: str = "", fleet: str = "") -> Choice:
    """Return the three names; those left out are the ones that suit the strategy and the fleet.

    Raises:
        UsageError: a name is unknown, or goes with another strategy only.
    """
    check_name("strategy", strategy, STRATEGIES)
    entry = STRATEGIES[strategy]
    suited = (entry.allocator, entry.fleet)
    if BY_PLAN in suited and fleet not in {"", BY_PLAN}:
        allocator = allocator or "same"  # a plan's widths are for its own instances
    allocator = allocator or suited[0]
    fleet = fleet or suited[1]
    choice = Choice(strategy, allocator, fleet)
    for kind, name, names in (
        ("allocator", allocator, ALLOCATORS),
        ("fleet", fleet.partition(":")[0], FLEETS),
    ):
        if name not in {BY_PLAN, SEER}:
            check_name(kind, name, names)
        elif name == BY_PLAN and entry.planning is None:
            raise UsageError(
                f"{kind} {BY_PLAN}: {strategy} decides as results come in, so there are no stages "
                f"to plan; {BY_PLAN} goes with {', '.join(planned_names())}"
            )
        elif name == SEER and SEER not in suited:
            raise UsageError(f"{kind} {SEER} is a part of the strategies best and seer-constant")
    if explores(strategy) and not choice.planned:
        raise UsageError(f"{strategy} needs its plan: leave out the allocator or the fleet")
    return choice


def components(
    context: BuildContext,
    sampler: Sampler,
    choice: Choice,
    brakes: Brakes,
    plan: Plan | None = None,
) -> Components:
    """Build the strategy, the allocator and the fleet rule of a choice.

    A planned choice needs a plan; its trials are then the sampler's first.
    """
    if choice.planned:
        assert plan is not None, f"{choice} goes by a plan"
        return _planned_components(context, sampler, choice, brakes, plan)
    strategy = STRATEGIES[choice.strategy].build(context, sampler)
    if isinstance(strategy, BestSearch):
        own = BestAllocator(strategy)
        widths = own if choice.allocator == SEER else ALLOCATORS[choice.allocator].build(context)
        if choice.fleet != SEER:
            return Components(strategy, widths, fleet_rule(context, choice))
        fleet = SpendingFleet(strategy, SEER, moves_together=True)
        return Components(strategy, widths, _back_to_spot(strategy.offers, fleet))
    allocator = ALLOCATORS[choice.allocator].build(context)
    return Components(strategy, allocator, fleet_rule(context, choice))


def _planned_components(
    context: BuildContext, sampler: Sampler, choice: Choice, brakes: Brakes, plan: Plan
) -> Components:
    trials = _first_trials(sampler, plan.stages[0].stage.trials)
    assert choice.planning is not None
    parts = follow(
        choice.strategy,
        choice.planning,
        context,
        plan,
        trials,
        brakes=brakes,
        sampler=sampler,
        planned_widths=choice.allocator == BY_PLAN,
        planned_fleet=choice.fleet == BY_PLAN,
    )
    if choice.allocator != BY_PLAN:
        parts = replace(parts, allocator=ALLOCATORS[choice.allocator].build(context))
    if choice.fleet != BY_PLAN:
        parts = replace(parts, fleet_rule=fleet_rule(context, choice))
    return parts


def _first_trials(sampler: Sampler, count: int) -> list[Trial]:
    asked = (sampler.ask() for _ in range(count))
    return [trial for trial in asked if trial is not None]


def run_policy(
    context: BuildContext,
    parts: Components,
    metric: Metric,
    brakes: Brakes,
    *,
    charges: Charges | None = None,
    vcpu_quotas: Mapping[str, int] | None = None,
    zones: Sequence[str] = (),
    shares_gpus: bool = False,
    **options: Any,
) -> RunPolicy:
    """Return the policy of the three choices; `options` are `RunPolicy`'s.

    With `shares_gpus` the run finds out whether several trials on a GPU pay.
    """
    state = RunState(
        rentables=context.rentables,
        max_instances=context.max_instances,
        metric=metric,
        limits=context.limits,
        brakes=brakes,
        charges=charges,
        vcpu_quotas=vcpu_quotas,
        zones=zones,
        shares_gpus=shares_gpus,
        last_epoch=context.max_epochs,
    )
    return RunPolicy(state, parts, **options)
