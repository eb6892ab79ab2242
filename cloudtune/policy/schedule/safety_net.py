"""Spot with a safety net: there is always time and money left to finish on demand.

As long as that still fits after one more loss, the run may use spot and may wait for a pool that is
unavailable: while nothing is rented, waiting costs only time. At the last moment the rest moves to
on-demand. From there the run returns to spot as soon as some is available, if it could afford to
lose that too; its on-demand instances train on until the spot ones have joined. ("Can't Be Late",
Wu et al., NSDI 2024, has such rules for one job; here they apply to a whole tuning run, whose rest
is planned at each look.)
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Objective, Plan, Rentable
from cloudtune.model.text import offer_text, stage_text
from cloudtune.model.units import format_seconds
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.exact import QUICK
from cloudtune.planners.reserve import NOISE
from cloudtune.policy.schedule.itinerary import Itinerary
from cloudtune.policy.schedule.situation import LATE, Situation, fill_choices
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
    """What a look changes: a new `plan`, or None to keep the present one.

    `why` is the cause; a plan without one was reported before. `what` says more of the plan, or
    what is done instead of one.
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
        self._answers = Answers()

    def is_due(self, view: View, itinerary: Itinerary) -> bool:
        """Whether a look is due: it is time, or spot requested on top of the plan has joined."""
        return view.now >= self.look_at or any(
            r.joined for r in view.fleet.staying() if r.offer in itinerary.probes
        )

    def look(self, situation: Situation) -> Turn | None:
        """Return what the markets change; None if the plan stays.

        `situation.excluded` then has the offers that no other plan should use now.
        """
        net = SafetyNet(situation, self._answers)
        view = situation.view
        self.look_at = math.inf
        if not net.applies:
            return None
        self._dry |= {o for o, pause in view.backoffs.items() if o.spot and pause.refusals > 0}
        self._dry -= view.held.keys()
        turn = self._turn(net)
        stage = situation.itinerary.stage_plan
        if turn is not None and turn.plan is not None:
            stage = turn.plan.stages[0]
        self.look_at = net.looks_at if stage.on_spot else self._next_spot_look(net)
        if situation.refused and net.room_for_both:
            # Another plan may finish on demand; look soon, because it isn't known here. Not under
            # the cap: going back so soon costs time that slow trials turn out to need.
            self.look_at = min(self.look_at, self._next_spot_look(net))
        return turn

    def _next_spot_look(self, net: "SafetyNet") -> float:
        """Return when a run on demand looks for spot again."""
        now = net.view.now
        if not net.room_for_both:
            if self._back_at <= now:
                self._back_at = now + 2 * AGAIN
            return self._back_at
        backoffs = net.view.backoffs
        pauses = [backoffs[o].relaunch_at for o in net.spot_offers if o in backoffs]
        return min([at for at in pauses if at > now], default=now + AGAIN)

    def _turn(self, net: "SafetyNet") -> Turn | None:
        if net.due:
            self._give_up_spot(net)
            return Turn(net.fallback, "one more loss on spot would leave no time for on-demand")
        situation = net.situation
        if not situation.itinerary.stage_plan.on_spot:
            return self._return_to_spot(net)
        situation.itinerary.probes.clear()
        if not situation.missing:
            situation.excluded = self._dry
        return self._wait(net)

    def _give_up_spot(self, net: "SafetyNet") -> None:
        net.itinerary.probes.clear()
        self._waits_until = None
        self._back_at = net.view.now + AGAIN * 2**self._detours

    # ---- on spot ----------------------------------------------------------------------------

    def _wait(self, net: "SafetyNet") -> Turn | None:
        """Wait for unavailable spot while nothing is rented; None if there is no wait."""
        view = net.view
        missing = net.situation.missing
        heard = net.itinerary.heard.values()
        if not missing or max(heard, default=0.0) > self._waits_since:
            self._waits_until = None
            self._waits_since = view.now
            self._stood_in.clear()
        if view.fleet.staying() or not all(o.spot and view.avoided(o) for o in missing):
            return None
        # Another spot pool may be available.
        dry = all(map(view.avoided, net.spot_offers))
        alternative = net.fallback if dry else net.situation.other()
        if alternative is None:
            return None
        away = ", ".join(map(offer_text, missing))
        why = f"{away} can't be had"
        if net.may_replace_pool(alternative):
            pools = away, stage_text(alternative.stages[0])
            reported = pools in self._stood_in
            self._stood_in.add(pools)
            return Turn(alternative, "" if reported else why)
        if alternative.estimate.dollars <= (1 + NOISE) * net.situation.present.estimate.dollars:
            return None
        if self._waits_until is None:
            self._waits_until = view.now + net.patience
        pause = max(view.backoffs[offer].relaunch_at - view.now for offer in missing)
        if view.now + pause > self._waits_until or not net.may_wait(pause):
            self._give_up_spot(net)
            return None
        until = format_seconds(self._waits_until)
        return Turn(None, why, f"waits for it, until {until} at most")

    # ---- on demand --------------------------------------------------------------------------

    def _return_to_spot(self, net: "SafetyNet") -> Turn | None:
        """Return to spot if some is available, or may be; None to stay on demand."""
        situation = net.situation
        now = net.view.now
        probes = situation.itinerary.probes
        staying = net.view.fleet.staying()
        requested = [rented for rented in staying if rented.offer in probes]
        if requested and not situation.missing and not all(r.joined for r in requested):
            return Turn()
        probes.clear()
        settled = not situation.missing and all(rented.joined for rented in staying)
        may_try = requested or net.may_try(patient=now >= self._back_at)
        if requested:  # that pool has instances; whether others have is unknown
            there = {rented.offer for rented in requested}
            situation.excluded = [offer for offer in net.spot_offers if offer not in there]
        plan = situation.other() if may_try and settled else None
        # Whatever else is planned now, it doesn't use spot.
        if net.can_finish:
            situation.excluded = net.spot_offers
        if plan is None:
            return None
        if requested:
            why = f"{offer_text(requested[0].offer)} can be had again"
            return Turn(plan, why) if net.may_take(plan) else None
        both = net.is_admissible(plan)
        if not (both or now >= self._back_at) or not net.may_leave(plan):
            return None
        if both:
            probes.update(net.missing_spot(plan))
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
        if last is not None and _still_best(*last, request):
            return last[1]
        plan = QUICK.within(request)
        if plan is not None:
            self._last[request.objective] = request, plan
        return plan

    def in_hand(self, request: PlanRequest) -> Plan | None:
        """Return the rest of the last fastest or cheapest plan, if it still fits: no search.

        The fastest doesn't count once it has become too expensive beside the cheapest.
        """
        fastest, cheapest = (self._remaining_plan(by, request) for by in ("time", "cost"))
        if cheapest is None:
            return None
        most = DEARER * cheapest.estimate.dollars
        for plan in filter(None, (fastest, cheapest)):
            if request.allowance.admit(plan.estimate) and plan.estimate.dollars <= most:
                return plan
        return None

    def _remaining_plan(self, objective: Objective, request: PlanRequest) -> Plan | None:
        """Return the rest of the last plan for an objective, at present speeds and prices."""
        if objective not in self._last:
            return None
        _, plan = self._last[objective]
        stages = plan.stages[-len(request.work) :]
        if [s.stage.end_epoch for s in stages] != [stage.end_epoch for stage in request.work]:
            return None
        most = {rentable.offer: rentable.most for rentable in request.rentables}
        groups = [group for stage in stages for group in stage.groups]
        if any(group.instances > most.get(group.offer, 0) for group in groups):
            return None
        return price(request, fill_choices(stages, request.work), plan.planner)


