"""The plan of a run: what decides, what to expect, and whether that keeps the limits."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast import staged_plans
from cloudtune.forecast.prediction import ALWAYS, MAX_EPOCHS, RUNS, PlayedRuns
from cloudtune.forecast.problem import nothing_to_plan, shared_cores
from cloudtune.forecast.reach import derived_deadline, needs, trainings
from cloudtune.forecast.staged_plans import DRAWS, Asked, PlanOptions, Problem, Question
from cloudtune.infra.node.lease import RENEW_SECONDS
from cloudtune.model.catalog import THIS_MACHINE
from cloudtune.model.plans import (
    BY_PLAN,
    Allowance,
    Forecast,
    Limits,
    Machines,
    Plan,
    Rentable,
    RunPlan,
    epochs_in,
    largest_fleet,
)
from cloudtune.model.scaling import ASSUMED, ScalingProfile
from cloudtune.model.text import cost_format, count_noun, limits_text, offer_text, percent
from cloudtune.model.units import format_dollars, format_seconds
from cloudtune.planners.base import Enough, InfeasibleError, PlanRequest
from cloudtune.planners.dp.bounds import fluid
from cloudtune.planners.estimate.outlook import outlook
from cloudtune.planners.reserve import NOISE
from cloudtune.planners.selection import measures
from cloudtune.policy.registry import SEARCHES, replans
from cloudtune.runs.job import named_sampler, read_charges, read_choice

# Seconds that an instance may outlive the longest run, if no controller returns it.
LEASE_GRACE_SECONDS = 600.0
# A plan that takes more than this share of a limit says what a little less would change.
_NEAR = 0.95
# An epoch that takes more than this share of the deadline is long: few comparisons are left.
_LONG_EPOCH = 0.05
# The median of a few simulated runs costs at least this share of the lower bound of all plans.
_BY_LUCK = 0.8
# Jobs of more trials, or more epochs in total, aren't played on spot pools: a run of 10,000 trials
# has 100,000 events.
_MAX_TRIALS = 128
MOST_EPOCHS = 20_000
# The smallest and largest number of trials of the job played in their place, and its most epochs.
_FEW_TRIALS = (4, 32)
_FEW_EPOCHS = 4_000
# The maximum number of plans of a front judged by simulated runs.
_CANDIDATES = 8
# Runs of a first look, and how far their share may be below the confidence.
_GLANCE = 7
_DOUBT = 0.3


@dataclass(frozen=True, kw_only=True)
class Planned(Question):
    """A question with its answer: a run before it begins.

    `derived` says where the deadline comes from, if the user has only set a budget. `asked` is None
    without stages. The experiment of the problem may have more trials than the user's: as many as
    possible. `remarks` say why it is this plan, and what slightly lower limits would change.
    `left_spot`: simulated runs were worse on spot.
    """

    plan: RunPlan
    asked: Asked | None = None
    derived: str = ""
    remarks: tuple[str, ...] = ()
    left_spot: bool = False

    @cached_property
    def rentables(self) -> tuple[Rentable, ...]:
        """The rentables of the run."""
        planned = frozenset(self.plan.offers)
        return tuple(r for r in self.problem.rentables if r.offer in planned)

    @property
    def standins(self) -> tuple[Rentable, ...]:
        """The other rentables, which the run may use if these are unavailable."""
        planned = frozenset(self.plan.offers)
        return tuple(r for r in self.problem.rentables if r.offer not in planned)


def make_plan(
    problem: Problem,
    limits: Limits,
    options: PlanOptions | None = None,
    elapsed: float = 0.0,
    *,
    force: bool = False,
    runs: int = RUNS,
) -> Planned:
    """Return the plan of an experiment's run within the limits.

    With `force` there is one even if no plan keeps them: the run then ends at its limits. A
    forecast that plays the policy plays it up to `runs` times.

    Raises:
        InfeasibleError: no plan keeps the limits, or in no simulated run a trial finished an epoch;
            it has the fastest, the cheapest and the nearest plan of stages.
        UsageError: a name is unknown, an option makes no sense for it, or the run would never end.
    """
    options = (options or PlanOptions()).over(problem.experiment)
    choice = read_choice(problem.experiment)
    options.check(choice)
    named_sampler(problem.experiment)  # raises if it doesn't go with the other names
    if not problem.rentables:
        raise nothing_to_plan(problem.experiment, problem.notes)
    refuse_endless(problem.experiment, limits)
    question, derived = _with_deadline(Question(problem, limits, options, elapsed))
    try:
        planned = _search(question, runs, force=force)
        if not force:
            _refuse_unsure(planned)
    except InfeasibleError:
        surest = _by_runs(question, runs)
        if surest is None:
            raise
        planned = surest
    else:
        if not force:
            # Only runs show whether a cheaper plan is safe enough, too.
            planned = _by_runs(question, runs, best=planned) or planned
    about = (*_about_limits(problem), *planned.remarks)
    remarks = (*about, *_long_epochs(planned), *_cliffs(planned))
    return replace(planned, derived=derived, remarks=remarks)


def _search(question: Question, runs: int, *, force: bool = False) -> Planned:
    """Return the planner's plan, or that of a strategy without stages."""
    asked = staged = None
    if read_choice(question.problem.experiment).planned:
        question, asked, staged = staged_plans.staged_plan(question, force=force)
    request = None if asked is None else asked.request
    plays = question.options.confidence is None
    plan = build_run_plan(question, request, staged, runs=runs, plays=plays)
    return _expected_cheapest(Planned(**vars(question), plan=plan, asked=asked), runs)


