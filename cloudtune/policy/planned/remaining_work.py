"""The planning problem of the rest of a job, at one moment of its run.

It has the remaining work, time and money, the held instances, the speeds measured so far, and the
offers that the cloud doesn't refuse.
"""

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from cloudtune.model.catalog import Offer
from cloudtune.model.placement import slots
from cloudtune.model.plans import Allowance, Estimate, Group, Plan, Rentable, Stage, StagePlan
from cloudtune.model.progress import OVER
from cloudtune.model.trial import TrialId, Width
from cloudtune.planners.base import Live, Planner, PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.exact import quick_form
from cloudtune.planners.explore import plan_within
from cloudtune.planners.reserve import NOISE, Reserve, in_wished_time
from cloudtune.policy.planned.itinerary import Itinerary
from cloudtune.strategies.base import StagedStrategy, View

Place: TypeAlias = tuple[Offer, Width]
# An instance is late once joining takes this many times the expected time: review the plan.
LATE = 1.25


def allowance_now(view: View, reserve: Reserve) -> Allowance:
    """Return the seconds and dollars, from now on, that a plan for the rest may take."""
    remaining = view.limits.remaining(view.now, view.committed)
    return reserve.allowance(remaining.after(reserve.seconds))


def request_for_rest(
    view: View,
    itinerary: Itinerary,
    reserve: Reserve,
    *,
    work: tuple[Stage, ...],
    trials: Sequence[TrialId],
    barred: Callable[[Offer], bool],
) -> PlanRequest:
    """Return the planning problem of the rest: the `work` of these trials from now on.

    A plan may use no more instances of a `barred` offer than are held.
    """
    plan = itinerary.plan
    return PlanRequest(
        work=work,
        rentables=_adjust_rentables(view, reserve, trials, barred),
        allowance=allowance_now(view, reserve),
        max_instances=plan.max_instances,
        fleet=_held_instances(view, trials),
        charges=plan.charges,
        vcpu_quotas=plan.vcpu_quotas,
    )


def _held_instances(view: View, trials: Sequence[TrialId]) -> tuple[Live, ...]:
    """Return the instances that stay, with their ages in seconds.

    An instance carries the width of these trials only if every trial holds GPUs. If some are
    parked to let others train, the plan can't count on any trial staying in place.
    """
    started = [view.trials[name] for name in trials if name in view.trials]
    settled = len(started) == len(trials) and all(trial.live for trial in started)
    widths: dict[Offer, set[Width]] = {}
    for trial in started if settled else ():
        if trial.offer is not None:
            widths.setdefault(trial.offer, set()).add(trial.width)
    only = {offer: next(iter(own)) for offer, own in widths.items() if len(own) == 1}
    ages: dict[Offer, list[float]] = {}
    for rented in view.fleet.staying():
        ages.setdefault(rented.offer, []).append(max(0.0, view.now - rented.began_at))
    return tuple(
        Live(offer, tuple(sorted(offer_ages)), only.get(offer))
        for offer, offer_ages in ages.items()
    )


def _adjust_rentables(
    view: View, reserve: Reserve, trials: Sequence[TrialId], barred: Callable[[Offer], bool]
) -> tuple[Rentable, ...]:
    """Return the rentables at these trials' speeds; barred offers only as far as held."""
    held = view.held
    rentables = []
    for rentable in view.rentables:
        most = held[rentable.offer] if barred(rentable.offer) else rentable.most
        if most > 0:
            real = view.corrected(reserve.returned_late(rentable), trials)
            widths = [w for w in real.profile.widths if _may_start(view, w, real.offer)]
            profile = real.profile.only(widths) if widths else real.profile
            rentables.append(replace(real, profile=profile, most=most))
    return tuple(rentables)


def _may_start(view: View, width: Width, offer: Offer) -> bool:
    """Whether trials may start at a width: none has run out of memory at it."""
    return view.width_for(None, width, offer) == width


@dataclass(frozen=True)
class GoingOn:
    """What the rest of the present plan will take from now on, at measured speeds.

    `estimate` has the seconds from now to the end of training and the dollars, including the wait.
    """

    plan: Plan
    wait: float
    estimate: Estimate
    within: bool


