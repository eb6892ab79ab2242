"""Spot with a safety net: there is always time and money left to finish on demand.

As long as that still fits after one more loss, the run may use spot and may wait for a pool that is
unavailable: while nothing is rented, waiting costs only time. At the last moment the rest moves to
on-demand. From there the run returns to spot as soon as some is available, if it could afford to
lose that too; its on-demand instances train on until the spot ones have joined. ("Can't Be Late",
Wu et al., NSDI 2024, has such rules for one job; here they apply to a whole tuning run, whose rest
is planned at each look.)
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from cloudtune.model.plans import Allowance
from cloudtune.model.text import offer_text, stage_text
from cloudtune.model.units import format_seconds
from cloudtune.planners.cost_model import price
from cloudtune.planners.exact import QUICK
from cloudtune.planners.reserve import NOISE
from cloudtune.policy.planned.remaining_work import LATE, fill_choices, request_for_rest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cloudtune.model.catalog import Offer
    from cloudtune.model.plans import Objective, Plan, Rentable
    from cloudtune.planners.base import PlanRequest
    from cloudtune.policy.planned.itinerary import Itinerary
    from cloudtune.policy.planned.remaining_work import Rest
    from cloudtune.strategies.base import View

# The price of waiting: finishing on demand at the last moment may cost at most this many times
# what it costs with time to spare.
DEARER = 1.1
# The share of its slack for which a run waits for unavailable spot; the rest is for later losses.
# This holds if on-demand instances can train until spot is back. If the cap on instances leaves no
# room for both, coming back costs time too, and the run waits as long as it can.
PATIENCE = 0.5
# Another spot pool replaces an unavailable one at once if it costs no more than this share of the
# way from that one to on-demand. Whether a pool comes back in time is unknown: at even odds, a wait
# isn't worth its slack if it saves less than it may cost.
NEXT_BEST = 0.5
# Under the cap a run leaves on-demand for spot if this many times the needed slack is left.
DETOURS = 4.0
# Seconds after which a run on demand looks again for spot; under the cap, where going back costs
# time, the pause doubles each time.
AGAIN = 300.0


@dataclass(frozen=True)
class Turn:
    """What the markets change: a new `plan`, or None to keep the present one.

    `why` is the cause; a plan without one was reported before. `what` is done instead of a plan.
    """

    plan: Plan | None = None
    why: str = ""
    what: str = ""


class MarketWatch:
    """Decides, look by look, when a run waits for spot, leaves it, and returns to it.

    `look_at` is the run second of the next look, even if nothing happens before.
    """

    def __init__(self) -> None:
        self.look_at = 0.0  # the first look comes before the first request
        self._waits_until: float | None = None
        self._waits_since = 0.0
        self._dry: set[Offer] = set()  # refused at their last request
        self._stood_in: set[tuple[str, str]] = set()  # since the last epoch: report each once
        self._back_at = 0.0
        self._detours = 0
        self._first = True
        self._answers = Answers()

    def calls(self, view: View, itinerary: Itinerary) -> bool:
        """Whether a look is due: it is time, or spot requested on top of the plan has joined."""
        return view.now >= self.look_at or any(
            r.joined for r in view.fleet.staying() if r.offer in itinerary.probes
        )

    def look(self, rest: Rest) -> Turn | None:
        """Return what the markets change; None if the plan stays.

        `rest.shuns` then has the offers that no other plan should use now.
        """
        net = SafetyNet(rest, self._answers)
        first = self._first
        self._first = False
        self.look_at = math.inf
        if not net.applies:
            return Turn() if first else None
        backoffs = rest.view.backoffs
        self._dry |= {o for o in backoffs if o.market == "spot" and backoffs[o].refusals > 0}
        self._dry -= rest.view.held.keys()
        turn = self._turn(rest, net)
        plan = rest.itinerary.plan if turn is None or turn.plan is None else turn.plan
        stage = plan.stages[rest.itinerary.stage] if plan is rest.itinerary.plan else plan.stages[0]
        on_spot = any(group.offer.market == "spot" for group in stage.groups)
        self.look_at = net.looks_at if on_spot else self._next_spot_look(rest.view, net)
        if rest.refused and net.room_for_both:
            # Another plan may finish on demand; look soon, because it isn't known here. Not under
            # the cap: going back so soon costs time that slow trials turn out to need.
            self.look_at = min(self.look_at, self._next_spot_look(rest.view, net))
        return Turn() if first and turn is None else turn

    def _next_spot_look(self, view: View, net: SafetyNet) -> float:
        """Return when a run on demand looks for spot again."""
        if not net.room_for_both:
            if self._back_at <= view.now:
                self._back_at = view.now + 2 * AGAIN
            return self._back_at
        spot = [rentable.offer for rentable in view.rentables if rentable.offer.market == "spot"]
        pauses = [view.backoffs[o].relaunch_at for o in spot if o in view.backoffs]
        return min([at for at in pauses if at > view.now], default=view.now + AGAIN)

    def _turn(self, rest: Rest, net: SafetyNet) -> Turn | None:
        if net.due:
            self._over(rest)
            return Turn(net.fallback, "one more loss on spot would leave no time for on-demand")
        if net.on_spot:
            rest.itinerary.probes.clear()
            if not rest.itinerary.missing(rest.view):
                rest.shuns = self._dry
            return self._wait(rest, net)
        return self._back(rest, net)

    def _over(self, rest: Rest) -> None:
        """Record that the run moves to on-demand."""
        rest.itinerary.probes.clear()
        self._waits_until = None
        self._back_at = rest.view.now + AGAIN * 2**self._detours

    # ---- on spot ----------------------------------------------------------------------------

    def _wait(self, rest: Rest, net: SafetyNet) -> Turn | None:
        """Wait for unavailable spot while nothing is rented; None if there is no wait."""
        view = rest.view
        missing = rest.itinerary.missing(view)
        if not missing or max(rest.itinerary.heard.values(), default=0.0) > self._waits_since:
            self._waits_until = None
            self._waits_since = view.now
            self._stood_in.clear()
        if view.fleet.staying() or not all(o.market == "spot" and view.avoided(o) for o in missing):
            return None
        alternative = net.instead()
        present = rest.present().estimate.dollars
        if alternative is None:
            return None
        away = ", ".join(map(offer_text, missing))
        if net.stands_in(alternative, present):
            pools = away, stage_text(alternative.stages[0])
            why = "" if pools in self._stood_in else f"{away} can't be had"
            self._stood_in.add(pools)
            return Turn(alternative, why)
        if alternative.estimate.dollars <= (1 + NOISE) * present:
            return None
        if self._waits_until is None:
            self._waits_until = view.now + net.patience()
        pause = max(view.backoffs[offer].relaunch_at - view.now for offer in missing)
        if view.now + pause > self._waits_until or not net.may_wait(pause):
            self._over(rest)
            return None
        until = format_seconds(self._waits_until)
        return Turn(None, f"{away} can't be had", f"waits for it, until {until} at most")

    # ---- on demand --------------------------------------------------------------------------

    def _back(self, rest: Rest, net: SafetyNet) -> Turn | None:
        """Go back to spot if some is available, or may be; None to stay on demand."""
        view = rest.view
        itinerary = rest.itinerary
        asked = [r for r in view.fleet.staying() if r.offer in itinerary.probes]
        whole = not itinerary.missing(view)
        if whole and asked and not all(rented.joined for rented in asked):
            return Turn()
        itinerary.probes.clear()
        may = asked or net.may_try(view.now >= self._back_at)
        settled = whole and all(rented.joined for rented in view.fleet.staying())
        spot = [rentable.offer for rentable in view.rentables if rentable.offer.market == "spot"]
        if asked:  # that pool has instances; whether others have is unknown
            there = {rented.offer for rented in asked}
            rest.shuns = [offer for offer in spot if offer not in there]
        plan = rest.other() if may and settled else None
        # Whatever else is planned now, it doesn't use spot.
        if net.can_finish:
            rest.shuns = spot
        if plan is None:
            return None
        if asked:
            again = Turn(plan, f"{offer_text(asked[0].offer)} can be had again")
            return again if net.takes(plan) else None
        both = net.is_admissible(plan)
        if not (both or view.now >= self._back_at) or not net.may_leave(plan):
            return None
        if both:
            itinerary.probes.update(net.missing_spot(plan))
            return Turn()
        self._detours += 1
        return Turn(plan, "there is time to try spot again")


class Answers:
    """The exact planner with a memory of its last plan for each objective.

    While a run waits for spot, each look asks the same question with a little less time. A plan
    that was best within wider limits is best within narrower ones, as long as it fits them.
    """

    def __init__(self) -> None:
        self._last: dict[Objective, tuple[PlanRequest, Plan]] = {}

    def within(self, request: PlanRequest) -> Plan | None:
        """Return the best plan within the limits; None if there is none."""
        last = self._last.get(request.objective)
        if last is not None and _answers(last, request):
            return last[1]
        plan = QUICK.within(request)
        if plan is not None:
            self._last[request.objective] = request, plan
        return plan

    def in_hand(self, request: PlanRequest) -> Plan | None:
        """Return the rest of the last fastest or cheapest plan, if it still fits: no search.

        The fastest doesn't count once it has become too expensive beside the cheapest.
        """
        cheapest = self._remaining_plan("cost", request)
        if cheapest is None:
            return None
        most = DEARER * cheapest.estimate.dollars
        plans = self._remaining_plan("time", request), cheapest
        fitting = (plan for plan in plans if plan and request.allowance.admit(plan.estimate))
        return next((plan for plan in fitting if plan.estimate.dollars <= most), None)

    def _remaining_plan(self, objective: Objective, request: PlanRequest) -> Plan | None:
        """Return the rest of the last plan for an objective, at present speeds and prices."""
        if objective not in self._last:
            return None
        _, plan = self._last[objective]
        left = plan.stages[-len(request.work) :]
        if [done.stage.end_epoch for done in left] != [stage.end_epoch for stage in request.work]:
            return None
        most = {rentable.offer: rentable.most for rentable in request.rentables}
        groups = [group for stage in left for group in stage.groups]
        if any(group.instances > most.get(group.offer, 0) for group in groups):
            return None
        return price(request, fill_choices(left, request.work), plan.planner)


def _answers(last: tuple[PlanRequest, Plan], request: PlanRequest) -> bool:
    before, plan = last
    fits = request.allowance.admit(plan.estimate)
    if not fits or not _within(request.allowance, before.allowance):
        return False
    return replace(request, allowance=before.allowance) == before


def _within(allowance: Allowance, wider: Allowance) -> bool:
    pairs = (allowance.seconds, wider.seconds), (allowance.dollars, wider.dollars)
    return all(wide is None or (own is not None and own <= wide) for own, wide in pairs)


class SafetyNet:
    """Whether and how the rest of a run can be finished on demand, in seconds and dollars.

    All its plans leave the usual reserve and margin.
    """

    def __init__(self, rest: Rest, answers: Answers) -> None:
        self._rest = rest
        self._view = rest.view
        self._answers = answers

    @cached_property
    def applies(self) -> bool:
        """Whether there are both markets and a deadline, and the objective isn't time."""
        plan = self._rest.itinerary.first_plan
        rentables = self._view.rentables
        if self._view.limits.deadline is None or plan.objective != "cost":
            return False
        markets = {
            rentable.offer.market for rentable in rentables if not self._view.barred(rentable.offer)
        }
        return plan.wished is None and len(markets) > 1

    # ---- finishing on demand ----------------------------------------------------------------

    @cached_property
    def fallback(self) -> Plan | None:
        """The best plan for the rest on demand; None if none keeps the limits."""
        request = self._request
        return self._answers.within(request) if request.rentables else None

    @cached_property
    def slack(self) -> float:
        """Seconds that the run can wait so that finishing on demand still fits.

        It fits even if everything on spot is lost by then. Negative if it doesn't fit now; -inf if
        it never does. Computed with the fastest plan that is hardly more expensive than the best,
        and with boots as late as they may be.
        """
        request = self._request
        best = self.fallback
        if best is None or request.allowance.seconds is None:
            return -math.inf
        most = DEARER * best.estimate.dollars
        budget = request.allowance.dollars
        if budget is not None:
            most = min(most, budget - self.dollars)
        allowance = Allowance(request.allowance.seconds, max(0.0, most))
        # The cheapest plan uses up the time it is given, so take the slack of a faster one.
        fastest = self._answers.within(replace(request, allowance=allowance, objective="time"))
        if fastest is None:
            return -math.inf
        return request.allowance.seconds - fastest.estimate.seconds - self._late

    def spares(self, seconds: float) -> bool:
        """Whether there is that much slack, with as little search as possible."""
        return any(slack() >= seconds for slack in self._slacks)

    @property
    def can_finish(self) -> bool:
        """Whether a plan on demand keeps the limits."""
        return self._in_hand is not None or self.fallback is not None

    @property
    def _slacks(self) -> tuple[Callable[[], float], ...]:
        """Lower bounds of the slack, in order of their cost; the last one is exact."""
        return (
            lambda: self._left_by(self._in_hand),
            lambda: self._left_by(self.fallback),
            lambda: self.slack,
        )

    @cached_property
    def _in_hand(self) -> Plan | None:
        return self._answers.in_hand(self._request)

    def _left_by(self, plan: Plan | None) -> float:
        """Return the slack that an on-demand plan leaves; -inf without one."""
        deadline = self._request.allowance.seconds
        budget = self._request.allowance.dollars
        if plan is None or deadline is None:
            return -math.inf
        if budget is not None and plan.estimate.dollars > budget - self.dollars:
            return -math.inf
        return deadline - plan.estimate.seconds - self._late

    @cached_property
    def blind(self) -> float:
        """Extra seconds that the rest may take on demand while no epoch has shown its speed.

        For waits, in which time passes and nothing is learned.
        """
        plan = self.fallback
        if plan is None or any(trial.history for trial in self._view.trials.values()):
            return 0.0
        error = max(rentable.profile.speed_error for rentable in self._request.rentables)
        # Two standard deviations of the profile's error.
        return 2 * error * plan.estimate.seconds

    @cached_property
    def _request(self) -> PlanRequest:
        """The planning problem of the rest, as if all spot instances were lost now."""
        rest = self._rest
        request = request_for_rest(
            rest.view,
            rest.itinerary,
            rest.reserve,
            work=rest.work,
            trials=rest.training,
            barred=rest.view.avoided,
        )
        rentables = tuple(r for r in request.rentables if r.offer.market != "spot")
        fleet = tuple(live for live in request.fleet if live.offer.market != "spot")
        allowance = request.allowance
        if allowance.seconds is not None:
            allowance = replace(allowance, seconds=allowance.seconds + rest.rounded)
        return replace(request, rentables=rentables, fleet=fleet, allowance=allowance)

    @cached_property
    def _late(self) -> float:
        """Seconds by which an on-demand instance and its first trial may be late."""
        late = 0.0
        for rentable in self._request.rentables:
            delays = rentable.profile.launch, rentable.profile.boot, rentable.profile.start
            late = max(late, sum(delay.high - delay.mean for delay in delays))
        return late

    # ---- what spot puts at stake ------------------------------------------------------------

    @property
    def on_spot(self) -> bool:
        """Whether anything of the present stage is, or will be, on spot."""
        return any(group.offer.market == "spot" for group in self._rest.itinerary.stage_plan.groups)

    @property
    def step(self) -> float:
        """Seconds of an epoch on spot: what an instance that trains loses at most."""
        spans = (rentable.profile.epoch_seconds(width) for rentable, width in self._on_spot())
        return max(spans, default=0.0)

    @property
    def loss(self) -> float:
        """Seconds until a spot instance requested now has trained an epoch, plus one epoch.

        An interruption at the worst moment loses that much.
        """
        spans = [0.0]
        for rentable, width in self._on_spot():
            delays = rentable.profile.launch, rentable.profile.boot, rentable.profile.resize
            spans.append(
                LATE * sum(d.mean for d in delays) + 2 * rentable.profile.epoch_seconds(width)
            )
        return max(spans)

    @cached_property
    def dollars(self) -> float:
        """What spot instances lost at the worst moment cost: as many as may be rented."""
        groups = [group for stage in self._rest.itinerary.plan.stages for group in stage.groups]
        most = max((group.instances for group in groups), default=1)
        spot = (r.offer for r in self._view.rentables if r.offer.market == "spot")
        return most * max((offer.charge(self.loss) for offer in spot), default=0.0)

    def _on_spot(self) -> Sequence[tuple[Rentable, float]]:
        """Return the spot rentables at real speeds, with the widths of the present plan.

        Those that aren't in the plan come with their narrowest width.
        """
        rest = self._rest
        spot = []
        stages = rest.itinerary.plan.stages[rest.itinerary.stage :]
        widths = {group.offer: group.width for stage in stages for group in stage.groups}
        planned = {offer for offer in widths if offer.market == "spot"}
        for rentable in self._view.rentables:
            offer = rentable.offer
            if offer.market == "spot" and (not planned or offer in planned):
                real = rest.real(offer)
                spot.append((real, widths.get(offer, real.profile.widths[0])))
        return spot

    # ---- what follows -----------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether this is the last moment: from now on there is only time for on-demand.

        False if finishing on demand no longer fits: then it has no advantage over spot.
        """
        missing = self._rest.itinerary.missing(self._view)
        asks = any(o.market == "spot" and not self._view.avoided(o) for o in missing)
        # Spot yet to be launched risks its boot too; spot that trains, one epoch.
        stake = self.loss if asks else self.step
        return self.on_spot and not self.spares(stake) and self.fallback is not None

    @property
    def looks_at(self) -> float:
        """The earliest run second at which the last moment may come, if nothing happens before."""
        least = max(self.step, 1.0)
        for shown in self._slacks:
            slack = shown()
            if slack > AGAIN + least:
                break
        return self._view.now + max(slack - self.step, least)

    def patience(self) -> float:
        """Return the longest wait, in seconds, for spot that has just become unavailable."""
        share = PATIENCE if self.room_for_both else 1.0
        return share * max(0.0, self.slack - self.blind)

    def may_wait(self, pause: float) -> bool:
        """Whether finishing on demand still fits if spot comes after a pause, and goes at once."""
        return self.spares(self.blind + pause + self.loss)

    def instead(self) -> Plan | None:
        """Return the best plan for the rest with what is available now, if nothing is held.

        Another spot pool may be available.
        """
        spot = (r.offer for r in self._view.rentables if r.offer.market == "spot")
        return self.fallback if all(map(self._view.avoided, spot)) else self._rest.other()

    def stands_in(self, plan: Plan, present: float) -> bool:
        """Whether to follow a plan on another spot pool at once instead of waiting.

        `present` is what the rest costs, in dollars, on the unavailable pool.
        """
        if any(group.offer.market != "spot" for group in plan.stages[0].groups):
            return False
        dear = math.inf if self.fallback is None else self.fallback.estimate.dollars
        return plan.estimate.dollars <= present + NEXT_BEST * max(0.0, dear - present)

    def may_try(self, patient: bool) -> bool:
        """Whether a run on demand looks for spot; `patient`: even if that may cost time."""
        spot = (r.offer for r in self._view.rentables if r.offer.market == "spot")
        if all(map(self._view.avoided, spot)) or not (patient or self.room_for_both):
            return False
        return self.spares(self.loss)

    def may_leave(self, plan: Plan) -> bool:
        """Whether a plan on spot is worth leaving the held on-demand instances.

        It must save more than both cost while spot boots, and finishing on demand must still fit if
        the spot instances are lost again.
        """
        if not self.missing_spot(plan):
            return False
        detour = self.loss if self.is_admissible(plan) else (1 + DETOURS) * self.loss
        held = sum(o.usd_per_second * n for o, n in self._view.held.items())
        saved = self._rest.present().estimate.dollars - plan.estimate.dollars
        worth = saved > max(NOISE * plan.estimate.dollars, held * self.loss)
        return worth and self.spares(detour)

    def missing_spot(self, plan: Plan) -> Counter[Offer]:
        """Return the spot instances that a plan begins with and that aren't held."""
        groups = (group for group in plan.stages[0].groups if group.offer.market == "spot")
        return Counter({g.offer: g.instances for g in groups}) - Counter(self._view.held)

    def takes(self, plan: Plan) -> bool:
        """Whether to follow a plan that moves to spot instances which have joined."""
        spot = any(group.offer.market == "spot" for group in plan.stages[0].groups)
        saves = plan.estimate.dollars < (1 - NOISE) * self._rest.present().estimate.dollars
        return spot and saves and self.spares(self.loss)

    def is_admissible(self, plan: Plan) -> bool:
        """Whether the cap admits a plan's spot instances on top of all that are alive."""
        alive = Counter(rented.offer for rented in self._view.fleet.alive())
        return self._view.admits(alive + self.missing_spot(plan))

    @cached_property
    def room_for_both(self) -> bool:
        """Whether the cap admits the planned spot instances and as many on-demand ones at once."""
        stages = self._rest.itinerary.plan.stages[self._rest.itinerary.stage :]
        return 2 * max(stage.instances for stage in stages) <= self._view.max_instances