def _refuse_unsure(planned: Planned) -> None:
    """Check that the runs train something and keep the limits as often as requested.

    Raises:
        InfeasibleError: they don't.
    """
    plan = planned.plan
    if plan.forecast.results == 0:
        raise InfeasibleError(_no_result(planned), None, None, enough=_enough_for_a_result(planned))
    if not _sure_enough(plan, planned.options):
        raise InfeasibleError(_too_rarely(planned), None, None)


def _by_runs(question: Question, runs: int, *, best: Planned | None = None) -> Planned | None:
    """Return the best plan that is safe by simulated runs: `best` or a better one; None if none is.

    With spot the search of `--confidence` isn't enough: it draws the durations of stages, which
    don't show how a run reacts to dry pools. So plans of the front are judged by runs, along with
    the result of the search (if there is none, without spot: by its means spot always looks best).
    """
    problem = question.problem
    options = question.options
    aim = options.aim
    if options.confidence is None or options.planner not in (None, "exact", "ilp"):
        return None
    spot = any(rentable.behaviours for rentable in problem.rentables)
    if aim == "trials" or not spot or not staged_plans.follows(read_choice(problem.experiment)):
        return None
    best = best or _on_demand(question, runs)
    allowance = question.allowance
    request = staged_plans.build_request(problem, allowance, aim)
    front = [
        p for p in staged_plans.EXACT.front(request, _CANDIDATES) if allowance.admit(p.estimate)
    ]
    for staged in sorted(front, key=lambda plan: measures(plan, aim)):
        if best is not None and measures(staged, aim) >= measures(best.plan, aim):
            break  # outages only make a plan more expensive and slower than its means
        if best is not None and best.problem is problem and _alike(staged, best.plan.followed):
            break  # its runs were played already; later plans cost more on average
        surest = _judge(question, staged, runs)
        if surest is None:
            continue
        if best is None or measures(surest.plan, aim) < measures(best.plan, aim):
            return surest
        break  # later plans cost more on average
    return best


def _alike(plan: Plan, other: Plan | None) -> bool:
    """Whether the runs of two plans would be the same."""
    return other is not None and (plan.choices, plan.wished) == (other.choices, other.wished)


def _judge(question: Question, staged: Plan, runs: int) -> Planned | None:
    """Return a plan of stages if its simulated runs are safe enough; None if they aren't.

    If they aren't, it is tried again with only the plan's own offers: a run that may move to more
    expensive ones while these are unavailable spends money that its work then lacks.
    """
    options = question.options
    rentables = question.problem.rentables
    own = tuple(rentable for rentable in rentables if rentable.offer in staged.offers)
    names = ", ".join(map(offer_text, staged.offers))
    remark = f"only on {names}: with other offers the limits are kept too rarely"
    tries: list[tuple[Question, tuple[str, ...]]] = [(question, ())]
    if len(own) < len(rentables):
        tries.append((question.on(own), (remark,)))
    for within, remarks in tries:
        request = staged_plans.build_request(within.problem, within.allowance, options.aim)
        looks = partial(build_run_plan, within, request, staged)
        glance = looks(runs=_GLANCE).forecast.within
        if glance is not None and glance < (options.confidence or 0.0) - _DOUBT:
            continue
        plan = looks(runs=runs)
        if _sure_enough(plan, options):
            asked = Asked(request, within.allowance, options.aim)
            return Planned(**vars(within), plan=plan, asked=asked, remarks=remarks)
    return None


