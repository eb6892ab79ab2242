"""All plans there are, one by one, priced by keeping the books of every single instance.

Independent of planners/cost_model.py and planners/dp/options.py on purpose: no ages, no dominance,
no arrays; an instance is a launch time and an end.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Group, Rentable, Stage
from cloudtune.model.scaling import ScalingProfile
from cloudtune.planners.base import PlanRequest

Way: TypeAlias = "tuple[Group, ...]"


class Priced(NamedTuple):
    seconds: float
    dollars: float
    choices: tuple[Way, ...]


def every_plan(request: PlanRequest, mix: int = 1) -> Iterator[Priced]:
    """Yield each sequence of groups that can run the job, with its price."""
    ways = [list(every_way(request, stage, mix)) for stage in request.work]
    for choices in itertools.product(*ways):
        yield price_choice(request, choices)


def best(request: PlanRequest, mix: int = 1) -> Priced | None:
    """Return the best plan that the limits admit, by the request's objective, if there is one."""
    allowance = request.allowance
    admitted = (
        plan
        for plan in every_plan(request, mix)
        if plan.seconds <= (math.inf if allowance.seconds is None else allowance.seconds)
        and plan.dollars <= (math.inf if allowance.dollars is None else allowance.dollars)
    )
    if request.objective == "cost":
        return min(admitted, key=lambda plan: (plan.dollars, plan.seconds), default=None)
    return min(admitted, key=lambda plan: (plan.seconds, plan.dollars), default=None)


def every_way(request: PlanRequest, stage: Stage, mix: int) -> Iterator[Way]:
    """Yield each use of up to `mix` offers for one stage, with each split of its trials."""
    for used in range(1, mix + 1):
        for rentables in itertools.combinations(request.rentables, used):
            shapes = [list(every_shape(rentable)) for rentable in rentables]
            for chosen in itertools.product(*shapes):
                if is_allowed(request, chosen):
                    for parts in splits(stage.trials, used):
                        yield tuple(map(make_group, chosen, parts))


Shape: TypeAlias = "tuple[Offer, int, float]"
"""An offer, instances, width."""


def every_shape(rentable: Rentable) -> Iterator[Shape]:
    """Yield each number of instances at each width that lets a trial run at all."""
    for size, width in itertools.product(range(1, rentable.most + 1), rentable.profile.epoch):
        if at_once(rentable.offer, size, width) > 0:
            yield rentable.offer, size, width


def is_allowed(request: PlanRequest, shapes: Sequence[Shape]) -> bool:
    vcpus: dict[str, int] = {}
    for offer, size, _ in shapes:
        vcpus[offer.quota] = vcpus.get(offer.quota, 0) + size * offer.instance_type.vcpus
    within = (used <= request.vcpu_quotas.get(quota, used) for quota, used in vcpus.items())
    return sum(size for _, size, _ in shapes) <= request.max_instances and all(within)


def has_room(request: PlanRequest, alive: Sequence[Offer]) -> bool:
    used = dict.fromkeys(request.vcpu_quotas, 0)
    for offer in alive:
        if offer.quota in used:
            used[offer.quota] += offer.instance_type.vcpus
    fits = all(used[quota] <= most for quota, most in request.vcpu_quotas.items())
    return fits and len(alive) <= request.max_instances


