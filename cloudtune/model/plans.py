"""A plan: which instances, when, how many trials on them, how wide, at what price."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self, TypeAlias

from cloudtune.model.catalog import Offer, SpotBehaviour
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.model.trial import Width

# The name of the allocator and of the fleet rule that follow a plan of stages.
BY_PLAN = "planned"
# What a plan minimises, within the limits.
Objective: TypeAlias = Literal["cost", "time"]
# What sums of floats in another order may differ by, as a share.
SLACK = 1e-9
# How much a price may have moved since a plan was saved, as a share of it.
PRICE_TOLERANCE = 0.05


@dataclass(frozen=True)
class Stage:
    """The work between two rungs: `trials` trials train from `start_epoch` to `end_epoch`."""

    trials: int
    start_epoch: int
    end_epoch: int

    @property
    def epochs(self) -> int:
        """Epochs that each trial of the stage trains."""
        return self.end_epoch - self.start_epoch


def subtract(limit: float | None, amount: float) -> float | None:
    """Return what an amount leaves of a limit; None, no limit, stays."""
    return None if limit is None else limit - amount


def multiply(limit: float | None, factor: float) -> float | None:
    """Return a part, or a multiple, of a limit; None, no limit, stays."""
    return None if limit is None else limit * factor


@dataclass(frozen=True)
class Limits:
    """What a person named: seconds from the start of a run to its end, and dollars.

    None means no limit.
    """

    deadline: float | None = None
    budget: float | None = None

    def remaining(self, seconds: float, dollars: float) -> "Remaining":
        """Return what is left of the limits after these seconds and dollars of the run."""
        return Remaining(subtract(self.deadline, seconds), subtract(self.budget, dollars))

    def less(self, seconds: float = 0.0, dollars: float = 0.0) -> "Limits":
        """Return the limits of another run that begins after these seconds and dollars."""
        left = self.remaining(seconds, dollars)
        return Limits(left.seconds, left.dollars)


@dataclass(frozen=True)
class Remaining:
    """Seconds from now, and dollars, that are left of a run's limits; None means no limit."""

    seconds: float | None
    dollars: float | None

    def after(self, seconds: float) -> "Remaining":
        """Return what remains after that many seconds in which nothing is spent."""
        return replace(self, seconds=subtract(self.seconds, seconds))


@dataclass(frozen=True)
class Allowance:
    """Seconds from now, and dollars, that a plan may use; None means no limit.

    That is less than what remains: a run needs time to return everything, and a reserve.
    """

    seconds: float | None = None
    dollars: float | None = None

    def admit(self, estimate: "Estimate") -> bool:
        """Whether an estimate is within both."""
        in_time = self.seconds is None or estimate.seconds <= self.seconds * (1 + SLACK)
        in_money = self.dollars is None or estimate.dollars <= self.dollars * (1 + SLACK)
        return in_time and in_money

    def remaining(self, seconds: float, dollars: float) -> Remaining:
        """Return what is left after a part of the plan."""
        return Remaining(subtract(self.seconds, seconds), subtract(self.dollars, dollars))

    def scale(self, factor: float) -> "Allowance":
        return Allowance(multiply(self.seconds, factor), multiply(self.dollars, factor))


@dataclass(frozen=True)
class Estimate:
    """Expected seconds from now and dollars."""

    seconds: float
    dollars: float

    def end(self, now: float, dollars: float) -> "RunEnd":
        """Return the end of a run with this to come, at that second and after these dollars."""
        return RunEnd(now + self.seconds, dollars + self.dollars)


@dataclass(frozen=True)
class RunEnd:
    """When a run is expected to end, in seconds from its start, and its whole bill in dollars."""

    at: float
    dollars: float


@dataclass(frozen=True)
class Charges:
    """What a run costs on top of the hourly price of its instances.

    `usd_per_launch`: for each launched instance (the data set that it loads). `usd_per_second`:
    from the start of the plan to its end (the head node, the checkpoints in storage).
    """

    usd_per_launch: float = 0.0
    usd_per_second: float = 0.0

    def dollars(self, launches: float, seconds: float) -> float:
        return launches * self.usd_per_launch + seconds * self.usd_per_second


