"""What limits allow one trial: how long to its last epoch, at what price, and by which deadline."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cloudtune.forecast.staged_plans import Problem
from cloudtune.model.plans import Allowance, Estimate, Rentable
from cloudtune.model.text import cost_format, count_noun, gpus_text
from cloudtune.model.trial import Width
from cloudtune.model.units import format_seconds
from cloudtune.strategies.worth import Means, by_worth

# A derived deadline lasts as many full trainings: time to explore, and then to finish the best.
TRAININGS = 3.0
_MINUTE = 60.0


@dataclass(frozen=True)
class FullTraining:
    """One trial from the first epoch to the last, in seconds and dollars, boot included.

    `instances` of the offer carry its `width` GPUs.
    """

    rentable: Rentable
    width: Width
    instances: int
    seconds: float
    dollars: float

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.seconds, self.dollars)

    @property
    def machines(self) -> str:
        return f"{self.instances} x {self.rentable.offer.instance_type.name}"

    @property
    def text(self) -> str:
        """Return "12m 3s and $0.11 on 1 GPU (1 x g4dn.xlarge)"."""
        cost = cost_format([self.rentable.offer])
        price = f" and {cost(self.dollars)}" if self.dollars > 0 else ""
        return f"{format_seconds(self.seconds)}{price} on {gpus_text(self.width)} ({self.machines})"


def trainings(problem: Problem, epochs: int) -> Iterator[FullTraining]:
    """Yield what one trial takes for `epochs` epochs, on each offer and at each width."""
    for rentable in problem.rentables:
        profile = rentable.profile
        for width, epoch in profile.epoch.items():
            instances = math.ceil(width / rentable.gpus)
            if instances > rentable.most:
                continue
            trained = profile.boot.mean + profile.start.mean + epochs * epoch.mean
            billed = max(rentable.offer.minimum_seconds, trained + profile.release.mean)
            dollars = instances * billed * rentable.offer.usd_per_second
            seconds = profile.launch.mean + trained + profile.release.mean
            yield FullTraining(rentable, width, instances, seconds, dollars)


def needs(problem: Problem, epochs: int) -> str:
    """Return what one training takes: the cheapest way, and the fastest where it differs."""
    ways = list(trainings(problem, epochs))
    if not ways:
        return ""
    cheapest = min(ways, key=lambda way: (way.dollars, way.seconds))
    fastest = min(ways, key=lambda way: (way.seconds, way.dollars))
    text = (
        f"training one trial for {problem.experiment.scale.counted(epochs)} takes {cheapest.text}"
    )
    if fastest.seconds < 0.95 * cheapest.seconds:
        text += f", or {fastest.text}"
    return text


def fits(problem: Problem, allowance: Allowance) -> bool:
    """Whether one full training fits into an allowance, with nothing else going on."""
    seconds = math.inf if allowance.seconds is None else allowance.seconds
    dollars = math.inf if allowance.dollars is None else allowance.dollars
    return any(
        way.seconds <= seconds and way.dollars <= dollars
        for way in trainings(problem, problem.experiment.span.max)
    )


def derived_deadline(problem: Problem, budget: float) -> tuple[float, str]:
    """Return a sensible deadline for a budget, in seconds from the first request, and why that.

    Three trainings of one trial at its cheapest width; longer where all instances together can't
    spend the budget by then, and never longer than the budget pays for one instance.
    """
    rentable = by_worth(problem.rentables, Means(math.inf, budget))[0]
    profile = rentable.profile
    price = rentable.offer.usd_per_second
    arrival = profile.launch.mean + profile.boot.mean + profile.start.mean
    training = problem.experiment.span.max * profile.epoch_seconds(rentable.cheapest_width)
    alone = budget / price if price > 0 else math.inf
    together = alone / rentable.most
    span = min(alone, max(TRAININGS * training, together))
    if span == alone:
        why = "as long as the budget pays for one instance"
    elif span == together:
        why = f"the budget pays for {count_noun(rentable.most, 'instance')} until then"
    else:
        why = f"{TRAININGS:g} trainings of one trial to its last epoch"
    seconds = math.ceil((arrival + span) / _MINUTE) * _MINUTE
    return seconds, why
