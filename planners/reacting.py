"""When the rest of a planned run is planned anew, and what it does where no plan keeps the limits.

At every rung, and whenever the forecast of the rest leaves what the plan expected or the limits,
going on by the present plan and the best other plan are both reckoned with what the run has seen by
then: speeds, delays, instances, refusals (`View.corrected`). The other one is followed where the
present one breaks the limits, or where it is better by more than noise, the boots that it takes
included. So nothing flaps, and a run that goes as planned stays as it was planned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from cloudtune.commands import PlanAnew
from cloudtune.placement import slots
from cloudtune.plan import Estimate, Limits, Stage
from cloudtune.planners.base import InfeasibleError
from cloudtune.planners.cost_model import price
from cloudtune.planners.explore import explore
from cloudtune.planners.replanning import limits_left, request_for_rest
from cloudtune.planners.reserve import Reserve
from cloudtune.planners.selection import measures
from cloudtune.progress import OVER
from cloudtune.strategies.base import Verdict
from cloudtune.text import counted, gpus_text, offer_text, stage_text
from cloudtune.trial import rank_key
from cloudtune.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.plan import Group, Plan
    from cloudtune.planners.base import Planner, PlanRequest
    from cloudtune.planners.following import Itinerary
    from cloudtune.strategies.base import View
    from cloudtune.trial import TrialId, Width

    Place: TypeAlias = tuple[Offer, Width]

NOISE = 0.05
"""The share by which figures must differ from what was expected to say anything."""
LATE = 1.25
"""An instance that takes so many times as long as expected to join is looked at again."""

Heeds: TypeAlias = Literal["all", "shocks", "refusals"]


@dataclass(frozen=True)
class GoingOn:
    """What the present plan's rest comes to from now on, at realised figures."""

    plan: Plan
    wait: float
    within: bool

    @property
    def estimate(self) -> Estimate:
        """Seconds from now to the end of training, and dollars, the wait included."""
        stages = sum(stage.seconds for stage in self.plan.stages)
        return Estimate(self.wait + stages, self.plan.estimate.dollars)


@dataclass(frozen=True)
class BestEffort:
    """A plan for fewer trials, or fewer epochs of the last: what the limits still allow.

    `members` train on, to `epochs` of the `full` ones that were asked for.
    """

    plan: Plan
    members: tuple[TrialId, ...]
    next_trials: int
    epochs: int
    full: int


