"""The outlook of a run that replans the rest when its speed differs from the profile.

A run learns how fast its trials really are, and reacts: with more expensive fleets if it is late,
with fewer instances if it has time. So possible speeds are divided into a few classes. For each the
rest is planned as the run would at its first rung (`policy.schedule.replanner`), and each sample
follows the plan of its class. A run that still breaks a limit is cut off there.
"""

import math
from dataclasses import replace

import numpy as np

from cloudtune.model.plans import Allowance, Plan
from cloudtune.planners.arrays import Floats
from cloudtune.planners.base import Live, PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.estimate.rollout import Draws, sample
from cloudtune.planners.exact import QUICK
from cloudtune.planners.reserve import NOISE, Reserve, in_wished_time
from cloudtune.planners.selection import measures

# The classes of speeds, in standard deviations of the profile's error.
_SPEEDS = (-1.8, -1.2, -0.6, 0.0, 0.6, 1.2, 1.8)
# A plan is made for the slower samples of its class: this many standard deviations slower.
_SLOWER = 0.15


def reacting_draws(request: PlanRequest, plan: Plan, *, samples: int, seed: int) -> Draws:
    """Return the draws of a run that replans the rest; not cut off at the limits."""
    drawn = sample(request, plan, samples=samples, seed=seed)
    error = request.rentable(plan.stages[0].groups[0].offer).profile.speed_error
    if error <= NOISE or len(plan.stages) < 2 or request.allowance == Allowance():
        return drawn
    deviations = np.log(drawn.slowness) / error
    nearest = np.abs(deviations[:, None] - np.array(_SPEEDS)).argmin(axis=1)
    draws = {plan: drawn}
    for place, speed in enumerate(_SPEEDS):
        rows = nearest == place
        other = _replan(request, plan, math.exp(error * (speed + _SLOWER))) if rows.any() else None
        if other is None:
            continue
        if other not in draws:
            draws[other] = sample(request, other, samples=samples, seed=seed)
        drawn = _with_rows(drawn, draws[other], rows)
    return drawn


def _with_rows(drawn: Draws, other: Draws, rows: Floats) -> Draws:
    return Draws(
        np.where(rows, other.seconds, drawn.seconds),
        np.where(rows, other.dollars, drawn.dollars),
        np.where(rows, other.gpu_hours, drawn.gpu_hours),
        drawn.slowness,
    )


def _replan(request: PlanRequest, plan: Plan, factor: float) -> Plan | None:
    """Return the plan after the first rung if epochs take `factor` times as long.

    None if the run continues as planned.
    """
    slowed = tuple(replace(r, profile=r.profile.slow_down(factor)) for r in request.rentables)
    real = replace(request, rentables=slowed, mix=1)
    first = price(real, plan.choices, plan.planner).stages[0]
    left = request.allowance.remaining(first.seconds, first.dollars)
    held = []
    for group in first.groups:
        age = max(0.0, first.seconds - real.rentable(group.offer).profile.launch.mean)
        width = group.width if group.waves == 1 else None
        held.append(Live(group.offer, (age,) * group.instances, width))
    reserve = Reserve(0.0)
    wished = left
    if plan.wished is not None:
        seconds = in_wished_time(left.seconds, plan.wished * (1 + NOISE) - first.seconds)
        wished = replace(left, seconds=seconds)
    allowance = reserve.allowance(wished)
    rest = replace(real, work=request.work[1:], fleet=tuple(held), allowance=allowance)
    going_on = price(rest, plan.choices[1:], plan.planner)
    best = QUICK.within(rest)
    if reserve.tight.allowance(left).admit(going_on.estimate):
        aim = request.objective
        saved = best is not None and (
            measures(best, aim)[0] < (1 - NOISE) * measures(going_on, aim)[0]
        )
        if not saved:
            return None
    elif best is None:
        margins = (reserve, reserve.tight) if plan.wished is not None else (reserve.tight,)
        requests = (replace(rest, allowance=margin.allowance(left)) for margin in margins)
        tried = (QUICK.within(request) for request in requests)
        best = next(filter(None, tried), None)
    if best is None:
        return None
    return price(request, (plan.choices[0], *best.choices), plan.planner)