def splits(trials: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield each way to split the trials into parts of one or more."""
    if parts == 1:
        yield (trials,)
        return
    for first in range(1, trials - parts + 2):
        for rest in splits(trials - first, parts - 1):
            yield first, *rest


def at_once(offer: Offer, instances: int, width: float) -> int:
    """Return how many trials run at the same time."""
    if width > offer.gpus:
        return int(instances / math.ceil(width / offer.gpus))
    return instances * int(offer.gpus / width + 1e-9)


def make_group(shape: Shape, trials: int) -> Group:
    offer, instances, width = shape
    waves = math.ceil(trials / at_once(*shape))
    return Group(offer, instances, width, trials, waves)


@dataclass
class Instance:
    """One rented machine: when it was launched (before 0: rented already), and its last second."""

    offer: Offer
    launched: float
    new: bool = True
    ended: float = math.inf


@dataclass
class Cloud:
    """Every instance there ever was, the gone ones too, and how the last stage used them."""

    request: PlanRequest
    instances: list[Instance] = field(default_factory=list)
    functions: float = 0.0
    widths: dict[Offer, float | None] = field(default_factory=dict)
    one_wave: bool = True

    def running(self, offer: Offer | None = None) -> list[Instance]:
        """Return those not given back (of one offer, or of all), the longest running first."""
        here = [it for it in self.instances if it.ended == math.inf and offer in (None, it.offer)]
        return sorted(here, key=lambda it: it.launched)

    def profile(self, offer: Offer) -> ScalingProfile:
        return next(it.profile for it in self.request.rentables if it.offer == offer)

    def give_back(self, offer: Offer, count: int, now: float) -> float:
        """Give the longest running ones back; return when they are gone."""
        gone = now + self.profile(offer).release.mean
        for instance in self.running(offer)[:count]:
            instance.ended = gone
        return gone

    def bill(self, end: float) -> float:
        """Return what everything costs from second 0 on, seconds already paid for taken off."""
        charges = self.request.charges
        total = end * charges.usd_per_second + self.functions
        for it in self.instances:
            held = 0.0 if it.offer.per_function else an_hour(it.offer) / 3600
            paid = 0.0 if it.new else -it.launched * held
            total += charge(it.offer, it.ended - it.launched) - paid
            total += charges.usd_per_launch if it.new else 0.0
        return total


def charge(offer: Offer, life: float) -> float:
    if offer.per_function:
        return 0.0
    grain, billed = offer.granularity_seconds, max(life, offer.minimum_seconds)
    if grain:
        billed = math.ceil(billed / grain - 1e-9) * grain
    return billed * an_hour(offer) / 3600


def an_hour(offer: Offer) -> float:
    """Return what an hour of an instance costs, its disk included."""
    return offer.usd_per_hour + offer.added_usd_per_hour


def price_choice(request: PlanRequest, choices: Sequence[Way]) -> Priced:
    """Return what a plan takes, by the launch time and the end of each of its instances."""
    cloud = Cloud(request)
    for live in request.fleet:
        cloud.instances += [Instance(live.offer, -age, new=False) for age in live.ages]
        cloud.widths[live.offer] = live.width
    now = 0.0
    for stage, way in zip(request.work, choices, strict=True):
        now = price_stage(cloud, stage, way, now)
    end = max(cloud.give_back(group.offer, group.instances, now) for group in choices[-1])
    return Priced(end, cloud.bill(end), tuple(choices))


def price_stage(cloud: Cloud, stage: Stage, way: Way, now: float) -> float:
    before = {offer: len(cloud.running(offer)) for offer in cloud.widths}
    undisturbed = is_untouched(cloud, stage, way, before)
    extra = {group.offer: group.instances - before.get(group.offer, 0) for group in way}
    held = [instance.offer for instance in cloud.running()]
    new = [offer for offer, more in extra.items() for _ in range(max(0, more))]
    wanted = {group.offer: group.instances for group in way}
    going = {offer: count - wanted.get(offer, 0) for offer, count in before.items()}
    gone = [cloud.give_back(offer, count, now) for offer, count in going.items() if count > 0]
    tight = gone and not has_room(cloud.request, [*held, *new])
    ordered = max(gone) if tight else now
    ends = []
    for group in way:
        profile, begun = cloud.profile(group.offer), now
        if extra[group.offer] > 0:
            launched = ordered + profile.launch.mean
            cloud.instances += [Instance(group.offer, launched) for _ in range(extra[group.offer])]
            begun = launched + profile.boot.mean
        ends.append(begun + group_seconds(cloud, stage, group, undisturbed=undisturbed))
    cloud.widths = {group.offer: group.width for group in way}
    cloud.one_wave = all(group.waves == 1 for group in way)
    return max(ends)


def is_untouched(cloud: Cloud, stage: Stage, way: Way, before: dict[Offer, int]) -> bool:
    """Whether no trial moves: one offer, one wave, one width, and each survivor is at home."""
    if len(before) != 1 or len(way) != 1:
        return False
    (offer, held), (group,) = *before.items(), way
    homes = stage.trials * math.ceil(group.width / offer.gpus)
    everybody_home = held == group.instances or held > group.instances >= homes
    same = (offer, cloud.widths[offer], cloud.one_wave) == (group.offer, group.width, True)
    return same and group.waves == 1 and everybody_home


def group_seconds(cloud: Cloud, stage: Stage, group: Group, *, undisturbed: bool) -> float:
    """Return the seconds of a group's trials once its instances are there."""
    profile = cloud.profile(group.offer)
    begin = profile.start.mean if stage.start_epoch == 0 else profile.resize.mean
    training = (stage.end_epoch - stage.start_epoch) * epoch(cloud, group)
    if group.offer.per_function:
        used = training + (0.0 if undisturbed else begin)
        a_gpu = an_hour(group.offer) / 3600 / group.offer.gpus
        cloud.functions += group.trials * group.width * used * a_gpu
    return group.waves * ((0.0 if undisturbed else begin) + training)


def epoch(cloud: Cloud, group: Group) -> float:
    """Return the seconds of an epoch, and what interruptions cost of it on average."""
    profile = cloud.profile(group.offer)
    mean = profile.epoch[group.width].mean
    back = profile.launch.mean + profile.boot.mean + profile.resize.mean + mean / 2
    exposed = max(1, math.ceil(group.width / group.offer.gpus))
    return mean + mean * group.offer.interruptions_per_hour / 3600 * exposed * back