class Replanner:
    """Plans the rest of a run anew where the world isn't what its plan says.

    `heeds` what: "all"; "shocks" alone, as offers that are refused and instances that are lost; or
    "refusals" alone, where nothing of the plan can be had any more.
    """

    def __init__(self, planner: Planner, reserve: Reserve, heeds: Heeds = "all") -> None:
        self._planner = planner
        self._reserve = reserve
        self._tight = replace(reserve, share=reserve.share / 2)
        self._heeds = heeds
        self._shocks = self._disturbed = self._stage = 0
        self._look_at = math.inf
        self._seen: dict[Place, float] = {}
        self._told: set[str] = set()

    # ---- when ---------------------------------------------------------------------------------

    def unsettled(self, view: View, itinerary: Itinerary) -> bool:
        """Whether what an epoch takes has become another by more than noise since the last look."""
        if self._heeds != "all":
            return False
        seen = self._seen or _speeds(view, itinerary, view.rentables)
        now = _speeds(view, itinerary, _realised(view, itinerary))
        return any(abs(now[place] / seen.get(place, now[place]) - 1) > NOISE for place in now)

    def wake_at(self, view: View) -> float | None:
        """Return when to look again at an instance that should have joined by then."""
        if self._heeds != "all":
            return None
        late = [
            self._overdue_at(view, r.offer, r.requested_at)
            for r in view.fleet.wanted()
            if not r.joined
        ]
        return min(late, default=None)

    def _overdue_at(self, view: View, offer: Offer, asked_at: float) -> float:
        """Return when an instance that is late already, or will be, is looked at next."""
        expected = max(1.0, _joins_in(view, offer))
        times = 1.0
        while asked_at + expected * LATE * times <= view.now:
            times *= LATE
        return asked_at + expected * LATE * times

    def react(self, view: View, itinerary: Itinerary) -> Mapping[TrialId, Verdict]:
        """Change the plan where that is called for; returns the trials that are cut for it."""
        cause = self._cause(view, itinerary)
        itinerary.restless = False
        members = itinerary.under_way(view)
        if cause is None or not members:
            return {}
        self._seen = _speeds(view, itinerary, _realised(view, itinerary))
        return _Look(self, view, itinerary, members, cause).decide()

    def _cause(self, view: View, itinerary: Itinerary) -> str | None:
        """Return what has happened that may call for another plan; "" at a rung."""
        shock, rung = view.shocks != self._shocks, itinerary.stage != self._stage
        late = view.now >= self._look_at
        self._shocks, self._stage = view.shocks, itinerary.stage
        self._look_at = self.wake_at(view) or math.inf
        if self._heeds == "refusals":
            missing = itinerary.missing(view)
            return "refused" if missing and all(map(view.refused, missing)) else None
        if shock:
            return "shock"
        if self._heeds == "all" and (late or itinerary.restless):
            return "drift"
        return "" if rung and self._heeds == "all" else None

    # ---- for a look ---------------------------------------------------------------------------

    @property
    def planner(self) -> Planner:
        """The planner of the run."""
        return self._planner

    @property
    def reserve(self) -> Reserve:
        """What a plan leaves of the limits; `tight` is what it may do with in need."""
        return self._reserve

    @property
    def tight(self) -> Reserve:
        """What going on must leave of the limits."""
        return self._tight

    def tell(self, view: View, itinerary: Itinerary, why: str, what: str) -> None:
        """Have the change of a plan, or that there is none left, on record; the same but once."""
        if why + what not in self._told:
            self._told.add(why + what)
            found = itinerary.plan.estimate
            said = PlanAnew(itinerary.stage, why, what, found.seconds, found.dollars)
            itinerary.changes.append((view.now, said))
            itinerary.untold.append(said)


