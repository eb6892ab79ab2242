"""Small jobs for tests of the core, and the worlds that they run in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hypothesis import assume
from hypothesis import strategies as st

from cloudtune.catalog import InstanceType, Offer
from cloudtune.commands import StartTrial
from cloudtune.engine import run
from cloudtune.events import EpochDone, InstanceLaunched, NodeJoined, RunStarted
from cloudtune.experiment import Experiment
from cloudtune.job import Job, drain_seconds
from cloudtune.ledger import MemoryLedger
from cloudtune.placement import slots
from cloudtune.plan import (
    Charges,
    Estimate,
    Group,
    Limits,
    Plan,
    PlanRequest,
    Rentable,
    Stage,
    StagePlan,
)
from cloudtune.planners.exact import ExactPlanner
from cloudtune.policy import Brakes, Metric, RunPolicy
from cloudtune.scaling import Measurement, ScalingProfile
from cloudtune.simulator import SimWorld, synthetic_metric
from cloudtune.strategies.sha import SuccessiveHalving
from cloudtune.trial import Trial, rank_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cloudtune.catalog import Market
    from cloudtune.commands import Command
    from cloudtune.events import Event
    from cloudtune.ledger import Entry
    from cloudtune.plan import Planner
    from cloudtune.policy import Policy
    from cloudtune.trial import Slice, TrialId

NO_LIMITS = Limits()
NO_CHARGES = Charges()


def offer(
    gpus: int = 4,
    usd_per_hour: float = 36.0,
    minimum_seconds: float = 60.0,
    *,
    name: str = "g.4x",
    market: Market = "on-demand",
    zone: str = "",
    interruptions_per_hour: float = 0.0,
) -> Offer:
    """Return an offer; at its $36 an hour, a second of an instance costs a cent."""
    return Offer(
        InstanceType(name, gpus, "T4", 16384, 16, 65536),
        market,
        "us-east-1",
        usd_per_hour,
        minimum_seconds,
        zone=zone,
        interruptions_per_hour=interruptions_per_hour,
    )


def profile(
    epoch: Mapping[float, float],
    *,
    launch: float = 1.0,
    boot: float = 20.0,
    start: float = 4.0,
    resize: float = 6.0,
    release: float = 2.0,
    spread: float = 0.0,
    name: str = "g.4x",
    error: float = 0.0,
) -> ScalingProfile:
    """Return a profile; each duration's deviation is `spread` of its mean."""

    def measured(seconds: float) -> Measurement:
        return Measurement(seconds, seconds * spread, 3)

    return ScalingProfile(
        instance_type=name,
        epoch={width: measured(seconds) for width, seconds in epoch.items()},
        launch=measured(launch),
        boot=measured(boot),
        start=measured(start),
        resize=measured(resize),
        release=measured(release),
        script_hash="abc",
        measured_at="2026-01-01",
        source="made up",
        error=error,
    )


LINEAR = {1.0: 8.0, 2.0: 4.0, 4.0: 2.0}
SUBLINEAR = {1.0: 8.0, 2.0: 5.0, 4.0: 4.0}
NODE_BOUNDARY = {1.0: 8.0, 2.0: 4.7, 4.0: 2.5, 8.0: 3.8}
"""CIFAR-10 at a batch of 512, roughly: 8 GPUs over two nodes are slower than 4 on one."""


