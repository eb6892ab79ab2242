"""The exact search over stages: Pareto dynamic programming over labels, pruned by lower bounds.

A label goes only if another one of the same fleet is nowhere worse, or if even the cheapest rest
that its time (or money) leaves would not beat the best plan so far. So the result is
the best there is in the model of `planners.cost_model`; docs/decisions/0004-exact-planner.md.

In rounds: narrow ones (few options, few labels) find a good plan quickly; the full one, pruned by
that plan, finds the best, or that there is no better.

Bills that are rounded up have a search of their own (`Search.rounded`), which begins with the
best plan of the other and keeps a bounded number of labels: few of them beat one another.
"""

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cloudtune.model.plans import Group, Limits, Objective
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.dp.bounds import IMPOSSIBLE, NOTHING, SLACK, Staircase, lowest
from cloudtune.planners.dp.labels import DelayColumns, Labels, Step, leaving_costs, undominated
from cloudtune.planners.dp.options import Menu, Options, ages_matter
from cloudtune.planners.dp.options import undominated as without_beaten

Allowed = Callable[[int, Options], NDArray[np.bool_]]

# Options of each stage and labels after it, in each round; the last is the proof.
_ROUNDS: tuple[tuple[int | None, int | None], ...] = ((60, 150), (300, 400), (None, None))
# The first look, by bounds that are quick to compute.
_ROUGH = (60, 40)
# The same where bills are rounded up; the last is a proof where no label was left out.
_ROUNDED_ROUNDS = ((60, 150), (None, 1000))
_AT_ONCE = 2_000_000  # pairs of label and option in memory at a time


@dataclass(frozen=True)
class Solution:
    """A way through all stages, as the option taken in each."""

    seconds: float
    dollars: float
    choices: tuple[tuple[Group, ...], ...]


