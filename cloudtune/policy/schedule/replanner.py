"""When the rest of a planned run is replanned, and what it does if no plan keeps the limits.

At every rung, and whenever the forecast departs from the plan or breaks the limits, the present
plan and the best other plan are both priced by what the run has seen so far (`Situation`). The run
switches if the present plan breaks the limits, or if the other is better by more than noise, boots
included. So nothing flaps, and a run that goes as planned keeps its plan.
"""

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Plan
from cloudtune.model.text import gpus_text, offer_text
from cloudtune.model.trial import TrialId, Width
from cloudtune.model.units import format_dollars, format_seconds
from cloudtune.planners.base import Planner
from cloudtune.planners.reserve import NOISE, Reserve
from cloudtune.planners.selection import measures
from cloudtune.policy.schedule.best_effort import find_best_effort
from cloudtune.policy.schedule.itinerary import Itinerary
from cloudtune.policy.schedule.safety_net import MarketWatch, Turn
from cloudtune.policy.schedule.situation import LATE, Situation, joins_in
from cloudtune.strategies.base import View

# After a search that found nothing, the share of the remaining time without another.
QUIET = 0.02
# After a look at differing speeds, the share of the remaining time without another.
CALM = 0.01
_TOO_MUCH = "no plan keeps the limits any more"

Heeds: TypeAlias = Literal["all", "shocks", "refusals"]
Cause: TypeAlias = Literal["shock", "drift", "rung", "market"]


class Replanner:
    """Replans the rest of a run when reality differs from its plan.

    `heeds` says which causes count: "all"; "shocks", such as refused offers and lost instances; or
    "refusals", when nothing of the plan is available any more.
    """

    def __init__(
        self, itinerary: Itinerary, planner: Planner, reserve: Reserve, heeds: Heeds = "all"
    ) -> None:
        self._itinerary = itinerary
        self._planner = planner
        self._reserve = reserve
        self._heeds = heeds
        self._markets = MarketWatch() if heeds == "all" else None
        # As of the last look:
        self._shocks = self._stage = 0
        self._out_of_reach = False
        self._seen: dict[tuple[Offer, Width], float] = {}  # seconds of an epoch
        self._late_at = math.inf
        self._calm_until = 0.0
        # Since a search found nothing better:
        self._fruitless: object = None
        self._quiet_until = 0.0
        self._recorded: set[str] = set()

    # ---- when ---------------------------------------------------------------------------------

    def has_new_speed(self, view: View) -> bool:
        """Whether the seconds of an epoch have changed by more than noise since the last look."""
        if self._heeds != "all":
            return False
        for (offer, width), now in self._epoch_seconds(view).items():
            before = self._seen.get((offer, width), now)
            if not self._seen:
                before = view.profiled(offer).profile.epoch_seconds(width)
            if abs(now / before - 1) > NOISE:
                return True
        return False

    def _epoch_seconds(self, view: View) -> dict[tuple[Offer, Width], float]:
        """Return the seconds of an epoch of the slowest trial, wherever the plan trains."""
        members = self._itinerary.members
        places = {(group.offer, group.width) for group in self._itinerary.groups_ahead}
        return {place: view.slowest_epoch(members, *place) for place in places}

    def wake_at(self, view: View) -> float | None:
        """Return when to look again: when an instance should have joined, or at the markets."""
        if self._markets is None:
            return None
        at = min(_late_at(view), self._markets.look_at)
        return at if at < math.inf else None

    def react(self, view: View) -> Sequence[TrialId]:
        """Change the plan if necessary; return the trials that are cut for it."""
        itinerary = self._itinerary
        cause = self._cause(view)
        if cause is None:
            return ()
        if cause != "market":
            itinerary.restless = False
            self._calm_until = view.now + CALM * self._time_left(view)
        if not itinerary.roster(view).to_train:
            return ()
        if view.now < self._quiet_until and self._fruitless == self._snapshot(view):
            return ()
        self._fruitless = None
        self._seen = self._epoch_seconds(view)
        return self._look(Situation(view, itinerary, self._planner, self._reserve), cause)

    def _cause(self, view: View) -> Cause | None:
        """Return the cause to review the plan; None if there is none."""
        itinerary = self._itinerary
        shock = view.shocks != self._shocks
        rung = itinerary.stage != self._stage
        late = view.now >= self._late_at
        out_of_reach = itinerary.out_of_reach(view)
        lost = out_of_reach and not self._out_of_reach
        self._shocks = view.shocks
        self._stage = itinerary.stage
        self._late_at = _late_at(view)
        self._out_of_reach = out_of_reach
        if lost or (shock and (out_of_reach or self._heeds != "refusals")):
            return "shock"
        if self._markets is None:
            return None
        if late or (itinerary.restless and view.now >= self._calm_until):
            return "drift"
        if rung:
            return "rung"
        return "market" if self._markets.is_due(view, itinerary) else None

    def _time_left(self, view: View) -> float:
        """Return the seconds until the deadline; without one, until the plan's last stage ends."""
        if math.isfinite(view.seconds_left):
            return view.seconds_left
        return sum(stage.seconds for stage in self._itinerary.stages_ahead)

    def _snapshot(self, view: View) -> object:
        """Return what decides whether another search could find more than the last one."""
        refused = frozenset(r.offer for r in view.rentables if view.refused(r.offer))
        return self._itinerary.stage, self._itinerary.members, dict(view.held), refused

    # ---- which plan ---------------------------------------------------------------------------

    def _look(self, situation: Situation, cause: Cause) -> Sequence[TrialId]:
        """Follow another plan if it is better; return the trials that are cut for it."""
        turn = None if self._markets is None else self._markets.look(situation)
        if turn is not None:
            self._take(turn, situation.view)
        if turn is not None or cause == "market":
            return ()
        fits = situation.within and not situation.refused
        if fits and self._goes_as_planned(situation, cause):
            return ()
        # Only now, because the search is the expensive part of a look.
        plan = situation.other()
        if plan is not None:
            if not fits or _beats(plan, situation.present):
                self._take(Turn(plan, self._why(situation, cause)), situation.view)
            return ()
        # If only shocks count, another allocator sets the widths: its pace may keep the limits.
        out_of_reach = self._itinerary.out_of_reach(situation.view)
        if situation.within or (self._heeds == "shocks" and not out_of_reach):
            return ()
        return self._follow_best_effort(situation, cause)

    def _goes_as_planned(self, situation: Situation, cause: Cause) -> bool:
        """Whether going on takes what the plan said, within noise."""
        estimate = situation.going_on
        now, *later = self._itinerary.stages_ahead
        if cause == "shock" or estimate is None:
            return True
        # The present stage has run for a while: only a part of it is still to come.
        gone = max(0.0, situation.view.now - max(self._itinerary.planned_at, now.begin))
        share = max(0.0, 1 - gone / now.seconds) if now.seconds > 0 else 0.0
        seconds = share * now.seconds + sum(stage.seconds for stage in later)
        dollars = share * now.dollars + sum(stage.dollars for stage in later)
        near = abs(estimate.seconds - seconds) <= NOISE * seconds
        return near and abs(estimate.dollars - dollars) <= NOISE * dollars

    def _take(self, turn: Turn, view: View) -> None:
        """Follow the plan of a turn, if it has one, and record its cause; the same only once."""
        what = turn.what
        if turn.plan is not None:
            self._itinerary.follow(turn.plan, view)
            what = self._itinerary.describe(what)
        if turn.why and turn.why + what not in self._recorded:
            self._recorded.add(turn.why + what)
            self._itinerary.record(turn.why, what)

    def _follow_best_effort(self, situation: Situation, cause: Cause) -> Sequence[TrialId]:
        """Follow the best that the limits allow, if that achieves more than going on."""
        itinerary = self._itinerary
        view = situation.view
        why = self._why(situation, cause)
        too_much = f"{_TOO_MUCH}: {why}"
        best = find_best_effort(situation)
        if best is None:
            itinerary.stuck = itinerary.out_of_reach(view)
            self._take(Turn(None, too_much, "goes on as far as the limits allow"), view)
            # Every event would otherwise trigger another search.
            self._fruitless = self._snapshot(view)
            self._quiet_until = view.now + QUIET * self._time_left(view)
            return ()
        cut = [name for name in situation.members if name not in best.members]
        what = best.describe(situation)
        itinerary.members = tuple(name for name in itinerary.members if name not in cut)
        self._take(Turn(best.plan, too_much if what else why, what), view)
        return [name for name in cut if name in view.trials]

    # ---- why ----------------------------------------------------------------------------------

    def _why(self, situation: Situation, cause: Cause) -> str:
        """Return in words what differs from the plan, and what going on would take."""
        view = situation.view
        parts = []
        refused = [offer_text(offer) for offer in situation.missing if view.avoided(offer)]
        if refused:
            parts.append(f"{', '.join(refused)} can't be had")
        elif cause == "shock":
            parts.append("an instance was lost")
        parts += _differences(situation)
        if situation.going_on is not None and not situation.within:
            end = format_seconds(view.now + situation.going_on.seconds)
            bill = format_dollars(view.committed + situation.going_on.dollars)
            parts.append(f"going on would take until {end} and {bill}")
        return "; ".join(parts) or "at the rung"


