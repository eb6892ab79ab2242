"""How much can be tried: the most trials, and then the most epochs, that the limits pay for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cloudtune.planners.base import InfeasibleError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cloudtune.plan import Plan, Stage
    from cloudtune.planners.base import Planner, PlanRequest


@dataclass(frozen=True)
class Explored:
    """What the limits pay for: `trials` trials, the best for `epochs` epochs, by `plan`."""

    trials: int
    epochs: int
    plan: Plan


def explore(
    planner: Planner,
    request: PlanRequest,
    work: Callable[[int, int], Sequence[Stage]],
    *,
    max_trials: int,
    max_epochs: int,
) -> Explored:
    """Return the largest number of trials, up to `max_trials`, that fits into both limits.

    `work(trials, epochs)` gives the stages that train so many trials, the best of them to that
    epoch; more of either must not mean less work in any stage. If not even one trial can be trained
    to `max_epochs`, the answer is one trial, trained as far as the limits pay for.

    Exact where the planner is: whatever can be done with more trials can be done with fewer on the
    same instances, no slower and no dearer, so that halving the interval finds the border.

    Raises:
        InfeasibleError: not even one epoch of one trial fits.
    """

    def with_trials(trials: int) -> Plan | None:
        return _plan(planner, request, work(trials, max_epochs))

    def with_epochs(epochs: int) -> Plan | None:
        return _plan(planner, request, work(1, epochs))

    trials, plan = _most(with_trials, max_trials)
    if plan is not None:
        return Explored(trials, max_epochs, plan)
    epochs, plan = _most(with_epochs, max_epochs - 1)
    if plan is not None:
        return Explored(1, epochs, plan)
    planner.plan(replace(request, work=tuple(work(1, 1))))
    raise AssertionError("a job of one epoch is feasible now, and was not before")


def _plan(planner: Planner, request: PlanRequest, work: Sequence[Stage]) -> Plan | None:
    try:
        return planner.plan(replace(request, work=tuple(work)))
    except InfeasibleError:
        return None


def _most(plan_for: Callable[[int], Plan | None], most: int) -> tuple[int, Plan | None]:
    """Return the largest number up to `most` that has a plan, and the plan; 0 and None if none."""
    found, best, size = 0, None, 1
    while size <= most:  # doubling first: a big job takes longest to plan
        plan = plan_for(size)
        if plan is None:
            break
        found, best = size, plan
        size = min(size * 2, most) if size < most else most + 1
    low, high = found, min(size, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        plan = plan_for(middle)
        if plan is None:
            high = middle
        else:
            low, best = middle, plan
    return low, best
