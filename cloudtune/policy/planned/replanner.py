"""When the rest of a planned run is replanned, and what it does if no plan keeps the limits.

At every rung, and whenever the forecast of the rest departs from the plan or breaks the limits, the
present plan and the best other plan are both priced by what the run has seen so far: speeds,
delays, instances, refusals (`View.corrected`). The run switches if the present plan breaks the
limits, or if the other is better by more than noise, boots included. So nothing flaps, and a run
that goes as planned keeps its plan.
"""

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Plan
from cloudtune.model.text import count_noun, end_text, gpus_text, offer_text, stage_text
from cloudtune.model.trial import TrialId
from cloudtune.model.units import format_dollars, format_seconds
from cloudtune.planners.base import Planner
from cloudtune.planners.reserve import NOISE, Reserve
from cloudtune.planners.selection import measures
from cloudtune.policy.planned.best_effort import BestEffort, Effort
from cloudtune.policy.planned.itinerary import Itinerary
from cloudtune.policy.planned.remaining_work import (
    LATE,
    GoingOn,
    Place,
    Rest,
    follow_from_now,
    joins_in,
    places,
)
from cloudtune.policy.planned.safety_net import MarketWatch
from cloudtune.strategies.base import Verdict, View

# After a search that found nothing, the share of the remaining time without another.
QUIET = 0.02
# After a look at differing speeds, the share of the remaining time without another.
CALM = 0.01
_TOO_MUCH = "no plan keeps the limits any more"

Heeds: TypeAlias = Literal["all", "shocks", "refusals"]


class Replanner:
    """Replans the rest of a run when reality differs from its plan.

    `heeds` says which causes count: "all"; "shocks", such as refused offers and lost instances; or
    "refusals", when nothing of the plan is available any more.
    """

    def __init__(self, planner: Planner, reserve: Reserve, heeds: Heeds = "all") -> None:
        self._planner = planner
        self._reserve = reserve
        self._heeds = heeds
        self._shocks = self._stage = 0
        self._out_of_reach = False
        self._look_at = math.inf
        self.markets = MarketWatch() if heeds == "all" else None
        self._seen: dict[Place, float] = {}  # seconds of an epoch, as of the last look
        self._recorded: set[str] = set()
        self._fruitless: object = None  # the state in which a search found nothing better
        self._quiet_until = 0.0
        self._calm_until = 0.0

    # ---- when ---------------------------------------------------------------------------------

    def has_new_speed(self, view: View, itinerary: Itinerary) -> bool:
        """Whether the seconds of an epoch have changed by more than noise since the last look."""
        if self._heeds != "all":
            return False
        for offer, width in places(itinerary):
            now = view.slowest_epoch(itinerary.members, offer, width)
            before = self._seen.get((offer, width), now)
            if not self._seen:
                before = view.profiled(offer).profile.epoch_seconds(width)
            if abs(now / before - 1) > NOISE:
                return True
        return False

    def wake_at(self, view: View) -> float | None:
        """Return when to look again: when an instance should have joined, or at the markets."""
        if self.markets is None:
            return None
        at = min(self._next_late_look(view), self.markets.look_at)
        return at if at < math.inf else None

    def _next_late_look(self, view: View) -> float:
        """Return when to look next at an instance that has yet to join; inf if there is none.

        There is no such look unless all causes are heeded.
        """
        if self._heeds != "all":
            return math.inf
        asked = {(r.offer, r.requested_at) for r in view.fleet.staying() if not r.joined}
        return min(
            [self._next_overdue_look(view, *instance) for instance in asked], default=math.inf
        )

    def _next_overdue_look(self, view: View, offer: Offer, asked_at: float) -> float:
        """Return when to look next at an instance that is or may become late."""
        expected = max(1.0, joins_in(view, offer))
        times = 1.0
        while asked_at + expected * LATE * times <= view.now:
            times *= LATE
        return asked_at + expected * LATE * times

    def react(self, view: View, itinerary: Itinerary) -> Mapping[TrialId, Verdict]:
        """Change the plan if necessary; return the trials that are cut for it."""
        cause = self._cause(view, itinerary)
        if cause is not None and cause != "market":
            itinerary.restless = False
            self._calm_until = view.now + CALM * _time_left(view, itinerary)
        if cause is None or not itinerary.roster(view).to_train:
            return {}
        state = self._snapshot(view, itinerary)
        if state == self._fruitless and view.now < self._quiet_until:
            return {}
        self._fruitless = None
        self._seen = {
            place: view.slowest_epoch(itinerary.members, *place) for place in places(itinerary)
        }
        rest = Rest(view, itinerary, self._planner, self._reserve)
        return _Look(self, rest, cause).decide()

    def _cause(self, view: View, itinerary: Itinerary) -> str | None:
        """Return the cause to review the plan; "" at a rung, None if there is none."""
        shock = view.shocks != self._shocks
        rung = itinerary.stage != self._stage
        late = view.now >= self._look_at
        called = self.markets is not None and self.markets.calls(view, itinerary)
        self._shocks = view.shocks
        self._stage = itinerary.stage
        self._look_at = self._next_late_look(view)
        missing = itinerary.missing(view)
        before = self._out_of_reach
        self._out_of_reach = bool(missing) and all(map(view.refused, missing))
        if self._out_of_reach and (not before or shock):
            return "shock"
        if self._heeds == "refusals":
            return None
        if shock:
            return "shock"
        restless = itinerary.restless and view.now >= self._calm_until
        if self._heeds == "all" and (late or restless):
            return "drift"
        if rung and self._heeds == "all":
            return ""
        return "market" if called else None

    # ---- for a look ---------------------------------------------------------------------------

    def note_fruitless(self, view: View, itinerary: Itinerary) -> None:
        """Stop searching for a while, unless trials or instances change: nothing was found.

        If no plan keeps the limits, or a pool refuses repeatedly, every event would otherwise
        trigger another search.
        """
        self._fruitless = self._snapshot(view, itinerary)
        self._quiet_until = view.now + QUIET * _time_left(view, itinerary)

    @staticmethod
    def _snapshot(view: View, itinerary: Itinerary) -> object:
        refused = frozenset(
            rentable.offer for rentable in view.rentables if view.refused(rentable.offer)
        )
        return itinerary.stage, itinerary.members, dict(view.held), refused

    @property
    def heeds(self) -> Heeds:
        return self._heeds

    def record(self, view: View, itinerary: Itinerary, why: str, what: str) -> None:
        """Record a change of the plan, or that none is left; the same only once."""
        if why + what not in self._recorded:
            self._recorded.add(why + what)
            itinerary.record(view, why, what)


