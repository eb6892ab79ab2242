"""Plans that keep the limits with a given probability, judged by Monte Carlo draws.

A planner uses means, and the plan that is best on average is seldom the safest: a spare instance, a
faster fleet or another offer may be safer. So the planner is also called with all durations some
standard deviations above their means, which yields plans with room for delays. Each is judged by
its draws, and the best of those that keep the limits often enough is the answer. If a job has few
plans, all are judged: then the answer is exact.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from cloudtune.errors import UsageError
from cloudtune.model.placement import slots
from cloudtune.model.plans import Allowance, Estimate, Forecast, Group, Plan, Stage
from cloudtune.model.scaling import Measurement
from cloudtune.planners.base import InfeasibleError, Planner, PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.dp.front import whole_front
from cloudtune.planners.estimate.outlook import (
    chances,
    excesses,
    fitting,
    quantile,
    to_forecast,
)
from cloudtune.planners.estimate.replanned import reacting_draws
from cloudtune.planners.estimate.rollout import Draws, sample
from cloudtune.planners.selection import describe, describe_limits, measures
from cloudtune.planners.static import StaticPlanner

# How often the planner is called for a safe enough plan.
_SOLVES = 10
# Standard deviations that make no difference.
_CLOSE = 0.05
# The standard deviations above the means for which whole fronts are computed.
_CAUTION = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
# Up to this many plans of a job, all are judged.
_FEW = 256
# Up to this many offers, all are tried beside a plan's own.
_FEW_OFFERS = 12
# Samples for a first look at whether a plan is worth a closer one.
_COARSE = 200
# A plan that exceeds the limits by this factor, by few samples, isn't worth a closer look.
_DOUBT = 1.1
# The same for a run that replans, and so makes up for part of the excess.
_DOUBT_OF_REPLANNED = 1.3
# The maximum number of plans judged by few samples, for a large and for a small job.
_GLANCES = (100, 600)
# The total trials of all stages of these plans: some ten seconds.
_DRAWN = 150_000
# The maximum number of plans judged by all samples.
_LOOKS = 80
# The number of safest plans from which safer ones are searched.
_STARTS = 3
# Planners without rules of their own: they accept any plan.
_ANY_KIND = frozenset({"exact", "ilp"})

# The groups of each stage.
Choices: TypeAlias = "tuple[tuple[Group, ...], ...]"


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

    The probability is that of keeping both limits at once. With `reacts` it is that of a run which
    replans the rest when speeds differ from the profile, as forecast by `outlook`.

    Raises:
        InfeasibleError: there is none; it has the fastest and the cheapest plan of the search.
        UsageError: the confidence isn't between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise UsageError(f"confidence must be a number such as 0.95, not {confidence:g}")
    search = _Search(planner, request, confidence, samples, seed, reacts)
    search.ask()
    search.look(search.others())
    if search.free:
        search.climb()
        search.improve()
    best = search.best
    if best is None:
        raise search.refusal()
    return best, to_forecast(search.goal, best, search.judged[best], seed)


@dataclass
class _Search:
    """The search for a safe enough plan; `judged` has the draws of the plans looked at."""

    planner: Planner
    request: PlanRequest
    confidence: float
    samples: int
    seed: int
    reacts: bool
    judged: dict[Plan, Draws] = field(default_factory=dict)
    glanced: dict[Choices, float] = field(default_factory=dict)
    refused: InfeasibleError | None = None

    @property
    def free(self) -> bool:
        """Whether the planner has no rules of its own, so that any plan is allowed."""
        return self.planner.name in _ANY_KIND

    @property
    def goal(self) -> Allowance:
        """The limits that samples are compared with."""
        return fitting(self.request.allowance) if self.reacts else self.request.allowance

    @property
    def best(self) -> Plan | None:
        """The best of the safe enough plans."""
        sure = [plan for plan, draws in self.judged.items() if self._is_sure(draws)]
        return min(sure, key=self._measures, default=None)

    @property
    def familiar(self) -> PlanRequest:
        """The request with the offers for neighbours: from a catalog, only those used so far."""
        if len(self.request.rentables) <= _FEW_OFFERS:
            return self.request
        plans = (*(plan.choices for plan in self.judged), *self.glanced)
        offers = {group.offer for choices in plans for groups in choices for group in groups}
        rentables = (rentable for rentable in self.request.rentables if rentable.offer in offers)
        return replace(self.request, rentables=tuple(rentables))

    @property
    def glances(self) -> int:
        """The maximum number of plans judged by few samples."""
        fewest, most = _GLANCES
        drawn = sum(stage.trials for stage in self.request.work)
        return max(fewest, min(most, _DRAWN // drawn))

    def ask(self) -> None:
        """Call the planner with as little caution as makes its plan safe enough."""
        if self._is_enough(self.request):
            return  # no plan beats the best by means
        fastest = replace(self.request, allowance=Allowance(seconds=0.0))
        self._is_enough(fastest)  # it may be
        low = 0.0
        high = math.inf
        caution = 0.5
        for _ in range(_SOLVES):
            if self._is_enough(cautious(self.request, caution)):
                high = caution
            else:
                low = caution
            if high - low <= _CLOSE:
                return
            caution = 2 * caution if high == math.inf else (low + high) / 2

    def _is_enough(self, asked: PlanRequest) -> bool:
        """Judge the planner's plan, or the ends that it names; return whether it is safe enough."""
        try:
            plans = [self.planner.plan(asked)]
        except InfeasibleError as error:
            self.refused = self.refused or error
            plans = [end for end in (error.fastest, error.cheapest) if end is not None]
            is_refused = True
        else:
            is_refused = False
        if asked.rentables != self.request.rentables:
            plans = [self._price(plan.choices) for plan in plans]
        sure = [self._is_sure(self._judge(plan)) for plan in plans]
        return is_refused or any(sure)

    def others(self) -> Iterable[Plan]:
        """Return more plans: all, or those of fronts with some caution."""
        free = replace(self.request, allowance=Allowance())
        static = isinstance(self.planner, StaticPlanner)
        if not self.free and not static:
            return ()
        every = every_choice(self.request, _FEW) if self.free else None
        return map(self._price, dict.fromkeys(every or self._cautious_front(free)))

    def _cautious_front(self, free: PlanRequest) -> Iterator[Choices]:
        for caution in _CAUTION:
            asked = cautious(free, caution)
            if isinstance(self.planner, StaticPlanner):
                yield from (plan.choices for plan in self.planner.every(asked))
            else:
                yield from (solution.choices for solution in whole_front(asked))

    def look(self, plans: Iterable[Plan]) -> None:
        """Judge the plans that may beat the best so far, most promising first."""
        for plan in sorted(filter(self._possible, plans), key=self._measures):
            best = self.best
            if best is not None and self._measures(plan) >= self._measures(best):
                return
            if len(self.glanced) >= self.glances or len(self.judged) >= _LOOKS:
                return
            if self._may_be_sure(plan):
                self._judge(plan)

    def climb(self) -> None:
        """Move from the safest plans to safer neighbours, until one is safe enough."""
        surest = sorted(self.glanced, key=self.glanced.__getitem__)
        for start in surest[:_STARTS]:
            choices = start
            while self.best is None and len(self.glanced) < self.glances:
                near = map(self._price, neighbours(self.familiar, choices))
                fresh = [plan for plan in near if plan.choices not in self.glanced]
                surer = min(filter(self._possible, fresh), key=self._glance, default=None)
                if surer is None or self._glance(surer) >= self.glanced[choices]:
                    break
                choices = surer.choices
                if self._may_be_sure(surer):
                    self._judge(surer)

    def improve(self) -> None:
        """Move from the best safe plan to better neighbours that are safe too."""
        before = None
        while self.best not in {None, before}:
            before = self.best
            assert before is not None
            self.look(map(self._price, neighbours(self.familiar, before.choices)))

    def _may_be_sure(self, plan: Plan) -> bool:
        return self._glance(plan) <= (_DOUBT_OF_REPLANNED if self.reacts else _DOUBT)

    def _glance(self, plan: Plan) -> float:
        """Return a plan's excess over the limits at the confidence, by few samples."""
        if plan.choices not in self.glanced:
            draws = sample(self.request, plan, samples=_COARSE, seed=self.seed)
            self.glanced[plan.choices] = excesses(self.goal, draws, self.confidence)[2]
        return self.glanced[plan.choices]

    def _price(self, choices: Choices) -> Plan:
        return price(self.request, choices, self.planner.name)

    def _measures(self, plan: Plan) -> tuple[float, float]:
        return measures(plan, self.request.objective)

    def _possible(self, plan: Plan) -> bool:
        """Whether a plan may be safe enough, by its means: not far beyond the limits."""
        slack = _slack(self.request)
        means = Estimate(plan.estimate.seconds / slack, plan.estimate.dollars / slack)
        return self.request.allowance.admit(means)

    def _judge(self, plan: Plan) -> Draws:
        if plan not in self.judged:
            draw = reacting_draws if self.reacts else sample
            self.judged[plan] = draw(self.request, plan, samples=self.samples, seed=self.seed)
        return self.judged[plan]

    def _is_sure(self, draws: Draws) -> bool:
        """Whether enough samples keep all limits."""
        kept = chances(self.goal, draws)[2]
        return kept is None or kept >= self.confidence

    def refusal(self) -> InfeasibleError:
        """Return the error, which says how near the nearest plans come."""
        if self.refused is not None and not self.judged:
            return self.refused  # there is no plan at all, safe or not
        fastest = min(self.judged, key=lambda plan: measures(plan, "time"))
        cheapest = min(self.judged, key=lambda plan: measures(plan, "cost"))
        message = (
            f"no plan finishes {describe_limits(self.request)} with a probability of "
            f"{self.confidence:.4g}. By that quantile the fastest takes {self._at_worst(fastest)}; "
            f"the cheapest takes {self._at_worst(cheapest)}. "
            "Raise --deadline or --budget, try fewer trials, or lower --confidence."
        )
        return InfeasibleError(message, fastest, cheapest)

    def _at_worst(self, plan: Plan) -> str:
        draws = self._judge(plan)
        seconds, dollars = (quantile(d, self.confidence) for d in (draws.seconds, draws.dollars))
        return describe(replace(plan, estimate=Estimate(seconds, dollars)))


