"""From an experiment to a plan: offers, profiles, limits, planner. Rents nothing."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from cloudtune import home
from cloudtune.elastic_plan import ElasticPlan
from cloudtune.errors import InfeasibleError, UsageError
from cloudtune.infra import local, pricing
from cloudtune.infra.lease import RENEW_SECONDS
from cloudtune.job import charges_of, drain_seconds, strategy, trials
from cloudtune.phrases import width_text
from cloudtune.plan import Limits, Outlook, PlanRequest, Rentable
from cloudtune.planners.choose import measures
from cloudtune.planners.estimate import outlook, quantile_plan
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.explore import explore
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.planners.naive import NaivePlanner
from cloudtune.planners.static import StaticPlanner
from cloudtune.profiles import store
from cloudtune.strategies.sha import SuccessiveHalving
from cloudtune.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.catalog import Catalog, InstanceType, Market
    from cloudtune.experiment import Experiment
    from cloudtune.plan import Plan, Planner, Stage
    from cloudtune.scaling import ScalingProfile

MARGIN = 0.05
"""The share of deadline and budget that a plan leaves for what it can't foresee."""
SETUP_SECONDS = 12.0
"""What a run takes before its first request: the check of the script, and Ray's head."""
LEASE_GRACE_SECONDS = 600.0
"""How much longer than its run may take an instance may live, if nobody gives it back."""
MOST_TRIALS = 4096
"""As many trials are looked for, at most, where the limits are to be explored."""
SAMPLES = 1000
_MIXED_WAYS = 200_000
"""Up to so many ways to split a stage over two offers, mixed stages are planned."""

EXACT = ExactPlanner()
"""One for all questions of a command: most of them differ in their limits alone."""

Aim = Literal["cost", "time", "trials"]
PLANNERS = ("exact", "ilp", "greedy", "naive", "static")


@dataclass(frozen=True)
class Wish:
    """How to plan: what for, by which planner, and how surely the limits are to be kept."""

    objective: Aim = "cost"
    planner: str = "exact"
    confidence: float | None = None


