"""The cost model: the one place that says how stages, hand-overs and bills add up.

Every planner's plan is priced here, by following every instance; the simulator with no spread takes
exactly these seconds and dollars (tests/parity). The rules, stage by stage:

- Of each offer the youngest instances stay, the others go, and missing ones are launched, all at
  once. If `max_instances` or a vCPU quota has no room for them beside instances that are still
  going, the launch waits until those are gone.
- A group with fresh instances begins when they have booted. In every wave, a trial then starts from
  scratch in its profile's `start`, or from a checkpoint in its `resize`.
- None of that is needed if every survivor stays in place: one offer before and now, one wave before
  and now, the same width, and either nothing goes, or enough stays that each survivor may have had
  its own instances (the policy keeps those with most survivors). A run may be behind this by one
  `resize` when the fleet grows: while fresh instances boot, the policy lets waiting trials take
  turns on the present ones, which is quicker at that moment.
- The stage is over when its last group is, and all instances are held until then.
- An offer billed by the function costs none of this. Each trial pays for its GPUs while it begins
  and trains (`usage`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Estimate, Group, Plan, Stage, StagePlan
from cloudtune.model.trial import Width
from cloudtune.planners.base import PlanRequest


@dataclass
class Holdings:
    """The instances rented at some point of a plan; ages in seconds, ascending.

    `widths` has the width of the trials on each offer; `settled` says whether each trial is on its
    GPUs (not so after a stage of several waves).
    """

    ages: dict[Offer, list[float]] = field(default_factory=dict)
    widths: dict[Offer, Width | None] = field(default_factory=dict)
    settled: bool = True


def price(
    request: PlanRequest,
    choices: Sequence[tuple[Group, ...]],
    planner: str,
    *,
    gap: float | None = None,
    status: str = "heuristic",
) -> Plan:
    """Return the plan with these choices, stage by stage, and its seconds and dollars."""
    holdings = Holdings(
        {live.offer: sorted(live.ages) for live in request.fleet if live.ages},
        {live.offer: live.width for live in request.fleet if live.ages},
    )
    stages: list[StagePlan] = []
    now = 0.0
    last = len(request.work) - 1
    for number, (stage, groups) in enumerate(zip(request.work, choices, strict=True)):
        planned = _Step(request, stage, groups, holdings).take(now, last=number == last)
        stages.append(planned)
        now += planned.seconds
    ending = max(_release_seconds(request, group.offer) for group in choices[-1])
    estimate = Estimate(now + ending, sum(stage.dollars for stage in stages))
    return Plan(
        planner=planner,
        stages=tuple(stages),
        estimate=estimate,
        max_instances=request.max_instances,
        gap=gap,
        status=status,
        charges=request.charges,
        vcpu_quotas=request.vcpu_quotas,
        objective=request.objective,
    )


def stays(holdings: Holdings, stage: Stage, groups: Sequence[Group], group: Group) -> bool:
    """Whether every survivor stays in place, whichever trials survive."""
    held = holdings.ages.get(group.offer, [])
    if len(groups) > 1 or len(holdings.ages) != 1 or not held or not holdings.settled:
        return False
    if group.waves > 1 or holdings.widths.get(group.offer) != group.width:
        return False
    spread = stage.trials * math.ceil(group.width / group.offer.gpus)
    return group.instances == len(held) or spread <= group.instances < len(held)


def usage(group: Group, seconds: float) -> float:
    """Return the dollars that a group's trials pay by the function, each for `seconds`."""
    return group.trials * group.width * seconds * group.offer.used_usd_per_second


def _release_seconds(request: PlanRequest, offer: Offer) -> float:
    return request.rentable(offer).profile.release.mean