def _on_demand(question: Question, runs: int) -> Planned | None:
    """Return a plan without spot that is safe enough; None if there is none."""
    steady = _steady(question)
    if not steady:
        return None
    try:
        planned = _search(question.on(steady), runs)
    except InfeasibleError:
        return None
    return planned if _sure_enough(planned.plan, question.options) else None


def _steady(question: Question) -> tuple[Rentable, ...]:
    """Return the rentables that aren't on spot."""
    return tuple(rentable for rentable in question.problem.rentables if not rentable.behaviours)


def _about_limits(problem: Problem) -> Iterator[str]:
    """Yield what others hold of a cluster, and that a budget limits nothing."""
    if problem.occupancy:
        yield problem.occupancy
    idle = problem.experiment.limits.idle_budget
    if idle is not None:
        yield (
            f"the budget of {format_dollars(idle)} limits nothing here: this machine has no price "
            "(cloud.price sets one)"
        )


def _long_epochs(planned: Planned) -> Iterator[str]:
    """Yield that trials could be compared within epochs, if these take much of the deadline."""
    deadline = planned.limits.deadline
    experiment = planned.problem.experiment
    progress = experiment.progress
    if deadline is None or progress.unit == "step" or progress.every != 1:
        return
    profiles = [it.profile for it in planned.rentables]
    known = [it.epoch for it in profiles if it.provenance.origin != ASSUMED]
    narrow = [epoch.mean for widths in known for width, epoch in widths.items() if width <= 1]
    share = min(narrow, default=0.0) / deadline
    if share > _LONG_EPOCH:
        yield (
            f"an epoch takes {share:.0%} of the deadline; a script that reports within epochs is "
            "compared there with progress: {every: 1/4}, so that more configurations can be tried"
        )


def _cliffs(planned: Planned) -> Iterator[str]:
    """Yield what slightly lower limits would change in the stages, and what set-up has changed.

    Between `plan` and `run` some seconds pass. At the edge of a limit they lead to another plan.
    """
    staged = planned.plan.followed
    asked = planned.asked
    if staged is None or asked is None or asked.aim not in ("cost", "time"):
        return
    if planned.plan.forecast.source == "pools":
        return  # its price isn't that of its stages
    deadline = planned.limits.deadline
    budget = planned.limits.budget
    allowed = asked.allowance
    if not allowed.admit(staged.estimate):
        return  # the user insists on it
    if deadline is not None and staged.estimate.seconds > _NEAR * (allowed.seconds or math.inf):
        shorter = replace(planned.limits, deadline=_NEAR * deadline)
        yield f"near the deadline: with 5 % less time {_instead(planned, shorter)}"
    if budget is not None and staged.estimate.dollars > _NEAR * (allowed.dollars or math.inf):
        smaller = replace(planned.limits, budget=_NEAR * budget)
        yield f"near the budget: with 5 % less money {_instead(planned, smaller)}"
    shown_at = planned.problem.experiment.charges.head_start
    if planned.elapsed > shown_at:
        first = _other(replace(planned, elapsed=shown_at), quick=False)
        if first is not None and first[2].stages != staged.stages:
            taking = _taking(*first)
            gone = format_seconds(planned.elapsed - shown_at)
            yield f"not the plan that `cloudtune plan` shows, {taking}: {gone} are gone"


def _instead(planned: Planned, limits: Limits) -> str:
    other = _other(replace(planned, limits=limits), quick=True)
    return "no plan fits" if other is None else f"it would be another plan, {_taking(*other)}"


def _taking(question: Question, asked: Asked, staged: Plan) -> str:
    plays = question.options.confidence is None
    plan = build_run_plan(question, asked.request, staged, runs=_GLANCE, plays=plays)
    cost = cost_format(plan.offers)
    taken = f"{format_seconds(plan.estimate.seconds)} for {cost(plan.estimate.dollars)}"
    return taken if plan.forecast.source == "stages" else f"about {taken}"


def _other(question: Question, *, quick: bool) -> tuple[Question, Asked, Plan] | None:
    """Return the stages within other limits, or from another second on; None if none fit."""
    try:
        return staged_plans.staged_plan(question, quick=quick)
    except InfeasibleError:
        return None


