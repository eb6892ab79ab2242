"""SEER's planning question, reconstructed: the most exploration that still affords a full finish.

Of SEER (SoCC 2021) only the abstract could be had: many configurations are tried at first, and the
promising ones get what it takes to train them sufficiently before the deadline. This is a
reconstruction from that, not the paper's algorithm; docs/seer.md has the whole of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from cloudtune.plan import Limits
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.explore import Explored
from cloudtune.planners.model import price
from cloudtune.planners.search import search_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cloudtune.errors import InfeasibleError
    from cloudtune.plan import PlanRequest, Rentable

    Ask: TypeAlias = Callable[[int, int], PlanRequest]

MARGIN = 0.05
"""The share of what is left of deadline and budget that a plan leaves for what it can't foresee."""

_EXACT = ExactPlanner()
_SLACK = 1e-9


@dataclass(frozen=True)
class Reserve:
    """What a plan leaves of the limits, so that a run which goes by it is not stopped by them.

    `seconds` before its deadline a run begins to give back, and it ends while its budget pays for
    so long a return of everything; `share` of what is left is for surprises besides.
    """

    seconds: float
    share: float = MARGIN

    def limits(self, limits: Limits) -> Limits:
        """Return the limits of a plan."""
        deadline, budget = limits.deadline, limits.budget
        return Limits(
            None if deadline is None else max(0.0, deadline) * (1 - self.share),
            None if budget is None else max(0.0, budget) * (1 - self.share),
        )

    def rentables(self, rentables: Iterable[Rentable]) -> tuple[Rentable, ...]:
        """Return them with returns that take as long as the run reckons with.

        Every instance is returned some day, so a plan's price is then, at each moment of it, no
        less than the bill if everything were given back that late.
        """
        return tuple(self._returned_late(each) for each in rentables)

    def _returned_late(self, rentable: Rentable) -> Rentable:
        profile = rentable.profile
        release = replace(profile.release, mean=max(profile.release.mean, self.seconds))
        return replace(rentable, profile=replace(profile, release=release))


def seer_plan(ask: Ask, *, most_trials: int, most_epochs: int) -> Explored:
    """Return the most trials, up to `most_trials`, of which the best can train `most_epochs` more.

    `ask(trials, epochs)` gives the request for it; more of either must not be less work in any
    stage. Where not even one trial can be trained so far, it is one trial, trained as far as the
    limits pay for (`epochs` < `most_epochs`: under-trained). The plan is the cheapest within the
    deadline, so no trial is wider than is cheapest unless the deadline needs it.

    Raises:
        InfeasibleError: not even one epoch of one trial fits; carries the fastest and the cheapest.
    """
    trials = _most(lambda count: ask(count, most_epochs), most_trials)
    if trials > 0:
        return Explored(trials, most_epochs, _EXACT.plan(ask(trials, most_epochs)))
    epochs = _most(lambda count: ask(1, count), most_epochs - 1)
    return Explored(1, max(1, epochs), _EXACT.plan(ask(1, max(1, epochs))))


def _most(ask: Callable[[int], PlanRequest], most: int) -> int:
    """Return the largest size up to `most` that fits; 0 where none does.

    The bound on all plans says in no time which sizes can't fit; of the others few are planned,
    the largest first, as the bound is seldom far from the truth.
    """
    above = _border(lambda size: _may_fit(ask(size)), 0, most + 1) + 1
    size, step = above - 1, 1
    while size > 0 and not _fits(ask(size)):
        above, size, step = size, max(0, size - step), step * 2
    return _border(lambda each: _fits(ask(each)), size, above)


def _border(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest size below `high` that fits, where `low` does, by halving."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _may_fit(request: PlanRequest) -> bool:
    """Whether the bound leaves room for a plan."""
    search, limits = search_of(request), request.limits
    if not search.possible:
        return False
    deadline = math.inf if limits.deadline is None else limits.deadline
    budget = math.inf if limits.budget is None else limits.budget
    least = float(search.least.dollars_within(deadline * (1 + _SLACK)))
    return math.isfinite(least) and least <= budget * (1 + _SLACK)


def _fits(request: PlanRequest) -> bool:
    """Whether there is a plan; without the fastest and the cheapest that an error would carry."""
    found = search_of(request).best(request.limits, "cost")
    if found is None:
        return False
    return request.limits.admit(price(request, found.choices, _EXACT.name).estimate)


def binding(error: InfeasibleError, limits: Limits) -> str:
    """Return which limit leaves no plan: "deadline", "budget" or, where nothing could, "offers"."""
    if error.fastest is None:
        return "offers"
    late = limits.deadline is not None and error.fastest.estimate.seconds > limits.deadline
    return "deadline" if late else "budget"
