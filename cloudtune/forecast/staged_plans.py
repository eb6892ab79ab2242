"""The stages of a run that is planned beforehand: the best within its limits, by some planner."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self, cast

from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.experiment.defaults import Objective
from cloudtune.experiment.schema import Epochs
from cloudtune.model.catalog import Catalog
from cloudtune.model.menu import PLANNERS
from cloudtune.model.plans import BY_PLAN, Allowance, Estimate, Limits, Plan, Rentable, Stage
from cloudtune.model.text import cost_format, fleet_text, limit_texts
from cloudtune.planners.base import Enough, InfeasibleError, Planner, PlanRequest
from cloudtune.planners.estimate.chance_constrained import quantile_plan
from cloudtune.planners.estimate.outlook import beyond, excesses, fitting
from cloudtune.planners.estimate.replanned import reacting_draws
from cloudtune.planners.exact import ExactPlanner, quick_form
from cloudtune.planners.explore import explore
from cloudtune.planners.reserve import MARGIN
from cloudtune.planners.selection import measures
from cloudtune.policy.base import drain_seconds
from cloudtune.policy.registry import SEARCHES, STRATEGIES, Choice, explores, has_stages
from cloudtune.policy.schedule.stages import PLANNERS as QUICK_PLANNERS
from cloudtune.policy.schedule.stages import Planning
from cloudtune.runs.job import MAX_TRIALS, make_context, read_charges, trials

# What a run takes before its first request: the check of the script, and Ray's head.
SETUP_SECONDS = 12.0
# Plans of the front that are looked at for the one nearest to limits.
_POINTS = 60
# The most ways to split a stage over two offers for which mixed stages are planned.
_MIXED_WAYS = 200_000

# A plan whose means take less than this share of the limits fits into them in most runs.
_EDGE = 0.8
# The share of runs that do all of a plan's work, if `--confidence` names no other.
LIKELY = 0.5
# How often a planner is asked for a plan that most runs carry out, and how much less each time.
_SOLVES = 5
_STEP = 0.004
# How often the durations of stages are drawn.
DRAWS = 1000
# One for all questions of a command: most of them only differ in their limits.
EXACT = ExactPlanner()

Aim = Literal["cost", "time", "trials"]


@dataclass(frozen=True)
class Problem:
    """What can be rented for an experiment, at which prices, and how its script runs there.

    `notes` say what a person should know of that, `occupancy` what others hold of it now;
    `chosen_from` says what the run chooses from, where the experiment leaves that open, and what
    stands in the way of more. `unsaved` says that the best model won't be kept; "" if it may be.
    The experiment has the bounds of the fleet set.
    """

    experiment: Experiment
    catalog: Catalog
    rentables: tuple[Rentable, ...]
    notes: tuple[str, ...] = ()
    occupancy: str = ""
    chosen_from: tuple[str, ...] = ()
    unsaved: str = ""

    @property
    def max_instances(self) -> int:
        """How many instances may be alive at once."""
        most = self.experiment.cloud.max_instances
        assert most is not None, "the bounds of the fleet are set where the problem is made"
        return most


@dataclass(frozen=True)
class PlanOptions:
    """How to plan: what for, by which planner, and how surely the limits are to be kept.

    A field of None stands for what suits the strategy: for sha the least cost, by the exact
    planner.
    """

    objective: Objective | None = None
    planner: str | None = None
    confidence: float | None = None

    @property
    def aim(self) -> Aim:
        """The aim of the plan: least cost, least time or most trials."""
        return "cost" if self.objective in {None, "best"} else cast("Aim", self.objective)

    def over(self, experiment: Experiment) -> "PlanOptions":
        """Return the options, with what the experiment says where none was given."""
        return replace(self, objective=self.objective or experiment.objective)

    def check(self, choice: Choice) -> None:
        """Pass if all that was asked for makes sense for these choices.

        Raises:
            UsageError: it says how to plan stages that there are none of, or that are planned so.
        """
        options = [f"--{name}" for name in ("objective", "planner") if getattr(self, name)]
        if self.objective == "best":
            if choice.strategy not in SEARCHES:
                raise UsageError(
                    f"--objective best is the strategy best, and {choice.strategy} is named; leave "
                    "one of them out"
                )
            options.remove("--objective")
        if not options:
            return
        how = choice.planning
        if how is None:
            why = f"{choice.strategy} decides as results come in, so there are no stages to plan"
        elif not choice.planned:
            why = (
                f"with the {choice.allocator} allocator and the {choice.fleet} fleet nothing goes "
                "by a plan of stages"
            )
        elif how.in_time or how.explores:
            aim = "the most exploration" if how.explores else "the least cost in time"
            why = f"{choice.strategy} is planned by the {how.planner} planner for {aim}"
        else:
            return
        raise UsageError(f"{', '.join(options)}: {why}; leave it out (or take strategy: sha)")


@dataclass(frozen=True)
class Question:
    """A run to plan: its problem, the user's limits, and how to plan it.

    `elapsed` seconds of the deadline are gone already.
    """

    problem: Problem
    limits: Limits
    options: PlanOptions
    elapsed: float = 0.0

    @property
    def allowance(self) -> Allowance:
        """What a plan may take: the limits, less what the run needs before and after it."""
        limits = self.limits
        if limits.deadline is None:
            return Allowance(None, limits.budget)
        return Allowance(max(0.0, limits.deadline - self._around), limits.budget)

    @property
    def _around(self) -> float:
        """The seconds that a run needs before and after its plan."""
        profiles = [rentable.profile for rentable in self.problem.rentables]
        # The seconds of a plan have one return of its instances in them: it isn't reserved twice.
        returned = min(profile.release.mean for profile in profiles)
        return self.first_request + drain_seconds(*profiles) - returned

    def enough_for(self, estimate: Estimate, machines: str) -> Enough:
        """Return round limits, of those that were named, within which a plan has its reserve."""
        deadline = budget = None
        if self.limits.deadline is not None:
            seconds = estimate.seconds / (1 - MARGIN) + self._around
            step = 10.0 if seconds < 600.0 else 60.0
            deadline = step * math.ceil(seconds / step)
        if self.limits.budget is not None:
            budget = math.ceil(100 * estimate.dollars / (1 - MARGIN)) / 100
        in_gpu_hours = self.problem.experiment.cloud.counts_gpu_hours
        return Enough(Limits(deadline, budget), estimate, machines, in_gpu_hours)

    @property
    def first_request(self) -> float:
        """The run second at which the first instance is requested."""
        return self.elapsed + SETUP_SECONDS

    def on(self, rentables: tuple[Rentable, ...]) -> Self:
        """Return the same question with other rentables."""
        return replace(self, problem=replace(self.problem, rentables=rentables))


@dataclass(frozen=True)
class Asked:
    """What a planner of stages was asked.

    `request.allowance` is the user's limits less what a run needs before and after; `allowance` is
    what the plan was made for: with something in reserve, unless it was made to be sure. `aim` is
    what it is the best of.
    """

    request: PlanRequest
    allowance: Allowance
    aim: Aim


def find_planner(name: str) -> Planner:
    """Return a planner by its name.

    Raises:
        UsageError: there is none of such a name.
    """
    if name in QUICK_PLANNERS:
        return QUICK_PLANNERS[name]
    if name == "ilp":
        from cloudtune.planners.ilp.planner import IlpPlanner  # noqa: PLC0415  it takes long

        return IlpPlanner()
    raise UsageError(f"unknown planner {name!r}; choose one of {', '.join(PLANNERS)}")


def follows(choice: Choice) -> bool:
    """Whether a run does just what its stages say, instead of exploring or something else."""
    stays = has_stages(choice.strategy) and not explores(choice.strategy)
    return stays and choice.allocator == choice.fleet == BY_PLAN


def work(experiment: Experiment, trials: int, epochs: int) -> tuple[Stage, ...]:
    """Return the stages of a strategy for `trials` trials, the best trained for `epochs` epochs."""
    context = make_context(experiment, (), Limits())
    first = min(context.min_epochs, epochs)
    context = replace(context, min_epochs=first, max_epochs=epochs)
    return choose_planning(experiment).stages(context, trials)


def choose_planning(experiment: Experiment) -> Planning:
    """Return how the stages of an experiment's strategy are planned."""
    planning = STRATEGIES[experiment.strategy_name].planning
    assert planning is not None, f"{experiment.strategy_name} has no stages"
    return planning