class Search:
    """The stages of a request, their options and what is least possible from each stage on.

    `allowed(stage, options)` restricts the options of a stage. With `rounded`, bills are those that
    are rounded up; without, bills to the instant, which are never higher. `proven` says whether
    the last answer is the best of all that the options allow.
    """

    def __init__(
        self, request: PlanRequest, allowed: Allowed | None = None, *, rounded: bool = False
    ) -> None:
        self.request = request
        self.rounded = rounded
        self.proven = True
        # What is left depends on the offer that is held, where a stage has only one.
        self._by_offer = request.mix == 1 and len(request.rentables) > 1
        self.delays = DelayColumns.of(request, rounded=rounded)
        menu = Menu.of(request, rounded=rounded)
        last = len(request.work) - 1
        self.steps: list[Step] = []
        self.options: list[Options] = []
        self._least: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        for number, stage in enumerate(request.work):
            step = Step(request, stage, self.delays, number == last)
            options = menu.stage(stage)
            if allowed is not None:
                options = options.only(allowed(number, options))
            self.steps.append(step)
            self.options.append(options)
            # Only there is it certain that no instance can be kept: later bounds assume the best.
            nothing_before = number == 0 and not request.fleet
            self._least.append(step.least(options, fresh=nothing_before))

    @property
    def possible(self) -> bool:
        """Whether every stage has an option at all."""
        return all(len(options) > 0 for options in self.options)

    @cached_property
    def after(self) -> "list[RestBounds]":
        """What is least possible from each stage on, by the offer held; one more for nothing left.

        Staying on an offer costs nothing more; another one has to be launched and to boot. Where
        stages mix offers, everything may stay.
        """
        count = len(self.request.rentables)
        rest = [RestBounds((NOTHING,) * count)]
        for step, options, least in zip(
            reversed(self.steps), reversed(self.options), reversed(self._least), strict=True
        ):
            if not self._by_offer:
                same = Staircase.of(*least).then(rest[-1].stairs[0]) if count else NOTHING
                rest.append(RestBounds((same,) * count))
                continue
            changed = step.least(options, fresh=True)
            stay = [_of_offer(options, least, offer, rest[-1]) for offer in range(count)]
            move = lowest([_of_offer(options, changed, offer, rest[-1]) for offer in range(count)])
            # Most offers of a catalog have no option worth having: they share one staircase.
            both = (move if s is IMPOSSIBLE else lowest([s, move]) for s in stay)
            rest.append(RestBounds(tuple(both)))
        return rest[::-1]

    @cached_property
    def before(self) -> list[Staircase]:
        """The least cost of all stages before each one."""
        done = [NOTHING]
        for least in self._least[:-1]:
            done.append(done[-1].then(Staircase.of(*least)))
        return done

    @cached_property
    def around(self) -> list[Staircase]:
        """What is least possible for all other stages than each one."""
        rests = zip(self.before, self.after[1:], strict=True)
        return [before.then(lowest(after.stairs)) for before, after in rests]

    @property
    def least(self) -> Staircase:
        """The bound that no plan with these options can beat."""
        return lowest(self.after[0].stairs)

    def best(
        self, limits: Limits, objective: Objective, incumbent: Solution | None = None
    ) -> Solution | None:
        """Return the best way within the limits, None where there is none.

        `incumbent` is one that keeps the limits, from an earlier search.
        """
        if not self.possible:
            return None
        aim = _Aim.of(limits, objective)
        aim = aim if incumbent is None else aim.to_beat(incumbent)
        if not self._by_offer or "after" in vars(self):
            return self._in_rounds(aim, incumbent)
        # Bounds by offer take longer than a first plan does, and few options are left beside it.
        rough = self._over(None, by_offer=False)
        solution = None if self.rounded else rough._run(aim, rough._promising(aim, _ROUGH[0]), _ROUGH[1])
        if solution is not None:
            incumbent = solution
            aim = aim.to_beat(solution)
        narrow = self._over(rough._promising(aim, None), by_offer=True)
        incumbent = narrow._in_rounds(aim, incumbent) if narrow.possible else incumbent
        self.proven = narrow.proven
        return incumbent

    def _in_rounds(self, aim: "_Aim", incumbent: Solution | None) -> Solution | None:
        """Return the best way for an aim; the incumbent where none beats it."""
        for options, labels in _ROUNDED_ROUNDS if self.rounded else _ROUNDS:
            self.proven = True
            chosen = self._promising(aim, options)
            solution = self._run(aim, chosen, labels)
            if solution is not None:
                incumbent = solution
                aim = aim.to_beat(solution)
            if self.proven and all(len(rows) < (options or math.inf) for rows in chosen):
                break  # nothing was left out: a wider round finds no other
        return incumbent

    def _over(self, chosen: Sequence[NDArray[np.intp]] | None, *, by_offer: bool) -> "Search":
        """Return the search over the chosen options alone; its bounds `by_offer` are tighter."""
        search = copy.copy(self)
        for bounds in ("after", "before", "around"):
            vars(search).pop(bounds, None)
        search.proven = True
        search._by_offer = by_offer
        if chosen is not None:
            each = list(zip(self.options, self._least, chosen, strict=True))
            search.options = [options.only(rows) for options, _, rows in each]
            search._least = [(s[rows], d[rows]) for _, (s, d), rows in each]
        return search

    def front(self) -> list[Solution]:
        """Return every undominated way, the fastest first; limits are ignored."""
        if not self.possible:
            return []
        every = [np.arange(len(options)) for options in self.options]
        trail = self._trail(_Aim(math.inf, math.inf, "cost"), every, None)
        ends = trail[-1]
        order = np.lexsort((ends.dollars, ends.seconds))
        return [self._solution(trail, every, int(row)) for row in order]

    def _promising(self, aim: "_Aim", most: int | None) -> list[NDArray[np.intp]]:
        """Return the options of each stage that may be part of a plan worth finding."""
        chosen = []
        for number, (seconds, dollars) in enumerate(self._least):
            score = aim.bound(seconds, dollars, self.around[number])
            rows = np.flatnonzero(aim.worth(score))
            if most is not None and len(rows) > most:
                rows = np.sort(rows[np.argsort(score[rows], kind="stable")[:most]])
            chosen.append(rows)
        return chosen

    def _run(
        self, aim: "_Aim", chosen: Sequence[NDArray[np.intp]], most: int | None
    ) -> Solution | None:
        trail = self._trail(aim, chosen, most)
        if len(trail) <= len(self.steps):
            return None
        ends = trail[-1]
        within = np.flatnonzero(aim.within(ends.seconds, ends.dollars))
        if len(within) == 0:
            return None
        keys = (ends.dollars[within], ends.seconds[within])
        first, second = keys if aim.objective == "cost" else keys[::-1]
        return self._solution(trail, chosen, int(within[np.lexsort((second, first))[0]]))

    def _trail(
        self, aim: "_Aim", chosen: Sequence[NDArray[np.intp]], most: int | None
    ) -> list[Labels]:
        """Return the labels after each stage, from the start on; shorter where none is left."""
        trail = [self._start()]
        for number, (step, rows) in enumerate(zip(self.steps, chosen, strict=True)):
            if len(rows) == 0 or len(trail[-1]) == 0:
                return trail
            options = self.options[number].only(rows)
            rest = self.after[number + 1]
            labels = _advance(step, trail[-1], options, aim, rest)
            if self.rounded:
                labels = labels.only(aim.affords(labels, self.delays))
            if most is not None and len(labels) > most:
                self.proven = False
                labels = labels.only(_nearest(labels, aim, rest, options, most))
            trail.append(labels)
        return trail

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
            # Beyond `oldest` an age changes no bill; capped, more labels have the same fleet.
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

    def _solution(
        self, trail: Sequence[Labels], chosen: Sequence[NDArray[np.intp]], row: int
    ) -> Solution:
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