def _expected_cheapest(planned: Planned, runs: int) -> Planned:
    """Return a plan without spot if spot costs more, can't do the work or does it too rarely.

    Stages are priced as if pools were always available. With outages on-demand may be cheaper, and
    then the run must plan without spot from the start: replanning would go back to it.
    """
    plan = planned.plan
    asked = planned.asked
    options = planned.options
    steady = _steady(planned)
    if plan.forecast.source != "pools" or not steady or asked is None:
        return planned
    sure = _success_share(plan) >= (options.confidence or staged_plans.LIKELY)
    if asked.aim != "cost" and sure:
        return planned
    least = _BY_LUCK * _least_dollars(asked.request, steady)
    if sure and least >= plan.estimate.dollars:
        return planned
    try:
        without, asked, staged = staged_plans.staged_plan(planned.on(steady))
    except InfeasibleError:
        return planned
    plays = options.confidence is None
    other = build_run_plan(without, asked.request, staged, runs=runs, plays=plays)
    if sure and plan.estimate.dollars < (1 - NOISE) * other.estimate.dollars:
        return planned
    if not sure:
        why = f"all of the work fits into the limits in {percent(_success_share(plan))} of the runs"
    else:
        costs, instead = (format_dollars(it.estimate.dollars) for it in (plan, other))
        why = f"{costs} would be expected, and {instead} on demand"
    remark = f"not on spot: with its outages {why}"
    on_demand = replace(planned, problem=without.problem, plan=other, asked=asked)
    return replace(on_demand, remarks=(remark,), left_spot=True)


def _least_dollars(request: PlanRequest, rentables: tuple[Rentable, ...]) -> float:
    """Return the dollars that no plan on these rentables can beat, at mean speeds."""
    costs = fluid(replace(request, rentables=rentables)).dollars
    return float(costs[-1]) if len(costs) else math.inf


def _sure_enough(plan: RunPlan, options: PlanOptions) -> bool:
    """Whether the forecast keeps the limits as often as requested; True without a confidence."""
    return _success_share(plan) >= (options.confidence or 0.0)


def _success_share(plan: RunPlan) -> float:
    """Return the share of runs that do all their work within the limits."""
    return 1.0 if plan.forecast.within is None else plan.forecast.within


def refuse_endless(experiment: Experiment, limits: Limits) -> None:
    """Check that limits, trials, an objective or a strategy bound the run.

    Raises:
        UsageError: none of them does.
    """
    named = experiment.trials or experiment.objective or experiment.strategy.name
    if not named and limits.deadline is None and limits.budget is None:
        raise UsageError(
            "no limit is set: give --deadline and --budget for the best model within them, or "
            "--trials for a fixed number of trials"
        )


def _with_deadline(question: Question) -> tuple[Question, str]:
    """Return the question with a deadline, and its reason, if a search only has a budget."""
    problem = question.problem
    limits = question.limits
    searches = problem.experiment.strategy_name in SEARCHES
    if not searches or limits.deadline is not None or limits.budget is None:
        return question, ""
    seconds, why = derived_deadline(problem, limits.budget)
    limits = replace(limits, deadline=question.first_request + seconds)
    return replace(question, limits=limits), why


def build_run_plan(
    question: Question,
    request: PlanRequest | None = None,
    staged: Plan | None = None,
    *,
    draws: int = DRAWS,
    runs: int = RUNS,
    reacts: bool = True,
    plays: bool = True,
) -> RunPlan:
    """Return the plan of a run by the names in its experiment.

    `staged` are the stages that it follows, planned for `request`. The forecast draws their
    durations `draws` times, with replanning if the strategy replans (and `reacts`). The policy is
    played up to `runs` times if the run doesn't just follow its stages, or, with `plays`, if it may
    have to drop trials to keep the limits.

    Raises:
        UsageError: a name is unknown, or the run would never end.
    """
    problem = question.problem
    experiment = problem.experiment
    choice = read_choice(experiment)
    offers = tuple(rentable.offer for rentable in problem.rentables)
    by_stages = staged is not None and staged_plans.follows(choice)
    cores = shared_cores(problem)
    played = PlayedRuns(question, staged, samples=runs, follows=by_stages, cores=cores)
    if request is not None and staged is not None and by_stages:
        offers = staged.offers
        reacts_now = reacts and replans(choice.strategy)
        given = {"samples": draws, "seed": experiment.seed}
        drawn = partial(outlook, request, staged, reacts=reacts_now, **given)
        forecast = _of_stages(request, played, drawn, plays=plays) if reacts else drawn()
        fleet = _largest_fleet(problem, staged)
    else:
        forecast, fleet = played.play()
        if choice.fleet == BY_PLAN:  # each plan on the way may be for another fleet
            fleet = _most_expensive(problem, problem.max_instances)
    return RunPlan(
        strategy=choice.strategy,
        allocator=choice.allocator,
        fleet_rule=choice.fleet,
        offers=offers,
        fleet=fleet,
        max_instances=problem.max_instances,
        forecast=forecast,
        charges=read_charges(experiment),
        vcpu_quotas=experiment.cloud.vcpu_quotas,
        staged=staged,
        rules=str(experiment.strategy.rules),
    )