class Rest:
    """One look at the rest of a run: its work, what the present plan will take, and alternatives.

    `training` are the trials that still have to train in the present stage; `members` includes
    those that wait at its rung. `fresh`: no trial has trained in the stage yet. `refused`: part of
    the stage's instances is unavailable now; `out_of_reach`: all that are missing are.
    """

    def __init__(
        self, view: View, itinerary: Itinerary, planner: Planner, reserve: Reserve
    ) -> None:
        self.view = view
        self.itinerary = itinerary
        self.planner = planner
        self.reserve = reserve
        self.tight = reserve.tight
        self._real: dict[Offer, Rentable] = {}
        self.training = tuple(itinerary.roster(view).names_to_train())
        missing = itinerary.missing(view)
        self.shuns: Collection[Offer] = ()  # another plan gets no more of these than is held
        self.refused = any(map(view.avoided, missing))
        self.out_of_reach = bool(missing) and all(map(view.refused, missing))
        first = itinerary.stage_plan.stage.start_epoch
        self.fresh = all(
            name not in view.trials or view.trials[name].epoch == first for name in self.training
        )

    # ---- the work that is left ----------------------------------------------------------------

    @property
    def rung(self) -> int:
        """The epoch at which the present stage ends."""
        return self.itinerary.stage_plan.stage.end_epoch

    @cached_property
    def members(self) -> tuple[TrialId, ...]:
        """The trials of the stage that aren't over, including those that wait at its rung."""
        trials = self.view.trials
        return tuple(
            n for n in self.itinerary.members if n not in trials or trials[n].status not in OVER
        )

    @cached_property
    def later(self) -> tuple[Stage, ...]:
        """Return the later stages as first planned, for the trials that are left."""
        # A best-effort plan has fewer trials. With room again, as many as first planned continue.
        itinerary = self.itinerary
        most = len(self.members) + len(self.itinerary.waiting)
        same = len(itinerary.first_plan.stages) == len(itinerary.plan.stages)
        plan = itinerary.first_plan if same else itinerary.plan
        stages = (planned.stage for planned in plan.stages[itinerary.stage + 1 :])
        return tuple(replace(stage, trials=min(stage.trials, most)) for stage in stages)

    @property
    def _takes_turns(self) -> bool:
        return any(group.waves > 1 for group in self.itinerary.stage_plan.groups)

    def real(self, offer: Offer) -> Rentable:
        """Return an offer's rentable at the speeds of the stage's trials."""
        if offer not in self._real:
            self._real[offer] = self.view.corrected(self.view.profiled(offer), self.members)
        return self._real[offer]

    @cached_property
    def _epochs_left(self) -> dict[TrialId, int]:
        trials = self.view.trials
        rung = self.rung
        return {
            name: max(1, rung - (trials[name].epoch if name in trials else 0))
            for name in self.training
        }

    @cached_property
    def work(self) -> tuple[Stage, ...]:
        """Return the remaining stages; of the present one, what its trials have yet to train.

        That is the mean if they take turns on the GPUs, otherwise the rest of the slowest trial.
        """
        left = self._epochs_left
        later = self.later
        mean = math.ceil(sum(left.values()) / len(left))
        epochs = mean if self._takes_turns else max(left.values())
        # Planners expect no stage with more trials than the one before.
        trials = max(len(left), later[0].trials if later else 0)
        return (Stage(trials, self.rung - epochs, self.rung), *later)

    @cached_property
    def rounded(self) -> float:
        """Seconds by which `work`, in whole epochs, overstates trials that take turns.

        Divided by the maximum number of instances.
        """
        groups = self.itinerary.stage_plan.groups
        left = self._epochs_left
        if not self._takes_turns or not left:
            return 0.0
        first = self.work[0]
        counted = first.epochs * first.trials
        epoch = min(self.real(group.offer).profile.epoch_seconds(group.width) for group in groups)
        least = min(group.width for group in groups)
        largest = max(rentable.offer.gpus for rentable in self.view.rentables)
        gpus = largest * self.itinerary.plan.max_instances
        return math.floor((counted - sum(left.values())) / max(1.0, gpus / least)) * epoch

    # ---- going on -----------------------------------------------------------------------------

    def going_on(self) -> GoingOn | None:
        """Return what the rest of the present plan takes; None if it can't be carried out.

        Its instances may be unavailable, or trials ran out of memory at its widths.
        """
        view = self.view
        missing = self.itinerary.missing(self.view)
        stages = self.itinerary.plan.stages[self.itinerary.stage :]
        groups = [group for stage in stages for group in stage.groups]
        startable = all(_may_start(view, group.width, group.offer) for group in groups)
        if any(map(view.refused, missing)) or not startable:
            return None
        plan = self.present()
        pauses = [view.backoffs[o].relaunch_at - view.now for o in missing if o in view.backoffs]
        wait = self._wait() - max(self.rounded, self._overlap(plan)) + max([0.0, *pauses])
        seconds = wait + sum(stage.seconds for stage in plan.stages)
        estimate = Estimate(seconds, plan.estimate.dollars + wait * self._rate)
        return GoingOn(plan, wait, estimate, self._keeps(estimate))

    def _overlap(self, plan: Plan) -> float:
        """Return the seconds by which trials that take turns finish before whole rounds would.

        A plan prices whole rounds. In the middle of one, some trials are almost done, and the next
        takes over the GPUs of each that ends; a trial in its last second isn't a whole round.
        """
        view = self.view
        stage = self.itinerary.stage_plan
        all_joined = all(r.joined for r in view.fleet.staying()) and not self.itinerary.missing(
            view
        )
        if not self._takes_turns or not all_joined:
            return 0.0
        profiles = [(self.real(group.offer).profile, group.width) for group in stage.groups]
        epoch = max(profile.epoch_seconds(width) for profile, width in profiles)
        start = max(profile.start.mean for profile, _ in profiles)
        at_once = sum(slots(g.width, g.offer.gpus, g.instances) for g in stage.groups)
        ends: list[float] = []
        queue: list[float] = []
        for name, epochs in self._epochs_left.items():
            trial = view.trials.get(name)
            if trial is None or not trial.live:
                queue.append(start + epochs * epoch)
            else:
                gone = view.now - trial.epoch_since if trial.status == "training" else 0.0
                ends.append(epochs * epoch - min(gone, epoch))
        ends += [0.0] * (at_once - len(ends))
        heapq.heapify(ends)
        for seconds in sorted(queue, reverse=True):
            heapq.heapreplace(ends, ends[0] + seconds)
        return max(0.0, plan.stages[0].seconds - max(ends))

    def present(self) -> Plan:
        """Return the rest of the present plan at measured speeds, as if all were available."""
        stages = self.itinerary.plan.stages[self.itinerary.stage :]
        offers = {group.offer for stage in stages for group in stage.groups}
        request = self.request(self.work, self.training, lambda offer: offer not in offers)
        return price(request, fill_choices(stages, request.work), self.itinerary.plan.planner)

    def _keeps(self, estimate: Estimate) -> bool:
        """Whether continuing keeps the limits, less the share that `tight` holds in reserve."""
        view = self.view
        share = 1 - self.tight.share
        deadline = view.limits.deadline
        budget = view.limits.budget
        in_time = deadline is None or estimate.seconds <= share * (
            deadline - view.now - self.reserve.seconds
        )
        return in_time and (budget is None or estimate.dollars <= share * (budget - view.committed))

    @property
    def _rate(self) -> float:
        """Dollars per second of the held instances."""
        held = sum(offer.held_usd_per_second * n for offer, n in self.view.held.items())
        return held + self.itinerary.plan.charges.usd_per_second

    def _wait(self) -> float:
        """Return the seconds until all held instances train; negative in the middle of epochs."""
        view = self.view
        boot = 0.0
        for rented in view.fleet.staying():
            if not rented.joined:
                gone = view.now - rented.requested_at
                left = joins_in(view, rented.offer) - gone
                # A late one may come at any moment, or never: the later it is, the longer the wait.
                late = gone * (LATE - 1)
                boot = max(boot, left, min(left + late, late))
        started = [view.trials[name] for name in self.training if name in view.trials]
        if boot > 0 or len(started) < len(self.training):
            return max(0.0, boot)
        epochs = self._epochs_left
        most = max(epochs.values())
        behind = [t for t in started if epochs[t.id] == most]
        if any(t.status != "training" or t.id not in self.itinerary.heard for t in behind):
            return 0.0
        return -min(min(view.now - self.itinerary.heard[t.id], t.epoch_seconds) for t in behind)

    # ---- another plan -------------------------------------------------------------------------

    def request(
        self,
        work: tuple[Stage, ...],
        trials: Sequence[TrialId],
        barred: Callable[[Offer], bool],
        reserve: Reserve | None = None,
    ) -> PlanRequest:
        """Return the planning problem of some work from now on; `reserve` is for best effort."""
        request = request_for_rest(
            self.view,
            self.itinerary,
            reserve or self.reserve,
            work=work,
            trials=trials,
            barred=barred,
        )
        wait = self._wait() - self.rounded
        deadline = request.allowance.seconds
        budget = request.allowance.dollars
        if reserve is not None and deadline is not None:
            # Best effort may train until the run winds down, which leaves time for the returns.
            deadline += reserve.seconds * (1 - reserve.share)
        allowance = Allowance(
            None if deadline is None else max(0.0, deadline - wait),
            None if budget is None else max(0.0, budget - wait * self._rate),
        )
        return replace(request, allowance=allowance, objective=self.itinerary.plan.objective)

    def other(self) -> Plan | None:
        """Return the best plan for the rest by what the run has seen; None if none fits."""
        request = self.request(self.work, self.training, self.not_now)
        planner = quick_form(self.planner)
        wished = self._in_wished_time(request)
        if wished is not None:
            plan = plan_within(planner, wished)
            going_on = self.going_on()
            if plan is not None or (going_on is not None and going_on.within):
                return plan
        return plan_within(planner, request)

    def not_now(self, offer: Offer) -> bool:
        """Whether another plan must not add instances of an offer."""
        return offer in self.shuns or self.view.avoided(offer)

    def _in_wished_time(self, request: PlanRequest) -> PlanRequest | None:
        """Return a request that also keeps the time that the plan was chosen for, if any."""
        wished = self.itinerary.first_plan.wished
        if wished is None:
            return None
        began = self.itinerary.stage_began[0] if self.itinerary.stage_began else self.view.now
        seconds = began + wished * (1 + NOISE) - self.view.now
        allowed = request.allowance
        soon = in_wished_time(allowed.seconds, seconds)
        return replace(request, allowance=replace(allowed, seconds=soon))

    def furthest_epoch(self, going_on: GoingOn) -> float:
        """Return the epoch that the last trial reaches before a limit ends the run."""
        allowance = allowance_now(self.view, replace(self.reserve, share=0.0))
        time = math.inf if allowance.seconds is None else allowance.seconds - going_on.wait
        money = math.inf if allowance.dollars is None else allowance.dollars
        epoch = float(going_on.plan.stages[0].stage.start_epoch)
        for stage in going_on.plan.stages:
            training = max(stage.seconds - stage.overhead, 1e-9)
            rate = max(stage.dollars / stage.seconds, 1e-12) if stage.seconds > 0 else 1e-12
            lasts = min(time, money / rate)
            if lasts < stage.seconds:
                part = max(0.0, lasts - stage.overhead) / training
                return epoch + part * stage.stage.epochs
            time = time - stage.seconds
            money = money - stage.dollars
            epoch = float(stage.stage.end_epoch)
        return epoch