def build_request(problem: Problem, allowance: Allowance, objective: Aim = "cost") -> PlanRequest:
    """Return what a planner is asked."""
    experiment = problem.experiment
    rentables = problem.rentables
    count = len(trials(experiment))
    ways = sum(len(rentable.profile.widths) for rentable in rentables) * problem.max_instances
    return PlanRequest(
        work=work(experiment, count, experiment.span.max),
        rentables=rentables,
        allowance=allowance,
        max_instances=problem.max_instances,
        charges=read_charges(experiment),
        objective="cost" if objective == "trials" else objective,
        vcpu_quotas=experiment.cloud.vcpu_quotas,
        mix=2 if count * ways**2 <= _MIXED_WAYS else 1,
    )


def staged_plan(
    question: Question, *, force: bool = False, quick: bool = False
) -> tuple[Question, Asked, Plan]:
    """Return a question as it is planned, what its stages were planned for, and the stages.

    With `force` they are in time if possible, else as fast as they can be. `quick` is for figures
    beside the plan: the exact planner may then be off by a second's bill.

    Raises:
        InfeasibleError: there are none; carries the fastest, the cheapest and the nearest there is.
    """
    how = choose_planning(question.problem.experiment)
    allowance = question.allowance
    in_time = Allowance(allowance.seconds, None)
    try:
        return _stages_within(question, in_time if how.in_time else allowance, quick=quick)
    except InfeasibleError:
        if not force:
            raise
    try:
        return _stages_within(question, in_time)
    except InfeasibleError as error:
        if error.fastest is None:
            raise
        request = build_request(question.problem, allowance)
        asked = Asked(request, allowance, question.options.aim)
        return question, asked, error.fastest