def _of_stages(
    request: PlanRequest, played: PlayedRuns, drawn: Callable[[], Forecast], *, plays: bool
) -> Forecast:
    """Return the forecast of a run that follows its stages, and reacts to what happens.

    Only the policy, not the plan, knows how a run reacts to dry spot pools and which trials it
    drops near a limit.
    """
    plan = played.staged
    assert plan is not None
    if played.on_pools:
        is_large = plan.stages[0].stage.trials > _MAX_TRIALS or plan.epochs > MOST_EPOCHS
        if is_large and has_time(request, plan):
            return _of_fewer_trials(plan, played)
        return played.forecast()
    forecast = drawn()
    kept = forecast.within is None or forecast.within >= ALWAYS
    if not plays or plan.epochs > MAX_EPOCHS or kept:
        return forecast
    return played.forecast()


def has_time(request: PlanRequest, staged: Plan) -> bool:
    """Whether a plan has enough slack for a job of few trials to represent it.

    Near the least time a large job is as wide as possible, and a small one isn't: within 1.3 times
    the least time, 512 trials cost twice what 32 predicted.
    """
    deadline = request.allowance.seconds or math.inf
    return request.objective == "cost" and staged.estimate.seconds <= deadline / 2


def _of_fewer_trials(plan: Plan, played: PlayedRuns) -> Forecast:
    """Play a job of few trials in place of a large one, and scale the figures of its runs.

    They are scaled by the ratio of the two plans. Both jobs have the same relative slack, and train
    to the same last epoch.
    """
    question = played.question
    problem = question.problem
    least, few = _FEW_TRIALS
    last = problem.experiment.span.max
    while few > least and epochs_in(staged_plans.work(problem.experiment, few, last)) > _FEW_EPOCHS:
        few //= 2
    experiment = problem.experiment.model_copy(update={"trials": few})
    fewer = replace(problem, experiment=experiment, rentables=played.likely)
    staged = staged_plans.EXACT.plan(staged_plans.build_request(fewer, Allowance()))
    longer = plan.estimate.seconds / staged.estimate.seconds
    dearer = plan.estimate.dollars / staged.estimate.dollars
    limits = question.limits
    if limits.deadline is not None:
        begin = question.first_request
        end = begin + (limits.deadline - begin) / longer
        limits = replace(limits, deadline=end)
    if limits.budget is not None:
        limits = replace(limits, budget=limits.budget / dearer)
    scaled = replace(question, problem=fewer, limits=limits)
    small = replace(played, question=scaled, staged=staged).forecast()
    return replace(
        small,
        seconds=small.seconds.scale(longer),
        dollars=small.dollars.scale(dearer),
        trials=small.trials.scale(plan.stages[0].stage.trials / staged.stages[0].stage.trials),
        gpu_hours=small.gpu_hours.scale(plan.gpu_seconds / staged.gpu_seconds),
        instances=small.instances.scale(plan.peak_instances / staged.peak_instances),
    )


def _largest_fleet(problem: Problem, staged: Plan) -> tuple[Machines, ...]:
    """Return the largest possible fleet of a run that follows stages.

    The most expensive offer stands in for spot pools, which may be dry.
    """
    away = {rentable.offer for rentable in problem.rentables if rentable.behaviours}
    if not away.intersection(staged.offers):
        return largest_fleet(staged)
    return _most_expensive(problem, staged.peak_instances)


