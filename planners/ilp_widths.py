"""Widths of a group by an integer program: the yardstick of Fluid's rules, and an allocator itself.

A trial gets one width and the node (or the whole nodes) it trains on. A node is loaded with no more
GPU-seconds than it has until the end, nor for longer than that with trials that can't stand beside
each other; the program makes the end as early as it can. No schedule that keeps trials where they
are ends earlier, so this is a bound. List scheduling of the chosen widths, and of the heuristics',
on the real nodes gives a schedule that can be carried out; what lies between is stated.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pulp

from cloudtune.placement import place, rooms
from cloudtune.planners.fluid import static_fluid
from cloudtune.planners.fluid_widths import StaticFluid
from cloudtune.planners.solver import solve, total

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cloudtune.plan import Rentable
    from cloudtune.trial import Slice, Width

    Heights: TypeAlias = Sequence[Mapping[Width, float]]

LARGEST = 12
"""Groups of more trials are left to the repaired rule: the program would take seconds."""
_NODES = 3000
"""So far the solver searches, at most; a bound is proven wherever it stops."""


@dataclass(frozen=True)
class Found:
    """The widths of a group: a schedule that ends after `seconds`; none ends before `bound`."""

    widths: tuple[Width, ...]
    seconds: float
    bound: float

    @property
    def gap(self) -> float:
        """By how much the schedule may be longer than the best, as a share of the bound."""
        return self.seconds / self.bound - 1 if self.bound > 0 else 0.0


@dataclass(frozen=True)
class _Choice:
    """One trial at one width on some nodes: what it takes of each of them."""

    trial: int
    width: Width
    nodes: tuple[int, ...]
    seconds: float
    gpus: float  # on each node


def best_widths(heights: Heights, gpus: int, nodes: int) -> Found:
    """Return widths for trials on so many nodes of `gpus` GPUs each.

    `heights` has the seconds of each trial's budget at each width that it may have.

    Raises:
        ValueError: a trial has no width that any of this has room for.
    """
    if not heights:
        return Found((), 0.0, 0.0)
    choices = list(_choices(heights, gpus, nodes))
    able = {choice.trial for choice in choices}
    if len(able) < len(heights):
        raise ValueError(f"trial {min(set(range(len(heights))) - able)} fits on no node")
    widths, bound = _program(choices, heights, gpus, nodes)
    tried = {
        tuple(each) for each in (*([widths] if widths else []), *_simple(heights, gpus, nodes))
    }
    ends = {each: makespan(each, heights, gpus, nodes) for each in sorted(tried)}
    best = min(ends, key=lambda each: (ends[each], each))
    return Found(best, ends[best], min(bound, ends[best]))


def _choices(heights: Heights, gpus: int, nodes: int) -> Iterator[_Choice]:
    for trial, known in enumerate(heights):
        for width, seconds in known.items():
            needed = max(1, math.ceil(width / gpus - 1e-9))
            share = width if needed == 1 else float(gpus)
            # Nodes are alike: a wide trial takes neighbours, which is no restriction for one.
            for first in range(nodes - needed + 1):
                taken = tuple(range(first, first + needed))
                yield _Choice(trial, width, taken, seconds, share)


def _program(
    choices: Sequence[_Choice], heights: Heights, gpus: int, nodes: int
) -> tuple[list[Width], float]:
    """Return the widths that the program chooses, if it finds any, and its bound."""
    problem = pulp.LpProblem("widths", pulp.LpMinimize)
    end = problem.add_variable("end", 0)
    problem += end
    chosen = [problem.add_variable(f"x{n}", cat="Binary") for n in range(len(choices))]
    for trial in range(len(heights)):
        mine = [(x, c) for x, c in zip(chosen, choices, strict=True) if c.trial == trial]
        problem += total((x, 1.0) for x, _ in mine) == 1
        problem += total([*((x, c.seconds) for x, c in mine), (end, -1.0)]) <= 0
    for node in range(nodes):
        here = [(x, c) for x, c in zip(chosen, choices, strict=True) if node in c.nodes]
        area = ((x, c.gpus * c.seconds / gpus) for x, c in here)
        problem += total([*area, (end, -1.0)]) <= 0
        alone = ((x, c.seconds) for x, c in here if c.gpus > gpus / 2)
        problem += total([*alone, (end, -1.0)]) <= 0
    solved = solve(problem, _NODES)
    bound = max(solved.bound or 0.0, _least(heights, gpus * nodes))
    if solved.status not in ("optimal", "feasible"):
        return [], bound
    return [_width(trial, chosen, choices) for trial in range(len(heights))], bound


def _width(trial: int, chosen: Sequence[Any], choices: Sequence[_Choice]) -> Width:
    pairs = zip(chosen, choices, strict=True)
    return next(c.width for x, c in pairs if c.trial == trial and x.varValue > 0.5)


def _least(heights: Heights, gpus: int) -> float:
    """Return what no schedule beats, by work and by the longest trial at its fastest."""
    work = sum(min(width * seconds for width, seconds in each.items()) for each in heights)
    return max(work / gpus, max((min(each.values()) for each in heights), default=0.0))


def _simple(heights: Heights, gpus: int, nodes: int) -> Iterator[list[Width]]:
    """Give the widths of heuristics: one of each kind for all, and Fluid's."""
    for width in sorted(set.intersection(*(set(each) for each in heights)) if heights else ()):
        yield [width] * len(heights)
    known = sorted({width for each in heights for width in each})
    if not known:
        return
    ones = [each[min(each, key=lambda width: abs(width - 1))] for each in heights]
    packed, widest = max(1, round(1 / min(known))), max(1, math.floor(max(known)))
    for repaired in (True, False):
        shares = static_fluid(ones, gpus * nodes, packed, widest, repaired=repaired)
        pairs = zip(heights, shares, strict=True)
        yield [max((w for w in each if w <= s + 1e-9), default=min(each)) for each, s in pairs]