def follow_from_now(itinerary: Itinerary, rest: Plan, view: View) -> None:
    """Follow a plan that begins now, in the middle of the present stage.

    The stage keeps what its plan said up to now.
    """
    old = itinerary.stage_plan
    began = itinerary.stage_began[-1]
    number = itinerary.stage
    gone = view.now - began
    share = min(1.0, gone / old.seconds) if old.seconds > 0 else 0.0
    itinerary.splice(rest, number, view)
    new = itinerary.stage_plan
    begun = replace(
        new,
        stage=replace(new.stage, start_epoch=old.stage.start_epoch),
        begin=began,
        seconds=gone + new.seconds,
        dollars=share * old.dollars + new.dollars,
    )
    stages = (*itinerary.plan.stages[:number], begun, *itinerary.plan.stages[number + 1 :])
    itinerary.plan = replace(itinerary.plan, stages=stages)


def places(itinerary: Itinerary) -> set[Place]:
    """Return every place where the rest of the plan trains."""
    stages = itinerary.plan.stages[itinerary.stage :]
    return {(group.offer, group.width) for stage in stages for group in stage.groups}


def joins_in(view: View, offer: Offer) -> float:
    """Return the seconds from a request until the instance joins, as seen in this run."""
    return view.delay(offer, "launch") + view.delay(offer, "boot")


