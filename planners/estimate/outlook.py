"""What a plan may take, as distributions, and plans that are made by those instead of by means."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from cloudtune.errors import UsageError
from cloudtune.plan import Estimate, Forecast, Limits, Spread
from cloudtune.planners.base import InfeasibleError
from cloudtune.planners.estimate.playout import Draws, sample
from cloudtune.planners.selection import described, measures
from cloudtune.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from cloudtune.plan import Plan
    from cloudtune.planners.base import Planner, PlanRequest
    from cloudtune.planners.estimate.draws import Floats

__all__ = ["Draws", "outlook", "quantile_plan", "sample"]

_SOLVES = 10
"""How often a planner is asked for a plan that is sure enough, before the fastest is tried."""

_CLOSE = 0.005
"""Limits that differ by a smaller share than this aren't told apart."""


def outlook(request: PlanRequest, plan: Plan, *, samples: int = 1000, seed: int = 0) -> Forecast:
    """Return the percentiles of a plan's seconds and dollars, and how likely it keeps the limits.

    The same seed and plan give the same outlook; a percentile is one of the samples.
    """
    draws = sample(request, plan, samples=samples, seed=seed)
    return _told(request.limits, plan, draws, seed)


def quantile_plan(
    planner: Planner, request: PlanRequest, confidence: float, *, samples: int = 1000, seed: int = 0
) -> tuple[Plan, Forecast]:
    """Return the best plan found that keeps all limits in that share of samples, and its outlook.

    A planner goes by means; so it is given tighter limits, until what it plans is sure enough, and
    then looser ones again as far as that holds: the best of at most 11 solves. The probability is
    that of keeping both limits at once, so each limit alone is kept at least as surely.

    Raises:
        InfeasibleError: none was found; carries the fastest and the cheapest plan there is.
        UsageError: the confidence is no probability.
    """
    if not 0 < confidence < 1:
        raise UsageError(f"confidence {confidence:g} is no probability; write one such as 0.95")
    search = _Search(planner, request, confidence, samples, seed)
    search.solve()
    sure = [plan for plan, draws in search.judged.items() if search.share(draws) >= confidence]
    if not sure:
        raise search.refusal()
    best = min(sure, key=lambda plan: measures(plan, request.objective))
    return best, _told(request.limits, best, search.judged[best], seed)


@dataclass
class _Search:
    """The way to a plan that is sure enough, by the limits that the planner is given.

    `judged` holds every plan that came up on the way. Between `loose`, the tightest limits known
    whose plan isn't sure, and `strict`, the loosest that have a sure plan or none, it bisects.
    """

    planner: Planner
    request: PlanRequest
    confidence: float
    samples: int
    seed: int
    judged: dict[Plan, Draws] = field(default_factory=dict)
    loose: Limits | None = None
    strict: Limits | None = None
    refused: InfeasibleError | None = None

    def solve(self) -> None:
        """Ask the planner, with one limit after another, and judge what it says."""
        limits = self.request.limits
        for _ in range(_SOLVES):
            tighter = self._attempt(limits)
            if self.loose is None or (self.strict and _close(self.loose, self.strict)):
                break  # what has been found for the loosest limits can't be bettered
            limits = _between(self.loose, self.strict) if self.strict else tighter
        if self.strict is None:
            self._attempt(Limits(deadline=0.0))  # the fastest plan may be sure

    def share(self, draws: Draws) -> float:
        """Return the share of samples in which all limits are kept."""
        kept = _chances(self.request.limits, draws)[2]
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
            self.judged[plan] = sample(self.request, plan, samples=self.samples, seed=self.seed)
        return self.judged[plan]

    def _over(self, draws: Draws) -> tuple[float, float] | None:
        """Return how many times the limits the quantiles of seconds and dollars are, if not sure.

        If each limit is kept often enough, but not both at once, both count as exceeded.
        """
        if self.share(draws) >= self.confidence:
            return None
        goal = self.request.limits
        late, dear = draws.seconds / (goal.deadline or inf), draws.dollars / (goal.budget or inf)
        over = _quantile(late, self.confidence), _quantile(dear, self.confidence)
        if max(over) > 1:
            return over
        both = _quantile(np.maximum(late, dear), self.confidence)
        return both, both

    def _at_worst(self, plan: Plan) -> str:
        draws = self._judge(plan)
        seconds, dollars = (_quantile(d, self.confidence) for d in (draws.seconds, draws.dollars))
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
    def middle(one: float | None, other: float | None) -> float | None:
        return None if one is None or other is None else (one + other) / 2

    return Limits(middle(loose.deadline, strict.deadline), middle(loose.budget, strict.budget))


def _close(loose: Limits, strict: Limits) -> bool:
    pairs = ((loose.deadline, strict.deadline), (loose.budget, strict.budget))
    return all(one is None or other is None or one - other <= _CLOSE * one for one, other in pairs)


def _wanted(limits: Limits) -> str:
    within = None if limits.deadline is None else f"within {format_seconds(limits.deadline)}"
    price = None if limits.budget is None else f"for {format_dollars(limits.budget)}"
    return " ".join(each for each in (within, price) if each)


def _chances(limits: Limits, draws: Draws) -> tuple[float | None, float | None, float | None]:
    """Return the shares of samples that keep the deadline, the budget, and both."""
    in_time = None if limits.deadline is None else draws.seconds <= limits.deadline
    in_money = None if limits.budget is None else draws.dollars <= limits.budget
    kept = [each for each in (in_time, in_money) if each is not None]
    return (
        None if in_time is None else float(in_time.mean()),
        None if in_money is None else float(in_money.mean()),
        float(np.all(kept, axis=0).mean()) if kept else None,
    )


def _told(limits: Limits, plan: Plan, draws: Draws, seed: int) -> Forecast:
    in_time, in_money, within = _chances(limits, draws)
    first, last = plan.stages[0].stage, plan.stages[-1].stage
    return Forecast(
        seconds=_spread(draws.seconds),
        dollars=_spread(draws.dollars),
        trials=_certain(first.trials),
        epochs=_certain(last.end_epoch),
        gpu_hours=_spread(draws.gpu_hours),
        instances=_certain(plan.peak_instances),
        in_time=in_time,
        in_money=in_money,
        within=within,
        results=1.0,
        samples=len(draws.seconds),
        seed=seed,
        source="stages",
    )


def _certain(value: float) -> Spread:
    return Spread(value, value, value, value)


def _quantile(draws: Floats, share: float) -> float:
    """Return the least draw that so large a share of all doesn't exceed."""
    return float(np.quantile(draws, share, method="inverted_cdf"))


def _spread(draws: Floats) -> Spread:
    p5, p50, p95 = (_quantile(draws, share) for share in (0.05, 0.5, 0.95))
    return Spread(p5, p50, p95, float(draws.mean()))
