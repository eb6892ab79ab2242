"""Plans that keep the limits with a probability, searched by what they are drawn to take.

A planner goes by means, and a plan that is best on average is seldom the surest: an instance to
spare, a faster fleet or another offer may be. So plans are judged by their draws:

- what the planner makes of tighter and tighter limits, until that is sure, then looser ones again;
- of a job with few plans, each one: the answer is then exact;
- else the whole front of cost against time, and from its surest plans on, neighbours that differ in
  one thing, as long as they are surer; then those that are better by the objective and as sure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from cloudtune.errors import UsageError
from cloudtune.model.plans import Estimate, Forecast, Limits
from cloudtune.model.units import format_dollars, format_seconds
from cloudtune.planners.base import InfeasibleError
from cloudtune.planners.cost_model import price
from cloudtune.planners.dp.front import whole_front
from cloudtune.planners.estimate.local_search import every_choice, neighbours
from cloudtune.planners.estimate.outlook import chances, fitting, quantile, to_forecast
from cloudtune.planners.estimate.replanned import reacting_draws
from cloudtune.planners.estimate.rollout import Draws, sample
from cloudtune.planners.selection import described, measures
from cloudtune.planners.static import StaticPlanner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cloudtune.model.plans import Plan
    from cloudtune.planners.base import Planner, PlanRequest
    from cloudtune.planners.estimate.local_search import Choices

_SOLVES = 10
"""How often a planner is asked for a plan that is sure enough, before the fastest is tried."""
_CLOSE = 0.005
"""Limits that differ by a smaller share than this count as equal."""
_FEW = 256
"""The most plans that are all judged; of more, only those near to good ones are."""
_COARSE = 200
"""Samples that say whether a plan is worth a closer look."""
_DOUBT = 0.1
"""A share of so few samples is off by no more than that."""
_WORK, _EACH, _TRIAL = 600.0, 0.9, 0.02
"""What may be spent on coarse looks: in all, for one, and for each trial of a stage in it."""
_NEAR = 1.3
"""Neighbours may lead to a sure plan from one whose quantiles are this many times the limits."""
_STARTS = 3
_ANY_KIND = frozenset({"exact", "ilp"})
"""Planners that take whatever is best; the others have rules of their own."""


def quantile_plan(
    planner: Planner,
    request: PlanRequest,
    confidence: float,
    *,
    samples: int = 1000,
    seed: int = 0,
    reacts: bool = False,
) -> tuple[Plan, Forecast]:
    """Return the best plan found that keeps all limits in that share of samples, and its outlook.

    The probability is that of keeping both limits at once, so each limit alone is kept at least as
    surely. With `reacts` it is asked of a run that replans the rest when speeds aren't the
    profile's: the very forecast that `outlook` gives.

    Raises:
        InfeasibleError: there is none; carries the fastest and the cheapest plan of the search.
        UsageError: the confidence isn't between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise UsageError(f"confidence must be a number such as 0.95, not {confidence:g}")
    search = _Search(planner, request, confidence, samples, seed, reacts)
    search.solve()
    if planner.name in _ANY_KIND or isinstance(planner, StaticPlanner):
        search.look_around()
    best = search.best
    if best is None:
        raise search.refusal()
    return best, to_forecast(search.goal, best, search.judged[best], seed)