def _stages_within(
    question: Question, wished: Allowance, *, quick: bool = False
) -> tuple[Question, Asked, Plan]:
    """Return the best stages within the wished allowance."""
    problem = question.problem
    options = question.options
    asked = wished if options.confidence is not None else fitting(wished)
    how = choose_planning(problem.experiment)
    request = build_request(problem, asked, options.aim)
    planner = find_planner(options.planner or how.planner)
    planner = quick_form(planner) if quick else planner
    planner = sure_planner(planner, question)
    try:
        if how.explores:
            plan = _most_trials(problem, request)
            request = replace(request, work=tuple(stage.stage for stage in plan.stages))
        else:
            if options.aim == "trials":
                problem, request = _explore(problem, request, planner)
            plan = planner.plan(request)
    except InfeasibleError as error:
        raise _explain(error, request, question) from None
    aim: Aim = "trials" if how.explores else options.aim
    planned_for = Asked(replace(request, allowance=question.allowance), asked, aim)
    return replace(question, problem=problem), planned_for, plan


def _most_trials(problem: Problem, request: PlanRequest) -> Plan:
    """Return the first plan of a strategy that explores: as many trials as the limits pay for."""
    experiment = problem.experiment
    return explore(
        EXACT,
        lambda count, epochs: replace(request, work=work(experiment, count, epochs), mix=1),
        max_trials=len(trials(experiment)),
        max_epochs=experiment.span.max,
    ).plan


@dataclass(frozen=True)
class _Sure:
    """A planner whose plans keep the limits with a probability, instead of on average."""

    planner: Planner
    confidence: float
    seed: int
    reacts: bool

    @property
    def name(self) -> str:
        return self.planner.name

    def plan(self, request: PlanRequest) -> Plan:
        plan, _ = quantile_plan(
            self.planner,
            request,
            self.confidence,
            samples=DRAWS,
            seed=self.seed,
            reacts=self.reacts,
        )
        try:
            by_means = self.planner.plan(request)
        except InfeasibleError:
            return replace(plan, gap=None, status="heuristic")
        return against_best(by_means, request, plan)


@dataclass(frozen=True)
class _Likely:
    """A planner by means, unless most runs couldn't do all the work of its plan.

    A stage waits for the last of its instances, and means leave that out: near a limit a plan may
    fit by its means, and hardly a run of it. Then the planner is asked to leave what its plans take
    beyond their means.
    """

    planner: Planner
    seed: int

    @property
    def name(self) -> str:
        return self.planner.name

    def plan(self, request: PlanRequest) -> Plan:
        by_means = plan = self.planner.plan(request)
        if request.allowance.scale(_EDGE).admit(plan.estimate):
            return plan
        whole = replace(request, allowance=beyond(request.allowance))
        allowance = request.allowance
        for _ in range(_SOLVES):
            draws = reacting_draws(whole, plan, samples=DRAWS, seed=self.seed)
            late, dear, over = excesses(request.allowance, draws, LIKELY)
            if over <= 1:
                return plan if plan is by_means else against_best(by_means, request, plan)
            late = late if max(late, dear) > 1 else over
            taken = plan.estimate
            allowance = Allowance(
                _tighten(allowance.seconds, taken.seconds, late),
                _tighten(allowance.dollars, taken.dollars, dear),
            )
            try:
                plan = self.planner.plan(replace(request, allowance=allowance))
            except InfeasibleError:
                break
        return by_means