class _Look:
    """One look at the rest of a run: its work, what going on comes to, and what else there is."""

    def __init__(
        self,
        replanner: Replanner,
        view: View,
        itinerary: Itinerary,
        members: Sequence[TrialId],
        cause: str,
    ) -> None:
        self._by = replanner
        self._view = view
        self._it = itinerary
        self._training = tuple(members)
        self._cause = cause
        self._refused = any(map(view.avoided, itinerary.missing(view)))
        self._fresh = all(
            name not in view.trials or view.trials[name].epoch == self._first for name in members
        )

    # ---- the work that is left ----------------------------------------------------------------

    @property
    def _first(self) -> int:
        return self._it.stage_plan.stage.start_epoch

    @property
    def _rung(self) -> int:
        return self._it.stage_plan.stage.end_epoch

    @property
    def _members(self) -> tuple[TrialId, ...]:
        """The trials of the stage that aren't over, those that wait at its rung included."""
        known = self._view.trials
        return tuple(n for n in self._it.members if n not in known or known[n].status not in OVER)

    def _later(self) -> tuple[Stage, ...]:
        """Return the stages after this one, as they were planned first, for those that are left."""
        it, most = self._it, len(self._members)
        same = len(it.first_plan.stages) == len(it.plan.stages)
        plan = it.first_plan if same else it.plan
        stages = (each.stage for each in plan.stages[it.stage + 1 :])
        return tuple(replace(stage, trials=min(stage.trials, most)) for stage in stages)

    def _epochs_left(self) -> dict[TrialId, int]:
        known = self._view.trials
        return {
            name: max(1, self._rung - (known[name].epoch if name in known else 0))
            for name in self._training
        }

    def _work(self) -> tuple[Stage, ...]:
        """Return the stages that are left; of the present one what its trials have yet to train.

        Where they take turns that is the mean, else what is left of the one that is furthest back.
        """
        left, later = self._epochs_left(), self._later()
        turns = any(group.waves > 1 for group in self._it.stage_plan.groups)
        mean = math.ceil(sum(left.values()) / len(left))
        epochs = mean if turns else max(left.values())
        trials = max(len(left), later[0].trials if later else 0)
        return (Stage(trials, self._rung - epochs, self._rung), *later)

    # ---- going on -----------------------------------------------------------------------------

    def going_on(self) -> GoingOn | None:
        """Return what the present plan comes to; None where what it takes can't be had."""
        view, missing = self._view, self._it.missing(self._view)
        if any(map(view.refused, missing)):
            return None
        request = self._request(self._work(), self._training, lambda _offer: False)
        plan = price(request, _choices(self._it, request.work), self._it.plan.planner)
        pauses = [view.backoffs[o].relaunch_at - view.now for o in missing if o in view.backoffs]
        wait = self._wait() + max([0.0, *pauses])
        return GoingOn(plan, wait, self._keeps(plan, wait))

    def _keeps(self, plan: Plan, wait: float) -> bool:
        """Whether a plan that begins after so long keeps the limits, by a hair more than a hair."""
        view, share = self._view, 1 - self._by.tight.share
        deadline, budget = view.limits.deadline, view.limits.budget
        trained = wait + sum(stage.seconds for stage in plan.stages)
        in_time = deadline is None or trained <= share * (
            deadline - view.now - self._by.reserve.seconds
        )
        dollars = plan.estimate.dollars + max(0.0, wait) * self._rate
        return in_time and (budget is None or dollars <= share * (budget - view.committed))

    @property
    def _rate(self) -> float:
        """Dollars a second of what is held."""
        held = sum(offer.usd_per_second * n for offer, n in self._view.held.items())
        return held + self._it.plan.charges.usd_per_second

    def _wait(self) -> float:
        """Return the seconds until those that are held train; negative in the midst of epochs."""
        view = self._view
        boots = [
            _joins_in(view, r.offer) - (view.now - r.requested_at)
            for r in view.fleet.wanted()
            if not r.joined
        ]
        late = [
            (view.now - r.requested_at) * (LATE - 1) for r in view.fleet.wanted() if not r.joined
        ]
        boot = max([max(a, min(a + b, b)) for a, b in zip(boots, late, strict=True)], default=0.0)
        known = [view.trials[name] for name in self._training if name in view.trials]
        if boot > 0 or len(known) < len(self._training):
            return max(0.0, boot)
        left = self._epochs_left()
        most = max(left.values())
        behind = [t for t in known if left[t.id] == most]
        if any(t.status != "training" or t.id not in self._it.heard for t in behind):
            return 0.0
        return -min(min(view.now - self._it.heard[t.id], t.epoch_seconds) for t in behind)

    # ---- another plan -------------------------------------------------------------------------

    def _request(
        self,
        work: tuple[Stage, ...],
        trials: Sequence[TrialId],
        barred: Callable[[Offer], bool],
        reserve: Reserve | None = None,
    ) -> PlanRequest:
        request = request_for_rest(
            self._view,
            self._it,
            reserve or self._by.reserve,
            work=work,
            trials=trials,
            barred=barred,
        )
        wait, (deadline, budget) = self._wait(), (request.limits.deadline, request.limits.budget)
        if reserve is not None and deadline is not None:
            # In need the run's own end is late enough: its returns are reckoned with already.
            deadline += reserve.seconds * (1 - reserve.share)
        limits = Limits(
            None if deadline is None else max(0.0, deadline - wait),
            None if budget is None else max(0.0, budget - max(0.0, wait) * self._rate),
        )
        return replace(request, limits=limits, objective=self._it.plan.objective)

    def other(self, reserve: Reserve | None = None) -> Plan | None:
        """Return the best plan for the rest by what the run knows; None where none keeps the limits."""
        request = self._request(self._work(), self._training, self._view.avoided, reserve)
        try:
            return self._by.planner.plan(request)
        except InfeasibleError:
            return None

    # ---- what is done -------------------------------------------------------------------------

    def decide(self) -> Mapping[TrialId, Verdict]:
        """Follow another plan where that is better; returns the trials that are cut for it."""
        going_on = self.going_on()
        within = going_on is not None and going_on.within
        if going_on is not None and within and not self._refused and self._as_planned(going_on):
            return {}
        found = self.other()
        if found is not None:
            if self._refused or not within or going_on is None or self._beats(found, going_on):
                self._follow(found, self._why(going_on))
            return {}
        if within or self._by._heeds == "shocks":
            return {}
        found = self.other(self._by.tight)
        if found is not None:
            self._follow(found, self._why(going_on))
            return {}
        return self._do_what_can_be_done(going_on)

    def _as_planned(self, going_on: GoingOn) -> bool:
        """Whether going on comes to what the plan says, but for noise."""
        it, found = self._it, going_on.estimate
        rest = it.plan.stages[it.stage :]
        if self._cause == "shock":
            return True
        gone = max(0.0, self._view.now - max(it.planned_at, rest[0].begin))
        share = max(0.0, 1 - gone / rest[0].seconds) if rest[0].seconds > 0 else 0.0
        seconds = share * rest[0].seconds + sum(stage.seconds for stage in rest[1:])
        dollars = share * rest[0].dollars + sum(stage.dollars for stage in rest[1:])
        near = abs(found.seconds - seconds) <= NOISE * seconds
        return near and abs(found.dollars - dollars) <= NOISE * dollars

    def _beats(self, found: Plan, going_on: GoingOn) -> bool:
        objective = found.objective
        mine, theirs = measures(going_on.plan, objective)[0], measures(found, objective)[0]
        return theirs < mine * (1 - NOISE)

    def _follow(self, found: Plan, why: str, what: str = "") -> None:
        it, view = self._it, self._view
        it.splice_stage(found, view)
        done = f"{stage_text(it.stage_plan)}; {what}" if what else stage_text(it.stage_plan)
        end = it.plan.estimate
        ends = f"to end at {format_seconds(end.seconds)}, {format_dollars(end.dollars)}"
        self._by.tell(view, it, why, f"{done}; {ends}")

    # ---- where no plan keeps the limits --------------------------------------------------------

    def _do_what_can_be_done(self, going_on: GoingOn | None) -> Mapping[TrialId, Verdict]:
        """Follow the best that the limits allow, if that is more than going on brings."""
        why = f"no plan keeps the limits any more: {self._why(going_on)}"
        best = self._best()
        if best is None or (
            best.epochs < best.full
            and going_on is not None
            and best.epochs <= self._reached(going_on) + max(1.0, NOISE * best.full)
        ):
            self._by.tell(self._view, self._it, why, "goes on as far as the limits allow")
            return {}
        cut = [name for name in self._members if name not in best.members]
        now = self._it.members
        self._it.members = tuple(name for name in now if name not in cut)
        self._follow(best.plan, why, self._brought(best, len(cut)))
        known = self._view.trials
        return {name: Verdict.CUT for name in cut if name in known}

    def _brought(self, best: BestEffort, cut: int) -> str:
        parts = []
        if cut:
            parts.append(f"{counted(len(best.members), 'trial')} instead of {len(self._members)}")
        later = self._later()
        if later and not cut and best.next_trials < later[0].trials:
            parts.append(f"{best.next_trials} instead of {later[0].trials} to go on")
        if best.epochs < best.full:
            parts.append(f"the last one to about epoch {best.epochs} of {best.full}")
        return ", ".join(parts)

    def _best(self) -> BestEffort | None:
        """Return what the limits allow: the most trials of which one is trained in full.

        Else one trial, for as many epochs as can be had. In the midst of a stage its trials train
        on to the rung if that still leaves a full training, else the worst of them are cut now.
        """
        whole = None if self._fresh else self._most_after_the_rung()
        if whole is not None and whole.epochs == whole.full:
            return whole
        fewer = self._most_from_now()
        if fewer is None or (whole is not None and whole.epochs >= fewer.epochs):
            return whole
        return fewer

    def _most_after_the_rung(self) -> BestEffort | None:
        work = self._work()
        if len(work) == 1:
            return None
        most, first = work[1].trials, self._rung

        def stages(count: int, epochs: int) -> tuple[Stage, ...]:
            return (work[0], *_cut_off(_scaled(work[1:], count), first + epochs))

        return self._explored(stages, most, first, lambda _count: self._members)

    def _most_from_now(self) -> BestEffort | None:
        ranked = self._ranked()
        if not self._fresh and not any(
            self._view.trials[n].history for n in ranked if n in self._view.trials
        ):
            return None
        work, training = self._work(), set(self._training)
        first = work[0].start_epoch
        now = replace(work[0], trials=len(ranked))

        def stages(count: int, epochs: int) -> tuple[Stage, ...]:
            return _cut_off(_scaled((now, *work[1:]), count), first + epochs)

        if not training & set(ranked[:1]) and len(work) == 1:
            return None  # the best has no more to train
        return self._explored(stages, len(ranked), first, lambda count: ranked[:count])

    def _explored(
        self,
        stages: Callable[[int, int], tuple[Stage, ...]],
        most: int,
        first: int,
        members: Callable[[int], tuple[TrialId, ...]],
    ) -> BestEffort | None:
        last = (self._later() or (self._it.stage_plan.stage,))[-1].end_epoch
        tight = self._by.tight

        def ask(count: int, epochs: int) -> PlanRequest:
            return self._request(stages(count, epochs), members(count), self._view.avoided, tight)

        try:
            found = explore(self._by.planner, ask, max_trials=most, max_epochs=max(1, last - first))
        except InfeasibleError:
            return None
        work = stages(found.trials, last - first)
        choices = [stage.groups for stage in found.plan.stages]
        choices += [choices[-1]] * (len(work) - len(choices))
        whole = self._request(work, members(found.trials), self._view.avoided, tight)
        plan = price(whole, choices, self._by.planner.name)
        kept = members(found.trials)
        return BestEffort(plan, kept, found.trials, first + found.epochs, last)

    def _ranked(self) -> tuple[TrialId, ...]:
        """Return the trials of the stage, the best first, by the last epoch that all have told of.

        Just behind a rung they are in order already; those that have yet to begin come last.
        """
        members, known = self._members, self._view.trials
        if self._fresh:
            return members
        told = [known[n] for n in members if n in known and known[n].history]
        epoch = min((max(t.history) for t in told), default=0)
        keys = {t.id: (rank_key(self._view.mode, t.history.get(epoch)), t.id) for t in told}
        return (*sorted(keys, key=lambda n: keys[n]), *(n for n in members if n not in keys))

    def _reached(self, going_on: GoingOn) -> float:
        """Return the epoch to which going on trains the last trial before a limit ends the run."""
        limits = limits_left(self._view, replace(self._by.reserve, share=0.0))
        time = math.inf if limits.deadline is None else limits.deadline - going_on.wait
        money = math.inf if limits.budget is None else limits.budget
        epoch = float(going_on.plan.stages[0].stage.start_epoch)
        for stage in going_on.plan.stages:
            training = max(stage.seconds - stage.overhead, 1e-9)
            rate = max(stage.dollars / stage.seconds, 1e-12) if stage.seconds > 0 else 1e-12
            lasts = min(time, money / rate)
            if lasts < stage.seconds:
                part = max(0.0, lasts - stage.overhead) / training
                return epoch + part * stage.stage.epochs
            time, money = time - stage.seconds, money - stage.dollars
            epoch = float(stage.stage.end_epoch)
        return epoch

    # ---- why ----------------------------------------------------------------------------------

    def _why(self, going_on: GoingOn | None) -> str:
        """Return in words what is otherwise than planned, and what going on would come to."""
        view, it = self._view, self._it
        parts = []
        refused = [offer for offer in it.missing(view) if view.avoided(offer)]
        if refused:
            parts.append(f"{', '.join(map(offer_text, refused))} can't be had")
        elif self._cause == "shock":
            parts.append("an instance was lost")
        parts += _slower(view, it)
        if going_on is not None and not going_on.within:
            end = view.now + going_on.estimate.seconds
            bill = view.committed + going_on.estimate.dollars
            late = f"{format_seconds(end)} and {format_dollars(bill)}"
            parts.append(f"going on would take until {late}")
        return "; ".join(parts) or "at the rung"