def _still_best(before: PlanRequest, plan: Plan, request: PlanRequest) -> bool:
    """Whether the best plan of an earlier request is the best of this one, with narrower limits."""
    allowance = request.allowance
    wider = before.allowance
    pairs = (allowance.seconds, wider.seconds), (allowance.dollars, wider.dollars)
    narrower = all(wide is None or (mine is not None and mine <= wide) for mine, wide in pairs)
    same = replace(request, allowance=wider) == before
    return narrower and same and allowance.admit(plan.estimate)


class SafetyNet:
    """Whether and how a run can be finished on demand, in seconds and dollars.

    All its plans leave the usual reserve and margin.
    """

    def __init__(self, situation: Situation, answers: Answers) -> None:
        self.situation = situation
        self.view = situation.view
        self.itinerary = situation.itinerary
        self._answers = answers

    @cached_property
    def applies(self) -> bool:
        """Whether there are both markets and a deadline, and the objective isn't time."""
        plan = self.itinerary.first_plan
        if self.view.limits.deadline is None or plan.objective != "cost" or plan.wished is not None:
            return False
        offers = (rentable.offer for rentable in self.view.rentables)
        return len({offer.market for offer in offers if not self.view.barred(offer)}) > 1

    @cached_property
    def spot_offers(self) -> Sequence[Offer]:
        return [rentable.offer for rentable in self.view.rentables if rentable.offer.spot]

    # ---- finishing on demand ----------------------------------------------------------------

    @cached_property
    def _request(self) -> PlanRequest:
        """The planning problem of the work, as if all spot instances were lost now."""
        look = self.situation
        request = look.problem(look.work, look.training, self.view.avoided)
        allowance = request.allowance
        seconds = None if allowance.seconds is None else allowance.seconds + look.rounded
        return replace(
            request,
            rentables=tuple(r for r in request.rentables if not r.offer.spot),
            fleet=tuple(live for live in request.fleet if not live.offer.spot),
            allowance=replace(allowance, seconds=seconds),
        )

    @cached_property
    def fallback(self) -> Plan | None:
        """The best plan for the work on demand; None if none keeps the limits."""
        return self._answers.within(self._request) if self._request.rentables else None

    @cached_property
    def _in_hand(self) -> Plan | None:
        return self._answers.in_hand(self._request)

    @property
    def can_finish(self) -> bool:
        """Whether a plan on demand keeps the limits."""
        return self._in_hand is not None or self.fallback is not None

    @cached_property
    def slack(self) -> float:
        """Seconds that the run can wait so that finishing on demand still fits.

        It fits even if everything on spot is lost by then. Negative if it doesn't fit now; -inf if
        it never does. Computed with the fastest plan that is hardly more expensive than the best,
        and with boots as late as they may be.
        """
        best = self.fallback
        if best is None:
            return -math.inf
        # The cheapest plan uses up the time it is given, so take the slack of a faster one.
        most = min(DEARER * best.estimate.dollars, self._budget)
        allowance = replace(self._request.allowance, dollars=max(0.0, most))
        request = replace(self._request, allowance=allowance, objective="time")
        return self._slack_by(self._answers.within(request))

    @property
    def _budget(self) -> float:
        """The dollars for finishing on demand once everything on spot is lost."""
        budget = self._request.allowance.dollars
        return math.inf if budget is None else budget - self.dollars

    def _slack_by(self, plan: Plan | None) -> float:
        """Return the slack that an on-demand plan leaves; -inf without one."""
        deadline = self._request.allowance.seconds
        if plan is None or deadline is None or plan.estimate.dollars > self._budget:
            return -math.inf
        return deadline - plan.estimate.seconds - self._late

    def _slacks(self) -> Iterator[float]:
        """Yield lower bounds of the slack, in order of their cost; the last one is exact."""
        yield self._slack_by(self._in_hand)
        yield self._slack_by(self.fallback)
        yield self.slack

    def spares(self, seconds: float) -> bool:
        """Whether there is that much slack, with as little search as possible."""
        return any(slack >= seconds for slack in self._slacks())

    @cached_property
    def _late(self) -> float:
        """Seconds by which an on-demand instance and its first trial may be late."""
        late = 0.0
        for rentable in self._request.rentables:
            delays = rentable.profile.launch, rentable.profile.boot, rentable.profile.start
            late = max(late, sum(delay.high - delay.mean for delay in delays))
        return late

    @cached_property
    def blind(self) -> float:
        """Extra seconds that the work may take on demand while no epoch has shown its speed.

        For waits, in which time passes and nothing is learned.
        """
        plan = self.fallback
        if plan is None or any(trial.history for trial in self.view.trials.values()):
            return 0.0
        error = max(rentable.profile.speed_error for rentable in self._request.rentables)
        # Two standard deviations of the profile's error.
        return 2 * error * plan.estimate.seconds

    # ---- what spot puts at stake ------------------------------------------------------------

    @cached_property
    def _spot(self) -> Sequence[tuple[Rentable, float]]:
        """The spot rentables at real speeds, and the seconds of an epoch there.

        At the widths of the present plan; those that aren't in the plan at their narrowest width.
        """
        widths = {group.offer: group.width for group in self.itinerary.groups_ahead}
        planned = [offer for offer in self.spot_offers if offer in widths]
        spot = []
        for rentable in map(self.situation.real, planned or self.spot_offers):
            width = widths.get(rentable.offer, rentable.profile.widths[0])
            spot.append((rentable, rentable.profile.epoch_seconds(width)))
        return spot

    @property
    def step(self) -> float:
        """Seconds of an epoch on spot: what an instance that trains loses at most."""
        return max((epoch for _, epoch in self._spot), default=0.0)

    @property
    def loss(self) -> float:
        """Seconds until a spot instance requested now has trained an epoch, plus one epoch.

        An interruption at the worst moment loses that much.
        """
        loss = 0.0
        for rentable, epoch in self._spot:
            delays = rentable.profile.launch, rentable.profile.boot, rentable.profile.resize
            loss = max(loss, LATE * sum(delay.mean for delay in delays) + 2 * epoch)
        return loss

    @cached_property
    def dollars(self) -> float:
        """What spot instances lost at the worst moment cost: as many as may be rented."""
        stages = self.itinerary.plan.stages
        most = max(group.instances for stage in stages for group in stage.groups)
        return most * max((offer.charge(self.loss) for offer in self.spot_offers), default=0.0)

    # ---- what follows -----------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether this is the last moment: from now on there is only time for on-demand.

        False if finishing on demand no longer fits: then it has no advantage over spot.
        """
        requests = any(o.spot and not self.view.avoided(o) for o in self.situation.missing)
        # Spot yet to be launched risks its boot too; spot that trains, one epoch.
        stake = self.loss if requests else self.step
        on_spot = self.itinerary.stage_plan.on_spot
        return on_spot and not self.spares(stake) and self.fallback is not None

    @property
    def looks_at(self) -> float:
        """The earliest run second at which the last moment may come, if nothing happens before."""
        least = max(self.step, 1.0)
        slack = -math.inf
        for slack in self._slacks():
            if slack > AGAIN + least:
                break
        return self.view.now + max(slack - self.step, least)

    @property
    def patience(self) -> float:
        """The longest wait, in seconds, for spot that has just become unavailable."""
        share = PATIENCE if self.room_for_both else 1.0
        return share * max(0.0, self.slack - self.blind)

    def may_wait(self, pause: float) -> bool:
        """Whether finishing on demand still fits if spot comes after a pause, and goes at once."""
        return self.spares(self.blind + pause + self.loss)

    def may_replace_pool(self, plan: Plan) -> bool:
        """Whether to follow a plan on another spot pool at once instead of waiting."""
        if not all(group.offer.spot for group in plan.stages[0].groups):
            return False
        dear = math.inf if self.fallback is None else self.fallback.estimate.dollars
        present = self.situation.present.estimate.dollars
        return plan.estimate.dollars <= present + NEXT_BEST * max(0.0, dear - present)

    def may_try(self, *, patient: bool) -> bool:
        """Whether a run on demand looks for spot; `patient`: even if that may cost time."""
        if all(map(self.view.avoided, self.spot_offers)) or not (patient or self.room_for_both):
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
        held = sum(o.usd_per_second * n for o, n in self.view.held.items())
        saved = self.situation.present.estimate.dollars - plan.estimate.dollars
        worth = saved > max(NOISE * plan.estimate.dollars, held * self.loss)
        return worth and self.spares(detour)

    def missing_spot(self, plan: Plan) -> Counter[Offer]:
        """Return the spot instances that a plan begins with and that aren't held."""
        groups = (group for group in plan.stages[0].groups if group.offer.spot)
        return Counter({g.offer: g.instances for g in groups}) - Counter(self.view.held)

    def may_take(self, plan: Plan) -> bool:
        """Whether to follow a plan that moves to spot instances which have joined."""
        present = self.situation.present.estimate.dollars
        saves = plan.estimate.dollars < (1 - NOISE) * present
        return plan.stages[0].on_spot and saves and self.spares(self.loss)

    def is_admissible(self, plan: Plan) -> bool:
        """Whether the cap admits a plan's spot instances on top of all that are alive."""
        alive = Counter(rented.offer for rented in self.view.fleet.alive())
        return self.view.admits(alive + self.missing_spot(plan))

    @cached_property
    def room_for_both(self) -> bool:
        """Whether the cap admits the planned spot instances and as many on-demand ones at once."""
        most = max(stage.instances for stage in self.itinerary.stages_ahead)
        return 2 * most <= self.view.max_instances
