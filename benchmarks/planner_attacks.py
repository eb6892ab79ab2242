"""Attacks on an exact plan: no random change of it may make it better.

They know nothing of what the planner leaves out as never the best, and they try large jobs too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.planner_checks import EQUAL, measure, unrounded
from benchmarks.planner_jobs import billed_by
from cloudtune.model.placement import slots
from cloudtune.model.plans import Group
from cloudtune.planners.cost_model import price

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.model.plans import Plan, Rentable
    from cloudtune.planners.base import PlanRequest
    from tests.planners.brute_force import Way


def attacked(request: PlanRequest, plan: Plan, dice: np.random.Generator, tries: int) -> list[str]:
    """Change an exact plan at random, again and again; return where that makes it better."""
    exact, faults = measure(request, plan), list[str]()
    asked, chosen = billed_by(request, 0.0), plan.choices
    changes = (_anew, _as_one, _resized)
    for number in range(tries):
        choices = changes[number % len(changes)](request, chosen, dice)
        rival = price(asked, [unrounded(groups) for groups in choices], "random").estimate
        mine = rival.seconds if request.objective == "time" else rival.dollars
        if mine < exact * (1 - EQUAL) and request.limits.admit(rival):
            faults.append(f"exact {exact!r}, and by chance {mine!r}: {choices}")
    return faults


def _anew(request: PlanRequest, choices: Sequence[Way], dice: np.random.Generator) -> list[Way]:
    """Choose anything for one, two or three stages."""
    changed = set(dice.integers(len(choices), size=int(dice.integers(1, 4))).tolist())
    return [
        _random_way(request, stage.trials, dice) if number in changed else way
        for number, (stage, way) in enumerate(zip(request.work, choices, strict=True))
    ]


def _as_one(request: PlanRequest, choices: Sequence[Way], dice: np.random.Generator) -> list[Way]:
    """Run some stages in a row on one fleet, at one width."""
    first, last = sorted(dice.integers(len(choices), size=2).tolist())
    (pattern,) = _random_way(replace(request, mix=1), request.work[first].trials, dice)
    return [
        (_with(pattern, pattern.instances, stage.trials),) if first <= number <= last else way
        for number, (stage, way) in enumerate(zip(request.work, choices, strict=True))
    ]


def _resized(request: PlanRequest, choices: Sequence[Way], dice: np.random.Generator) -> list[Way]:
    """Give some stages in a row so many instances, where each has one group and they do."""
    first, last = sorted(dice.integers(len(choices), size=2).tolist())
    count, changed = int(dice.integers(1, request.max_instances + 1)), list(choices)
    for number in range(first, last + 1):
        group, *others = choices[number]
        able = slots(group.width, group.offer.gpus, count) > 0
        resized = _with(group, count, group.trials) if able else group
        if count <= request.rentable(group.offer).most and _allowed(request, [resized, *others]):
            changed[number] = (resized, *others)
    return changed


def _with(group: Group, instances: int, trials: int) -> Group:
    waves = math.ceil(trials / slots(group.width, group.offer.gpus, instances))
    return replace(group, instances=instances, trials=trials, waves=waves)


def _random_way(request: PlanRequest, trials: int, dice: np.random.Generator) -> tuple[Group, ...]:
    """Return any groups that may run a stage: of one offer, or of two where they may be mixed."""
    several = min(request.mix, len(request.rentables), trials)
    used = int(dice.integers(1, several + 1))
    while True:
        chosen = dice.choice(len(request.rentables), used, replace=False)
        cuts = np.sort(dice.choice(np.arange(1, trials), used - 1, replace=False))
        shares = np.diff([0, *cuts.tolist(), trials])
        groups = [
            _random_group(request, request.rentables[int(which)], int(share), dice)
            for which, share in zip(chosen, shares, strict=True)
        ]
        if None not in groups and _allowed(request, [each for each in groups if each]):
            return tuple(each for each in groups if each)


def _random_group(
    request: PlanRequest, rentable: Rentable, trials: int, dice: np.random.Generator
) -> Group | None:
    most = min(rentable.most, request.max_instances)
    count = int(dice.integers(1, most + 1))
    width = float(dice.choice(rentable.profile.widths))
    at_once = slots(width, rentable.gpus, count)
    if at_once == 0:
        return None
    return Group(rentable.offer, count, width, trials, math.ceil(trials / at_once))


def _allowed(request: PlanRequest, groups: Sequence[Group]) -> bool:
    """Whether the limits on instances and vCPUs for all offers together are kept."""
    used: dict[str, int] = {}
    for group in groups:
        vcpus = group.instances * group.offer.instance_type.vcpus
        used[group.offer.quota] = used.get(group.offer.quota, 0) + vcpus
    within = all(vcpus <= request.vcpu_quotas.get(quota, vcpus) for quota, vcpus in used.items())
    return within and sum(group.instances for group in groups) <= request.max_instances
