"""Alternatives to the chosen plan of an experiment."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast import make, staged_plans
from cloudtune.forecast.make import Planned
from cloudtune.forecast.problem import build_problem
from cloudtune.forecast.staged_plans import Asked, PlanOptions, Problem, Question
from cloudtune.model.catalog import Catalog
from cloudtune.model.plans import BY_PLAN, Allowance, Plan, RunPlan, Stage
from cloudtune.model.text import cost_format, limits_text
from cloudtune.planners.base import InfeasibleError, Planner, PlanRequest
from cloudtune.planners.exact import QUICK
from cloudtune.planners.explore import Explored, explore
from cloudtune.planners.naive import NaivePlanner
from cloudtune.planners.reserve import MARGIN
from cloudtune.planners.selection import describe
from cloudtune.planners.static import StaticPlanner
from cloudtune.policy.registry import Choice
from cloudtune.runs.job import MAX_TRIALS, Job, read_choice
from cloudtune.strategies.samplers.sampler import MODEL_BASED

# Points of the front that have a number for `--point`.
_POINTS = 15
# A neighbour on the front is worth a line if it is faster or cheaper by at least this share.
NOTABLE = 0.1
# Draws for each alternative; the plan itself gets more.
_DRAWS = 200
# The maximum number of simulated runs on spot pools.
_POOL_RUNS = 5
# Within other limits, one simulated run for so many of the plan's.
_RUNS_EACH = 4
# The maximum number of simulated runs for a report's comparisons.
_RUNS = 5
_PLANNED = Choice("sha", BY_PLAN, BY_PLAN)
STATIC = "best static cluster"
ON_SPOT = "on spot"
# The names of the alternatives to a plan of stages.
ALL = (STATIC, "naive elastic", "cheapest", "fastest", ON_SPOT, "on-demand")


@dataclass(frozen=True)
class Point:
    """A plan of the front, numbered from the fastest to the cheapest."""

    number: int
    plan: RunPlan

    @property
    def staged(self) -> Plan:
        assert self.plan.staged is not None
        return self.plan.staged


@dataclass(frozen=True)
class Alternative:
    """Another plan that could be made instead."""

    name: str
    plan: RunPlan


def front(planned: Planned) -> tuple[Plan, ...]:
    """Return the cheapest stages for their time, from the fastest to the cheapest.

    These are the points of the whole front that add most area: its knees.
    """
    if planned.asked is None or planned.plan.followed is None:
        return ()
    return tuple(
        staged_plans.EXACT.front(replace(planned.asked.request, allowance=Allowance()), _POINTS)
    )


def points(planned: Planned, *, near: bool = False) -> Iterator[Point]:
    """Yield the front, forecast like alternatives.

    With `near`, only the plan's two neighbours that are clearly faster and clearly cheaper.
    """
    asked = planned.asked
    chosen = planned.plan.followed
    plans = list(enumerate(front(planned), start=1))
    if asked is None or chosen is None:
        return
    if near:
        mine = chosen.estimate
        faster = [it for it in plans if it[1].estimate.seconds < (1 - NOTABLE) * mine.seconds]
        cheaper = [it for it in plans if it[1].estimate.dollars < (1 - NOTABLE) * mine.dollars]
        plans = [*faster[-1:], *cheaper[:1]]
    for number, plan in plans:
        yield Point(number, _as_run(planned, asked.request, plan))


def at_point(planned: Planned, number: int) -> Planned:
    """Return the same run with another point of the front, numbered from 1.

    Raises:
        UsageError: there is no such point, or it breaks a limit.
    """
    asked = planned.asked
    plans = front(planned)
    if asked is None or not plans:
        raise UsageError(
            f"--point: {planned.plan.strategy} decides as results come in, so there is no front "
            "of stages"
        )
    if not 1 <= number <= len(plans):
        raise UsageError(f"--point {number}: the front has points 1 to {len(plans)}")
    point = plans[number - 1]
    allowed = asked.request.allowance
    if not allowed.admit(point.estimate):
        cost = cost_format(planned.plan.offers)
        part = limits_text(allowed.seconds, allowed.dollars, cost)
        whole = limits_text(planned.limits.deadline, planned.limits.budget, cost)
        raise UsageError(
            f"--point {number} takes {describe(point)}, and a plan may take {part} of {whole}; "
            "raise --deadline or --budget"
        )
    best = planned.plan.followed
    assert best is not None
    chosen = staged_plans.against_best(best, asked.request, point)
    chosen = replace(chosen, objective=asked.request.objective, wished=point.estimate.seconds)
    return replace(planned, plan=make.build_run_plan(planned, asked.request, chosen))


def _as_run(planned: Planned, request: PlanRequest, plan: Plan) -> RunPlan:
    """Return other stages as a plan of the same run, forecast against the same limits."""
    elsewhere = planned.on(request.rentables)
    return make.build_run_plan(elsewhere, request, plan, draws=_DRAWS, reacts=False)


def _on_pools(planned: Planned, request: PlanRequest, plan: Plan) -> RunPlan | None:
    """Return other stages on spot, forecast by runs in which pools come and go.

    Draws of its stages say nothing: a run doesn't wait for a pool as stages do. None for a very
    large job in a hurry: fewer trials can't represent it, and simulating it takes too long.
    """
    if plan.epochs > make.MOST_EPOCHS and not make.has_time(request, plan):
        return None
    return make.build_run_plan(planned.on(request.rentables), request, plan, runs=_POOL_RUNS)


def forecast_without_replanning(planned: Planned) -> RunPlan:
    """Return the plan forecast without replanning, to compare other plans with.

    Replanning in each of their runs would take too long.
    """
    if planned.plan.followed is None or planned.asked is None:
        return planned.plan
    return _as_run(planned, planned.asked.request, planned.plan.followed)


def for_one_screen(plan: RunPlan) -> tuple[str, ...]:
    """Return the names of the alternatives that matter most, in order.

    For a plan whose forecast plays the policy, only the other market: the figures of other stages
    would differ by how they are made.
    """
    markets = (ON_SPOT, "on-demand")
    return (STATIC, *markets) if plan.forecast.source == "stages" else markets


def alternatives(planned: Planned, names: Collection[str] = ALL) -> Iterator[Alternative]:
    """Yield the alternatives in `names`: other stages, or other limits without stages.

    Each takes a search and a forecast; on spot a simulated run, which takes seconds.
    """
    chosen = planned.plan.followed
    asked = planned.asked
    if asked is None:
        yield from _other_limits(planned)
    if chosen is None or asked is None:
        return
    yield from fixed_and_naive(planned, names)
    free = replace(asked.request, allowance=Allowance())
    tries: list[tuple[str, Planner, PlanRequest]] = [
        ("cheapest", QUICK, replace(free, objective="cost")),
        ("fastest", QUICK, replace(free, objective="time")),
    ]
    other = _on_other_market(planned)
    if other is not None:
        name, elsewhere = other
        sure = staged_plans.sure_planner(QUICK, planned)
        request = replace(asked.request, rentables=elsewhere.rentables, allowance=asked.allowance)
        tries.append((name, sure, request))
    yield from _try_planners(
        planned, asked, chosen, [tried for tried in tries if tried[0] in names]
    )


def _other_limits(planned: Planned) -> Iterator[Alternative]:
    """Yield the same run with half and twice the budget (or else time), and in the other market.

    They are forecast by the first of the plan's simulated runs.
    """
    limits = planned.limits
    what = "budget" if limits.budget is not None else "deadline"
    value = getattr(limits, what)
    if value is None:
        return
    runs = max(1, planned.plan.forecast.samples // _RUNS_EACH)
    played = partial(make.build_run_plan, runs=runs)
    for name, factor in (("half", 0.5), ("twice", 2.0)):
        changed = replace(limits, **{what: value * factor})
        yield Alternative(f"{name} the {what}", played(replace(planned, limits=changed)))
    other = _on_other_market(planned)
    if other is not None:
        name, elsewhere = other
        yield Alternative(name, played(replace(planned, problem=elsewhere)))


def fixed_and_naive(planned: Planned, names: Collection[str] = ALL) -> Iterator[Alternative]:
    """Yield the best cluster of one size, and naive elasticity, within the same limits."""
    chosen = planned.plan.followed
    asked = planned.asked
    if chosen is None or asked is None:
        return
    inside = replace(asked.request, allowance=asked.allowance)
    tries = [
        (name, staged_plans.sure_planner(planner, planned), inside)
        for name, planner in ((STATIC, StaticPlanner()), ("naive elastic", NaivePlanner()))
        if name in names
    ]
    yield from _try_planners(planned, asked, chosen, tries)


def _try_planners(
    planned: Planned, asked: Asked, chosen: Plan, tries: Sequence[tuple[str, Planner, PlanRequest]]
) -> Iterator[Alternative]:
    judged: list[tuple[PlanRequest, Plan, RunPlan]] = []
    for name, planner, wanted in tries:
        plan: Plan | None
        try:
            plan = planner.plan(wanted)
        except InfeasibleError as error:
            plan = staged_plans.nearest(error, wanted) or error.fastest
        if plan is None:
            continue
        request = replace(wanted, allowance=asked.request.allowance)
        alike = (run for other, it, run in judged if (other, it.choices) == (request, plan.choices))
        steady = not any(rentable.behaviours for rentable in request.rentables)
        run: RunPlan | None
        if plan.choices == chosen.choices:
            run = planned.plan  # other draws of the same stages would differ slightly
        else:
            forecast = _as_run if steady else _on_pools
            run = next(alike, None) or forecast(planned, request, plan)
        if run is None:
            continue
        judged.append((request, plan, run))
        yield Alternative(name, run)


def _on_other_market(planned: Planned) -> tuple[str, Problem] | None:
    """Return the same problem on spot, or without spot if the plan uses it."""
    problem = planned.problem
    on_spot = any(offer.spot for offer in planned.plan.offers)
    profiles = [rentable.profile for rentable in problem.rentables]
    name, market = ("on-demand", "on-demand") if on_spot else (ON_SPOT, "spot")
    try:
        elsewhere = build_problem(problem.experiment, profiles, (market,))  # type: ignore[arg-type]
    except CloudtuneError:
        return None  # there is no price for it
    return (name, elsewhere) if elsewhere.rentables else None


@dataclass(frozen=True)
class Against:
    """The alternatives to a run, which were only simulated.

    `planned` is the run's own plan, forecast like the `others`. All should keep the
    `allowance`; one that doesn't is the nearest there is. `fully` is random search for the same
    dollars: as many trials as these would have trained to the last epoch within the deadline,
    without early stopping, by the cheapest plan; None if the dollars don't pay for an epoch.
    """

    planned: RunPlan
    others: tuple[Alternative, ...]
    allowance: Allowance
    fully: Explored | None


def against(job: Job, dollars: float) -> Against:
    """Return the alternatives to a run that paid `dollars`.

    They are planned and simulated with the run's own prices and profiles. For a run without stages
    the alternative is the same strategy on a fixed fleet.
    """
    chosen = job.plan.followed
    rentables = (*job.rentables, *job.standins)
    catalog = Catalog(tuple(rentable.offer for rentable in rentables), job.price_source, "")
    problem = Problem(job.experiment, catalog, rentables)
    question = Question(problem, job.limits, PlanOptions())
    allowance = question.allowance
    kept = allowance.scale(1 - MARGIN)
    if chosen is None:
        fixed = replace(problem, experiment=_with_choice(job.experiment, _PLANNED))
        request = staged_plans.build_request(fixed, allowance)
        bought = replace(request, allowance=Allowance(kept.seconds, dollars))
        others = _on_a_fixed_fleet(question, job)
        limits = Allowance(job.limits.deadline, job.limits.budget)
        return Against(job.plan, others, limits, _fully(bought, job))
    request = staged_plans.build_request(problem, allowance, chosen.objective)
    request = replace(request, work=tuple(stage.stage for stage in chosen.stages))
    asked = Asked(request, kept, chosen.objective)
    planned = Planned(**vars(question), plan=job.plan, asked=asked)
    planned = replace(planned, plan=forecast_without_replanning(planned))
    return Against(
        planned.plan,
        tuple(fixed_and_naive(planned)),
        allowance,
        _fully(replace(request, allowance=Allowance(kept.seconds, dollars), objective="cost"), job),
    )


def _on_a_fixed_fleet(question: Question, job: Job) -> tuple[Alternative, ...]:
    """Return the same strategy on as many instances as the budget pays for until the deadline."""
    choice = replace(read_choice(job.experiment), fleet="constant")
    used = {machines.offer for machines in job.plan.fleet}
    problem = question.problem
    rentables = tuple(rentable for rentable in problem.rentables if rentable.offer in used)
    experiment = _with_choice(job.experiment, choice)
    changed = replace(problem, experiment=experiment, rentables=rentables or problem.rentables)
    try:
        plan = make.build_run_plan(replace(question, problem=changed), runs=_RUNS)
    except CloudtuneError:
        return ()
    return (Alternative("the same on a fixed fleet", plan),)


def _fully(request: PlanRequest, job: Job) -> Explored | None:
    """Return as many trials as the limits pay for if each trains to the last epoch."""
    try:
        return explore(
            staged_plans.EXACT,
            lambda trials, epochs: replace(request, work=(Stage(trials, 0, epochs),)),
            max_trials=MAX_TRIALS,
            max_epochs=job.experiment.span.max,
        )
    except InfeasibleError:
        return None


def _with_choice(experiment: Experiment, choice: Choice) -> Experiment:
    names = {"name": choice.strategy, "allocator": choice.allocator, "fleet": choice.fleet}
    if choice.planned and experiment.strategy.sampler in MODEL_BASED:
        names["sampler"] = "random"
    strategy = experiment.strategy.model_copy(update=names)
    return experiment.model_copy(update={"strategy": strategy})