@dataclass
class _Search:
    """The way to a plan that is sure enough, by the limits that the planner is given.

    `judged` holds every plan that came up on the way. Between `loose`, the tightest limits so far
    whose plan isn't sure, and `strict`, the loosest that have a sure plan or none, it bisects.
    """

    planner: Planner
    request: PlanRequest
    confidence: float
    samples: int
    seed: int
    reacts: bool
    judged: dict[Plan, Draws] = field(default_factory=dict)
    loose: Limits | None = None
    strict: Limits | None = None
    refused: InfeasibleError | None = None
    glanced: dict[Choices, float] = field(default_factory=dict)
    left: float = _WORK

    @property
    def goal(self) -> Limits:
        """The limits that samples are held against."""
        return fitting(self.request.limits) if self.reacts else self.request.limits

    @property
    def best(self) -> Plan | None:
        """The best of the plans that are sure enough."""
        sure = [plan for plan, draws in self.judged.items() if self.sure(draws)]
        return min(sure, key=self._measures, default=None)

    def sure(self, draws: Draws) -> bool:
        """Whether the limits are kept often enough."""
        return self.share(draws) >= self.confidence

    def _measures(self, plan: Plan) -> tuple[float, float]:
        return measures(plan, self.request.objective)

    def solve(self) -> None:
        """Ask the planner, with one limit after another, and judge what it says."""
        limits = self.request.limits
        for _ in range(_SOLVES):
            tighter = self._attempt(limits)
            if self.loose is None or (self.strict and _close(self.loose, self.strict)):
                break  # no plan beats the one for the loosest limits
            limits = _between(self.loose, self.strict) if self.strict else tighter
        if self.strict is None:
            self._attempt(Limits(deadline=0.0))  # the fastest plan may be sure

    # ---- by their draws -----------------------------------------------------------------------

    def look_around(self) -> None:
        """Judge plans that no planner returned: all of them, or those near to good ones."""
        if not isinstance(self.planner, StaticPlanner):
            every = every_choice(self.request, _FEW)
            if every is not None:
                self._judge_all(every)
                return
        starts = self._starts()
        if self.best is None:
            self._climb(starts)
        if self.best is not None:
            self._better(starts)

    def _judge_all(self, every: Iterable[Choices]) -> None:
        """Judge all plans that may be better than the best so far, the most promising first."""
        plans = sorted((self._priced(choices) for choices in every), key=self._measures)
        for plan in plans:
            best = self.best
            if best is not None and self._measures(plan) >= self._measures(best):
                return
            self._looks_sure(plan)

    def _looks_sure(self, plan: Plan) -> bool:
        """Whether a plan is sure; it is looked at closely only if a glance doesn't rule it out."""
        draws = sample(self.request, plan, samples=_COARSE, seed=self.seed)
        self.glanced[plan.choices] = self._excess(draws)
        return self.share(draws) >= self.confidence - _DOUBT and self.sure(self._judge(plan))

    def _starts(self) -> list[Plan]:
        """Return plans to begin with: the whole front of the kind."""
        free = replace(self.request, limits=Limits())
        if isinstance(self.planner, StaticPlanner):
            return [plan for plan in self.planner.every(free) if self._possible(plan)]
        plans = (self._priced(solution.choices) for solution in whole_front(free))
        return [plan for plan in plans if self._possible(plan)]

    def _climb(self, starts: Iterable[Plan]) -> None:
        """Go from the surest plans to surer neighbours, until one is sure enough."""
        looked = sorted(((self._glance(plan), n, plan) for n, plan in enumerate(starts)))
        for excess, _, plan in looked:
            if excess > 1.0 + _DOUBT or self.sure(self._judge(plan)):
                break
        for excess, _, plan in looked[:_STARTS]:
            if self.best is None and excess <= _NEAR:
                self._climb_from(plan, excess, self._glance)
        near = sorted(
            (excess, n, choices) for n, (choices, excess) in enumerate(self.glanced.items())
        )
        for excess, _, choices in near[:_STARTS]:
            if self.best is None and excess <= 1.0 + _DOUBT:
                plan = self._priced(choices)
                self._climb_from(plan, self._stare(plan), self._stare)

    def _climb_from(self, plan: Plan, excess: float, look: Callable[[Plan], float]) -> None:
        while self.left > 0 and self.best is None:
            step = self._surer(plan, excess, look)
            if step is None:
                return
            excess, plan = step
            if excess <= 1.0 + _CLOSE:
                self._judge(plan)

    def _surer(
        self, plan: Plan, excess: float, look: Callable[[Plan], float]
    ) -> tuple[float, Plan] | None:
        """Return the surest neighbour, if it is surer."""
        surest: tuple[float, Plan] | None = None
        for other in self._near(plan, again=look == self._stare):
            if self.left <= 0:
                break
            looked = look(other)
            if looked < excess and (surest is None or looked < surest[0]):
                surest = looked, other
        return surest

    def _stare(self, plan: Plan) -> float:
        """Return the quantile of a plan in limits, by all samples."""
        return self._excess(self._judge(plan))

    def _better(self, starts: Iterable[Plan]) -> None:
        """Go from the best sure plan to better neighbours that are sure too."""
        others = list(starts)
        while self.left > 0:
            best = self.best
            assert best is not None
            others += self._near(best)
            better = [plan for plan in others if self._measures(plan) < self._measures(best)]
            # A plan that is only a little better is the likeliest to be sure; big steps save time.
            better.sort(key=self._measures)
            if not any(self.left > 0 and self._is_sure(plan) for plan in better):
                return
            others = []

    def _is_sure(self, plan: Plan) -> bool:
        if plan in self.judged:
            return self.sure(self.judged[plan])
        return self._glance(plan) <= 1.0 + _DOUBT / 2 and self.sure(self._judge(plan))

    def _near(self, plan: Plan, *, again: bool = False) -> list[Plan]:
        """Return the neighbours of a plan; with `again` also those that were glanced at."""
        fixed = isinstance(self.planner, StaticPlanner)
        nearby = neighbours(self.request, plan.choices, fixed=fixed)
        if again:
            worth = [
                choices for choices in nearby if self.glanced.get(choices, 1.0) <= 1.0 + _DOUBT
            ]
            plans = [plan for plan in map(self._priced, worth) if plan not in self.judged]
        else:
            plans = [self._priced(choices) for choices in nearby if choices not in self.glanced]
        return [plan for plan in plans if self._possible(plan)]

    def _priced(self, choices: Choices) -> Plan:
        return price(self.request, choices, self.planner.name)

    def _possible(self, plan: Plan) -> bool:
        """Whether a plan may be sure, by its means: not far beyond the limits."""
        limits, slack = self.request.limits, _slack(self.request)
        seconds, dollars = plan.estimate.seconds / slack, plan.estimate.dollars / slack
        in_time = limits.deadline is None or seconds <= limits.deadline
        return in_time and (limits.budget is None or dollars <= limits.budget)

    def _glance(self, plan: Plan) -> float:
        """Return the quantile of a plan in limits, by few samples."""
        choices = plan.choices
        if choices not in self.glanced:
            self.left -= _EACH + _TRIAL * sum(stage.trials for stage in self.request.work)
            draws = sample(self.request, plan, samples=_COARSE, seed=self.seed)
            self.glanced[choices] = self._excess(draws)
        return self.glanced[choices]

    def _excess(self, draws: Draws) -> float:
        goal = self.goal
        late, dear = draws.seconds / (goal.deadline or inf), draws.dollars / (goal.budget or inf)
        return quantile(np.maximum(late, dear), self.confidence)

    # ---- by tighter means ---------------------------------------------------------------------

    def share(self, draws: Draws) -> float:
        """Return the share of samples in which all limits are kept."""
        kept = chances(self.goal, draws)[2]
        return 1.0 if kept is None else kept

    def refusal(self) -> InfeasibleError:
        """Return the error that says how near the nearest plans come."""
        if self.refused is not None and not self.judged:
            return self.refused  # there is no plan at all, however sure
        fastest = min(self.judged, key=lambda plan: measures(plan, "time"))
        cheapest = min(self.judged, key=lambda plan: measures(plan, "cost"))
        message = (
            f"no plan finishes {_wanted(self.request.limits)} with a probability of "
            f"{self.confidence:.4g}. By that quantile the fastest takes {self._at_worst(fastest)}; "
            f"the cheapest takes {self._at_worst(cheapest)}. "
            "Raise --deadline or --budget, try fewer trials, or lower --confidence."
        )
        return InfeasibleError(message, fastest, cheapest)

    def _attempt(self, limits: Limits) -> Limits:
        """Plan within limits and judge the plan; return limits that are tight enough for it."""
        try:
            plan = self.planner.plan(replace(self.request, limits=limits))
        except InfeasibleError as error:
            self.refused = error
            for end in (error.fastest, error.cheapest):
                if end is not None:
                    self._judge(end)
            self.strict = limits
            return limits
        over = self._over(self._judge(plan))
        if over is None:
            self.strict = limits
            return limits
        # Limits between these and what the plan takes would only bring it up again.
        self.loose = _lowered(limits, plan.estimate, over, keep=True)
        return _lowered(limits, plan.estimate, over)

    def _judge(self, plan: Plan) -> Draws:
        if plan not in self.judged:
            self.left -= 5 * (_EACH + _TRIAL * sum(stage.trials for stage in self.request.work))
            draw = reacting_draws if self.reacts else sample
            self.judged[plan] = draw(self.request, plan, samples=self.samples, seed=self.seed)
        return self.judged[plan]

    def _over(self, draws: Draws) -> tuple[float, float] | None:
        """Return how many times the limits the quantiles of seconds and dollars are, if not sure.

        If each limit is kept often enough, but not both at once, both count as exceeded.
        """
        if self.sure(draws):
            return None
        goal = self.goal
        late, dear = draws.seconds / (goal.deadline or inf), draws.dollars / (goal.budget or inf)
        over = quantile(late, self.confidence), quantile(dear, self.confidence)
        return over if max(over) > 1 else (self._excess(draws),) * 2

    def _at_worst(self, plan: Plan) -> str:
        draws = self._judge(plan)
        seconds, dollars = (quantile(d, self.confidence) for d in (draws.seconds, draws.dollars))
        return described(replace(plan, estimate=Estimate(seconds, dollars)))