@dataclass(frozen=True)
class Group:
    """The part of a stage on one offer: `trials` trials on `instances`, each `width` GPUs wide.

    If the trials don't all fit at once, they train in `waves` rounds, one after another.
    """

    offer: Offer
    instances: int
    width: Width
    trials: int
    waves: int


@dataclass(frozen=True)
class StagePlan:
    """How one stage runs: one group, or several with an offer each.

    It takes `seconds`, from second `begin` of the plan on. `overhead` of them are spent before
    training (booting, starting, resizing) by the slowest group. `dollars` are the charges that fall
    due in the stage, so that the stages add up to the plan's price. `busy` is the share of the paid
    GPU-seconds in which trials train.
    """

    stage: Stage
    groups: tuple[Group, ...]
    begin: float = 0.0
    seconds: float = 0.0
    overhead: float = 0.0
    dollars: float = 0.0
    busy: float = 0.0

    @property
    def instances(self) -> int:
        return sum(group.instances for group in self.groups)

    @property
    def gpus(self) -> int:
        """The GPUs of all its instances, used or not."""
        return sum(group.instances * group.offer.gpus for group in self.groups)

    @property
    def on_spot(self) -> bool:
        """Whether anything of the stage is on spot."""
        return any(group.offer.spot for group in self.groups)

    @cached_property
    def fleet(self) -> Counter[Offer]:
        """The instances of each offer; read-only."""
        return Counter({group.offer: group.instances for group in self.groups})

    def group(self, offer: Offer) -> Group | None:
        return next((group for group in self.groups if group.offer == offer), None)