def cautious(request: PlanRequest, caution: float) -> PlanRequest:
    """Return the request with all durations `caution` standard deviations above their means."""

    def longer(measured: Measurement) -> Measurement:
        return replace(measured, mean=measured.mean + caution * measured.sd)

    if caution <= 0:
        return request
    rentables = []
    for rentable in request.rentables:
        profile = rentable.profile.with_delays(lambda _name, measured: longer(measured))
        profile = profile.slow_down(math.exp(caution * profile.speed_error))
        epoch = {width: longer(measured) for width, measured in profile.epoch.items()}
        rentables.append(replace(rentable, profile=replace(profile, epoch=epoch)))
    return replace(request, rentables=tuple(rentables))


def every_choice(request: PlanRequest, most: int) -> list[Choices] | None:
    """Return all ways through the stages with one offer each; None beyond `most`."""
    groups: list[tuple[tuple[Group, ...], ...]] = []
    for stage in request.work:
        groups.append(tuple(itertools.islice(_groups(request, stage), most + 1)))
        if math.prod(map(len, groups)) > most:
            return None
    return list(itertools.product(*groups))


def _groups(request: PlanRequest, stage: Stage) -> Iterator[tuple[Group, ...]]:
    for rentable in request.rentables:
        sizes = range(1, min(rentable.most, request.max_instances) + 1)
        for width, count in itertools.product(rentable.profile.widths, sizes):
            room = slots(width, rentable.gpus, count)
            if room >= 1 and request.admits({rentable.offer: count}):
                waves = math.ceil(stage.trials / room)
                yield (Group(rentable.offer, count, width, stage.trials, waves),)


def neighbours(request: PlanRequest, choices: Choices) -> Iterator[Choices]:
    """Yield choices that differ slightly in one stage, or in it and all later ones."""
    for number, (stage, groups) in enumerate(zip(request.work, choices, strict=True)):
        for other in _groups(request, stage):
            if _is_near(groups, other):
                yield (*choices[:number], other, *choices[number + 1 :])


def _is_near(groups: tuple[Group, ...], others: tuple[Group, ...]) -> bool:
    """Whether two stages differ by one instance, by the width, or by the offer."""
    group = groups[0]
    other = others[0]
    if group.offer == other.offer:
        return abs(group.instances - other.instances) <= 1
    gpus = sum(part.instances * part.offer.gpus for part in groups)
    return other.instances <= max(1, math.ceil(gpus / other.offer.gpus))


def _slack(request: PlanRequest) -> float:
    """Return by which factor a plan's means may exceed the limits that it mostly keeps.

    A rare interruption raises the mean, but leaves most runs as they are.
    """
    mostly = [
        rentable.epoch_seconds(width) / rentable.profile.epoch_seconds(width)
        for rentable in request.rentables
        for width in rentable.profile.widths
    ]
    return max(mostly, default=1.0) * 1.02