def fill_choices(stages: Sequence[StagePlan], work: Sequence[Stage]) -> list[tuple[Group, ...]]:
    """Return the groups of planned stages, filled for some work, stage by stage."""
    return [
        _fill_groups(plan.groups, stage.trials) for plan, stage in zip(stages, work, strict=True)
    ]


def _fill_groups(groups: Sequence[Group], trials: int) -> tuple[Group, ...]:
    """Return the groups with `trials` in total, in as many rounds as that takes."""
    filled = []
    left = trials
    for number, group in enumerate(groups):
        count = left if number == len(groups) - 1 else min(group.trials, left)
        left -= count
        if count > 0:
            at_once = max(1, slots(group.width, group.offer.gpus, group.instances))
            filled.append(replace(group, trials=count, waves=math.ceil(count / at_once)))
    return tuple(filled)


class HalvingSchedule:
    """Successive halving by its own stages: the results never change the plan.

    Its first stage is the itinerary's stage `begins`.
    """

    def __init__(self, strategy: StagedStrategy, name: str = "sha", begins: int = 0) -> None:
        self.name = name
        self._strategy = strategy
        self._begins = begins

    def promote(
        self, view: View, itinerary: Itinerary, results: Mapping[TrialId, float | None]
    ) -> tuple[TrialId, ...]:
        """Return the best of the rung, as many as the next stage takes."""
        return self._strategy.promote(itinerary.stage - self._begins, results)