def _beats(plan: Plan, present: Plan) -> bool:
    least, taken = (measures(one, plan.objective)[0] for one in (plan, present))
    return least < taken * (1 - NOISE)


def _late_at(view: View) -> float:
    """Return when to look next at an instance that is or may become late; inf if all joined."""
    looks = [math.inf]
    for offer, since in {(r.offer, r.requested_at) for r in view.fleet.staying() if not r.joined}:
        patience = LATE * max(1.0, joins_in(view, offer))
        while since + patience <= view.now:
            patience *= LATE
        looks.append(since + patience)
    return min(looks)


def _differences(situation: Situation) -> list[str]:
    """Return in words by how much epochs and boots of the stage differ from the profile's."""
    texts = []
    for group in situation.itinerary.stage_plan.groups:
        profiled = situation.view.profiled(group.offer)
        profile = profiled.profile
        if group.width not in profile.epoch:  # no trial trains there any more
            continue
        real = situation.view.corrected(profiled, situation.itinerary.members).profile
        name = group.offer.instance_type.name
        ratio = real.epoch_seconds(group.width) / profile.epoch_seconds(group.width)
        if abs(ratio - 1) > NOISE:
            where = f"{gpus_text(group.width)} of {name}"
            texts.append(f"an epoch takes {ratio:.2f} times the profile's on {where}")
        before, boots = (p.launch.mean + p.boot.mean for p in (profile, real))
        if abs(boots - before) > max(1.0, LATE * NOISE * before):
            seconds = f"{format_seconds(boots)} instead of {format_seconds(before)}"
            texts.append(f"{name} boots in {seconds}")
    return texts
