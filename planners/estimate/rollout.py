"""A plan simulated many times at once, with every duration drawn.

The rules are those of planners/cost_model.py; without spread the seconds and dollars are the same.
With spread, each instance joins at its own time, and each trial starts when there is one for it:

- Trials start on present instances while others are still booting, unless the cost model expects
  them to wait: in several waves, until the first other one has joined.
- A stage is over when its last trial is done, so stragglers make it longer than its mean.
- `ScalingProfile.speed_error` is one factor for all epochs on an instance type, drawn once per
  sample.
- Spot instances are interrupted at random, instead of slowing every epoch by the mean cost of that
  (`Rentable.epoch_seconds`). The behaviour of a pool is drawn once per sample, if several are
  possible; while the pool is dry, the plan waits for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Allowance, Group, Plan, Stage
from cloudtune.planners.arrays import Floats, Ints
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.cost_model import Holdings, stays
from cloudtune.planners.estimate.draws import Dice
from cloudtune.planners.estimate.training import (
    Fleet,
    PoolDraws,
    TrainingDraws,
    charge,
    instances_per_trial,
    slots_per_instance,
)


@dataclass(frozen=True)
class Draws:
    """The seconds from now, dollars and paid GPU-hours of a plan, by sample.

    `slowness` is the factor on the profile's epochs for the offer of the first stage.
    """

    seconds: Floats
    dollars: Floats
    gpu_hours: Floats
    slowness: Floats


# The number of draws of one command.
_REMEMBERED = 4
_recent: list[tuple[tuple[PlanRequest, Plan, int, int], Draws]] = []


def sample(request: PlanRequest, plan: Plan, *, samples: int, seed: int) -> Draws:
    """Return draws of a plan; the same seed and plan give the same draws.

    The last few are cached: some of a plan's alternatives have the same stages.
    """
    question = (replace(request, allowance=Allowance(), objective="cost"), plan, samples, seed)
    for earlier, draws in _recent:
        if earlier == question:
            return draws
    play = _Play(request, plan, Dice(samples, seed))
    for planned in plan.stages:
        play.stage(planned.stage, planned.groups)
    draws = play.end()
    _recent.insert(0, (question, draws))
    del _recent[_REMEMBERED:]
    return draws


class _Play:
    """The instances rented in each sample, and what they have cost so far."""

    def __init__(self, request: PlanRequest, plan: Plan, dice: Dice) -> None:
        self.request = request
        self.dice = dice
        self.now, self.dollars, self.gpu_seconds = (np.zeros(dice.samples) for _ in range(3))
        self.fleets: dict[Offer, Fleet] = {}
        self.widths = {live.offer: live.width for live in request.fleet}
        self.pools: dict[Offer, PoolDraws] = {}
        # From the previous stage: whether each trial had its own place, how many trials each
        # instance had, and how many there were. They decide which trials may stay in place.
        self.settled = True
        self.loads: dict[Offer, list[int]] = {}
        self.members = 0
        for live in request.fleet:
            ages = np.tile(live.ages, (dice.samples, 1))
            self.fleets[live.offer] = Fleet(live.offer, -ages, -ages)
            self.dollars -= sum(live.ages) * live.offer.held_usd_per_second  # already paid
            self.gpu_seconds -= sum(live.ages) * live.offer.gpus
        self.slowness = self._slowness(plan)

    def stage(self, stage: Stage, groups: Sequence[Group]) -> None:
        staying = self._staying(stage, groups)
        wanted = {group.offer: group.instances for group in groups}
        offers = dict.fromkeys([*self.fleets, *wanted])
        alive = {offer: max(self._held_count(offer), wanted.get(offer, 0)) for offer in offers}
        gone = self._give_back(wanted)
        room = self.request.admits(alive)
        # Under the cap, requests wait until the last instance that goes is gone.
        asked = self.now if room or gone is None else gone
        trainings = [self._train(stage, group, asked, staying[group.offer]) for group in groups]
        self.now = np.max([training.end for training in trainings], axis=0)
        for training in trainings:
            training.hold(self.now)
            self.dollars += training.dollars
            self.gpu_seconds += training.gpu_seconds
            self.fleets[training.group.offer] = training.fleet
        self.widths = {group.offer: group.width for group in groups}
        self.settled = all(group.waves == 1 for group in groups)
        self.loads = {group.offer: _loads(group) for group in groups}
        self.members = stage.trials

    def end(self) -> Draws:
        """Return all instances, and return the draws."""
        gone = self._give_back({})
        seconds = self.now if gone is None else gone
        dollars = self.dollars + seconds * self.request.charges.usd_per_second
        return Draws(
            seconds, dollars, self.gpu_seconds / 3600.0, next(iter(self.slowness.values()))
        )

    def _held_count(self, offer: Offer) -> int:
        return self.fleets[offer].count if offer in self.fleets else 0

    def _slowness(self, plan: Plan) -> dict[Offer, Floats]:
        """Return the factor on the epochs of each offer; one factor per instance type."""
        factors: dict[str, Floats] = {}
        for offer in plan.offers:
            if (name := offer.instance_type.name) not in factors:
                factors[name] = self.dice.factor(self.request.rentable(offer).profile.speed_error)
        return {offer: factors[offer.instance_type.name] for offer in plan.offers}

    def _staying(self, stage: Stage, groups: Sequence[Group]) -> dict[Offer, Ints]:
        """Return how many of each group's trials stay in place.

        If the cost model lets all stay, all do. Otherwise the trials on kept instances stay, if the
        width is the same, but never enough to make the stage shorter than the cost model says: the
        model doesn't count on luck.
        """
        ages = {offer: [0.0] * fleet.count for offer, fleet in self.fleets.items()}
        holdings = Holdings(ages, self.widths, self.settled)
        if all(stays(holdings, stage, groups, group) for group in groups):
            return {group.offer: np.full(self.dice.samples, group.trials) for group in groups}
        loads = {
            group.offer: self.loads.get(group.offer, [])
            for group in groups
            if self.widths.get(group.offer) == group.width
        }
        taken = [count for counts in loads.values() for count in counts]
        others = self.members - sum(taken)
        survivors = self.dice.survivors([*taken, others], min(stage.trials, self.members))
        staying = {}
        first = 0
        for group in groups:
            last = first + len(loads.get(group.offer, []))
            staying[group.offer] = _in_place(group, survivors[:, first:last])
            first = last
        return staying

    def _give_back(self, wanted: Mapping[Offer, int]) -> Floats | None:
        """Bill the oldest surplus instances; return when they are gone, None if there are none.

        Requested instances that aren't launched yet cost nothing.
        """
        ends = []
        for offer, fleet in tuple(self.fleets.items()):
            surplus = fleet.count - wanted.get(offer, 0)
            if surplus <= 0:
                continue
            # The oldest have paid their minimum charge, so returning them costs least.
            going, self.fleets[offer] = fleet.sort(fleet.launched).split(surplus)
            release = self.request.rentable(offer).profile.release
            gone = self.now[:, None] + self.dice.seconds(release, surplus)
            lived = gone - going.launched
            launched = going.launched <= self.now[:, None]
            self.dollars += np.where(launched, charge(offer, lived), 0.0).sum(axis=1)
            self.gpu_seconds += np.where(launched, lived, 0.0).sum(axis=1) * offer.gpus
            ends.append(gone.max(axis=1))
        self.fleets = {offer: fleet for offer, fleet in self.fleets.items() if fleet.count > 0}
        return np.max(ends, axis=0) if ends else None

    def _train(self, stage: Stage, group: Group, asked: Floats, staying: Ints) -> TrainingDraws:
        held = self._held_count(group.offer)
        profile = self.request.rentable(group.offer).profile
        fleet = self._filled_up(group, asked)
        # A trial may start as soon as one instance is there, unless the cost model expects it to
        # wait: then held instances open only when the first fresh one has joined.
        opened = np.maximum(fleet.joined, self.now[:, None])
        capacity = held // instances_per_trial(group) * slots_per_instance(group)
        if held < group.instances and (group.waves > 1 or group.trials <= capacity):
            opened = np.maximum(opened, opened[:, held:].min(axis=1, keepdims=True))
        return TrainingDraws(
            stage,
            group,
            profile,
            self.dice,
            fleet=fleet,
            began=self.now,
            opened=opened,
            slowness=self.slowness[group.offer],
            staying=staying,
            usd_per_launch=self.request.charges.usd_per_launch,
            pool=self._pool(group.offer),
        )

    def _pool(self, offer: Offer) -> PoolDraws:
        """Return the pool of an offer, which is the same for the whole plan."""
        if offer not in self.pools:
            self.pools[offer] = PoolDraws(self.request.rentable(offer), self.dice)
        return self.pools[offer]

    def _filled_up(self, group: Group, asked: Floats) -> Fleet:
        """Return the fleet of a group, with missing instances launched."""
        offer = group.offer
        missing = group.instances - self._held_count(group.offer)
        if missing <= 0:
            return self.fleets[offer]
        profile = self.request.rentable(offer).profile
        launched = asked[:, None] + self.dice.seconds(profile.launch, missing)
        if self.request.rentable(offer).behaviours:
            launched += self._pool(offer).wait()[:, None]  # the plan waits for a dry pool
        fresh = Fleet(offer, launched, launched + self.dice.seconds(profile.boot, missing))
        self.dollars += missing * self.request.charges.usd_per_launch
        return self.fleets[offer].joined_by(fresh) if offer in self.fleets else fresh


def _loads(group: Group) -> list[int]:
    """Return the trials on each instance (or set of instances of one trial) after a stage."""
    per = slots_per_instance(group)
    left = group.trials
    units = group.instances // instances_per_trial(group)
    return [min(per, max(0, left - unit * per)) for unit in range(units)]


def _in_place(group: Group, survivors: Ints) -> Ints:
    """Return how many survivors stay in place, on the instances with most survivors."""
    per = slots_per_instance(group)
    units = group.instances // instances_per_trial(group)
    kept = np.sort(survivors, axis=1)[:, ::-1][:, :units]
    in_last_wave = group.trials - (group.waves - 1) * per * units
    return np.asarray(np.minimum(kept.sum(axis=1), in_last_wave - 1))
