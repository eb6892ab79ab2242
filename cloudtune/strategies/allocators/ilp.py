"""Widths of a group by an integer program: the yardstick of Fluid's rules, and an allocator itself.

A trial gets one width, and the node (or the whole nodes) that it trains on from begin to end. A
node gives no more GPU-seconds until the end than it has, and not more seconds than that to trials
of more than half of it, for no two of them stand side by side. The program makes the end as early
as it can.

What is proven: no schedule in which each trial keeps one width and its GPUs, however it is ordered,
ends before `bound`; no schedule may reach it, since the program orders nothing. What can be done:
`seconds`, when a list schedule of `widths` ends, the best met in a search that begins at the
program's widths and at the heuristics'. Where the two are equal the schedule is the best there is.
A schedule that resizes trials may end before both, but not before `least`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pulp

from cloudtune.planners.ilp.solver import solve, total
from cloudtune.strategies.allocators.fluid import StaticFluid
from cloudtune.strategies.allocators.schedules import shortest, simple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cloudtune.model.plans import Rentable
    from cloudtune.model.trial import Width
    from cloudtune.strategies.allocators.schedules import Heights, Widths

LARGEST = 12
MAX_NODES = 8
"""Groups of more trials, or on more nodes, are left to the repaired rule: seconds to solve."""
_SEARCH = 1000
"""The most nodes of its tree that the solver visits; a bound is proven wherever it stops."""


@dataclass(frozen=True)
class GroupSchedule:
    """The widths of a group: a schedule that ends after `seconds`; none ends before `bound`."""

    widths: Widths
    seconds: float
    bound: float

    @property
    def gap(self) -> float:
        """By how much the schedule may be longer than the best, as a share of the bound."""
        return max(0.0, self.seconds / self.bound - 1) if self.bound > 0 else 0.0


@dataclass(frozen=True)
class _Choice:
    """A trial at a width: its seconds, on how many nodes, and the GPUs that it has of each."""

    trial: int
    width: Width
    seconds: float
    nodes: int
    gpus: float

    def fits(self, node: int, whole: int) -> bool:
        """Whether a node of `node` GPUs can be one of its own; several have to be `whole`."""
        return node >= (whole if self.nodes > 1 else max(1.0, self.gpus))


def best_widths(heights: Heights, nodes: Sequence[int]) -> GroupSchedule:
    """Return widths for trials on nodes of these GPUs each; those of the most GPUs are whole.

    `heights` has the seconds of each trial's budget at each width that it may have.

    Raises:
        ValueError: a trial has no width that any of this has room for.
    """
    if not heights:
        return GroupSchedule((), 0.0, 0.0)
    choices = list(_choices(heights, nodes))
    able = {choice.trial for choice in choices}
    if len(able) < len(heights):
        raise ValueError(f"trial {min(set(range(len(heights))) - able)} fits on no node")
    fitting: list[dict[Width, float]] = [{} for _ in heights]
    for choice in choices:
        fitting[choice.trial][choice.width] = choice.seconds
    chosen, bound = _program(choices, len(heights), nodes)
    bound = max(bound, least(fitting, sum(nodes)))
    widths, seconds = shortest([*chosen, *simple(fitting, nodes)], fitting, nodes, bound)
    return GroupSchedule(widths, seconds, bound)


def least(heights: Heights, gpus: int) -> float:
    """Return what no schedule beats, resizes or not: all work at its cheapest, the longest trial.

    As long as a trial that is resized trains at each width as fast as `heights` say.
    """
    work = sum(min(width * seconds for width, seconds in curve.items()) for curve in heights)
    return max(work / gpus, max((min(curve.values()) for curve in heights), default=0.0))


def _choices(heights: Heights, nodes: Sequence[int]) -> Iterator[_Choice]:
    whole = max(nodes)
    for trial, curve in enumerate(heights):
        for width, seconds in curve.items():
            needed = max(1, math.ceil(width / whole - 1e-9))
            per_node = width if needed == 1 else math.ceil(width / needed - 1e-9)
            choice = _Choice(trial, width, seconds, needed, per_node)
            if sum(choice.fits(node, whole) for node in nodes) >= needed:
                yield choice


# ---- the program ---------------------------------------------------------------------------------


def _program(
    choices: Sequence[_Choice], trials: int, nodes: Sequence[int]
) -> tuple[list[Widths], float]:
    """Return the widths that the program chooses, none where it finds no solution, and its bound.

    Variables: whether a trial has a width, and whether it is on a node at that width.
    """
    problem = pulp.LpProblem("widths", pulp.LpMinimize)
    end = problem.add_variable("end", 0)
    problem += end
    chosen = [problem.add_variable(f"x{n}", cat="Binary") for n in range(len(choices))]
    pairs = list(zip(chosen, choices, strict=True))
    for trial in range(trials):
        mine = [(x, c) for x, c in pairs if c.trial == trial]
        problem += total((x, 1.0) for x, _ in mine) == 1
        problem += total([*((x, c.seconds) for x, c in mine), (end, -1.0)]) <= 0
    placed = _placed(problem, pairs, nodes)
    for node, gpus in enumerate(nodes):
        here = placed[node]
        area = ((y, c.gpus * c.seconds / gpus) for y, c in here)
        problem += total([*area, (end, -1.0)]) <= 0
        alone = ((y, c.seconds) for y, c in here if c.gpus > gpus / 2)
        problem += total([*alone, (end, -1.0)]) <= 0
    solved = solve(problem, _SEARCH)
    if solved.status not in ("optimal", "feasible"):
        return [], solved.bound or 0.0
    return [tuple(c.width for x, c in pairs if x.varValue > 0.5)], solved.bound or 0.0


def _placed(
    problem: Any, pairs: Sequence[tuple[Any, _Choice]], nodes: Sequence[int]
) -> list[list[tuple[Any, _Choice]]]:
    """Give each choice its nodes, as many as it needs; return what may be on each node."""
    placed: list[list[tuple[Any, _Choice]]] = [[] for _ in nodes]
    for n, (x, choice) in enumerate(pairs):
        possible = [k for k, gpus in enumerate(nodes) if choice.fits(gpus, max(nodes))]
        if len(possible) == choice.nodes:  # on all of them
            for node in possible:
                placed[node].append((x, choice))
            continue
        for node in possible:
            y = problem.add_variable(f"y{n}_{node}", cat="Binary")
            placed[node].append((y, choice))
        own = ((placed[node][-1][0], 1.0) for node in possible)
        problem += total([*own, (x, -float(choice.nodes))]) == 0
    return placed


# ---- as an allocator -----------------------------------------------------------------------------


class IlpWidths(StaticFluid):
    """Shares the idle GPUs out among the trials that are to start by the integer program.

    Idle GPUs count as whole nodes and at most one part of a node. Groups of more than `LARGEST`
    trials, or on more than `MAX_NODES` nodes, get the repaired StaticFluid's widths. As there a
    trial keeps its width until it goes on from a rung.
    """

    def __init__(self) -> None:
        super().__init__()
        self.name = "ilp"

    def _shares(self, rentable: Rentable, heights: Sequence[float], gpus: int) -> list[Width]:
        whole, rest = divmod(gpus, rentable.gpus)
        nodes = [rentable.gpus] * whole + [rest] * bool(rest)
        curve = {width: rentable.epoch_seconds(width) for width in rentable.profile.widths}
        single = curve[min(curve, key=lambda width: abs(width - 1))]
        curves = [{width: height * s / single for width, s in curve.items()} for height in heights]
        fits = any(True for _ in _choices(curves[:1], nodes))
        if not fits or len(heights) > LARGEST or len(nodes) > MAX_NODES:
            return super()._shares(rentable, heights, gpus)
        self.plannings += 1
        return list(best_widths(curves, nodes).widths)


def linear(heights: Sequence[float], packed: int, widest: int) -> list[Mapping[Width, float]]:
    """Return heights where k GPUs are k times as fast, from 1/packed of a GPU to `widest`."""
    parts = [1 / k for k in range(packed, 1, -1)]
    widths = list(itertools.chain(parts, map(float, range(1, widest + 1))))
    return [{width: height / width for width in widths} for height in heights]
