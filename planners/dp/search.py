"""The exact search over stages: Pareto dynamic programming over labels, pruned by lower bounds.

The result is the best plan in the model of `planners.cost_model`
(docs/decisions/0004-exact-planner.md). A first plan, by rough bounds, rules out most options. The
rest is searched in rounds: narrow ones (few options, few labels) find a good plan quickly; the full
one, pruned by that plan, finds the best, or proves that there is no better.

Rounded bills have their own search. It begins with the best plan by exact bills and keeps a bounded
number of labels, because few of them beat one another.
"""

import math
from dataclasses import replace
from functools import cached_property

from cloudtune.model.plans import Allowance, Objective
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.dp.bounds import Staircase, lowest
from cloudtune.planners.dp.labels import DelayColumns, Step
from cloudtune.planners.dp.options import Menu
from cloudtune.planners.dp.options import drop_dominated_offers as without_beaten
from cloudtune.planners.dp.ways import Aim, Solution, Ways, promising

# Options of each stage and labels after it, in each round; the last is the proof.
_ROUNDS: tuple[tuple[int | None, int | None], ...] = ((60, 150), (300, 400), (None, None))
# The same for a first plan, by bounds that are quick to compute.
_ROUGH = (60, 40)
# The same for rounded bills; the last is a proof if no label was left out.
_ROUNDED_ROUNDS = ((60, 150), (None, 1000))


class Search:
    """The stages of a request and their options, for questions with any limits.

    With `rounded`, bills are rounded up; without, they are exact, which is never higher. `proven`
    says whether the last answer is the best that the options allow.
    """

    def __init__(self, request: PlanRequest, *, rounded: bool = False) -> None:
        self.proven = True
        delays = DelayColumns.of(request, rounded=rounded)
        menu = Menu.of(request, rounded=rounded)
        last = len(request.work) - 1
        steps = []
        options = []
        costs = []
        for number, stage in enumerate(request.work):
            step = Step(request, stage, delays, number == last)
            menu_here = menu.stage(stage)
            steps.append(step)
            options.append(menu_here)
            # Only here it is certain that no instance can be kept: later bounds assume the best.
            nothing_before = number == 0 and not request.fleet
            costs.append(step.least(menu_here, fresh=nothing_before))
        # The rest depends on the offer that is held, if a stage has only one.
        by_offer = request.mix == 1 and len(request.rentables) > 1
        self._ways = Ways(request, rounded, delays, steps, options, costs, by_offer)

    @property
    def possible(self) -> bool:
        """Whether every stage has an option at all."""
        return self._ways.possible

    @property
    def sizes(self) -> list[int]:
        """The number of options of each stage."""
        return [len(options) for options in self._ways.options]

    @property
    def least(self) -> Staircase:
        """The bound that no plan with these options can beat."""
        return lowest(self._ways.after[0].stairs)

    def best(
        self, allowance: Allowance, objective: Objective, incumbent: Solution | None = None
    ) -> Solution | None:
        """Return the best way within the limits; None if there is none.

        `incumbent` is a way that keeps the limits, from an earlier search.
        """
        if not self.possible:
            return None
        aim = Aim.of(allowance, objective)
        aim = aim if incumbent is None else aim.to_beat(incumbent)
        if not self._ways.by_offer:
            return self._in_rounds(self._ways, aim, incumbent)
        # Bounds by offer take longer than a first plan, which leaves few options.
        scores = self._rough.scores(aim)
        if not self._ways.rounded:
            first, _ = self._rough.search(aim, promising(aim, scores, _ROUGH[0]), _ROUGH[1])
            if first is not None:
                incumbent = first
                aim = aim.to_beat(first)
        left = self._ways.only(promising(aim, scores), by_offer=True)
        self.proven = True
        return self._in_rounds(left, aim, incumbent) if left.possible else incumbent

    def ends(self) -> tuple[Solution | None, Solution | None]:
        """Return the fastest and the cheapest way; limits are ignored."""
        return self.best(Allowance(), "time"), self.best(Allowance(), "cost")

    @cached_property
    def _rough(self) -> Ways:
        return replace(self._ways, by_offer=False)

    def _in_rounds(self, ways: Ways, aim: Aim, incumbent: Solution | None) -> Solution | None:
        """Return the best of the ways; the incumbent if none beats it."""
        scores = ways.scores(aim)
        for options, labels in _ROUNDED_ROUNDS if ways.rounded else _ROUNDS:
            chosen = promising(aim, scores, options)
            solution, self.proven = ways.search(aim, chosen, labels)
            if solution is not None:
                incumbent = solution
                aim = aim.to_beat(solution)
            if self.proven and all(len(rows) < (options or math.inf) for rows in chosen):
                break  # nothing was left out: a wider round finds no other
        return incumbent

    def front(self) -> list[Solution]:
        """Return every undominated way, fastest first; limits are ignored."""
        return self._ways.front() if self.possible else []


# The number of searches of one command: with and without rounding, and spot.
_REMEMBERED = 4
_recent: list[tuple[tuple[PlanRequest, bool], Search]] = []


def make_search(request: PlanRequest, *, rounded: bool = False) -> Search:
    """Return the search for a request, for any limits and objective.

    The last few are cached: the requests of one command only differ in those two.
    """
    question = (replace(request, allowance=Allowance(), objective="cost"), rounded)
    for earlier, search in _recent:
        if earlier == question:
            return search
    search = Search(without_beaten(question[0]), rounded=rounded)
    _recent.insert(0, (question, search))
    del _recent[_REMEMBERED:]
    return search
