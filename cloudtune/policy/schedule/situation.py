"""What is ahead of a planned run at one moment: what is to be done, what it takes, other plans.

All by what the run has seen: its speeds, delays, instances and refusals (`View.corrected`).
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cloudtune.model.catalog import Offer
from cloudtune.model.placement import slots
from cloudtune.model.plans import (
    Allowance,
    Estimate,
    Group,
    Plan,
    Remaining,
    Rentable,
    Stage,
    StagePlan,
)
from cloudtune.model.trial import TrialId, Width
from cloudtune.planners.base import Live, Planner, PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.exact import quick_form
from cloudtune.planners.explore import plan_within
from cloudtune.planners.reserve import NOISE, Reserve, in_wished_time
from cloudtune.policy.schedule.itinerary import Itinerary
from cloudtune.strategies.base import View

# An instance is late once joining takes this many times the expected time: review the plan.
LATE = 1.25
_NO_RESERVE = Reserve(0.0, share=0.0)


def joins_in(view: View, offer: Offer) -> float:
    """Return the seconds from a request until the instance joins, as seen in this run."""
    return view.delay(offer, "launch") + view.delay(offer, "boot")


@dataclass
class Situation:
    """What is ahead of a run: the work, what the present plan will take, and other plans.

    Another plan gets no more instances of the `excluded` offers than are held.
    """

    view: View
    itinerary: Itinerary
    planner: Planner
    reserve: Reserve
    excluded: Collection[Offer] = ()

    def __post_init__(self) -> None:
        self._real: dict[Offer, Rentable] = {}

    @cached_property
    def missing(self) -> Collection[Offer]:
        """The offers of which the stage has yet to get instances."""
        return self.itinerary.missing(self.view)

    @property
    def refused(self) -> bool:
        """Whether a part of the missing instances is unavailable now."""
        return any(map(self.view.avoided, self.missing))

    def real(self, offer: Offer) -> Rentable:
        """Return an offer's rentable at the speeds of the stage's trials."""
        if offer not in self._real:
            self._real[offer] = self.view.corrected(self.view.profiled(offer), self.members)
        return self._real[offer]

    # ---- what is to be done -------------------------------------------------------------------

    @cached_property
    def members(self) -> tuple[TrialId, ...]:
        """The trials of the stage that aren't over, including those that wait at its rung."""
        return self.itinerary.survivors(self.view)

    @cached_property
    def _epochs(self) -> dict[TrialId, int]:
        """The epochs to the rung, of the trials that still have to train in the stage."""
        trials = self.view.trials
        rung = self.itinerary.stage_plan.stage.end_epoch
        return {
            name: max(1, rung - (trials[name].epoch if name in trials else 0))
            for name in self.itinerary.roster(self.view).names_to_train()
        }

    @property
    def training(self) -> tuple[TrialId, ...]:
        """The trials that still have to train in the stage."""
        return tuple(self._epochs)

    @property
    def fresh(self) -> bool:
        """Whether no trial has trained in the stage yet."""
        stage = self.itinerary.stage_plan.stage
        trials = self.view.trials
        return all(
            name not in trials or trials[name].epoch == stage.start_epoch for name in self._epochs
        )

    @cached_property
    def later(self) -> tuple[Stage, ...]:
        """The later stages as first planned, for the trials that there still are."""
        # A best-effort plan has fewer trials. With room again, as many as first planned continue.
        itinerary = self.itinerary
        most = len(self.members) + len(itinerary.waiting)
        same = len(itinerary.first_plan.stages) == len(itinerary.plan.stages)
        plan = itinerary.first_plan if same else itinerary.plan
        stages = (planned.stage for planned in plan.stages[itinerary.stage + 1 :])
        return tuple(replace(stage, trials=min(stage.trials, most)) for stage in stages)

    @property
    def _takes_turns(self) -> bool:
        return any(group.waves > 1 for group in self.itinerary.stage_plan.groups)

    @cached_property
    def work(self) -> tuple[Stage, ...]:
        """The remaining stages; of the present one, what its trials have yet to train.

        That is the mean if they take turns on the GPUs, otherwise what the slowest trial has.
        """
        counts = self._epochs.values()
        mean = math.ceil(sum(counts) / len(counts))
        epochs = mean if self._takes_turns else max(counts)
        # Planners expect no stage with more trials than the one before.
        trials = max([len(counts), *(stage.trials for stage in self.later[:1])])
        rung = self.itinerary.stage_plan.stage.end_epoch
        return (Stage(trials, rung - epochs, rung), *self.later)

    @cached_property
    def rounded(self) -> float:
        """Seconds by which `work`, in whole epochs, overstates trials that take turns.

        Divided by the maximum number of instances.
        """
        groups = self.itinerary.stage_plan.groups
        if not self._takes_turns or not self._epochs:
            return 0.0
        first = self.work[0]
        surplus = first.epochs * first.trials - sum(self._epochs.values())
        epoch = min(self.real(group.offer).profile.epoch_seconds(group.width) for group in groups)
        least = min(group.width for group in groups)
        largest = max(rentable.offer.gpus for rentable in self.view.rentables)
        gpus = largest * self.itinerary.plan.max_instances
        return math.floor(surplus / max(1.0, gpus / least)) * epoch

    # ---- the present plan ---------------------------------------------------------------------

    @cached_property
    def present(self) -> Plan:
        """What is ahead in the present plan, at measured speeds, as if all were available."""
        offers = {group.offer for group in self.itinerary.groups_ahead}
        problem = self.problem(self.work, self.training, lambda offer: offer not in offers)
        choices = fill_choices(self.itinerary.stages_ahead, self.work)
        return price(problem, choices, self.itinerary.plan.planner)

    @cached_property
    def going_on(self) -> Estimate | None:
        """What the present plan takes until training ends; None if it can't be carried out.

        Its instances may be unavailable, or trials ran out of memory at its widths.
        """
        groups = self.itinerary.groups_ahead
        startable = all(self._may_start(group.width, group.offer) for group in groups)
        if any(map(self.view.refused, self.missing)) or not startable:
            return None
        plan = self.present
        seconds = self.delay + sum(stage.seconds for stage in plan.stages)
        return Estimate(seconds, plan.estimate.dollars + self.delay * self._rate)

    @property
    def within(self) -> bool:
        """Whether going on keeps the limits, less half of the usual share for surprises."""
        allowance = self._allowance(self.reserve.tight)
        return self.going_on is not None and allowance.admit(self.going_on)

    @cached_property
    def delay(self) -> float:
        """Seconds that going on takes on top of its stages; negative in the middle of epochs."""
        backoffs = self.view.backoffs
        pauses = [backoffs[o].relaunch_at - self.view.now for o in self.missing if o in backoffs]
        return self._wait - max(self.rounded, self._overlap()) + max([0.0, *pauses])

    def _overlap(self) -> float:
        """Return the seconds by which trials that take turns finish before whole rounds would.

        A plan prices whole rounds. In the middle of one, some trials are almost done, and the next
        takes over the GPUs of each that ends; a trial in its last second isn't a whole round.
        """
        view = self.view
        groups = self.itinerary.stage_plan.groups
        all_joined = all(rented.joined for rented in view.fleet.staying()) and not self.missing
        if not self._takes_turns or not all_joined:
            return 0.0
        profiles = [self.real(group.offer).profile for group in groups]
        epoch = max(p.epoch_seconds(g.width) for p, g in zip(profiles, groups, strict=True))
        start = max(profile.start.mean for profile in profiles)
        ends: list[float] = []
        queue: list[float] = []
        for name, epochs in self._epochs.items():
            trial = view.trials.get(name)
            if trial is None or not trial.live:
                queue.append(start + epochs * epoch)
            else:
                gone = view.now - trial.epoch_since if trial.status == "training" else 0.0
                ends.append(epochs * epoch - min(gone, epoch))
        at_once = sum(slots(g.width, g.offer.gpus, g.instances) for g in groups)
        ends += [0.0] * (at_once - len(ends))
        heapq.heapify(ends)
        for seconds in sorted(queue, reverse=True):
            heapq.heapreplace(ends, ends[0] + seconds)
        return max(0.0, self.present.stages[0].seconds - max(ends))

    @property
    def _rate(self) -> float:
        """Dollars per second of the held instances."""
        held = sum(offer.held_usd_per_second * n for offer, n in self.view.held.items())
        return held + self.itinerary.plan.charges.usd_per_second

    @cached_property
    def _wait(self) -> float:
        """Seconds until all held instances train; negative in the middle of epochs."""
        view = self.view
        boot = 0.0
        for rented in view.fleet.staying():
            if not rented.joined:
                gone = view.now - rented.requested_at
                to_come = joins_in(view, rented.offer) - gone
                # A late one may come at any moment, or never: the later it is, the longer the wait.
                late = gone * (LATE - 1)
                boot = max(boot, to_come, min(to_come + late, late))
        epochs = self._epochs
        started = [view.trials[name] for name in epochs if name in view.trials]
        if boot > 0 or len(started) < len(epochs):
            return boot
        most = max(epochs.values())
        behind = [trial for trial in started if epochs[trial.id] == most]
        heard = self.itinerary.heard
        if any(trial.status != "training" or trial.id not in heard for trial in behind):
            return 0.0
        return -min(min(view.now - heard[trial.id], trial.epoch_seconds) for trial in behind)

    # ---- other plans --------------------------------------------------------------------------

    def problem(
        self, work: tuple[Stage, ...], trials: Sequence[TrialId], barred: Callable[[Offer], bool]
    ) -> PlanRequest:
        """Return the planning problem of some work of these trials from now on.

        A plan may use no more instances of a `barred` offer than are held.
        """
        plan = self.itinerary.plan
        return PlanRequest(
            work=work,
            rentables=self._rentables(trials, barred),
            allowance=self._allowance(self.reserve),
            max_instances=plan.max_instances,
            fleet=self._held_instances(trials),
            charges=plan.charges,
            objective=plan.objective,
            vcpu_quotas=plan.vcpu_quotas,
        )

    def _allowance(self, reserve: Reserve) -> Allowance:
        """Return what a plan may take from now on."""
        return reserve.allowance(self.remaining.after(reserve.seconds))

    @property
    def remaining(self) -> Remaining:
        """What is left of the run's limits."""
        return self.view.limits.remaining(self.view.now, self.view.committed)

    def _rentables(
        self, trials: Sequence[TrialId], barred: Callable[[Offer], bool]
    ) -> tuple[Rentable, ...]:
        """Return the rentables at these trials' speeds; barred offers only as far as held."""
        view = self.view
        rentables = []
        for rentable in view.rentables:
            most = view.held[rentable.offer] if barred(rentable.offer) else rentable.most
            if most > 0:
                real = view.corrected(self.reserve.returned_late(rentable), trials)
                widths = [w for w in real.profile.widths if self._may_start(w, real.offer)]
                profile = real.profile.only(widths) if widths else real.profile
                rentables.append(replace(real, profile=profile, most=most))
        return tuple(rentables)

    def _may_start(self, width: Width, offer: Offer) -> bool:
        """Whether trials may start at a width: none has run out of memory at it."""
        return self.view.width_for(None, width, offer) == width

    def _held_instances(self, trials: Sequence[TrialId]) -> tuple[Live, ...]:
        """Return the instances that stay, with their ages in seconds.

        An instance carries the width of these trials only if every trial holds GPUs. If some are
        parked to let others train, the plan can't count on any trial staying in place.
        """
        view = self.view
        started = [view.trials[name] for name in trials if name in view.trials]
        settled = len(started) == len(trials) and all(trial.live for trial in started)
        widths = {(trial.offer, trial.width) for trial in started if settled}
        ages = defaultdict[Offer, list[float]](list)
        for rented in view.fleet.staying():
            ages[rented.offer].append(max(0.0, view.now - rented.began_at))
        held = []
        for offer, seconds in ages.items():
            there = [width for place, width in widths if place == offer]
            held.append(Live(offer, tuple(sorted(seconds)), there[0] if len(there) == 1 else None))
        return tuple(held)

    def best_effort_problem(
        self, work: tuple[Stage, ...], trials: Sequence[TrialId]
    ) -> PlanRequest:
        """Return the planning problem of work with which the limits are used up."""
        tight = replace(self, reserve=self.reserve.tight)
        problem = tight.problem(work, trials, self.unavailable)
        # It may train until the run winds down, which leaves time for the returns.
        allowance = tight.reserve.allowance(self.remaining)
        return self._after_wait(replace(problem, allowance=allowance))

    def _after_wait(self, problem: PlanRequest) -> PlanRequest:
        """Return a problem without the time and money until all held instances train."""
        wait = self._wait - self.rounded
        remaining = problem.allowance.remaining(wait, wait * self._rate)
        return replace(problem, allowance=_NO_RESERVE.allowance(remaining))

    def unavailable(self, offer: Offer) -> bool:
        """Whether another plan must not add instances of an offer."""
        return offer in self.excluded or self.view.avoided(offer)

    def other(self) -> Plan | None:
        """Return the best plan for the work by what the run has seen; None if none fits."""
        request = self._after_wait(self.problem(self.work, self.training, self.unavailable))
        planner = quick_form(self.planner)
        wished = self.itinerary.first_plan.wished
        if wished is not None:
            # First in the time that the plan was chosen for.
            began = next(iter(self.itinerary.stage_began), self.view.now)
            seconds = began + wished * (1 + NOISE) - self.view.now
            soon = in_wished_time(request.allowance.seconds, seconds)
            allowance = replace(request.allowance, seconds=soon)
            plan = plan_within(planner, replace(request, allowance=allowance))
            if plan is not None or self.within:
                return plan
        return plan_within(planner, request)


def fill_choices(stages: Sequence[StagePlan], work: Sequence[Stage]) -> list[tuple[Group, ...]]:
    """Return the groups of planned stages, filled for some work, stage by stage."""
    return [
        _fill_groups(plan.groups, stage.trials) for plan, stage in zip(stages, work, strict=True)
    ]


def _fill_groups(groups: Sequence[Group], trials: int) -> tuple[Group, ...]:
    """Return the groups with `trials` in total, in as many rounds as that takes."""
    filled = []
    for group in groups:
        count = trials if group is groups[-1] else min(group.trials, trials)
        trials -= count
        if count > 0:
            at_once = max(1, slots(group.width, group.offer.gpus, group.instances))
            filled.append(replace(group, trials=count, waves=math.ceil(count / at_once)))
    return tuple(filled)
