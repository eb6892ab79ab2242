"""SEER, made stronger: the best metric within a deadline and a budget, without barriers.

Of the SEER paper we know the abstract (Dunlap et al., "Elastic Hyperparameter Tuning on the Cloud",
SoCC 2021); this is a method of our own with its aim and its means: many configurations at first,
fewer and fewer, more GPUs for a trial only where its deadline needs them, all on a fleet that fits.

First it explores, as asynchronous halving does: at the narrowest width, the better half of each
level goes on, on as many instances as the budget pays for until the deadline. When most of the
time or the money is gone it looks for the program (`seer_programs`) whose expected best value is
highest for what is left, carries that out, and looks again, a few times until the end: which
trials go on, how far, how wide, and whether new ones are still worth it. GPUs that a program
leaves idle train what is most promising of the rest. docs/seer.md has the figures behind this.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cloudtune.progress import OVER
from cloudtune.strategies.base import Go, Task, TrialGroup, Verdict
from cloudtune.strategies.rungs import NewTrials, capped
from cloudtune.strategies.seer_costs import Costs
from cloudtune.strategies.seer_growth import Results
from cloudtune.strategies.seer_programs import MOST, SAMPLES, Program, Prospects, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.plan import Limits, Rentable
    from cloudtune.progress import TrialProgress
    from cloudtune.strategies.base import Decision, Sampler, View
    from cloudtune.strategies.seer_growth import Floats, Growth
    from cloudtune.trial import Mode, TrialId, Width

EXPLORE = 0.7
"""The share of the time, or of the money, after which programs are made for the rest."""
REVIEWS = 24
"""How often the program is made anew, over the whole run."""
RESERVE = 0.03
"""The share of what is left that a program doesn't count on."""
_WORTH_A_MOVE = 3.0
"""A trial changes its width only if that saves so many times what the change costs."""
_PLENTY = 10**6


def levels_of(min_epochs: int, max_epochs: int) -> tuple[int, ...]:
    """Return the epochs at which trials are compared: doubling, and the last."""
    found, epoch = [], min_epochs
    while epoch < max_epochs:
        found.append(epoch)
        epoch *= 2
    return (*found, max_epochs)


