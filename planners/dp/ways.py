"""Ways through all stages: lower bounds for each option, and a search stage by stage.

A label is dropped only if another one with the same fleet is nowhere worse, or if even the cheapest
rest that its time (or money) leaves wouldn't beat the best plan so far.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cloudtune.model.plans import Allowance, Group, Objective
from cloudtune.planners.arrays import Bools, Floats, Indices
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.dp.bounds import IMPOSSIBLE, NOTHING, SLACK, Staircase, lowest
from cloudtune.planners.dp.labels import DelayColumns, Labels, Step, drop_dominated, leaving_costs
from cloudtune.planners.dp.options import Options, ages_matter

_AT_ONCE = 2_000_000  # pairs of label and option in memory at a time


@dataclass(frozen=True)
class Solution:
    """A way through all stages, as the option taken in each."""

    seconds: float
    dollars: float
    choices: tuple[tuple[Group, ...], ...]


@dataclass(frozen=True)
class Aim:
    """The goal: the minimum of one measure, within both limits and below the `incumbent`."""

    deadline: float
    budget: float
    objective: Objective
    incumbent: float = math.inf

    @classmethod
    def of(cls, allowance: Allowance, objective: Objective) -> "Aim":
        deadline = math.inf if allowance.seconds is None else allowance.seconds
        budget = math.inf if allowance.dollars is None else allowance.dollars
        return cls(deadline, budget, objective)

    def worth(self, bound: Floats) -> Bools:
        """Return where a partial plan with this bound may still lead to a better plan."""
        limit = self.budget if self.objective == "cost" else self.deadline
        # A plan that equals the incumbent may still be better in the other measure.
        return np.isfinite(bound) & (bound <= min(limit, self.incumbent) * (1 + SLACK))

    def within(self, seconds: Floats, dollars: Floats) -> Bools:
        """Return where both limits are kept."""
        in_time = seconds <= self.deadline * (1 + SLACK)
        return in_time & (dollars <= self.budget * (1 + SLACK))

    def affords(self, labels: Labels, delays: DelayColumns) -> Bools:
        """Return where returning everything at once wouldn't exceed the budget."""
        dollars = labels.dollars
        if labels.ages is not None:
            groups = range(labels.offer.shape[1])
            dollars = dollars + sum(leaving_costs(labels, delays, group)[:, 0] for group in groups)
        most = min(self.budget, self.incumbent) if self.objective == "cost" else self.budget
        return np.asarray(dollars <= most * (1 + SLACK))

    def to_beat(self, solution: Solution) -> "Aim":
        """Return the same aim with a plan to beat."""
        incumbent = solution.dollars if self.objective == "cost" else solution.seconds
        return Aim(self.deadline, self.budget, self.objective, incumbent)

    def bound(self, seconds: Floats, dollars: Floats, rest: Staircase) -> Floats:
        """Return a lower bound of the final measure; inf beyond the other limit."""
        if self.objective == "cost":
            return dollars + rest.dollars_within(self.deadline * (1 + SLACK) - seconds)
        return seconds + rest.seconds_within(self.budget * (1 + SLACK) - dollars)