def _tighten(limit: float | None, taken: float, excess: float) -> float | None:
    """Return a limit for a plan that takes less than one which takes `excess` times too much."""
    if limit is None or excess <= 1:
        return limit
    return min(limit, taken) / excess * (1 - _STEP)


def sure_planner(planner: Planner, question: Question) -> Planner:
    """Return the planner, or one as sure as was wished by the forecast of the runs."""
    experiment = question.problem.experiment
    options = question.options
    replans = choose_planning(experiment).replans
    if options.confidence is not None:
        return _Sure(planner, options.confidence, experiment.seed, replans)
    # Published forms keep their own plans; as many trials as fit are found by many questions.
    return _Likely(planner, experiment.seed) if replans and options.aim != "trials" else planner


def against_best(best: Plan, request: PlanRequest, plan: Plan) -> Plan:
    """Return a plan with its gap to the best plan that keeps the limits on average.

    A planner's own gap holds for the limits that it was given, which may be tighter.
    """
    mine, least = (measures(candidate, request.objective)[0] for candidate in (plan, best))
    if best.gap is None or least <= 0:
        return replace(plan, gap=None, status="heuristic")
    gap = max(0.0, mine * (1 + best.gap) / least - 1)
    return replace(plan, gap=gap, status=best.status if gap == 0 else "heuristic")


def _explore(
    problem: Problem, request: PlanRequest, planner: Planner
) -> tuple[Problem, PlanRequest]:
    """Return the problem with as many trials as the limits pay for.

    Raises:
        UsageError: no limit is set.
    """
    experiment = problem.experiment
    if request.allowance == Allowance():
        raise UsageError("--objective trials needs a limit: set --deadline or --budget")
    each = experiment.progress.reports_each  # whole epochs, which a command is told
    there_are = len(trials(experiment.model_copy(update={"trials": MAX_TRIALS})))
    explored = explore(
        planner,
        lambda trials, epochs: replace(request, work=work(experiment, trials, epochs * each)),
        max_trials=there_are,
        max_epochs=experiment.span.max // each,
    )
    reports = explored.epochs * each
    last = round(reports * experiment.progress.every)
    fitting = Epochs(min=min(experiment.epochs.min, last), max=last)
    changed = experiment.model_copy(update={"trials": explored.trials, "epochs": fitting})
    stages_found = work(experiment, explored.trials, reports)
    return replace(problem, experiment=changed), replace(request, work=stages_found)


def _explain(error: InfeasibleError, request: PlanRequest, question: Question) -> InfeasibleError:
    """Return the error with what is kept in reserve, and the plan nearest to both limits."""
    share = f" and {MARGIN:.0%} of each limit" if question.options.confidence is None else ""
    cost = cost_format(rentable.offer for rentable in request.rentables)
    kept = ", ".join(limit_texts(question.limits.deadline, question.limits.budget, cost=cost))
    message = f"{error} (Of {kept} the run's own set-up and return{share} are kept in reserve.)"
    close = nearest(error, request)
    plans = {"fastest": error.fastest, "cheapest": error.cheapest, "nearest": close}
    enough = {
        name: question.enough_for(plan.estimate, fleet_text(plan))
        for name, plan in plans.items()
        if plan is not None
    }
    return InfeasibleError(message, error.fastest, error.cheapest, close, enough)


def nearest(error: InfeasibleError, request: PlanRequest) -> Plan | None:
    """Return the plan that comes nearest to both limits, where there are two."""
    deadline = request.allowance.seconds
    budget = request.allowance.dollars
    if deadline is None or budget is None or error.fastest is None:
        return None

    def excess(plan: Plan) -> float:
        estimate = plan.estimate
        in_time = estimate.seconds / deadline if deadline else math.inf
        return max(in_time, estimate.dollars / budget if budget else math.inf)

    front = EXACT.front(replace(request, allowance=Allowance()), _POINTS)
    return min(front, key=excess, default=None)
