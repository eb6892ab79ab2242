"""SEER's planning question, reconstructed: the most exploration that still affords a full finish.

Of SEER (SoCC 2021) only the abstract could be had: many configurations are tried at first, and the
promising ones get what it takes to train them sufficiently before the deadline. The code here is a
reconstruction from the abstract, not the paper's algorithm; docs/seer.md describes it in full.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from cloudtune.planners.cost_model import price
from cloudtune.planners.dp.search import search_of
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.explore import Explored

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudtune.plan import Limits
    from cloudtune.planners.base import InfeasibleError, PlanRequest

    Ask: TypeAlias = Callable[[int, int], PlanRequest]


_EXACT = ExactPlanner()
_SLACK = 1e-9


def seer_plan(ask: Ask, *, max_trials: int, max_epochs: int) -> Explored:
    """Return the most trials, up to `max_trials`, of which the best can train `max_epochs` more.

    `ask(trials, epochs)` gives the request for it; more of either must not be less work in any
    stage. Where not even one trial can be trained so far, it is one trial, trained as far as the
    limits pay for (`epochs` < `max_epochs`: under-trained). The plan is the cheapest within the
    deadline, so no trial is wider than is cheapest unless the deadline needs it.

    Raises:
        InfeasibleError: not even one epoch of one trial fits; carries the fastest and the cheapest.
    """
    trials = _most(lambda count: ask(count, max_epochs), max_trials)
    if trials > 0:
        return Explored(trials, max_epochs, _EXACT.plan(ask(trials, max_epochs)))
    epochs = _most(lambda count: ask(1, count), max_epochs - 1)
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