@dataclass(frozen=True)
class Ways:
    """The ways through the stages of a request by some options of each.

    `costs` are the least seconds and dollars of each option, whatever comes before it. With
    `by_offer`, bounds on the rest depend on the held offer: tighter, and slower to compute.
    """

    request: PlanRequest
    rounded: bool
    delays: DelayColumns
    steps: Sequence[Step]
    options: Sequence[Options]
    costs: Sequence[tuple[Floats, Floats]]
    by_offer: bool

    @property
    def possible(self) -> bool:
        """Whether every stage has an option at all."""
        return all(len(options) > 0 for options in self.options)

    def only(self, chosen: Sequence[Indices], *, by_offer: bool) -> "Ways":
        """Return the ways by the chosen options of each stage."""
        return replace(
            self,
            options=[o.only(rows) for o, rows in zip(self.options, chosen, strict=True)],
            costs=[(s[rows], d[rows]) for (s, d), rows in zip(self.costs, chosen, strict=True)],
            by_offer=by_offer,
        )

    @cached_property
    def after(self) -> "list[RestBounds]":
        """The least cost from each stage on, by the held offer, with a last entry for the end.

        Staying on an offer costs nothing extra; another one has to be launched and to boot. If
        stages mix offers, everything may stay.
        """
        count = len(self.request.rentables)
        rest = [RestBounds((NOTHING,) * count)]
        for step, options, least in zip(
            reversed(self.steps), reversed(self.options), reversed(self.costs), strict=True
        ):
            if not self.by_offer:
                same = Staircase.of(*least).then(rest[-1].stairs[0]) if count else NOTHING
                rest.append(RestBounds((same,) * count))
                continue
            changed = step.least(options, fresh=True)
            stay = [_of_offer(options, least, offer, rest[-1]) for offer in range(count)]
            move = lowest([_of_offer(options, changed, offer, rest[-1]) for offer in range(count)])
            # Most offers of a catalog have no useful option: they share one staircase.
            both = (move if s is IMPOSSIBLE else lowest([s, move]) for s in stay)
            rest.append(RestBounds(tuple(both)))
        return rest[::-1]

    @cached_property
    def before(self) -> list[Staircase]:
        """The least cost of all stages before each one."""
        done = [NOTHING]
        for least in self.costs[:-1]:
            done.append(done[-1].then(Staircase.of(*least)))
        return done

    @cached_property
    def around(self) -> list[Staircase]:
        """The least cost of all stages other than each one."""
        rests = zip(self.before, self.after[1:], strict=True)
        return [before.then(lowest(after.stairs)) for before, after in rests]

    def front(self) -> list[Solution]:
        """Return every undominated way, fastest first."""
        every = [np.arange(len(options)) for options in self.options]
        trail, _ = self._trail(Aim(math.inf, math.inf, "cost"), every, None)
        ends = trail[-1]
        order = np.lexsort((ends.dollars, ends.seconds))
        return [self._solution(trail, every, int(row)) for row in order]

    def scores(self, aim: "Aim") -> list[Floats]:
        """Return a lower bound for plans with each option of each stage."""
        return [
            aim.bound(seconds, dollars, others)
            for (seconds, dollars), others in zip(self.costs, self.around, strict=True)
        ]

    def search(
        self, aim: "Aim", chosen: Sequence[Indices], most: int | None
    ) -> tuple[Solution | None, bool]:
        """Return the best way by the chosen options, and whether no label was left out.

        At most `most` labels are kept after each stage; None keeps all.
        """
        trail, whole = self._trail(aim, chosen, most)
        if len(trail) <= len(self.steps):
            return None, whole
        ends = trail[-1]
        within = np.flatnonzero(aim.within(ends.seconds, ends.dollars))
        if len(within) == 0:
            return None, whole
        keys = (ends.dollars[within], ends.seconds[within])
        first, second = keys if aim.objective == "cost" else keys[::-1]
        best = int(within[np.lexsort((second, first))[0]])
        return self._solution(trail, chosen, best), whole

    def _trail(
        self, aim: "Aim", chosen: Sequence[Indices], most: int | None
    ) -> tuple[list[Labels], bool]:
        """Return the labels after each stage, from the start on, and whether they are complete.

        Ends early if no label is left.
        """
        whole = True
        trail = [self._start()]
        for number, (step, rows) in enumerate(zip(self.steps, chosen, strict=True)):
            if len(rows) == 0 or len(trail[-1]) == 0:
                break
            options = self.options[number].only(rows)
            rest = self.after[number + 1]
            labels = _advance(step, trail[-1], options, aim, rest)
            if self.rounded:
                labels = labels.only(aim.affords(labels, self.delays))
            if most is not None and len(labels) > most:
                whole = False
                labels = labels.only(_nearest(labels, aim, rest, options, most))
            trail.append(labels)
        return trail, whole

    def _start(self) -> Labels:
        """Return the one label before the first stage: the fleet of the request."""
        index = {rentable.offer: row for row, rentable in enumerate(self.request.rentables)}
        fleet = [live for live in self.request.fleet if live.ages]
        groups = max(1, len(fleet))
        offer = np.full((1, groups), -1)
        count = np.zeros((1, groups), int)
        width = np.zeros((1, groups))
        longest = max((len(live.ages) for live in fleet), default=1)
        ages = np.full((1, groups, longest), np.inf)
        for group, live in enumerate(fleet):
            offer[0, group] = index[live.offer]
            count[0, group] = len(live.ages)
            width[0, group] = live.width or 0.0
            # Beyond `oldest` an age changes no bill. Capped, more labels have the same fleet.
            capped = np.minimum(live.ages, self.delays.oldest[index[live.offer]])
            ages[0, group, : len(live.ages)] = np.sort(capped)
        nothing = np.zeros(1, int)
        return Labels(
            np.zeros(1),
            np.zeros(1),
            offer,
            count,
            width,
            np.ones(1, bool),
            ages if self.rounded or ages_matter(self.request) else None,
            nothing,
            nothing,
        )

    def _solution(self, trail: Sequence[Labels], chosen: Sequence[Indices], row: int) -> Solution:
        end = trail[-1]
        seconds = float(end.seconds[row])
        dollars = float(end.dollars[row])
        choices = []
        for number in range(len(self.steps) - 1, -1, -1):
            labels = trail[number + 1]
            option = int(chosen[number][labels.option[row]])
            choices.append(self.options[number].groups(self.request, option))
            row = int(labels.parent[row])
        return Solution(seconds, dollars, tuple(reversed(choices)))