def _lowered(
    limits: Limits, mean: Estimate, over: tuple[float, float], *, keep: bool = False
) -> Limits:
    """Return limits as much below a plan's means as its quantiles are above what was wanted.

    With `keep` they are at the means: the least that admit the plan.
    """

    def lowered(limit: float | None, mean: float, over: float) -> float | None:
        if limit is None or over <= 1:
            return limit
        return min(limit, mean if keep else mean / over)

    return Limits(
        lowered(limits.deadline, mean.seconds, over[0]),
        lowered(limits.budget, mean.dollars, over[1]),
    )


def _between(loose: Limits, strict: Limits) -> Limits:
    def middle(first: float | None, second: float | None) -> float | None:
        return None if first is None or second is None else (first + second) / 2

    return Limits(middle(loose.deadline, strict.deadline), middle(loose.budget, strict.budget))


def _close(loose: Limits, strict: Limits) -> bool:
    pairs = ((loose.deadline, strict.deadline), (loose.budget, strict.budget))
    return all(
        first is None or second is None or first - second <= _CLOSE * first
        for first, second in pairs
    )


def _wanted(limits: Limits) -> str:
    within = None if limits.deadline is None else f"within {format_seconds(limits.deadline)}"
    price = None if limits.budget is None else f"for {format_dollars(limits.budget)}"
    return " ".join(part for part in (within, price) if part)


def _slack(request: PlanRequest) -> float:
    """Return how many times the limits the means of a plan may be that keeps them often.

    An interruption that seldom comes makes the mean longer, and most runs no longer at all.
    """
    mostly = [
        rentable.epoch_seconds(width) / rentable.profile.epoch_seconds(width)
        for rentable in request.rentables
        for width in rentable.profile.widths
    ]
    return max(mostly, default=1.0) * 1.02