@dataclass(frozen=True)
class Setting:
    """All that a simulated job is made from; `others` may be rented besides `offer`."""

    trials: int = 4
    min_epochs: int = 1
    max_epochs: int = 4
    eta: int = 2
    offer: Offer = field(default_factory=offer)
    profile: ScalingProfile = field(default_factory=lambda: profile(LINEAR))
    max_instances: int = 2
    limits: Limits = NO_LIMITS
    seed: int = 0
    others: tuple[Rentable, ...] = ()
    charges: Charges = NO_CHARGES
    mix: int = 1
    vcpu_quotas: Mapping[str, int] = field(default_factory=dict)

    @property
    def rentables(self) -> tuple[Rentable, ...]:
        """All that may be rented."""
        return (Rentable(self.offer, self.profile, self.max_instances), *self.others)

    @property
    def strategy(self) -> SuccessiveHalving:
        """The strategy of the job."""
        return SuccessiveHalving(
            self.trials, self.min_epochs, self.max_epochs, self.eta, mode="max"
        )

    def request(self, limits: Limits = NO_LIMITS) -> PlanRequest:
        """Return what a planner is asked."""
        return PlanRequest(
            self.strategy.stages(),
            self.rentables,
            limits,
            self.max_instances,
            charges=self.charges,
            mix=self.mix,
            vcpu_quotas=self.vcpu_quotas,
        )

    def plan(self, planner: Planner | None = None, limits: Limits = NO_LIMITS) -> Plan:
        """Return a plan for the job."""
        return (planner or ExactPlanner()).plan(self.request(limits))

    def policy(self, plan: Plan | None = None) -> RunPolicy:
        """Return a fresh policy for the job."""
        return RunPolicy(
            trials=trials(self.trials),
            strategy=self.strategy,
            plan=plan or self.plan(),
            metric=Metric("score", "max"),
            limits=self.limits,
            brakes=Brakes(drain=drain_seconds(*(each.profile for each in self.rentables))),
        )

    def world(self) -> SimWorld:
        """Return a simulated world for the job."""
        return SimWorld(self.rentables, "score", synthetic_metric("max", self.seed), self.seed)

    def job(self, plan: Plan | None = None) -> Job:
        """Return the job as the header of a ledger has it."""
        experiment = Experiment(
            name="made-up",
            train="train.py:train",
            metric={"name": "score", "mode": "max"},
            search={"x": {"uniform": [0, 1]}},
            trials=self.trials,
            epochs={"min": self.min_epochs, "max": self.max_epochs},
            eta=self.eta,
            seed=self.seed,
        )
        planned = plan or self.plan()
        return Job("r1", experiment, planned, self.rentables, self.limits, 0.0, False, "made up")

    def but(self, **changes: object) -> Setting:
        """Return the setting with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


def trials(count: int) -> tuple[Trial, ...]:
    """Return trials t00, t01 …"""
    return tuple(Trial(f"t{n:02d}", {"x": n}) for n in range(count))


@dataclass(frozen=True)
class Played:
    """A simulated run that has ended."""

    policy: RunPolicy
    world: SimWorld
    entries: tuple[Entry, ...]

    @property
    def seconds(self) -> float:
        """When the last instance was gone."""
        return max((r.gone_at for r in self.policy.fleet if r.gone_at is not None), default=0.0)

    @property
    def dollars(self) -> float:
        """The bill."""
        return self.policy.spent(self.policy.now)


def play(
    setting: Setting,
    plan: Plan | None = None,
    trouble: Sequence[Event] = (),
    saves_every: int = 1,
) -> Played:
    """Simulate a job to its end, with some trouble on the way, and checkpoints now and then."""
    policy, world, ledger = setting.policy(plan), setting.world(), MemoryLedger()
    for event in trouble:
        world.schedule(event)
    run(policy, _Bounded(world, saves_every), ledger)
    return Played(policy, world, tuple(ledger.entries))


class _Bounded:
    """A world that gives up on a run that goes on and on, and forgets some checkpoints."""

    def __init__(self, world: SimWorld, saves_every: int, most: int = 20_000) -> None:
        self._world, self._saves_every, self._left = world, saves_every, most
        self.apply = world.apply

    def next_event(self) -> Event | None:
        self._left -= 1
        assert self._left, f"the run doesn't end: it is at {self._world.now:.0f} s"
        event = self._world.next_event()
        if isinstance(event, EpochDone) and event.epoch % self._saves_every:
            return replace(event, checkpoint=None)
        return event


def shapes(plan: Plan) -> list[tuple[int, float]]:
    """Return instances and width of each stage of a plan that uses one offer at a time."""
    groups = (group for stage in plan.stages for group in stage.groups)
    found = [(group.instances, group.width) for group in groups]
    assert len(found) == len(plan.stages), "a stage has several groups"
    return found


# ---- scripted policies: plans by hand, events in a few words ----------------------------------


def staged(
    *stages: tuple[int, int, int, int, float], gpus: int = 4, max_instances: int = 9
) -> Plan:
    """Return a plan by hand; each stage is (trials, first epoch, last epoch, instances, width)."""
    made = [
        grouped(start, end, group(offer(gpus), instances, width, trials))
        for trials, start, end, instances, width in stages
    ]
    return by_hand(*made, max_instances=max_instances)


def group(offer: Offer, instances: int, width: float, trials: int) -> Group:
    """Return a group, with the waves that it takes."""
    waves = math.ceil(trials / max(1, slots(width, offer.gpus, instances)))
    return Group(offer, instances, width, trials, waves)


def grouped(start: int, end: int, *groups: Group) -> StagePlan:
    """Return a stage of these groups, between two epochs."""
    return StagePlan(Stage(sum(group.trials for group in groups), start, end), groups)


def by_hand(*stages: StagePlan, max_instances: int = 9, charges: Charges = NO_CHARGES) -> Plan:
    """Return a plan of these stages."""
    return Plan("by hand", stages, Estimate(0.0, 0.0), max_instances, charges=charges)


@dataclass(frozen=True)
class Rungs:
    """A strategy by hand: the best go on, as many as the next stage of the plan has."""

    plan: Plan

    def stages(self) -> tuple[Stage, ...]:
        return tuple(stage.stage for stage in self.plan.stages)

    def promote(self, stage: int, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        if stage + 1 == len(self.plan.stages):
            return ()
        ranked = sorted(results, key=lambda name: (rank_key("max", results[name]), name))
        return tuple(ranked[: self.plan.stages[stage + 1].stage.trials])


def scripted(
    plan: Plan,
    limits: Limits = NO_LIMITS,
    brakes: Brakes | None = None,
    zones: Sequence[str] = (),
) -> RunPolicy:
    """Return a policy for a plan by hand, whose metric is `score` (more is better)."""
    return RunPolicy(
        trials=trials(plan.stages[0].stage.trials),
        strategy=Rungs(plan),
        plan=plan,
        metric=Metric("score", "max"),
        limits=limits,
        brakes=brakes or Brakes(avoid=15.0),
        zones=zones,
    )


def instance(intent: str) -> str:
    """Return the instance id that `join` gives to an intent."""
    return intent.replace("i", "i-")


def join(policy: Policy, at: float, *intents: str) -> tuple[Command, ...]:
    """Let instances be launched and join; returns what the policy says to the joins."""
    said: list[Command] = []
    for intent in intents:
        policy.handle(InstanceLaunched(at, intent, instance(intent), at))
    for intent in intents:
        said += policy.handle(NodeJoined(at, intent))
    return tuple(said)


def begun(policy: Policy, *intents: str, at: float = 10.0) -> tuple[Command, ...]:
    """Start a run and let its instances join; returns what the policy says to the joins."""
    policy.handle(RunStarted(0.0))
    return join(policy, at, *intents)


def epoch(
    at: float, session: str, number: int, score: float = 0.5, *, saved: bool = True
) -> EpochDone:
    """Return an epoch that took a second; its checkpoint is named trial/number."""
    checkpoint = f"{session.partition('.')[0]}/{number}" if saved else None
    return EpochDone(at, session, number, {"score": score}, checkpoint, 1.0)


def starts(commands: Iterable[Command]) -> dict[str, tuple[Slice, ...]]:
    """Return the sessions that are started, and where."""
    return {c.session: c.placement for c in commands if isinstance(c, StartTrial)}


@st.composite
def jobs(
    draw: st.DrawFn,
    *,
    most_epochs: int,
    epoch: st.SearchStrategy[float],
    release: st.SearchStrategy[float],
    spread: st.SearchStrategy[float] = st.just(0.0),  # noqa: B008  a description, drawn from later
) -> Setting:
    """Give jobs of all shapes that a small fleet can have, on one offer or two.

    Delays are of up to half a minute.
    """
    first, deviation = draw(st.integers(1, 3)), draw(spread)
    charges = st.builds(Charges, st.sampled_from([0.0, 0.25]), st.sampled_from([0.0, 0.002]))
    other = st.none() | rentables("p.2x", epoch=epoch, release=release, spread=deviation)
    rented = draw(rentables("g.4x", epoch=epoch, release=release, spread=deviation))
    second = draw(other)
    return Setting(
        trials=draw(st.integers(1, 20)),
        min_epochs=first,
        max_epochs=draw(st.integers(first, most_epochs)),
        eta=draw(st.integers(2, 4)),
        offer=rented.offer,
        profile=rented.profile,
        max_instances=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 1000)),
        others=() if second is None else (second,),
        charges=draw(charges),
        mix=draw(st.integers(1, 2)),
    )


@st.composite
def rentables(
    draw: st.DrawFn,
    name: str,
    *,
    epoch: st.SearchStrategy[float],
    release: st.SearchStrategy[float],
    spread: float,
) -> Rentable:
    """Give offers of one instance type, and how a script scales on it."""
    widths = draw(st.sets(st.sampled_from([1 / 3, 0.5, 1.0, 2.0, 4.0, 8.0]), min_size=1))
    gpus, dollars = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([12.0, 36.0, 90.0]))
    delays = st.floats(0.0, 30.0)
    made = profile(
        {width: draw(epoch) for width in sorted(widths)},
        launch=draw(delays),
        boot=draw(delays),
        start=draw(delays),
        resize=draw(delays),
        release=draw(release),
        spread=spread,
        name=name,
    )
    minimum = draw(st.sampled_from([0.0, 60.0]))
    return Rentable(offer(gpus, dollars, minimum, name=name), made, draw(st.integers(1, 4)))


@st.composite
def choices(draw: st.DrawFn, setting: Setting) -> tuple[tuple[Group, ...], ...]:
    """Give any way to run a job, stage by stage: good ones, and bad ones."""
    return tuple(draw(stage_choices(setting, stage.trials)) for stage in setting.strategy.stages())


@st.composite
def stage_choices(draw: st.DrawFn, setting: Setting, trials: int) -> tuple[Group, ...]:
    """Give any groups that so many trials can train in."""
    room, left, groups = setting.max_instances, trials, []
    for rentable in draw(st.permutations(setting.rentables)):
        sizes = range(1, min(room, rentable.most) + 1)
        shapes = [
            (size, width)
            for size in sizes
            for width in rentable.profile.widths
            if slots(width, rentable.gpus, size) > 0
        ]
        if shapes and left:
            size, width = draw(st.sampled_from(shapes))
            count = draw(st.integers(1, left))
            groups.append(group(rentable.offer, size, width, count))
            room, left = room - size, left - count
    assume(groups)  # no width fits on so few instances
    first = groups[0]
    return (group(first.offer, first.instances, first.width, first.trials + left), *groups[1:])