def promising(aim: Aim, scores: Sequence[Floats], most: int | None = None) -> list[Indices]:
    """Return the options of each stage that may be part of a better plan."""
    chosen = []
    for score in scores:
        rows = np.flatnonzero(aim.worth(score))
        if most is not None and len(rows) > most:
            rows = np.sort(rows[np.argsort(score[rows], kind="stable")[:most]])
        chosen.append(rows)
    return chosen


@dataclass(frozen=True)
class RestBounds:
    """The least cost from a stage on, by the held offer (that of the first group)."""

    stairs: tuple[Staircase, ...]

    def bound(
        self,
        aim: Aim,
        seconds: Floats,
        dollars: Floats,
        options: Options,
    ) -> Floats:
        """Return a lower bound of the final measure; the last axis is the options."""
        if len({id(stair) for stair in self.stairs}) == 1:
            return aim.bound(seconds, dollars, self.stairs[0])
        held = options.offer[:, 0]
        bounds = np.empty(seconds.shape)
        # Options come offer by offer: slices are views, masks would be copies.
        edges = [0, *(np.flatnonzero(np.diff(held)) + 1).tolist(), len(held)]
        for begin, end in itertools.pairwise(edges):
            mine = (..., slice(begin, end))
            if end > begin:
                stair = self.stairs[int(held[begin])]
                bounds[mine] = aim.bound(seconds[mine], dollars[mine], stair)
        return bounds


def _of_offer(
    options: Options,
    least: tuple[Floats, Floats],
    offer: int,
    rest: RestBounds,
) -> Staircase:
    """Return the least cost of a stage on one offer and of the rest."""
    # Options come offer by offer.
    begin, end = np.searchsorted(options.offer[:, 0], (offer, offer + 1))
    if begin == end:
        return IMPOSSIBLE
    return Staircase.of(least[0][begin:end], least[1][begin:end]).then(rest.stairs[offer])


def _advance(step: Step, labels: Labels, options: Options, aim: Aim, rest: RestBounds) -> Labels:
    """Return the undominated labels after a stage that may still lead to a better plan."""
    chunk = max(1, _AT_ONCE // len(options))
    parts = []
    for begin in range(0, len(labels), chunk):
        rows = np.arange(begin, min(begin + chunk, len(labels)))
        taken = step.take(labels.only(rows), options)
        seconds = labels.seconds[rows, None] + taken.seconds
        dollars = labels.dollars[rows, None] + taken.dollars
        here, option = np.nonzero(aim.worth(rest.bound(aim, seconds, dollars, options)))
        part = taken.labels(here, option)
        part = part.only(drop_dominated(part, step.delays)) if len(part) else part
        parts.append(replace(part, parent=part.parent + begin))
    together = _together(parts)
    return together if len(parts) == 1 else together.only(drop_dominated(together, step.delays))


def _together(parts: Sequence[Labels]) -> Labels:
    if len(parts) == 1:
        return parts[0]
    ages = [part.ages for part in parts if part.ages is not None]
    columns: dict[str, Any] = {"ages": np.concatenate(ages) if ages else None}
    for name in vars(parts[0]).keys() - {"ages"}:
        columns[name] = np.concatenate([getattr(part, name) for part in parts])
    return Labels(**columns)


def _nearest(labels: Labels, aim: Aim, rest: RestBounds, options: Options, most: int) -> Indices:
    """Return the labels with the best prospects, and the quickest among the others."""
    bound = rest.bound(aim, labels.seconds, labels.dollars, options.only(labels.option))
    ranked = np.argsort(bound, kind="stable")
    left = ranked[most // 2 :]
    quick = left[np.argsort(labels.seconds[left], kind="stable")[: most - most // 2]]
    return np.concatenate([ranked[: most // 2], quick])