@dataclass(frozen=True)
class _Aim:
    """The goal: the least of one measure, within both limits and better than the `incumbent`."""

    deadline: float
    budget: float
    objective: Objective
    incumbent: float = math.inf

    @classmethod
    def of(cls, limits: Limits, objective: Objective) -> "_Aim":
        deadline = math.inf if limits.deadline is None else limits.deadline
        budget = math.inf if limits.budget is None else limits.budget
        return cls(deadline, budget, objective)

    def worth(self, bound: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return where a partial plan with this bound may still lead to a better plan."""
        limit = self.budget if self.objective == "cost" else self.deadline
        # What costs as much as the incumbent may still be better in the other measure.
        return np.isfinite(bound) & (bound <= min(limit, self.incumbent) * (1 + SLACK))

    def within(
        self, seconds: NDArray[np.float64], dollars: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Return where both limits are kept."""
        in_time = seconds <= self.deadline * (1 + SLACK)
        return in_time & (dollars <= self.budget * (1 + SLACK))

    def affords(self, labels: Labels, delays: DelayColumns) -> NDArray[np.bool_]:
        """Return where giving everything back at once wouldn't cost more than may be spent."""
        dollars = labels.dollars
        if labels.ages is not None:
            groups = range(labels.offer.shape[1])
            dollars = dollars + sum(leaving_costs(labels, delays, group)[:, 0] for group in groups)
        most = min(self.budget, self.incumbent) if self.objective == "cost" else self.budget
        return np.asarray(dollars <= most * (1 + SLACK))

    def to_beat(self, solution: Solution) -> "_Aim":
        """Return the same aim, with a plan that is to be beaten."""
        incumbent = solution.dollars if self.objective == "cost" else solution.seconds
        return _Aim(self.deadline, self.budget, self.objective, incumbent)

    def bound(
        self, seconds: NDArray[np.float64], dollars: NDArray[np.float64], rest: Staircase
    ) -> NDArray[np.float64]:
        """Return the least that the measure can be in the end; infinite beyond the other limit."""
        if self.objective == "cost":
            return dollars + rest.dollars_within(self.deadline * (1 + SLACK) - seconds)
        return seconds + rest.seconds_within(self.budget * (1 + SLACK) - dollars)


@dataclass(frozen=True)
class RestBounds:
    """What is least possible from a stage on, by the offer that is held (by its first group's)."""

    stairs: tuple[Staircase, ...]

    def bound(
        self,
        aim: _Aim,
        seconds: NDArray[np.float64],
        dollars: NDArray[np.float64],
        options: Options,
    ) -> NDArray[np.float64]:
        """Return the least that the measure can be in the end; the last axis is the options."""
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
    least: tuple[NDArray[np.float64], NDArray[np.float64]],
    offer: int,
    rest: RestBounds,
) -> Staircase:
    """Return the least of a stage on one offer, and of what comes after."""
    # Options come offer by offer.
    begin, end = np.searchsorted(options.offer[:, 0], (offer, offer + 1))
    if begin == end:
        return IMPOSSIBLE
    return Staircase.of(least[0][begin:end], least[1][begin:end]).then(rest.stairs[offer])


def _advance(step: Step, labels: Labels, options: Options, aim: _Aim, rest: RestBounds) -> Labels:
    """Return the undominated labels after a stage that may still lead to a plan worth finding."""
    chunk = max(1, _AT_ONCE // len(options))
    parts = []
    for begin in range(0, len(labels), chunk):
        rows = np.arange(begin, min(begin + chunk, len(labels)))
        taken = step.take(labels.only(rows), options)
        seconds = labels.seconds[rows, None] + taken.seconds
        dollars = labels.dollars[rows, None] + taken.dollars
        here, option = np.nonzero(aim.worth(rest.bound(aim, seconds, dollars, options)))
        part = taken.labels(here, option)
        part = part.only(undominated(part, step.delays)) if len(part) else part
        parts.append(replace(part, parent=part.parent + begin))
    together = _together(parts)
    return together if len(parts) == 1 else together.only(undominated(together, step.delays))


def _together(parts: Sequence[Labels]) -> Labels:
    if len(parts) == 1:
        return parts[0]
    ages = [part.ages for part in parts if part.ages is not None]
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in vars(parts[0])
        if name != "ages"
    }
    return Labels(**columns, ages=np.concatenate(ages) if ages else None)


def _nearest(
    labels: Labels, aim: _Aim, rest: RestBounds, options: Options, most: int
) -> NDArray[np.intp]:
    """Return the labels with the best prospects, and the quickest among the others."""
    bound = rest.bound(aim, labels.seconds, labels.dollars, options.only(labels.option))
    ranked = np.argsort(bound, kind="stable")
    left = ranked[most // 2 :]
    quick = left[np.argsort(labels.seconds[left], kind="stable")[: most - most // 2]]
    return np.concatenate([ranked[: most // 2], quick])


# As many searches as one command asks about: with and without rounding, and spot.
_REMEMBERED = 4
_recent: list[tuple[tuple[PlanRequest, bool], Search]] = []


def search_of(request: PlanRequest, *, rounded: bool = False) -> Search:
    """Return the search that answers a request, whatever its limits and its objective are.

    The last few are remembered: the questions of one command only differ in those.
    """
    question = (replace(request, limits=Limits(), objective="cost"), rounded)
    for earlier, search in _recent:
        if earlier == question:
            return search
    search = Search(without_beaten(question[0]), rounded=rounded)
    _recent.insert(0, (question, search))
    del _recent[_REMEMBERED:]
    return search