class Seer:
    """The strategy, its allocator and its fleet rule in one: they decide together.

    `rentables` come the most wanted first; the next is used when one can't be had. With `constant`
    the fleet stays as it was begun: the same method without elasticity.
    """

    anytime = True

    def __init__(
        self,
        sampler: Sampler,
        *,
        min_epochs: int,
        max_epochs: int,
        mode: Mode,
        rentables: Sequence[Rentable],
        max_instances: int,
        limits: Limits,
        seed: int = 0,
        constant: bool = False,
    ) -> None:
        self.name = "seer-constant" if constant else "seer"
        self.repacks = not constant
        self._constant = constant
        self._new = NewTrials(sampler)
        self._sign = 1.0 if mode == "max" else -1.0
        self._levels = levels_of(min_epochs, max_epochs)
        self._rentables = tuple(rentables)
        self._max_instances = max_instances
        self._limits = limits
        self._results = Results(len(self._levels))
        self._growth: Growth = self._results.growth()
        self._reached: dict[TrialId, int] = {}  # the last level of each trial
        self._goal: dict[TrialId, int] = {}  # the level that it is to reach next
        self._best = -math.inf
        self._program: Program | None = None
        self._shape: Shape | None = None
        self._fresh = False
        self._gone_on = [0] * len(self._levels)  # from each level, under this program
        self._to_start = 0
        self._spare: set[TrialId] = set()
        self._sessions: dict[TrialId, int] = {}
        self._due = 0.0
        self._draws = np.random.default_rng(seed).standard_normal(
            (len(self._levels), SAMPLES, MOST)
        )

    # ---- the strategy --------------------------------------------------------------------

    def judge(self, view: View, trial: TrialProgress) -> Decision:
        """Record a trial that has reached its level; it goes on if the program has it go on."""
        goal = self._goal.setdefault(trial.id, 0)
        assert trial.metric is not None
        value = self._sign * trial.metric
        self._best = max(self._best, value)
        until = capped(trial.trial, self._levels[goal])
        if trial.epoch < until:
            return Go(until)
        self._new.learn(trial)
        self._spare.discard(trial.id)
        self._results.record(trial.id, goal, value)
        self._reached[trial.id] = goal
        if trial.epoch >= capped(trial.trial, self._levels[-1]):
            return Verdict.FINISH
        self._review(view)
        if not self._goes_on(view, trial.id, goal):
            return Verdict.PAUSE
        self._gone_on[goal] += 1
        self._goal[trial.id] = goal + 1
        return Go(capped(trial.trial, self._levels[goal + 1]))

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return promotions from the top down, then new trials, then what is left for idle GPUs."""
        self._review(view)
        assert self._program is not None
        tasks = self._promotions(view, room)
        taken = (
            sum(self._width_of(view, task.trial.id) for task in tasks) / self._costs(view).narrow
        )
        left = max(0, math.floor(room - taken + 1e-6))
        new = self._new.peek(view, min(left, self._to_start)) if self._to_start > 0 else []
        begun = [Task(trial, capped(trial, self._levels[0])) for trial in new]
        chosen = {task.trial.id for task in tasks}
        spare = self._spares(view, left - len(new), chosen)
        self._spare.update(task.trial.id for task in spare)
        named = (("promoted", tasks), ("spare", spare), ("new", begun))
        return [TrialGroup(name, tuple(group)) for name, group in named if group]

    def ended(self, view: View, trial: TrialProgress) -> None:
        """Learn that a trial failed."""
        self._results.failed += trial.id not in self._results.at[0]
        self._new.learn_failure(trial)

    def retract(self, view: View) -> Mapping[TrialId, Verdict]:
        """Return, after a new program, what it has no place for."""
        program = self._program
        if program is None or not self._fresh:
            return {}
        self._fresh = False
        training = [t for t in view.running if t.status in {"starting", "training"}]
        below = [t for t in training if self._goal.get(t.id, 0) - 1 < program.shape.start]
        out = {trial.id: Verdict.PAUSE for trial in below}
        short = self._wanted_gpus(view) - program.instances * self._costs(view).gpus
        short += sum(trial.width for trial in view.running if trial.id not in out)
        spare = [t for t in training if t.id in self._spare and t.id not in out]
        for trial in sorted(spare, key=lambda t: self._value(t.id)):
            if short <= 0:
                break
            short -= trial.width
            out[trial.id] = Verdict.PAUSE
        return out

    def wake_at(self, view: View) -> float | None:
        """Return when it reviews its program."""
        return self._due if self._due > view.now else None

    def done(self, view: View) -> bool:
        """Whether all that there is has been trained to its end."""
        over = all(trial.status in OVER for trial in view.trials.values())
        return over and not view.running and self._new.dry(view)

    # ---- who goes on ---------------------------------------------------------------------

    def _value(self, trial: TrialId) -> float:
        level = self._reached.get(trial)
        return -math.inf if level is None else self._results.at[level][trial]

    def _resting(self, view: View, level: int) -> list[tuple[float, TrialId]]:
        """Return the paused trials of a level with their values, the best first."""
        found = [
            (value, trial)
            for trial, value in self._results.at[level].items()
            if self._reached[trial] == level and view.trials[trial].status == "parked"
        ]
        return sorted(found, key=lambda each: (-each[0], each[1]))

    def _coming(self, view: View, level: int) -> bool:
        """Whether more results are to come at a level."""
        if self._explores(view):
            return True
        return level > 0 and any(
            self._goal.get(trial.id, 0) <= level and trial.status != "stopping"
            for trial in view.running
        )

    def _explores(self, view: View) -> bool:
        return self._to_start > 0 and not self._new.dry(view)

    def _goes_on(self, view: View, trial: TrialId, level: int) -> bool:
        """Whether a trial is among those of its level that the program has go on.

        While results are coming: the best share of those that there are (as in ASHA). After that
        the best of those that rest, as many as the quota has left.
        """
        program = self._program
        assert program is not None
        if not program.lowest <= level < program.shape.top:
            return False
        left = program.quotas[level] - self._gone_on[level]
        values = self._results.at[level]
        mine = values[trial]
        if left <= 0:
            return False
        if self._coming(view, level):
            better = sum(value > mine for value in values.values())
            return better < math.floor(program.kept * len(values) + 1e-9)
        return sum(value > mine for value, _ in self._resting(view, level)) < left

    def _promotions(self, view: View, room: int) -> list[Task]:
        program = self._program
        assert program is not None
        tasks: list[Task] = []
        for level in range(program.shape.top - 1, program.lowest - 1, -1):
            left = program.quotas[level] - self._gone_on[level]
            for _, trial in self._resting(view, level)[: max(0, left)]:
                if len(tasks) >= room or not self._goes_on(view, trial, level):
                    break
                tasks.append(self._on(view, trial, level))
        return tasks

    def _on(self, view: View, trial: TrialId, level: int) -> Task:
        known = view.trials[trial].trial
        return Task(known, capped(known, self._levels[level + 1]))

    def _spares(self, view: View, room: int, chosen: set[TrialId]) -> list[Task]:
        """Return the most promising of the rest, for GPUs that would idle."""
        if room <= 0:
            return []
        rest = [
            (value + self._growth.beyond(level), level, trial)
            for level in range(len(self._levels) - 1)
            for value, trial in self._resting(view, level)
            if trial not in chosen
        ]
        rest.sort(key=lambda each: (-each[0], each[2]))
        return [self._on(view, trial, level) for _, level, trial in rest[:room]]

    def _wanted_gpus(self, view: View) -> float:
        """Return the GPUs of the promotions that are due."""
        tasks = self._promotions(view, _PLENTY)
        return sum(self._width_of(view, task.trial.id) for task in tasks)

    # ---- the allocator -------------------------------------------------------------------

    def least(self, view: View) -> Width:
        """Return the width at which an epoch costs least."""
        return self._costs(view).narrow

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        """Return the program's width for the level that each is to reach."""
        return [self._width_of(view, task.trial.id) for task in tasks]

    def _width_of(self, view: View, trial: TrialId) -> Width:
        known = view.trials.get(trial)
        if known is not None and (known.live or known.status == "waiting"):
            level = self._goal.get(trial, 0)
        else:
            level = min(self._reached.get(trial, -1) + 1, len(self._levels) - 1)
        return self._width_at(view, level)

    def _width_at(self, view: View, level: int) -> Width:
        width = self._program.widths[level] if self._program else 0.0
        costs = self._costs(view)
        return width if width in costs.widths else costs.narrow

    def resized(self, view: View, trial: TrialProgress) -> Width:
        """Return the program's width, where the change saves more than it costs."""
        level = self._goal.get(trial.id, 0)
        width = self._width_at(view, level)
        if width == trial.width or trial.offer is None:
            return trial.width
        left = max(0, self._levels[level] - trial.epoch)
        now = left * view.epoch_seconds(trial.id, trial.offer, trial.width)
        then = left * view.epoch_seconds(trial.id, trial.offer, width)
        least = _WORTH_A_MOVE * self._costs(view).resize
        if width > trial.width:
            return width if now - then > least else trial.width
        saved = now * trial.width - then * width
        return width if then > least and saved > width * least else trial.width

    # ---- the fleet -----------------------------------------------------------------------

    def most_gpus(self, view: View) -> int:
        """Return the GPUs of the program's fleet."""
        self._review(view)
        assert self._program is not None
        return self._program.instances * self._costs(view).gpus

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the program's fleet, or what of it is needed; what is rented already counts."""
        self._note_starts(view)
        assert self._program is not None
        costs, count = self._costs(view), self._program.instances
        if not self._constant:
            count = min(count, math.ceil(needed / costs.gpus - 1e-6))
        wanted: dict[Offer, int] = {}
        for offer, held in view.held.items():
            if offer != costs.rentable.offer:
                wanted[offer] = min(held, count)
                count -= wanted[offer]
        return {**wanted, costs.rentable.offer: count}

    def _costs(self, view: View) -> Costs:
        """Return the costs on the most wanted rentable that can be had."""
        able = [each for each in self._rentables if not view.refused(each.offer)]
        rentable = (able or self._rentables)[0]
        costs = Costs.of(rentable, 1.0)
        return replace(costs, epoch=view.epoch_seconds(None, rentable.offer, costs.narrow))

    def _most_instances(self, costs: Costs) -> int:
        """Return as many instances as the budget pays for until the deadline, rounded up."""
        limits, price = self._limits, costs.rentable.offer.usd_per_second
        if limits.budget is None or price == 0:
            return self._max_instances
        if limits.deadline is None:
            return 1
        count = math.ceil(limits.budget / (limits.deadline * price) - 1e-9)
        return max(1, min(self._max_instances, count))

    # ---- programs ------------------------------------------------------------------------

    def _note_starts(self, view: View) -> None:
        """Count what has begun since the last look."""
        for trial in view.running:
            if trial.sessions == self._sessions.get(trial.id):
                continue
            first = trial.id not in self._sessions
            self._sessions[trial.id] = trial.sessions
            level = self._reached.get(trial.id, -1)
            if first:
                self._to_start -= 1
                self._goal[trial.id] = 0
            elif self._goal.get(trial.id, 0) <= level:
                self._gone_on[level] += 1
                self._goal[trial.id] = level + 1

    def _review(self, view: View) -> None:
        """Make a new program when one is due."""
        if self._program is not None and view.now < self._due:
            return
        self._note_starts(view)
        costs = self._costs(view)
        self._due = view.now + max(1.0, self._horizon(costs) / REVIEWS)
        self._growth = self._results.growth()
        if self._exploring(view):
            if self._program is None:
                self._carry_out(
                    self._everything(view, costs, Shape(len(self._levels) - 1, -1, 2, 0))
                )
            return
        found = self._prospects(view, costs).best_program(self._shape)
        if found is None:
            start = 0 if self._new.dry(view) else -1
            found = self._everything(view, costs, Shape(len(self._levels) - 1, start, 0, 0))
        else:
            self._shape = found.shape
            found = replace(found, instances=self._sized(view, costs, found.instances))
        self._fresh = True
        self._carry_out(found)

    def _carry_out(self, program: Program) -> None:
        self._program = program
        self._gone_on = [0] * len(self._levels)
        self._to_start = program.new

    def _horizon(self, costs: Costs) -> float:
        """Return the seconds from the begin of the run to its limits."""
        if self._limits.deadline is not None:
            return self._limits.deadline
        price = costs.rentable.offer.usd_per_second
        if self._limits.budget is None or price == 0:
            return REVIEWS * 3600.0
        return self._limits.budget / price

    def _exploring(self, view: View) -> bool:
        """Whether it is too early for programs: what they are made from is being learned."""
        if self._new.dry(view):
            return False
        limits = self._limits
        in_time = limits.deadline is None or view.now < EXPLORE * limits.deadline
        if limits.budget is None:
            return in_time
        return in_time and view.dollars_left > (1 - EXPLORE) * limits.budget

    def _everything(self, view: View, costs: Costs, shape: Shape) -> Program:
        """Return the program that goes on with whatever is best, until there is nothing left."""
        levels = len(self._levels)
        new = _PLENTY if shape.start < 0 else 0
        widths = self._program.widths if self._program else (costs.narrow,) * levels
        fleet = self._sized(view, costs, 1) if self._program else self._most_instances(costs)
        return Program(shape, (_PLENTY,) * levels, widths, new, fleet)

    def _sized(self, view: View, costs: Costs, least: int) -> int:
        """Return a fleet that uses the money up until the deadline, and no less than `least`."""
        most = self._most_instances(costs)
        price = costs.rentable.offer.usd_per_second
        if self._constant or price == 0 or view.dollars_left == math.inf:
            return most
        if view.seconds_left == math.inf:
            return max(1, least)
        pays_for = view.dollars_left / (price * max(1.0, view.seconds_left * (1 - RESERVE)))
        return max(1, least, min(most, math.floor(pays_for + 0.35)))

    def _prospects(self, view: View, costs: Costs) -> Prospects:
        """Return what a program can be made from; what trains now is paid for first."""
        count = len(self._levels)
        coming: list[list[float]] = [[] for _ in range(count)]
        committed = 0.0
        for trial in view.running:
            if trial.status == "stopping" and trial.after != "waiting":
                continue
            goal, level = self._goal.get(trial.id, 0), self._reached.get(trial.id, -1)
            left = max(0, self._levels[goal] - trial.epoch)
            committed += costs.seconds(left, _known(costs, trial.width)) * trial.width
            if level >= 0:
                coming[goal].append(self._value(trial.id) + float(self._growth.mean[goal]))
        return Prospects(
            levels=self._levels,
            costs=costs,
            seconds=view.seconds_left * (1 - RESERVE),
            gpu_seconds=costs.gpu_seconds(view.dollars_left) * (1 - RESERVE) - committed,
            live=sum(view.held.values()),
            most_instances=self._most_instances(costs),
            resting=[self._values(view, level) for level in range(count)],
            coming=[np.array(values) for values in coming],
            more_trials=not self._new.dry(view),
            best=self._best,
            growth=self._growth,
            table=self._results.table(),
            draws=self._draws,
        )

    def _values(self, view: View, level: int) -> Floats:
        return np.array([value for value, _ in self._resting(view, level)])


def _known(costs: Costs, width: Width) -> Width:
    """Return the width, or the narrowest where the profile doesn't have it."""
    return width if width in costs.rentable.profile.epoch else costs.narrow
