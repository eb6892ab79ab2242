"""The default search, `best`: the best metric within a deadline and a budget, without barriers.

Its aim is that of SEER, whose name it had before 0.3: many configurations at first, then fewer and
fewer with more GPUs each, so that they are trained sufficiently before the deadline. Of the paper
we know the abstract (Dunlap et al., "Elastic Hyperparameter Tuning on the Cloud", SoCC 2021). The
method here is our own: it explores by asynchronous halving, and then plans the end
(`best_rules.py` has the rules and all constants, docs/best.md the figures behind them).
"""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtune.model.progress import LIVE
from cloudtune.strategies import best_rules
from cloudtune.strategies.base import Go, Task, TrialGroup, Verdict
from cloudtune.strategies.offers import Offers
from cloudtune.strategies.rungs import NewTrials, Rung, Standing, at_rest, cap_epoch, rung_epochs
from cloudtune.strategies.worth import buy_instances, means_within

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cloudtune.model.catalog import Offer
    from cloudtune.model.plans import Limits, Rentable
    from cloudtune.model.progress import TrialProgress
    from cloudtune.model.scaling import ScalingProfile
    from cloudtune.model.trial import EndReason, Mode, TrialId, Width
    from cloudtune.strategies.base import Decision, Sampler, View


class BestSearch:
    """Explores by asynchronous halving, then seats the leaders until their end.

    - Exploring takes a share of the money and of the time. It ends sooner if the best trial could
      otherwise no longer reach its last epoch, or if nothing is left to explore.
    - The rung at which new trials are first compared is learned from how well each rung predicts
      the next. The width of exploring follows from that and from the time.
    - The end is planned, and planned again when half of it is over: the best trial gets the
      cheapest width at which it still reaches its last epoch, or else the fastest, on as many
      instances as the money pays for; then the next, until all seats are taken. No other trial
      keeps a GPU.

    A run that is played in place of one `stands_for` times as large chooses its rungs as that one.
    """

    anytime = True
    reason: EndReason | None = None

    def __init__(
        self,
        sampler: Sampler,
        *,
        min_epochs: int,
        max_epochs: int,
        mode: Mode,
        rentables: Sequence[Rentable],
        limits: Limits,
        max_instances: int,
        until_limits: bool,
        constant: bool = False,
        full: bool = False,
        stands_for: float = 1.0,
    ) -> None:
        self.name = "seer-constant" if constant else f"seer{'-full' * full}"
        means = means_within(limits, max_instances, max_epochs)
        self.offers = Offers(rentables, means, until_limits=until_limits)
        self.constant = constant
        self._full = full
        self._stands_for = stands_for
        self._new = NewTrials(sampler)
        self._mode = mode
        self._sign = 1.0 if mode == "max" else -1.0
        self._last = max_epochs
        self._epochs = rung_epochs(min_epochs, max_epochs, best_rules.APART)
        self._rungs = [Rung(mode) for _ in self._epochs]
        self._results: list[dict[TrialId, float]] = [{} for _ in self._epochs]
        self._steps = [best_rules.STEP] * len(self._epochs)
        self._counted = [0] * len(self._epochs)
        self._first: int | None = None
        self._width: Width | None = None
        self._looked_at: ScalingProfile | None = None
        self._epoch_seconds = 0.0  # at that width, as expected when it was chosen
        self._best = Standing()
        self._furthest: dict[TrialId, int] = {}
        self._fresh = True  # whether the reported epoch wasn't trained before
        self._opening: best_rules.Opening | None = None
        self._opened_for: tuple[Offer, bool] | None = None
        self._is_away = False
        self._plans = self._nodes = 0  # how many plans of the end were made, and instances of it
        self._again = math.inf  # when the next one is due
        self.seats: dict[TrialId, best_rules.Seat] = {}
        self._vacant = False
        self._end = math.inf  # when seated trials should have reached their ends
        self._leader: TrialId = ""
        self._must = math.inf  # when the leader has to continue
        self._reseat: set[TrialId] = set()
        self._leaving: dict[TrialId, Verdict] = {}

    def rentable(self, view: View) -> Rentable:
        """Return the rentable to plan with: the best that is available, with its present widths."""
        return view.profiled(self.offers.chosen.offer)

    @property
    def exploring(self) -> bool:
        """Whether no plan of the end has been made yet."""
        return self._plans == 0

    def opening(self, view: View) -> best_rules.Opening:
        """Return how many instances explore, and until when.

        Replanned for another offer, once the fleet is no longer held back, and when instances are
        back after all were away. What was left over by then pays for longer or larger exploring.
        """
        offer = self.rentable(view).offer
        before = self._opening
        opened_for = offer, self.offers.scouting.small
        if before is not None and self._opened_for == opened_for and not self._is_back(view):
            return before
        if before is not None and self._best and before.straight is None:
            before = best_rules.longer(before, view.now, view.seconds_left, view.dollars_left)
        left = (view.seconds_left, view.dollars_left)
        price = offer.usd_per_second
        most = self.rentable(view).most
        chosen = best_rules.opening(view.now, *left, price, most, before=before)
        if self.constant:
            constant = buy_instances(view.dollars_left, price, view.seconds_left, most)
            chosen = replace(chosen, instances=constant.instances, unspent=constant.unspent)
        # Once there is a result, `_hurry` guards the end: it knows where the best trial is.
        if self._full and not self._best:
            chosen = best_rules.guard_end(chosen, view, self.rentable(view), self._last, most)
        self._opening = chosen
        self._opened_for = opened_for
        return chosen

    def _is_back(self, view: View) -> bool:
        """Whether instances are back after all were away; once each time."""
        was_away = self._is_away
        self._is_away = not view.fleet.usable()
        explores = self.exploring and not self.constant and bool(self._best)
        return was_away and not self._is_away and explores

    def instances(self, view: View) -> int:
        return self.opening(view).instances if self.exploring or self.constant else self._nodes

    def unspent(self, view: View) -> float:
        """Return the dollars per second that whole instances of the planned offer can't spend."""
        return self.opening(view).unspent if self.exploring or self.constant else 0.0

    def horizon(self, view: View) -> float:
        """Return the remaining seconds: to the deadline, or those that pay for one instance."""
        price = self.rentable(view).offer.usd_per_second
        paid = view.dollars_left / price if price > 0 else math.inf
        return min(view.seconds_left, paid)

    def width(self, view: View) -> Width:
        if self._width is None:
            self._look(view)
        assert self._width is not None
        return self._width

    def _look(self, view: View) -> None:
        """Recompute the rung at which new trials are first compared, and their width."""
        planned = self.rentable(view)
        self._looked_at = planned.profile
        rentable = view.corrected(planned, ())
        atom = rentable.cheapest_width
        profile = rentable.profile
        until = self.opening(view).until
        epoch = profile.epoch_seconds(atom)
        # Until the first instance is there, its boot takes time from exploring.
        span = max(0.0, until - view.now - profile.boot.mean * (view.gpus == 0))
        if not math.isfinite(span):
            span = self._last * epoch * best_rules.APART
        gpus = self.opening(view).instances * rentable.gpus
        whole = until if math.isfinite(until) else span
        # In epochs of the cheapest width. Half of them train new trials; promotions take the rest.
        work = self._stands_for * whole * gpus / atom / max(epoch, 1e-9) / 2
        setup = profile.start.mean / max(epoch, 1e-9)
        self._first = best_rules.first_rung(self._epochs, self._steps, work, setup)
        deep = max(self._epochs[self._first], best_rules.SCHEDULE * self._last)
        seconds = {w: m.mean for w, m in profile.epoch.items() if atom <= w <= rentable.gpus}
        # Explorers stay within one instance: a wider trial would wait until several are free.
        wanted = best_rules.cheapest_width_in_time(
            deep, seconds or {atom: epoch}, profile.start.mean, span
        )
        self._width = self.opening(view).straight or wanted
        self._epoch_seconds = view.epoch_seconds(None, rentable.offer, self._width)

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return the explorers, or the seated trials and what else there is room for."""
        self._advance(view)
        if self.exploring:
            tasks = list(itertools.islice(self._explorers(view, room), room))
            if not tasks and self._idle(view):
                self._plan(view)
            else:
                return [TrialGroup("exploring", tuple(tasks))] if tasks else []
        self._fill_up(view)
        if not self.seats and self._none_left(view) and self._another(view):
            # All are at their end: explore for another season.
            self._plans = 0
            self._opening = None
            self._must = math.inf
            return self.requests(view, room)
        tasks = list(itertools.islice(self._seat_tasks(view), room))
        return [TrialGroup("seated", tuple(tasks))] if tasks else []

    def _idle(self, view: View) -> bool:
        """Whether nothing is left to explore, and all that explore have reported."""
        reported = bool(self._best) and all(trial.id in self._best for trial in view.running)
        return reported and self._new.dry(view)

    def _explorers(self, view: View, room: int) -> Iterator[Task]:
        """Yield promotions, deepest first, then trials below the first rung, then new trials."""
        if self._first is None:
            self._look(view)
        assert self._first is not None
        first = self._first
        count = 0
        for level in range(len(self._epochs) - 2, -1, -1):
            rung = self._rungs[level]
            # Below the first rung results decide nothing yet, so all continue.
            share = len(rung) // best_rules.APART if level >= first else len(rung)
            goal = self._epochs[max(level + 1, first)]
            for name in rung.promotable(share):
                trial = view.trials[name]
                if trial.status == "parked":
                    count += 1
                    yield Task(trial.trial, cap_epoch(trial.trial, goal))
                elif trial.status != "stopping":
                    rung.leave(name)
        goal = self._epochs[first]
        yield from self._new.tasks(view, room - count, goal)

    def _seat_tasks(self, view: View) -> Iterator[Task]:
        """Yield seated trials that don't train, best first, as far as they can start.

        After the first without room no trial starts: narrow ones would otherwise keep taking the
        GPUs that a wide one waits for.
        """
        offer = self.rentable(view).offer
        for seat in [s for name, s in self.seats.items() if view.trials[name].status == "parked"]:
            trial = view.trials[seat.trial]
            yield Task(trial.trial, cap_epoch(trial.trial, self._last))
            if not view.fits(seat.width, offer):
                break

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        """Record a result; decide whether the trial continues or keeps its seat."""
        self._new.learn(trial)
        self._note(trial)
        if self.exploring:
            self._hurry(view, trial)
        self._advance(view)
        if trial.epoch >= cap_epoch(trial.trial, self._last):
            self._leave(trial.id)
            return Verdict.FINISH
        if not self.exploring:
            return self._keeps(view, trial)
        goal = self._next(view, trial)
        return Verdict.PAUSE if goal is None else Go(max(goal, view.until(trial.id)))

    def _note(self, trial: TrialProgress) -> None:
        assert trial.metric is not None
        self._fresh = trial.epoch > self._furthest.get(trial.id, 0)
        self._furthest[trial.id] = max(trial.epoch, self._furthest.get(trial.id, 0))
        value = self._sign * trial.metric
        self._best.note(trial.id, value)
        level = bisect.bisect_left(self._epochs, trial.epoch)
        at_end = trial.epoch >= cap_epoch(trial.trial, self._epochs[level])
        if not at_end or trial.id in self._results[level]:
            return
        self._results[level][trial.id] = value
        self._rungs[level].record(trial.id, self._sign * self._best.best(trial.id))
        # A trial that skipped rungs must not hold a place in them.
        for below in self._rungs[:level]:
            if trial.id in below:
                below.leave(trial.id)

    def _next(self, view: View, trial: TrialProgress) -> int | None:
        """Return the epoch that a trial continues to; None if it waits at a rung.

        A trial that repeats epochs lost with its instance was judged at them before.
        """
        if not self._fresh and trial.epoch < view.until(trial.id):
            return view.until(trial.id)
        level = bisect.bisect_left(self._epochs, trial.epoch)
        rung = self._rungs[level]
        above = cap_epoch(trial.trial, self._epochs[level])
        if trial.epoch < above or trial.id not in rung:
            return above
        if not self._fresh:
            rung.leave(trial.id)
        self._learn(view)
        assert self._first is not None
        first = self._first
        above = cap_epoch(trial.trial, self._epochs[max(level + 1, first)])
        if level < first:
            return above
        # A trial of another width must restart at this one, so it queues with the others.
        good = (
            trial.width == self.width(view) and rung.place(trial.id) < len(rung) // best_rules.APART
        )
        if good and not self._comes_before(next(self._explorers(view, 0), None), trial.id, level):
            return above
        rung.rest(trial.id)
        return None

    def _comes_before(self, task: Task | None, trial: TrialId, level: int) -> bool:
        """Whether the next promotion is of a deeper rung than a trial's, or of a better trial."""
        if task is None:
            return False
        rung = self._rungs[level]
        other = task.trial.id
        if any(other in above for above in self._rungs[level + 1 :]):
            return True
        return other in rung and rung.place(other) < rung.place(trial)

    def _learn(self, view: View) -> None:
        """Learn from the rungs again once their results have grown by a quarter."""
        changed = self._first is None or self._has_new_speed(view)
        for level, above in enumerate(self._results[1:]):
            # A rank correlation of all results at every result would cost more than it shows.
            if len(above) > self._counted[level] * 1.25 + 1:
                self._counted[level] = len(above)
                self._steps[level] = best_rules.step(self._results[level], above, self._stands_for)
                changed = True
        if changed:
            self._look(view)

    def _has_new_speed(self, view: View) -> bool:
        """Whether epochs at the width of exploring are clearly slower or faster than expected.

        So they are on another offer, and once trials may share GPUs.
        """
        assert self._width is not None
        rentable = self.rentable(view)
        if rentable.profile is not self._looked_at:
            return True
        seconds = view.epoch_seconds(None, rentable.offer, self._width)
        return abs(seconds / self._epoch_seconds - 1) > best_rules.NOISE

    def _keeps(self, view: View, trial: TrialProgress) -> Decision:
        """Decide whether a trial continues to its end where it is."""
        last = cap_epoch(trial.trial, self._last)
        seat = self.seats.get(trial.id)
        if seat is None:
            return Verdict.PAUSE
        if trial.id in self._reseat:
            self._reseat.discard(trial.id)
            if trial.width != seat.width:
                return Verdict.PAUSE
        # Seats are in order of rank: a better trial that waits takes the GPUs of a worse one.
        for name in self.seats:
            if name == trial.id:
                break
            if view.trials[name].status == "parked":  # a better trial waits for GPUs
                complete = all(rented.joined for rented in view.fleet.staying())
                return Verdict.PAUSE if complete else Go(last)
        return Go(last)

    def on_failure(self, view: View, trial: TrialProgress) -> None:
        """Learn that a trial failed: its seat is free."""
        self._new.learn_failure(trial)
        self._best.forget(trial.id)
        self._leave(trial.id)

    def on_finish(self, view: View, trial: TrialProgress) -> None:
        """Learn that a trial has ended: its seat is free."""
        self._leave(trial.id)

    def _leave(self, trial: TrialId) -> None:
        self._vacant = self.seats.pop(trial, None) is not None or self._vacant

    def _fill_up(self, view: View) -> None:
        """Fill seats that have become free."""
        if self._vacant:
            self._vacant = False
            rentable = view.corrected(self.rentable(view), ())
            self._fill(view, rentable, self._nodes)
            widths = [seat.width for seat in self.seats.values()]
            self._nodes = min(self._nodes, best_rules.nodes(widths, rentable.gpus))

    def _advance(self, view: View) -> None:
        """Plan the end if a plan is due."""
        another = self.offers.look(view, self.instances(view))
        if another and not self.exploring:
            # A plan is void if its offer is gone, or a better offer is back.
            self._plans -= 1  # plan the same part of the end again
            self._plan(view)
        elif self.exploring:
            if view.now >= self._ends(view) and self._best:
                self._plan(view)
        elif view.now >= self._again:
            self._plan(view)

    def _ends(self, view: View) -> float:
        """Return when exploring ends: at the latest when the best must continue to its end."""
        return min(self.opening(view).until, self._must)

    def _hurry(self, view: View, trial: TrialProgress) -> None:
        """Compute when the best trial must continue, at its fastest, to reach its last epoch."""
        best = self._best.best
        if trial.id != self._leader and best(trial.id) <= best(self._leader):
            return
        self._leader = trial.id
        rentable = view.corrected(self.rentable(view), (trial.id,))
        price = rentable.offer.usd_per_second
        # A trial leaves only at the end of an epoch, so up to one more of those may pass first.
        amidst = rentable.profile.epoch_seconds(rentable.cheapest_width)
        spare = -math.inf
        for takes, count in self._ways(trial, rentable):
            slack = view.seconds_left - takes - amidst
            if price > 0:
                left = view.dollars_left / price - (takes + amidst) * count
                slack = min(slack, left / self.instances(view))
            spare = max(spare, slack)
        # If the best can't reach its end at any width, there is nothing to hurry for.
        self._must = view.now + spare if spare >= 0 else math.inf

    def _ways(self, trial: TrialProgress, rentable: Rentable) -> Iterator[tuple[float, int]]:
        """Yield the seconds and instances that a trial needs to its last epoch, at each width."""
        profile = rentable.profile
        work = cap_epoch(trial.trial, self._last) - trial.epoch
        for width, epoch in profile.epoch.items():
            count = math.ceil(width / rentable.gpus)
            if count <= rentable.most:
                yield work * epoch.mean * (1 + best_rules.LATE) + profile.resize.mean, count

    def _plan(self, view: View) -> None:
        """Rank by the results so far, and seat the best on what the rest of the money pays for."""
        part, share = best_rules.PLANS[min(self._plans, len(best_rules.PLANS) - 1)]
        self._plans += 1
        left = self.horizon(view)
        rentable = view.corrected(self.rentable(view), ())
        price = rentable.offer.usd_per_second
        count = rentable.most
        span = part * left
        if self.constant:
            count = self.opening(view).instances
        elif price > 0 and math.isfinite(view.dollars_left):
            paid = share * view.dollars_left
            # Without a deadline, one instance is the cheapest way to spend the money.
            count = buy_instances(paid, price, part * view.seconds_left, rentable.most).instances
            if math.isfinite(view.seconds_left):
                count = self._enough(view, rentable, count, view.dollars_left / price)
            span = min(span, paid / price / count)
            left = min(left, view.dollars_left / price / count) if part == 1 else left
        self._again = view.now + span if part < 1 else math.inf
        before = self.seats
        self.seats = {}
        self._must = math.inf
        self._end = view.now + left
        self._fill(view, rentable, count)
        self._nodes = best_rules.nodes([seat.width for seat in self.seats.values()], rentable.gpus)
        running = {trial.id: trial for trial in view.running}
        self._reseat = {
            name
            for name, seat in self.seats.items()
            if name in running and running[name].width != seat.width
        }
        self._leaving = {
            name: Verdict.PAUSE
            for name, trial in running.items()
            if name not in self.seats and trial.status != "stopping"
        }
        for name in before:
            if name not in self.seats and view.trials[name].status == "waiting":
                self._leaving[name] = Verdict.PAUSE

    def _enough(self, view: View, rentable: Rentable, count: int, paid: float) -> int:
        """Return `count`, or the instances that the best trial needs to end before the money ends.

        `paid` are the seconds of one instance that there is money for.
        """
        best = next(self._rank(view), None)
        if best is None:
            return count
        ways = [
            (math.floor(paid / takes), needed)
            for takes, needed in self._ways(view.trials[best], view.corrected(rentable, (best,)))
            if takes < view.seconds_left and takes * needed <= paid
        ]
        if not ways:
            return 1 if self._full and self._plans > 1 else count
        return max(min(count, max(most for most, _ in ways)), min(needed for _, needed in ways))

    def _fill(self, view: View, rentable: Rentable, instances: int) -> None:
        gpus = rentable.gpus
        left = max(0.0, self._end - view.now)
        widths = [w for w in rentable.profile.widths if w <= gpus * instances]
        for name in self._rank(view):
            if name in self.seats or not self._can_finish(view, name):
                continue
            if len(self.seats) >= gpus * instances / min(widths):
                break
            trial = view.trials[name]
            work = cap_epoch(trial.trial, self._last) - trial.epoch
            if work <= 0:  # its session is about to end
                continue
            seconds = {w: view.epoch_seconds(name, rentable.offer, w) for w in widths}
            wanted = best_rules.cheapest_width_in_time(
                work, seconds, rentable.profile.resize.mean, left
            )
            # A winner that must reach its end doesn't wait for wider trials behind it. For `best`
            # this rule costs regret (docs/best.md).
            ahead = [seat.width for seat in self.seats.values()] if self._full else []
            width = best_rules.fit_width(
                [*self.seats.values()], min([wanted, *ahead]), widths, gpus, instances
            )
            if width is None:
                break
            self.seats[name] = best_rules.Seat(name, width)

    def _can_finish(self, view: View, name: TrialId) -> bool:
        """Whether a trial can finish another epoch in time.

        Without it the trial would never be judged again, and its GPUs would train for nothing.
        """
        rentable = self.rentable(view)
        profile = rentable.profile
        move = 0.0 if view.trials[name].status in LIVE else profile.resize.mean
        left = self.horizon(view) - move
        widths = reversed(profile.widths)  # the widest is mostly the fastest
        return any(view.epoch_seconds(name, rentable.offer, width) <= left for width in widths)

    def _rank(self, view: View) -> Iterator[TrialId]:
        """Yield trials that could continue, best first; those without a result come last."""
        yield from self._best.rank(view.trials)
        for trial in view.running:
            if trial.id not in self._best and trial.status != "stopping":
                yield trial.id

    def _none_left(self, view: View) -> bool:
        """Whether no trial that has begun could continue."""
        return not any(self._can_finish(view, name) for name in self._rank(view))

    def preempt(self, view: View) -> Mapping[TrialId, Verdict]:
        """Return the trials without a seat in a plan just made."""
        self._advance(view)
        leaving = self._leaving
        self._leaving = {}
        return leaving

    def wake_at(self, view: View) -> float | None:
        at = self._ends(view) if self.exploring else self._again
        return at if math.isfinite(at) else None

    def done(self, view: View) -> bool:
        if view.running or not at_rest(view):
            return False
        return self._none_left(view) and not self._another(view)

    def more(self, view: View, trials: int) -> str:
        return self._new.more(trials)

    def _another(self, view: View) -> bool:
        """Whether there is a new trial, and time for one of its epochs."""
        if self._new.dry(view):
            return False
        rentable = self.rentable(view)
        profile = view.corrected(rentable, ()).profile
        epoch = profile.epoch_seconds(rentable.cheapest_width)
        return not view.trials or self.horizon(view) > epoch + profile.start.mean