def _time_left(view: View, itinerary: Itinerary) -> float:
    """Return the seconds until the deadline; without one, until the plan's last stage ends."""
    if math.isfinite(view.seconds_left):
        return view.seconds_left
    return sum(stage.seconds for stage in itinerary.plan.stages[itinerary.stage :])


class _Look:
    """One review of the rest of a run, for one cause."""

    def __init__(self, by: Replanner, rest: Rest, cause: str) -> None:
        self._by = by
        self._rest = rest
        self._cause = cause

    # ---- what is done -------------------------------------------------------------------------

    def decide(self) -> Mapping[TrialId, Verdict]:
        """Follow another plan if it is better; return the trials that are cut for it."""
        markets = self._by.markets
        turn = None if markets is None else markets.look(self._rest)
        if turn is not None:
            if turn.plan is not None:
                self._follow(turn.plan, turn.why)
            elif turn.why:
                self._by.record(self._rest.view, self._rest.itinerary, turn.why, turn.what)
        if turn is not None or self._cause == "market":
            return {}
        going_on = self._rest.going_on()
        within = going_on is not None and going_on.within
        if (
            going_on is not None
            and within
            and not self._rest.refused
            and self._keeps_plan(going_on)
        ):
            return {}
        # Only now, because the search is the expensive part of a look.
        plan = self._rest.other()
        if plan is not None:
            if self._rest.refused or not within or going_on is None or self._beats(plan, going_on):
                self._follow(plan, self._why(going_on))
            return {}
        # If only shocks count, another allocator sets the widths: its pace may keep the limits.
        if within or (self._by.heeds == "shocks" and not self._rest.out_of_reach):
            return {}
        return self._do_what_can_be_done(going_on)

    def _keeps_plan(self, going_on: GoingOn) -> bool:
        """Whether continuing takes what the plan said, within noise."""
        itinerary = self._rest.itinerary
        estimate = going_on.estimate
        rest = itinerary.plan.stages[itinerary.stage :]
        if self._cause == "shock":
            return True
        # The present stage has run for a while: only the rest of it is still to come.
        gone = max(0.0, self._rest.view.now - max(itinerary.planned_at, rest[0].begin))
        share = max(0.0, 1 - gone / rest[0].seconds) if rest[0].seconds > 0 else 0.0
        seconds = share * rest[0].seconds + sum(stage.seconds for stage in rest[1:])
        dollars = share * rest[0].dollars + sum(stage.dollars for stage in rest[1:])
        near = abs(estimate.seconds - seconds) <= NOISE * seconds
        return near and abs(estimate.dollars - dollars) <= NOISE * dollars

    def _beats(self, plan: Plan, going_on: GoingOn) -> bool:
        objective = plan.objective
        mine = measures(going_on.plan, objective)[0]
        theirs = measures(plan, objective)[0]
        return theirs < mine * (1 - NOISE)

    def _follow(self, plan: Plan, why: str, what: str = "") -> None:
        itinerary = self._rest.itinerary
        view = self._rest.view
        follow_from_now(itinerary, plan, view)
        itinerary.stuck = False
        done = stage_text(itinerary.stage_plan) + (f"; {what}" if what else "")
        if why:
            what = f"{done}; to end at {end_text(itinerary.plan)}"
            self._by.record(view, itinerary, why, what)

    # ---- where no plan keeps the limits --------------------------------------------------------

    def _do_what_can_be_done(self, going_on: GoingOn | None) -> Mapping[TrialId, Verdict]:
        """Follow the best that the limits allow, if that achieves more than continuing."""
        why = self._why(going_on)
        best = Effort(self._rest).best()
        self._rest.itinerary.stuck = best is None and self._rest.out_of_reach
        if best is None or (
            best.epochs < best.full
            and going_on is not None
            and best.epochs <= self._rest.furthest_epoch(going_on) + max(1.0, NOISE * best.full)
        ):
            problem = f"{_TOO_MUCH}: {why}"
            self._by.record(
                self._rest.view, self._rest.itinerary, problem, "goes on as far as the limits allow"
            )
            self._by.note_fruitless(self._rest.view, self._rest.itinerary)
            return {}
        cut = [name for name in self._rest.members if name not in best.members]
        result = self._brought(best, len(self._rest.members) if cut else 0)
        now = self._rest.itinerary.members
        self._rest.itinerary.members = tuple(name for name in now if name not in cut)
        self._follow(best.plan, f"{_TOO_MUCH}: {why}" if result else why, result)
        trials = self._rest.view.trials
        return {name: Verdict.CUT for name in cut if name in trials}

    def _brought(self, best: BestEffort, instead_of: int) -> str:
        """Return in words what the limits allow; `instead_of` is the number of trials before."""
        parts = []
        if instead_of:
            parts.append(f"{count_noun(len(best.members), 'trial')} instead of {instead_of}")
        later = self._rest.later
        if later and not instead_of and best.next_trials < later[0].trials:
            parts.append(f"{best.next_trials} instead of {later[0].trials} to go on")
        if best.epochs < best.full:
            parts.append(f"the last one to about epoch {best.epochs} of {best.full}")
        return ", ".join(parts)

    # ---- why ----------------------------------------------------------------------------------

    def _why(self, going_on: GoingOn | None) -> str:
        """Return in words what differs from the plan, and what continuing would take."""
        view = self._rest.view
        itinerary = self._rest.itinerary
        parts = []
        refused = [offer for offer in itinerary.missing(view) if view.avoided(offer)]
        if refused:
            parts.append(f"{', '.join(map(offer_text, refused))} can't be had")
        elif self._cause == "shock":
            parts.append("an instance was lost")
        parts += _slower(view, itinerary)
        if going_on is not None and not going_on.within:
            end = view.now + going_on.estimate.seconds
            bill = view.committed + going_on.estimate.dollars
            late = f"{format_seconds(end)} and {format_dollars(bill)}"
            parts.append(f"going on would take until {late}")
        return "; ".join(parts) or "at the rung"


def _slower(view: View, itinerary: Itinerary) -> list[str]:
    """Return in words by how much epochs of the present stage differ from the profile's."""
    texts = []
    planned = {rentable.offer: rentable for rentable in view.rentables}
    for group in itinerary.stage_plan.groups:
        profiled = planned[group.offer]
        if group.width not in profiled.profile.epoch:  # no trial trains there any more
            continue
        real = view.corrected(profiled, itinerary.members)
        ratio = real.profile.epoch_seconds(group.width) / profiled.profile.epoch_seconds(
            group.width
        )
        if abs(ratio - 1) > NOISE:
            where = f"{gpus_text(group.width)} of {group.offer.instance_type.name}"
            texts.append(f"an epoch takes {ratio:.2f} times the profile's on {where}")
        before = profiled.profile.launch.mean + profiled.profile.boot.mean
        boots = real.profile.launch.mean + real.profile.boot.mean
        if abs(boots - before) > max(1.0, LATE * NOISE * before):
            texts.append(
                f"{group.offer.instance_type.name} boots in {format_seconds(boots)} "
                f"instead of {format_seconds(before)}"
            )
    return texts