# ---- figures --------------------------------------------------------------------------------


def _realised(view: View, itinerary: Itinerary) -> Sequence[object]:
    return tuple(view.corrected(each, itinerary.members) for each in view.rentables)


def _speeds(view: View, itinerary: Itinerary, rentables: Sequence[object]) -> dict[Place, float]:
    """Return the seconds of an epoch wherever the rest of the plan trains."""
    by_offer = {each.offer: each for each in rentables}  # type: ignore[attr-defined]
    return {
        (group.offer, group.width): by_offer[group.offer].profile.epoch_seconds(group.width)
        for stage in itinerary.plan.stages[itinerary.stage :]
        for group in stage.groups
    }


def _slower(view: View, itinerary: Itinerary) -> list[str]:
    """Return in words by how much epochs of the present stage differ from the profile's."""
    found = []
    planned = {each.offer: each for each in view.rentables}
    for group in itinerary.stage_plan.groups:
        known = planned[group.offer]
        real = view.corrected(known, itinerary.members)
        ratio = real.profile.epoch_seconds(group.width) / known.profile.epoch_seconds(group.width)
        if abs(ratio - 1) > NOISE:
            where = f"{gpus_text(group.width)} of {group.offer.instance_type.name}"
            found.append(f"an epoch takes {ratio:.2f} times the profile's on {where}")
        before = known.profile.launch.mean + known.profile.boot.mean
        boots = real.profile.launch.mean + real.profile.boot.mean
        if abs(boots - before) > max(1.0, LATE * NOISE * before):
            found.append(
                f"{group.offer.instance_type.name} boots in {format_seconds(boots)} "
                f"instead of {format_seconds(before)}"
            )
    return found