@dataclass(frozen=True)
class Plan:
    """Stages in order, and what they take.

    `gap` bounds how much more expensive (or slower, by objective) the plan is than the best of its
    model, as a share of the best: 0 if proven optimal, None if unknown. `status` says what the
    planner achieved: "optimal", "feasible" (a search that was cut short) or "heuristic". The
    instances alive never exceed `max_instances` or `vcpu_quotas` (vCPUs by `Offer.quota`), not even
    at a hand-over. `wished` is set if the user chose the plan for its time: replanning keeps that
    total time, as far as the limits allow.
    """

    planner: str
    stages: tuple[StagePlan, ...]
    estimate: Estimate
    max_instances: int
    gap: float | None = None
    status: str = "heuristic"
    charges: Charges = Charges()
    vcpu_quotas: Mapping[str, int] = field(default_factory=dict, hash=False)
    objective: Objective = "cost"
    wished: float | None = None

    def admits(self, alive: Mapping[Offer, int]) -> bool:
        """Whether these instances may be alive at once, by offer."""
        return admits(self.max_instances, self.vcpu_quotas, alive)

    @property
    def choices(self) -> tuple[tuple[Group, ...], ...]:
        """The groups of each stage: the choices, from which a request determines all the rest."""
        return tuple(stage.groups for stage in self.stages)

    @property
    def peak_instances(self) -> int:
        """The largest fleet that the plan ever holds."""
        return max(stage.instances for stage in self.stages)

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Every offer of the plan, in order of first use."""
        return tuple(dict.fromkeys(g.offer for stage in self.stages for g in stage.groups))

    @property
    def sizes(self) -> Mapping[Offer, list[int]]:
        """The instances of each offer, stage by stage."""
        return {offer: [stage.fleet[offer] for stage in self.stages] for offer in self.offers}

    @property
    def epochs(self) -> int:
        """The total epochs of all trials."""
        return epochs_in([stage.stage for stage in self.stages])

    @property
    def gpu_seconds(self) -> float:
        """The total seconds that its GPUs are held."""
        return sum(stage.seconds * stage.gpus for stage in self.stages)

    @property
    def launches(self) -> Mapping[Offer, int]:
        """How many instances of each offer are launched in total, if nothing goes wrong."""
        counts: dict[Offer, int] = {}
        held: dict[Offer, int] = {}
        for stage in self.stages:
            now = {group.offer: group.instances for group in stage.groups}
            for offer, count in now.items():
                counts[offer] = counts.get(offer, 0) + max(0, count - held.get(offer, 0))
            held = now
        return counts


def epochs_in(work: Sequence[Stage]) -> int:
    """Return the total epochs of all trials."""
    return sum(stage.trials * stage.epochs for stage in work)


def admits(max_instances: int, vcpu_quotas: Mapping[str, int], alive: Mapping[Offer, int]) -> bool:
    """Whether these instances of each offer may be alive at once."""
    if sum(alive.values()) > max_instances:
        return False
    if not vcpu_quotas:  # as often as an offer is considered: naming each one's quota takes time
        return True
    vcpus: dict[str, int] = {}
    for offer, count in alive.items():
        vcpus[offer.quota] = vcpus.get(offer.quota, 0) + count * offer.instance_type.quota_units
    return all(vcpus[quota] <= most for quota, most in vcpu_quotas.items() if quota in vcpus)


@dataclass(frozen=True)
class Spread:
    """The 5th, 50th and 95th percentile of a quantity, and its mean."""

    p5: float
    p50: float
    p95: float
    mean: float

    def scale(self, factor: float) -> Self:
        """Return the spread of something `factor` times as large."""
        return type(self)(*(factor * value for value in (self.p5, self.p50, self.p95, self.mean)))


@dataclass(frozen=True)
class Forecast:
    """What a run may take, over `samples` simulated runs; `seed` reproduces them.

    `source` says how they are made: "stages" draws the durations of a plan's stages; "policy" plays
    the real policy with made-up metrics; so do "runs", for a run that follows stages near its
    limits, and "pools", for one on spot that comes and goes. `trials` are those that start;
    `epochs` those of the best trial; `gpu_hours` are paid for, used or not; `instances` is the
    largest number at once.

    `in_time`, `in_money` and `within` are the probabilities that the deadline, the budget and both
    are kept; None without such a limit. `results` is the share of the runs in which any trial
    finishes an epoch.
    """

    seconds: Spread
    dollars: Spread
    trials: Spread
    epochs: Spread
    gpu_hours: Spread
    instances: Spread
    in_time: float | None
    in_money: float | None
    within: float | None
    results: float
    samples: int
    seed: int
    source: str


@dataclass(frozen=True)
class Machines:
    """A number of instances of one offer."""

    offer: Offer
    instances: int


@dataclass(frozen=True)
class RunPlan:
    """A run before it begins: what decides, what it may rent, what to expect.

    `strategy`, `allocator` and `fleet_rule` are the chosen names, `rules` the changed rules of the
    strategy. `offers` are all that it rents, unless the cloud refuses them; `fleet` is the largest
    fleet, as far as it is known beforehand. The instances alive never exceed `max_instances` or
    `vcpu_quotas` (vCPUs by `Offer.quota`). `staged` are the stages of a planner, if the run follows
    any.
    """

    strategy: str
    allocator: str
    fleet_rule: str
    offers: tuple[Offer, ...]
    fleet: tuple[Machines, ...]
    max_instances: int
    forecast: Forecast
    charges: Charges = field(default_factory=Charges)
    vcpu_quotas: Mapping[str, int] = field(default_factory=dict, hash=False)
    staged: Plan | None = None
    rules: str = ""

    @property
    def by(self) -> str:
        """The strategy, with its changed rules."""
        return f"{self.strategy} ({self.rules})" if self.rules else self.strategy

    @property
    def followed(self) -> Plan | None:
        """The stages, if the run does exactly what they say; None if it decides as it goes."""
        return self.staged if self.forecast.source in {"stages", "runs", "pools"} else None

    @property
    def estimate(self) -> Estimate:
        """The expected seconds and dollars: the medians of the forecast.

        For stages they are the sums at mean durations, without waiting for the slowest of many
        instances, and without pools that come and go.
        """
        return Estimate(self.forecast.seconds.p50, self.forecast.dollars.p50)

    @property
    def peak_instances(self) -> int:
        """The largest number of instances at once, as far as it is known beforehand."""
        if self.followed is not None:
            return self.followed.peak_instances
        return sum(machines.instances for machines in self.fleet)

    @property
    def launches(self) -> Mapping[Offer, int]:
        """How many instances of each offer are launched, if nothing goes wrong."""
        if self.followed is not None:
            return self.followed.launches
        return {machines.offer: machines.instances for machines in self.fleet}

    @property
    def usd_per_second(self) -> float:
        """What the largest fleet and the run's charges cost per second."""
        rented = sum(machines.offer.usd_per_second * machines.instances for machines in self.fleet)
        return rented + self.charges.usd_per_second

    @property
    def in_gpu_hours(self) -> bool:
        """Whether its dollars stand for GPU-hours."""
        return any(offer.in_gpu_hours for offer in self.offers)

    @property
    def free(self) -> bool:
        """Whether nothing that the run could do costs anything."""
        priced = any(offer.usd_per_second for offer in self.offers)
        return not (priced or self.charges.usd_per_launch or self.charges.usd_per_second)