def _most_expensive(problem: Problem, instances: int) -> tuple[Machines, ...]:
    offers = (rentable.offer for rentable in problem.rentables)
    return (Machines(max(offers, key=lambda offer: offer.usd_per_second), instances),)


def _too_rarely(planned: Planned) -> str:
    forecast = planned.plan.forecast
    confidence = planned.options.confidence
    runs = count_noun(forecast.samples, "simulated run")
    return (
        f"the best plan does all of its work within {_limits_text(planned)} in "
        f"{percent(forecast.within or 0.0)} of {runs}, and --confidence asks for "
        f"{percent(confidence or 0.0)}: spot instances come and go. Take --market any or "
        "on-demand, raise --deadline or --budget, or lower --confidence"
    )


def _limits_text(planned: Planned) -> str:
    return limits_text(
        planned.limits.deadline, planned.limits.budget, cost_format(planned.plan.offers)
    )


def _no_result(planned: Planned) -> str:
    experiment = planned.problem.experiment
    takes = "; ".join(needs(planned.problem, epochs) for epochs in (1, experiment.span.max))
    quotas = experiment.cloud.vcpu_quotas.items()
    quota = ", ".join(f"{vcpus} vCPUs of {name}" for name, vcpus in quotas if name != THIS_MACHINE)
    start = experiment.charges.head_start
    head = f"The head's start takes {format_seconds(start)} of the deadline. " if start else ""
    return (
        f"no trial finishes its first {experiment.scale.unit} within "
        f"{_limits_text(planned)}, in any of {planned.plan.forecast.samples} simulated runs. "
        f"{takes[0].upper()}{takes[1:]}. {head}Raise --deadline or --budget (--force runs it all "
        "the same)" + (f". The account's vCPU quota allows {quota} at once" if quota else "")
    )


def _enough_for_a_result(planned: Planned) -> dict[str, Enough]:
    """Return limits within which a trial finishes its first report."""
    ways = [planned.enough_for(it.estimate, it.machines) for it in trainings(planned.problem, 1)]
    if not ways:
        return {}
    named = planned.limits

    def excess(way: Enough) -> float:
        in_time = way.estimate.seconds / (named.deadline or math.inf)
        return max(in_time, way.estimate.dollars / (named.budget or math.inf))

    return {
        "fastest": min(ways, key=lambda way: (way.estimate.seconds, way.estimate.dollars)),
        "cheapest": min(ways, key=lambda way: (way.estimate.dollars, way.estimate.seconds)),
        "nearest": min(ways, key=excess),
    }


def join_seconds(profile: ScalingProfile) -> float:
    """Return the seconds that an instance may take to join and have its lease renewed."""
    return profile.launch.high + profile.boot.high + 2 * RENEW_SECONDS


def longest(plan: RunPlan, limits: Limits | None = None) -> float:
    """Return the seconds after which a run, or an instance of it, is ended.

    Three times the estimate, or the time of 19 of 20 runs if that is longer, plus an hour; or as
    long as the budget pays for one cheapest instance, if that is longer.
    """
    likely = max(plan.estimate.seconds, plan.forecast.seconds.p95)
    seconds = 3 * likely + 3600.0
    if limits is None or limits.budget is None:
        return seconds
    rate = min(offer.usd_per_second for offer in plan.offers)
    return max(seconds, limits.budget / rate + 3600.0) if rate > 0 else seconds


def worst_bill(plan: RunPlan, limits: Limits, rentables: Sequence[Rentable]) -> tuple[float, str]:
    """Return the largest bill that a run can end with, and in which case.

    Leases end instances when the limits would be passed, even without a controller; a booting
    instance has the seconds that joining may take, until the deadline at most.
    """
    lives = min(longest(plan, limits), limits.deadline or math.inf)
    if limits.budget is None:
        launched = sum(plan.launches.values()) * plan.charges.usd_per_launch
        when = f"the run goes on for {format_seconds(lives)}"
        dollars = plan.usd_per_second * lives + launched
        return dollars, f"no budget is set: that is if {when} with all instances"
    joining = max(join_seconds(rentable.profile) for rentable in rentables)
    booting = plan.usd_per_second * joining
    cost = cost_format(plan.offers)
    return limits.budget + booting, (
        f"the run itself stops below {cost(limits.budget)}, and if this machine dies, "
        f"leases end the instances by then; what is still booting may last "
        f"{format_seconds(joining)} longer ({cost(booting)}). `cloudtune gc` ends all at "
        "once"
    )