def _joins_in(view: View, offer: Offer) -> float:
    """Return the seconds from a request until the instance joins, by what was seen."""
    known = next(each for each in view.rentables if each.offer == offer)
    profile = view.corrected(known, ()).profile
    return profile.launch.mean + profile.boot.mean


def _choices(itinerary: Itinerary, work: Sequence[Stage]) -> list[tuple[Group, ...]]:
    """Return what the present plan does for so much work."""
    stages = itinerary.plan.stages[itinerary.stage :]
    return [_filled(plan.groups, stage.trials) for plan, stage in zip(stages, work, strict=True)]


def _filled(groups: Sequence[Group], trials: int) -> tuple[Group, ...]:
    """Return the groups with so many trials, in as many rounds as that takes."""
    found, left = [], trials
    for number, group in enumerate(groups):
        count = left if number == len(groups) - 1 else min(group.trials, left)
        left -= count
        if count > 0:
            at_once = max(1, slots(group.width, group.offer.gpus, group.instances))
            found.append(replace(group, trials=count, waves=math.ceil(count / at_once)))
    return tuple(found)


def _scaled(stages: Sequence[Stage], trials: int) -> tuple[Stage, ...]:
    """Return the stages with so many trials in the first, and as much fewer in the others."""
    most = stages[0].trials
    share = trials / most if most else 1.0
    return tuple(
        replace(each, trials=max(1, math.ceil(each.trials * share - 1e-9))) for each in stages
    )


def _cut_off(stages: Sequence[Stage], end: int) -> tuple[Stage, ...]:
    """Return the stages up to an epoch."""
    return tuple(
        replace(each, end_epoch=min(each.end_epoch, end))
        for each in stages
        if each.start_epoch < end
    )
