"""A job as a graph: a path from its begin to its end is a plan.

Layer by layer: the fleet rented already, the ways to run the first stage, …, the last, nothing. An
arc into a stage has the seconds of that stage, and the dollars of every launch and of every
instance second; these depend only on the way before and the way now.

No arc can see one thing: an instance returned young, or in the middle of a billing grain, costs
more than its seconds. `owed` says how much, by when the instance was launched (an arc) and when it
goes (a later arc); it depends only on the nodes in between.

This is written independently of planners/cost_model.py and planners/dp/options.py, with which it
must agree.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from cloudtune.model.catalog import Offer
from cloudtune.model.placement import slots
from cloudtune.model.plans import Group, Rentable, Stage
from cloudtune.model.trial import Width
from cloudtune.planners.base import PlanRequest

Way: TypeAlias = tuple[Group, ...]
# The node of each stage, as its place in the stage's layer.
Path: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Arc:
    """A move from one node to a node of the next layer, with its seconds and dollars.

    `dollars` are all that an arc can see, `lived` those of them for instance seconds. `floor` is
    the least that the instances launched here are billed, however soon they go. `delays` are the
    seconds from the start of the stage until fresh instances are launched, by offer.
    """

    seconds: float
    dollars: float
    lived: float
    floor: float = 0.0
    delays: Mapping[Offer, float] = field(default_factory=dict)


@dataclass(frozen=True)
class HeldFleet:
    """The instances rented when a stage begins, and how trials are placed on them."""

    counts: Mapping[Offer, int]
    widths: Mapping[Offer, Width | None]
    settled: bool

    @classmethod
    def after(cls, way: Way) -> "HeldFleet":
        """Return the fleet that a stage leaves behind."""
        return cls(
            {group.offer: group.instances for group in way},
            {group.offer: group.width for group in way},
            all(group.waves == 1 for group in way),
        )


@dataclass(frozen=True)
class Graph:
    """The layers of a request, and the arcs between them."""

    request: PlanRequest

    @cached_property
    def ways(self) -> list[list[Way]]:
        """Every way to run each stage."""
        return [list(_ways(self.request, stage)) for stage in self.request.work]

    @property
    def size(self) -> int:
        """The number of arcs."""
        layers = [1, *(len(ways) for ways in self.ways), 1]
        return sum(a * b for a, b in itertools.pairwise(layers))

    @cached_property
    def held(self) -> list[list[HeldFleet]]:
        """The instances at each node: the fleet first, then after each way of each stage."""
        fleet = self.request.fleet
        begin = HeldFleet(
            {live.offer: len(live.ages) for live in fleet},
            {live.offer: live.width for live in fleet},
            settled=True,
        )
        held = [[begin]]
        held += (list(map(HeldFleet.after, ways)) for ways in self.ways)
        return held

    @cached_property
    def arcs(self) -> list[list[list[Arc]]]:
        """The arcs by stage, node before and node now; after the last stage those to the end."""
        request = self.request
        layers = zip(request.work, self.ways, self.held[:-1], self.held[1:], strict=True)
        stages = []
        for stage, ways, befores, afters in layers:
            nodes = list(zip(ways, afters, strict=True))
            stages.append([_arcs_from(request, stage, before, nodes) for before in befores])
        ends = [[_end(request, held)] for held in self.held[-1]]
        return [*stages, ends]

    def choices(self, path: Path) -> list[Way]:
        return [ways[node] for ways, node in zip(self.ways, path, strict=True)]

    def node(self, path: Path, layer: int) -> int:
        """Return the node of a path in a layer of `held`; the end is node 0 after them all."""
        return path[layer - 1] if 0 < layer <= len(path) else 0

    def minimum_charges(self, path: Path, launch: int, end: int, tail: int) -> tuple[float, ...]:
        """Return what instances launched on one arc owe when they go on a later one.

        For each possible head of the later arc, in the order of its layer: how much more than their
        seconds the instances that go there are billed. `launch` -1 stands for the fleet at the
        start. The path has the nodes in between; `tail` is the one before the launch.
        """
        arcs = [
            self.arcs[stage][tail if stage == launch else self.node(path, stage)][path[stage]]
            for stage in range(max(launch, 0), end)
        ]
        nodes = [self.held[stage + 1][path[stage]] for stage in range(max(launch, 0), end)]
        before = self.held[max(launch, 0)][0 if launch <= 0 else tail]
        if launch < 0:
            lots, counts = list(self._fleet_lots()), [before, *nodes]
        else:
            lots, counts = list(_launches(before, nodes[0], arcs[0])), nodes
        life = sum(arc.seconds for arc in arcs)
        heads = self.held[end + 1] if end < len(self.request.work) else [HeldFleet({}, {}, True)]
        bills: dict[tuple[int, ...], float] = {}
        for head in heads:
            if (key := _kept_counts(lots, head)) not in bills:
                bills[key] = self._bill(lots, counts, head, life)
        return tuple(bills[_kept_counts(lots, head)] for head in heads)

    @property
    def fleet_floor(self) -> float:
        """The least that the fleet at the start is billed from then on."""
        return sum(
            max(0.0, live.offer.charge(age) - age * live.offer.held_usd_per_second)
            for live in self.request.fleet
            for age in live.ages
        )

    def _fleet_lots(self) -> "Iterator[Lot]":
        for live in self.request.fleet:
            for ahead, age in enumerate(sorted(live.ages, reverse=True)):
                yield Lot(live.offer, ahead, 1, age)

    def _bill(
        self, lots: "list[Lot]", nodes: Sequence[HeldFleet], head: HeldFleet, life: float
    ) -> float:
        return sum(
            lot.leaving(nodes, head)
            * _surcharge(lot.offer, lot.age + life + _release(self.request, lot.offer))
            for lot in lots
        )


@dataclass(frozen=True)
class Lot:
    """Instances launched together: how many, and how many older ones of their offer there are.

    `age` is their age at the start of the stage in which they were launched.
    """

    offer: Offer
    ahead: int
    count: int
    age: float

    def leaving(self, nodes: Sequence[HeldFleet], head: HeldFleet) -> int:
        """Return how many instances go between the last nodes and the head: oldest first."""
        ahead = self.ahead
        left = self.count
        gone = 0
        for now, then in itertools.pairwise([*nodes, head]):
            going = max(0, now.counts.get(self.offer, 0) - then.counts.get(self.offer, 0))
            first = min(ahead, going)
            gone = min(left, going - first)
            ahead = ahead - first
            left = left - gone
        return gone


def _kept_counts(lots: Sequence[Lot], head: HeldFleet) -> tuple[int, ...]:
    return tuple(head.counts.get(lot.offer, 0) for lot in lots)


def _launches(before: HeldFleet, now: HeldFleet, arc: Arc) -> Iterator[Lot]:
    for offer, count in now.counts.items():
        kept = min(count, before.counts.get(offer, 0))
        if count > kept:
            yield Lot(offer, kept, count - kept, -arc.delays[offer])


def _surcharge(offer: Offer, life: float) -> float:
    return max(0.0, offer.charge(life) - life * offer.held_usd_per_second)


def _release(request: PlanRequest, offer: Offer) -> float:
    return request.rentable(offer).profile.release.mean


def _ways(request: PlanRequest, stage: Stage) -> Iterator[Way]:
    """Yield each way to run a stage: up to `mix` offers, any size and width, any split."""
    for used in range(1, request.mix + 1):
        for rentables in itertools.combinations(request.rentables, used):
            for parts in itertools.product(*map(_parts, rentables)):
                if _keeps_quotas(request, parts):
                    yield from _split(parts, stage.trials)


# An offer, instances, width.
Part: TypeAlias = "tuple[Offer, int, Width]"


def _parts(rentable: Rentable) -> list[Part]:
    sizes = range(1, rentable.most + 1)
    widths = rentable.profile.widths
    pairs = itertools.product(sizes, widths)
    return [(rentable.offer, n, w) for n, w in pairs if slots(w, rentable.gpus, n) > 0]


def _keeps_quotas(request: PlanRequest, parts: Sequence[Part]) -> bool:
    instances = sum(count for _, count, _ in parts)
    units = Counter[str]()
    for offer, count, _ in parts:
        units[offer.quota] += count * offer.instance_type.quota_units
    quotas = request.vcpu_quotas
    within = all(used <= quotas.get(name, math.inf) for name, used in units.items())
    return within and instances <= request.max_instances


def _split(parts: Sequence[Part], trials: int) -> Iterator[Way]:
    (offer, count, width), *others = parts
    shares = range(1, trials - len(others) + 1) if others else (trials,)
    for share in shares:
        waves = math.ceil(share / slots(width, offer.gpus, count))
        first = Group(offer, count, width, share, waves)
        rests = _split(others, trials - share) if others else ((),)
        yield from ((first, *rest) for rest in rests)


def _arcs_from(
    request: PlanRequest, stage: Stage, held: HeldFleet, nodes: Sequence[tuple[Way, HeldFleet]]
) -> list[Arc]:
    return [_arc(request, stage, held, way, after) for way, after in nodes]


def _arc(request: PlanRequest, stage: Stage, held: HeldFleet, way: Way, now: HeldFleet) -> Arc:
    fresh = {o: n - held.counts.get(o, 0) for o, n in now.counts.items()}
    going = {o: n - now.counts.get(o, 0) for o, n in held.counts.items()}
    offers = dict.fromkeys([*held.counts, *now.counts])
    alive = {offer: max(held.counts.get(offer, 0), now.counts.get(offer, 0)) for offer in offers}
    leaving = [_release(request, offer) for offer, count in going.items() if count > 0]
    wait = 0.0 if request.admits(alive) else max(leaving, default=0.0)
    delays = {
        offer: wait + request.rentable(offer).profile.launch.mean
        for offer, count in fresh.items()
        if count > 0
    }
    quiet = now.widths == held.widths and _quiet(stage, held, way)
    seconds = max(_takes(request, stage, group, delays, quiet=quiet) for group in way)
    lived = _given_back(request, going) + sum(
        group.offer.held_usd_per_second
        * (group.instances * seconds - max(0, fresh[group.offer]) * delays.get(group.offer, 0.0))
        for group in way
    )
    launches = sum(fresh[offer] for offer in delays)
    other = seconds * request.charges.usd_per_second + launches * request.charges.usd_per_launch
    other += sum(_functions(request, stage, group, quiet=quiet and not delays) for group in way)
    floor = sum(fresh[offer] * _least(request, offer) for offer in delays)
    return Arc(seconds, lived + other, lived, floor, delays)


def _least(request: PlanRequest, offer: Offer) -> float:
    """Return the least that an instance is billed: for its boot and its release."""
    profile = request.rentable(offer).profile
    return offer.charge(profile.boot.mean + profile.release.mean)


def _given_back(request: PlanRequest, going: Mapping[Offer, int]) -> float:
    """Return the dollars of the seconds that released instances take to go."""
    return sum(
        max(0, count) * _release(request, offer) * offer.held_usd_per_second
        for offer, count in going.items()
    )


def _end(request: PlanRequest, held: HeldFleet) -> Arc:
    seconds = max(_release(request, offer) for offer in held.counts)
    lived = _given_back(request, held.counts)
    return Arc(seconds, lived + seconds * request.charges.usd_per_second, lived)


def _takes(
    request: PlanRequest, stage: Stage, group: Group, delays: Mapping[Offer, float], *, quiet: bool
) -> float:
    rentable = request.rentable(group.offer)
    profile = rentable.profile
    arrival = 0.0
    begin = 0.0
    if group.offer in delays:
        arrival = delays[group.offer] + profile.boot.mean
    if not quiet:
        begin = profile.resize.mean if stage.start_epoch > 0 else profile.start.mean
    return arrival + group.waves * (begin + stage.epochs * rentable.epoch_seconds(group.width))


def _functions(request: PlanRequest, stage: Stage, group: Group, *, quiet: bool) -> float:
    """Return the bill by the function: each trial's GPUs while it begins and trains."""
    rentable = request.rentable(group.offer)
    profile = rentable.profile
    trained = stage.epochs * rentable.epoch_seconds(group.width)
    begin = profile.resize.mean if stage.start_epoch > 0 else profile.start.mean
    gpu_seconds = group.trials * group.width * (trained + (0.0 if quiet else begin))
    return gpu_seconds * group.offer.used_usd_per_second


def _quiet(stage: Stage, held: HeldFleet, way: Way) -> bool:
    """Whether every survivor stays in place, at its present width."""
    group = way[0]
    if len(way) > 1 or not held.settled or group.waves > 1:
        return False
    homes = stage.trials * math.ceil(group.width / group.offer.gpus)
    held_count = held.counts[group.offer]
    return held_count == group.instances or held_count > group.instances >= homes