@dataclass(frozen=True)
class Problem:
    """What can be rented for an experiment, at which prices, and how its script runs there.

    `notes` say what a person should know of that.
    """

    experiment: Experiment
    catalog: Catalog
    rentables: tuple[Rentable, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """A plan, what it was asked for, and what it may take.

    `request.limits` are the user's less what a run needs before and after; `asked` are those that
    the plan was made for: with something in reserve, unless it was made to be sure.
    The experiment of the problem may have other trials than the user's: as many as can be had.
    """

    problem: Problem
    request: PlanRequest
    plan: Plan
    outlook: Outlook
    wish: Wish
    asked: Limits

    @property
    def rentables(self) -> tuple[Rentable, ...]:
        """The rentables that the plan uses."""
        return tuple(each for each in self.request.rentables if each.offer in self.plan.offers)

    @property
    def standins(self) -> tuple[Rentable, ...]:
        """The other rentables, which the run may turn to where these can't be had."""
        return tuple(each for each in self.request.rentables if each.offer not in self.plan.offers)


def planner_named(name: str) -> Planner:
    """Return a planner by its name."""
    match name:
        case "exact":
            return EXACT
        case "greedy":
            return GreedyPlanner()
        case "naive":
            return NaivePlanner()
        case "static":
            return StaticPlanner()
        case "ilp":
            from cloudtune.planners.ilp import IlpPlanner  # noqa: PLC0415  the solver takes long

            return IlpPlanner()
    raise UsageError(f"there is no planner {name!r}; there are {', '.join(PLANNERS)}")


# ---- what there is ------------------------------------------------------------------------------


def markets_of(experiment: Experiment) -> tuple[Market, ...]:
    """Return the markets that an experiment may rent on."""
    market = experiment.cloud.market
    return ("on-demand", "spot") if market == "any" else (market,)


def catalog_of(experiment: Experiment, markets: tuple[Market, ...] | None = None) -> Catalog:
    """Return the prices that apply to an experiment: live ones on AWS, else our own table's.

    Of this machine it is the user's word.

    Raises:
        UsageError: a budget could not be kept, as nobody knows the region's prices.
    """
    cloud, wanted = experiment.cloud, markets or markets_of(experiment)
    if cloud.provider == "local":
        return local.catalog(cloud.region, cloud.slots, cloud.price or 0.0)
    if cloud.provider == "emulated":
        return pricing.catalog(cloud.region, wanted, cloud.zones)
    from cloudtune.infra.ec2 import Endpoint  # noqa: PLC0415  boto3 takes a while to load
    from cloudtune.infra.price_refresh import refreshed  # noqa: PLC0415

    folder = home.home() / "prices"
    found = refreshed(Endpoint(cloud.region), folder, time.time(), wanted, cloud.zones)
    if cloud.region != pricing.PRICED_REGION and found.as_of == pricing.AS_OF:
        why = "; ".join(found.warnings)
        raise UsageError(
            f"cloud.region: the prices of {cloud.region} could not be had, and without them a "
            f"budget can't be kept; use {pricing.PRICED_REGION}, or try again ({why})"
        )
    return found


def stored_profiles(
    experiment: Experiment, given: str | None = None, types: Sequence[InstanceType] | None = None
) -> list[ScalingProfile]:
    """Return the usable profiles of an experiment's script on its instance types."""
    return store.resolve(
        given,
        store.script_hash(experiment.train_file),
        instance_types(experiment) if types is None else types,
        store=home.home() / "profiles",
        beside=experiment.directory,
    )


def instance_types(experiment: Experiment) -> list[InstanceType]:
    """Return the instance types that an experiment names, patterns resolved."""
    cloud = experiment.cloud
    if cloud.provider == "local":
        return [local.this_machine(cloud.slots)]
    everything = pricing.catalog(cloud.region, ("on-demand",))
    offers = everything.matching(cloud.instances, ("on-demand",))
    return list(dict.fromkeys(offer.instance_type for offer in offers))


def problem_of(
    experiment: Experiment,
    profiles: Sequence[ScalingProfile],
    markets: tuple[Market, ...] | None = None,
) -> Problem:
    """Return what there is to choose from; where a type wasn't measured, derived if possible.

    Shares of a GPU at which the trials have no room in its memory are none of it.
    """
    catalog, wanted = catalog_of(experiment, markets), markets or markets_of(experiment)
    by_type = {profile.instance_type: profile for profile in profiles}
    offers = catalog.matching(experiment.cloud.instances, wanted, experiment.cloud.zones)
    found: list[Rentable] = []
    notes: list[str] = []
    for offer in offers:
        machine = offer.instance_type
        if machine.name not in by_type:
            derived = _derived(machine, profiles)
            if derived is None:
                continue
            by_type[machine.name] = derived
        profile, note = _with_room(by_type[machine.name], machine)
        notes += note
        if profile.widths:
            found.append(Rentable(offer, profile, experiment.cloud.max_instances))
    return Problem(experiment, catalog, tuple(found), tuple(dict.fromkeys(notes)))


def _with_room(
    profile: ScalingProfile, machine: InstanceType
) -> tuple[ScalingProfile, Sequence[str]]:
    """Return a profile with the widths that fit into a type's GPUs; a note where others don't."""
    room = machine.gpu_memory_mib
    fitting = [width for width in profile.widths if profile.fits(width, room)]
    crowded = [width_text(width) for width in profile.widths if width not in fitting]
    if not crowded:
        return profile, ()
    widths = ", ".join(reversed(crowded))
    note = f"{machine.name}: no trials at {widths} of a GPU, whose {room:,} MiB they would exceed"
    return profile.only(fitting), (note,)


def _derived(machine: InstanceType, profiles: Sequence[ScalingProfile]) -> ScalingProfile | None:
    """Return the surest of the profiles that follow from those of other types."""
    from cloudtune.profiles.ratios import derive  # noqa: PLC0415  rarely needed

    known = pricing.instance_types()
    derived = (derive(each, known[each.instance_type], machine) for each in profiles)
    found = [each for each in derived if each is not None]
    return min(found, key=lambda each: each.error, default=None)


# ---- planning -----------------------------------------------------------------------------------


def usable_limits(limits: Limits, rentables: Sequence[Rentable], elapsed: float = 0.0) -> Limits:
    """Return what a plan may take, less what the run needs before and after it."""
    if limits.deadline is None:
        return limits
    reserve = elapsed + SETUP_SECONDS + drain_seconds(*(each.profile for each in rentables))
    return replace(limits, deadline=max(0.0, limits.deadline - reserve))


def planning_limits(limits: Limits, rentables: Sequence[Rentable], elapsed: float = 0.0) -> Limits:
    """Return what a plan may take, so that the run stays within `limits` with room to spare."""
    usable = usable_limits(limits, rentables, elapsed)
    deadline, budget = usable.deadline, usable.budget
    return Limits(
        None if deadline is None else deadline * (1 - MARGIN),
        None if budget is None else budget * (1 - MARGIN),
    )


def request_for(problem: Problem, limits: Limits, objective: Aim = "cost") -> PlanRequest:
    """Return what a planner is asked, for limits that are the plan's own."""
    experiment, rentables = problem.experiment, problem.rentables
    cloud = experiment.cloud
    ways = sum(len(each.profile.widths) for each in rentables) * cloud.max_instances
    small = strategy(experiment).stages()[0].trials * ways**2 <= _MIXED_WAYS
    return PlanRequest(
        work=strategy(experiment).stages(),
        rentables=rentables,
        limits=limits,
        max_instances=cloud.max_instances,
        charges=charges_of(experiment),
        objective="cost" if objective == "trials" else objective,
        vcpu_quotas=cloud.vcpu_quotas,
        mix=2 if small else 1,
    )


def make_plan(
    problem: Problem, limits: Limits, wish: Wish | None = None, elapsed: float = 0.0
) -> Planned:
    """Return the best plan of the wished kind within the limits.

    Raises:
        InfeasibleError: there is none; carries the fastest, the cheapest and the nearest there is.
    """
    wish = wish or Wish()
    usable = usable_limits(limits, problem.rentables, elapsed)
    if wish.confidence is None:
        asked = planning_limits(limits, problem.rentables, elapsed)
    else:
        asked = usable
    request = request_for(problem, asked, wish.objective)
    planner = sure_planner(planner_named(wish.planner), wish, problem.experiment.seed)
    try:
        if wish.objective == "trials":
            problem, request = _explored(problem, request, planner)
        plan = planner.plan(request)
    except InfeasibleError as error:
        raise _explained(error, request, limits, wish) from None
    return judged(problem, replace(request, limits=usable), plan, wish, asked)


@dataclass(frozen=True)
class _Sure:
    """A planner whose plans keep the limits with a probability, instead of on average."""

    planner: Planner
    confidence: float
    seed: int

    @property
    def name(self) -> str:
        return self.planner.name

    def plan(self, request: PlanRequest) -> Plan:
        plan, _ = quantile_plan(
            self.planner, request, self.confidence, samples=SAMPLES, seed=self.seed
        )
        return _against_the_mean(self.planner, request, plan)


def sure_planner(planner: Planner, wish: Wish, seed: int) -> Planner:
    """Return the planner, or one as sure as was wished."""
    return planner if wish.confidence is None else _Sure(planner, wish.confidence, seed)


def _against_the_mean(planner: Planner, request: PlanRequest, plan: Plan) -> Plan:
    """Return a plan that is sure with its gap to the best of those that keep the limits on average.

    The planner's own gap was to the tighter limits that it had been given.
    """
    try:
        best = planner.plan(request)
    except InfeasibleError:
        return replace(plan, gap=None, status="heuristic")
    mine, least = (measures(each, request.objective)[0] for each in (plan, best))
    if best.gap is None or least <= 0:
        return replace(plan, gap=None, status="heuristic")
    gap = max(0.0, mine * (1 + best.gap) / least - 1)
    return replace(plan, gap=gap, status=best.status if gap == 0 else "heuristic")


def judged(
    problem: Problem, request: PlanRequest, plan: Plan, wish: Wish, asked: Limits
) -> Planned:
    """Return a plan with what it may take, against the limits of the request."""
    sampled = outlook(request, plan, samples=SAMPLES, seed=problem.experiment.seed)
    return Planned(problem, request, plan, sampled, wish, asked)


def forced_plan(problem: Problem, limits: Limits, wish: Wish, elapsed: float = 0.0) -> Planned:
    """Return a plan for a run that ends at its limits: in time if possible, else the fastest."""
    try:
        return make_plan(problem, Limits(limits.deadline, None), wish, elapsed)
    except InfeasibleError as error:
        if error.fastest is None:
            raise
        usable = usable_limits(limits, problem.rentables, elapsed)
        return judged(problem, request_for(problem, usable), error.fastest, wish, usable)


def _explored(
    problem: Problem, request: PlanRequest, planner: Planner
) -> tuple[Problem, PlanRequest]:
    """Return the problem with as many trials as the limits pay for.

    Raises:
        UsageError: no limit is set.
    """
    experiment = problem.experiment
    if request.limits == Limits():
        raise UsageError(
            "--objective trials: without a deadline or a budget there is no end to them; set "
            "--deadline or --budget"
        )
    there_are = len(trials(experiment.model_copy(update={"trials": MOST_TRIALS})))
    found = explore(
        planner,
        request,
        partial(_stages, experiment),
        most_trials=there_are,
        most_epochs=experiment.epochs.max,
    )
    epochs = experiment.epochs
    fitting = epochs.model_copy(update={"min": min(epochs.min, found.epochs), "max": found.epochs})
    changed = experiment.model_copy(update={"trials": found.trials, "epochs": fitting})
    work = tuple(_stages(experiment, found.trials, found.epochs))
    return replace(problem, experiment=changed), replace(request, work=work)


def _stages(experiment: Experiment, trials: int, epochs: int) -> tuple[Stage, ...]:
    return SuccessiveHalving(
        trials, min(experiment.epochs.min, epochs), epochs, experiment.eta, experiment.metric.mode
    ).stages()


def _explained(
    error: InfeasibleError, request: PlanRequest, limits: Limits, wish: Wish
) -> InfeasibleError:
    """Return the error with what is kept in reserve, and the plan nearest to both limits."""
    share = f" and {MARGIN:.0%} of each limit" if wish.confidence is None else ""
    kept = ", ".join(
        [
            *([format_seconds(limits.deadline)] if limits.deadline is not None else []),
            *([format_dollars(limits.budget)] if limits.budget is not None else []),
        ]
    )
    message = f"{error} (Of {kept} the run's own set-up and return{share} are kept in reserve.)"
    return InfeasibleError(message, error.fastest, error.cheapest, nearest(error, request))


def nearest(error: InfeasibleError, request: PlanRequest) -> Plan | None:
    """Return the plan that comes nearest to both limits, where there are two."""
    deadline, budget = request.limits.deadline, request.limits.budget
    if deadline is None or budget is None or error.fastest is None:
        return None

    def excess(plan: Plan) -> float:
        estimate = plan.estimate
        in_time = estimate.seconds / deadline if deadline else math.inf
        return max(in_time, estimate.dollars / budget if budget else math.inf)

    front = EXACT.front(replace(request, limits=Limits()), 9)
    return min(front, key=excess, default=None)


def no_profile(experiment: Experiment) -> UsageError:
    """Return the error for a plan that has nothing to go by."""
    types = ", ".join(machine.name for machine in instance_types(experiment))
    return UsageError(
        f"no profile of {experiment.train_file} on {types}; planning rents nothing, so measure "
        "it with `cloudtune profile`, name a file with --profile FILE, or begin with published "
        "figures: --profile resnet50-cifar10@v100 (docs/profiles.md lists them)"
    )


def join_seconds(profile: ScalingProfile) -> float:
    """Return what an instance may take to join, and then to have its lease renewed."""
    return profile.launch.high + profile.boot.high + 2 * RENEW_SECONDS


def longest(plan: Plan | ElasticPlan, limits: Limits | None = None) -> float:
    """Return the seconds after which a run of a plan, or an instance of it, is given up.

    A run that decides as it goes may make the most of a budget with its cheapest instance alone.
    """
    seconds = 3 * plan.estimate.seconds + 3600.0
    budget = None if limits is None else limits.budget
    if not isinstance(plan, ElasticPlan) or budget is None:
        return seconds
    rate = min(offer.usd_per_second for offer in plan.offers)
    return max(seconds, budget / rate + 3600.0) if rate > 0 else seconds


def known_planners() -> Mapping[str, str]:
    """Return what each planner does, by its name."""
    return {
        "exact": "the best plan there is, by dynamic programming",
        "ilp": "the same by integer programming, slower: a check",
        "greedy": "RubberBand's descent from the best static plan",
        "naive": "the best static plan, idle instances returned",
        "static": "the best fixed cluster",
    }