def largest_fleet(plan: Plan) -> tuple[Machines, ...]:
    """Return the instances of the stage that costs most per second."""

    def rate(stage: StagePlan) -> float:
        return sum(group.instances * group.offer.usd_per_second for group in stage.groups)

    groups = max(plan.stages, key=rate).groups
    return tuple(Machines(group.offer, group.instances) for group in groups)


@dataclass(frozen=True)
class Rentable:
    """An offer, how the script scales on it, and how many instances may be rented at once.

    `behaviours` are the equally likely ways in which its spot pool may behave. Without any it is
    always available, and loses instances as the offer says.
    """

    offer: Offer
    profile: ScalingProfile
    most: int
    behaviours: tuple[SpotBehaviour, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of one instance."""
        return self.offer.gpus

    def epoch_seconds(self, width: Width) -> float:
        """Return the expected seconds of an epoch, with the mean cost of spot interruptions.

        An interruption costs half an epoch that is lost, and a replacement's start.
        """
        epoch = self.profile.epoch_seconds(width)
        profile = self.profile
        rate = self.offer.interruptions_per_hour / 3600.0
        if rate == 0.0:
            return epoch
        back = profile.launch.mean + profile.boot.mean + profile.resize.mean
        return epoch * (1.0 + rate * max(1, math.ceil(width / self.gpus)) * (back + epoch / 2))

    @cached_property
    def booted(self) -> "Rentable":
        """The same, of which all instances are there."""
        there = Measurement(0.0)
        return replace(self, profile=replace(self.profile, launch=there, boot=there))

    @cached_property
    def cheapest_width(self) -> Width:
        """The width of at most one GPU at which an epoch costs least; the wider of equal ones."""
        epochs = self.profile.epoch
        shared = [width for width in epochs if width <= 1] or [min(epochs)]
        return min(shared, key=lambda width: (width * epochs[width].mean, -width))

    @cached_property
    def idle_seconds(self) -> float:
        """The billed seconds in which an instance trains nothing: at its begin and its end."""
        profile = self.profile
        return profile.boot.mean + profile.start.mean + profile.release.mean

    @cached_property
    def paces(self) -> tuple[tuple[float, float], ...]:
        """Seconds of an epoch, and of one instance that it takes, at each width; losses included.

        Widths that another one beats in both are left out. The cheapest is the first.
        """
        paces: list[tuple[float, float]] = []
        for width in self.profile.epoch:
            seconds = max(self.epoch_seconds(width), 1e-9)
            paces.append((seconds, max(seconds * width / self.gpus, 1e-9)))
        paces.sort(key=lambda pace: (pace[1], pace[0]))
        quicker = math.inf
        useful = []
        for pace in paces:
            if pace[0] < quicker:
                useful.append(pace)
                quicker = pace[0]
        return tuple(useful)

    @cached_property
    def epoch_instance_seconds(self) -> float:
        """Seconds of one instance that an epoch takes at its cheapest width, losses included."""
        width = self.cheapest_width
        return self.epoch_seconds(width) * width / self.gpus

    @cached_property
    def epoch_dollars(self) -> float:
        """Dollars of an epoch at its cheapest width, with what spot interruptions cost."""
        return self.epoch_instance_seconds * self.offer.usd_per_second