@dataclass(frozen=True)
class _Step:
    """One stage, from the instances held at its start; `take` updates them."""

    request: PlanRequest
    stage: Stage
    groups: tuple[Group, ...]
    holdings: Holdings

    def take(self, now: float, *, last: bool) -> StagePlan:
        overheads = [self._overhead(group) for group in self.groups]
        trainings = [group.waves * self._training_seconds(group) for group in self.groups]
        seconds, overhead = max(
            (before + after, before) for before, after in zip(overheads, trainings, strict=True)
        )
        used = sum(self._function_dollars(group) for group in self.groups)
        dollars, billed = self._settle(seconds)
        dollars += used
        if last:
            dollars += self._end()
        busy = sum(
            group.trials * min(group.width, group.offer.gpus * group.instances) * training
            for group, training in zip(
                self.groups, map(self._training_seconds, self.groups), strict=True
            )
        )
        share = busy / billed if billed > 0 else 0.0
        return StagePlan(self.stage, self.groups, now, seconds, overhead, dollars, share)

    def _training_seconds(self, group: Group) -> float:
        return self.stage.epochs * self.request.rentable(group.offer).epoch_seconds(group.width)

    def _overhead(self, group: Group) -> float:
        profile = self.request.rentable(group.offer).profile
        begin = profile.start.mean if self.stage.start_epoch == 0 else profile.resize.mean
        if self._fresh(group) > 0:
            arrival = self._wait() + profile.launch.mean + profile.boot.mean
            return arrival + group.waves * begin
        if stays(self.holdings, self.stage, self.groups, group):
            return 0.0
        return group.waves * begin

    def _function_dollars(self, group: Group) -> float:
        """Return the dollars that the trials of a group pay by the function."""
        profile = self.request.rentable(group.offer).profile
        begin = profile.start.mean if self.stage.start_epoch == 0 else profile.resize.mean
        if self._fresh(group) == 0 and stays(self.holdings, self.stage, self.groups, group):
            begin = 0.0
        return usage(group, begin + self._training_seconds(group))

    def _fresh(self, group: Group) -> int:
        return max(0, group.instances - len(self.holdings.ages.get(group.offer, ())))

    def _going(self) -> dict[Offer, int]:
        wanted = {group.offer: group.instances for group in self.groups}
        going = {o: len(ages) - wanted.get(o, 0) for o, ages in self.holdings.ages.items()}
        return {offer: count for offer, count in going.items() if count > 0}

    def _wait(self) -> float:
        """Return the seconds that fresh instances wait for others to be gone."""
        going = self._going()
        alive = {offer: len(ages) for offer, ages in self.holdings.ages.items()}
        for group in self.groups:
            alive[group.offer] = alive.get(group.offer, 0) + self._fresh(group)
        if not going or self.request.admits(alive):
            return 0.0
        return max(_release_seconds(self.request, offer) for offer in going)

    def _settle(self, seconds: float) -> tuple[float, float]:
        """Advance the holdings to the stage's end; return its dollars and billed GPU-seconds."""
        dollars = seconds * self.request.charges.usd_per_second
        wait = self._wait()
        billed = 0.0
        for offer, count in self._going().items():
            ages = self.holdings.ages[offer]
            dollars += self._return(offer, ages[len(ages) - count :])
            self.holdings.ages[offer] = ages[: len(ages) - count]
        fresh = {group.offer: self._fresh(group) for group in self.groups}
        for group in self.groups:
            offer = group.offer
            new = fresh[offer]
            launch = self.request.rentable(offer).profile.launch.mean
            kept = self.holdings.ages.get(offer, [])
            lived = len(kept) * seconds + new * (seconds - wait - launch)
            dollars += lived * offer.held_usd_per_second
            dollars += new * self.request.charges.usd_per_launch
            billed += lived * offer.gpus
            ages = [age + seconds for age in kept] + [seconds - wait - launch] * new
            self.holdings.ages[offer] = sorted(ages)
        self.holdings.ages = {offer: ages for offer, ages in self.holdings.ages.items() if ages}
        self.holdings.widths = {group.offer: group.width for group in self.groups}
        self.holdings.settled = all(group.waves == 1 for group in self.groups)
        return dollars, billed

    def _end(self) -> float:
        """Return what returning everything costs, beyond the seconds lived so far."""
        longest = max(_release_seconds(self.request, offer) for offer in self.holdings.ages)
        bills = [self._return(offer, ages) for offer, ages in self.holdings.ages.items()]
        return sum(bills) + longest * self.request.charges.usd_per_second

    def _return(self, offer: Offer, ages: Sequence[float]) -> float:
        """Return what instances of these ages still cost when they are returned."""
        release = _release_seconds(self.request, offer)
        return sum(offer.charge(age + release) - age * offer.held_usd_per_second for age in ages)