def makespan(widths: Sequence[Width], heights: Heights, gpus: int, nodes: int) -> float:
    """Return when the last trial is done if each begins where and as soon as it fits.

    In the best of three orders: the longest first, by their heights at one GPU (or the nearest
    width), by those they have now, and by GPU-seconds. inf where one fits nowhere.
    """
    ones = [each[min(each, key=lambda width: abs(width - 1))] for each in heights]
    now = [each[width] for each, width in zip(heights, widths, strict=True)]
    area = [seconds * width for seconds, width in zip(now, widths, strict=True)]
    ends = (_played(widths, now, order, gpus, nodes) for order in (ones, now, area))
    return min(ends, default=0.0) if widths else 0.0


def _played(
    widths: Sequence[Width],
    seconds: Sequence[float],
    order: Sequence[float],
    gpus: int,
    nodes: int,
) -> float:
    free = rooms({f"n{node:03d}": gpus for node in range(nodes)}, ())
    waiting = sorted(range(len(widths)), key=lambda trial: (-order[trial], trial))
    running: list[tuple[float, int, tuple[Slice, ...]]] = []
    now = 0.0
    while waiting or running:
        for trial in tuple(waiting):
            seat = place(widths[trial], gpus, free)
            if seat is not None:
                waiting.remove(trial)
                for piece in seat:
                    free[piece.instance].take(piece)
                heapq.heappush(running, (now + seconds[trial], trial, seat))
        if not running:
            return math.inf
        now, _, seat = heapq.heappop(running)
        for piece in seat:
            free[piece.instance].give(piece)
    return now


class IlpWidths(StaticFluid):
    """Shares the idle GPUs out among the trials that are to start by the integer program.

    Groups of more than `LARGEST` trials get the repaired StaticFluid's widths. Once started a trial
    keeps its width.
    """

    def __init__(self) -> None:
        super().__init__()
        self.name = "ilp"

    def _shares(self, rentable: Rentable, heights: Sequence[float], gpus: int) -> list[Width]:
        if not 0 < len(heights) <= LARGEST:
            return super()._shares(rentable, heights, gpus)
        self.plannings += 1
        size = min(gpus, rentable.gpus)
        nodes = max(1, gpus // size)
        epoch = {w: rentable.epoch_seconds(w) for w in rentable.profile.widths if w <= size * nodes}
        one = epoch[min(epoch, key=lambda width: abs(width - 1))]
        curves = [{width: height * s / one for width, s in epoch.items()} for height in heights]
        return list(best_widths(curves, size, nodes).widths)


def linear(heights: Sequence[float], packed: int, widest: int) -> list[dict[Width, float]]:
    """Return heights where k GPUs are k times as fast, from 1/packed of a GPU to `widest`."""
    parts = [1 / k for k in range(packed, 1, -1)]
    widths = list(itertools.chain(parts, map(float, range(1, widest + 1))))
    return [{width: height / width for width in widths} for height in heights]
