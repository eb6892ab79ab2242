"""Whatever the job and whatever goes wrong: what holds of every run that decides as it goes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudtune.engine.ledger import Entry, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.resume import replay
from cloudtune.engine.simulator import SimWorld
from cloudtune.infra.node.gpus import GpuSlots
from cloudtune.model import commands, events
from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Charges, Limits, Rentable, admits
from cloudtune.model.trial import EndReason
from cloudtune.policy.base import Brakes, Metric, drain_seconds
from cloudtune.policy.context import BuildContext
from cloudtune.policy.registry import STRATEGIES
from cloudtune.policy.run import RunPolicy
from cloudtune.strategies import base
from cloudtune.strategies.fleets import ConstantFleet, NaiveFleet
from tests.builders import Given, flapped, level, offer, policy_with, profile, trials, troubles
from tests.properties.messy_world import Fickle, Jumpy, Mess, MessyWorld, Mixed, Whimsical

thorough = settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
WIDTHS = (1 / 3, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Case:
    """A job, who decides about it, and the trouble that it will meet."""

    rentables: tuple[Rentable, ...]
    strategy: str
    trials: int
    last: int
    allocator: Jumpy
    fleet_rule: base.FleetRule
    limits: Limits
    max_instances: int
    seed: int
    charges: Charges
    vcpu_quotas: Mapping[str, int] = field(default_factory=dict)
    max_concurrent: int | None = None
    target: float | None = None
    heartbeat: bool = False
    trouble: tuple[events.Event, ...] = ()
    mess: Mess = field(default_factory=Mess)
    diverges: int = 0
    """In one of n epochs the metric is no number; 0: in none."""

    def decider(self) -> base.Strategy:
        given = trials(self.trials)
        if self.strategy == "fickle":
            return Fickle(given, self.last, self.seed)
        context = BuildContext(
            self.rentables,
            self.max_instances,
            self.limits,
            "max",
            1,
            self.last,
            3,
            self.trials,
            self.seed,
        )
        return STRATEGIES[self.strategy].build(context, Given(given))

    def policy(self) -> RunPolicy:
        return policy_with(
            strategy=self.decider(),
            allocator=self.allocator,
            fleet_rule=self.fleet_rule,
            rentables=self.rentables,
            max_instances=self.max_instances,
            metric=Metric("score", "max"),
            limits=self.limits,
            brakes=Brakes(drain=drain_seconds(*(r.profile for r in self.rentables)), join=120.0),
            charges=self.charges,
            vcpu_quotas=self.vcpu_quotas,
            max_concurrent=self.max_concurrent,
            target=self.target,
            heartbeat=self.heartbeat,
        )

    def play(self) -> tuple[RunPolicy, tuple[Entry, ...]]:
        def metric(config: Mapping[str, object], epoch: int) -> float:
            number = config["x"]
            assert isinstance(number, int)
            if self.diverges and (number * 3 + epoch) % self.diverges == 0:
                return math.nan
            return level(number, epoch, self.seed)

        world = SimWorld(self.rentables, "score", metric, self.seed)
        for event in self.trouble:
            world.schedule(event)
        policy, ledger = self.policy(), MemoryLedger()
        run(policy, MessyWorld(world, self.mess), ledger)
        return policy, tuple(ledger.entries)


@st.composite
def machines(
    draw: st.DrawFn, name: str, rates: tuple[float, ...], *, prompt: bool = False
) -> Rentable:
    """Give an offer, and how the script scales on it: not at every width; prompt: no delays."""
    delays, seconds = st.just(0.0) if prompt else st.floats(0.0, 40.0), st.floats(1.0, 30.0)
    widths = draw(st.sets(st.sampled_from(WIDTHS), min_size=1, max_size=4))
    made = profile(
        {width: draw(seconds) for width in sorted(widths)},
        launch=draw(st.sampled_from([0.0, 20.0])) if prompt else draw(delays),
        boot=draw(delays),
        start=draw(delays),
        resize=draw(delays),
        release=0.0 if prompt else draw(st.floats(0.0, 5.0)),
        spread=draw(st.sampled_from([0.0, 0.2])),
        name=name,
    )
    rented = offer(
        draw(st.sampled_from([1, 2, 4])),
        draw(st.sampled_from([12.0, 36.0, 90.0])),
        draw(st.sampled_from([0.0, 60.0])),
        name=name,
        interruptions_per_hour=draw(st.sampled_from(rates)),
    )
    grain = draw(st.sampled_from([0.0, 0.0, 60.0, 3600.0]))
    return Rentable(replace(rented, granularity_seconds=grain), made, 4)


@st.composite
def fleets(draw: st.DrawFn, offers: tuple[Offer, ...]) -> base.FleetRule:
    """Give fleets that stay, shrink, change, repack or waver."""
    kinds = ["constant", "naive", "mixed", "whimsical"]
    count, kind = draw(st.integers(1, 4)), draw(st.sampled_from(kinds))
    if kind == "constant":
        return ConstantFleet(offers[0], count)
    if kind == "naive":
        return NaiveFleet(offers[0], count, consolidates=draw(st.booleans()))
    made = Mixed if kind == "mixed" else Whimsical
    return made(offers, count, draw(st.integers(0, 99)), draw(st.booleans()))


@st.composite
def cases(
    draw: st.DrawFn, *, limited: bool = True, deaf: bool = False, prompt: bool = False
) -> Case:
    # Without limits, what is never saved and is always taken back trains for ever.
    rates = (0.0, 0.0, 20.0) if limited else (0.0,)
    rentables: tuple[Rentable, ...] = (draw(machines("g.4x", rates, prompt=prompt)),)
    if draw(st.booleans()):
        rentables = (*rentables, draw(machines("p.2x", rates, prompt=prompt)))
    options = draw(st.sets(st.sampled_from(WIDTHS), min_size=1, max_size=3))
    limits = Limits(draw(st.none() | st.floats(1.0, 900.0)), draw(st.none() | st.floats(0.1, 12.0)))
    mess = Mess(
        draw(st.integers(0, 99)),
        draw(st.sampled_from([0.0, 0.0, 15.0])),
        draw(st.sampled_from([0.0, 0.0, 0.3])),
        0.5 if deaf else 0.0,
        draw(st.sampled_from([1, 1, 2, 0])),
    )
    return Case(
        rentables=rentables,
        strategy=draw(st.sampled_from(["fickle", "fickle", *STRATEGIES])),
        trials=draw(st.integers(1, 10)),
        last=draw(st.integers(1, 9)),
        allocator=Jumpy(
            tuple(sorted(options)), draw(st.integers(0, 99)), draw(st.floats(0.0, 1.0))
        ),
        fleet_rule=draw(fleets(tuple(rentable.offer for rentable in rentables))),
        limits=limits if limited else Limits(),
        max_instances=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 99)),
        charges=Charges(draw(st.sampled_from([0.0, 0.25])), draw(st.sampled_from([0.0, 0.002]))),
        vcpu_quotas=draw(st.sampled_from([{}, {}, {"on-demand g": 32}])),
        max_concurrent=draw(st.none() | st.integers(1, 4)),
        target=draw(st.none() | st.floats(0.1, 0.9)),
        heartbeat=draw(st.booleans()),
        trouble=tuple(draw(st.lists(troubles(st.floats(0.0, 600.0)), max_size=8))),
        mess=mess,
        diverges=draw(st.sampled_from([0, 0, 5, 11])),
    )


def bill(case: Case, entries: Sequence[Entry]) -> tuple[float, float]:
    """Return when the last instance was gone, and what all cost, by the cloud's word alone."""
    offers = {rentable.offer.instance_type.name: rentable.offer for rentable in case.rentables}
    of: dict[str, Offer] = {}
    begins: dict[str, float] = {}
    lives: dict[str, tuple[float, float]] = {}
    for entry in entries:
        for command in entry.commands:
            if isinstance(command, commands.Launch):
                of[command.intent] = offers[command.instance_type]
        match entry.event:
            case events.InstanceLaunched():
                begins[entry.event.intent] = entry.event.launched_at
            case events.InstanceGone():
                ends = entry.event.gone_at
                lives.setdefault(entry.event.intent, (begins.get(entry.event.intent, ends), ends))
            case _:
                pass
    assert begins.keys() <= lives.keys(), "something was never given back"
    seconds = max((end for _, end in lives.values()), default=0.0)
    rented = sum(of[intent].charge(end - begin) for intent, (begin, end) in lives.items())
    extra = len(lives) * case.charges.usd_per_launch + seconds * case.charges.usd_per_second
    return seconds, rented + extra


class Watch:
    """Follows a run by its record alone, and checks each step of it."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._gpus = {r.offer.instance_type.name: r.gpus for r in case.rentables}
        self._offer = {r.offer.instance_type.name: r.offer for r in case.rentables}
        self._asked: dict[str, commands.Launch] = {}
        self._intent_of: dict[str, str] = {}
        self._ready: set[str] = set()  # instances
        self._joined: set[str] = set()  # intents
        self._seats: dict[str, commands.StartTrial] = {}
        self._agents: dict[str, GpuSlots] = {}  # by instance, as those of a real run

    def take(self, entry: Entry) -> None:
        self._follow(entry)
        for command in entry.commands:
            match command:
                case commands.Launch():
                    self._asked[command.intent] = command
                    alive: dict[Offer, int] = {}
                    for launch in self._asked.values():
                        item = self._offer[launch.instance_type]
                        alive[item] = alive.get(item, 0) + 1
                    assert admits(self._case.max_instances, self._case.vcpu_quotas, alive)
                case commands.StartTrial():
                    self._start(command)
                case commands.StopTrial() if isinstance(
                    entry.event, events.NodeLost | events.InstanceGone
                ):
                    self._leave(command.session)
                case commands.Release():
                    self._ready -= {i for i, it in self._intent_of.items() if it == command.intent}
                case commands.SetTimer():
                    assert command.at > entry.event.at, "a timer of the past"
                case _:
                    pass

    def _follow(self, entry: Entry) -> None:
        match entry.event:
            case events.InstanceLaunched(intent=intent, instance=instance):
                self._intent_of[instance] = intent
            case events.NodeJoined(intent=intent):
                self._joined.add(intent)
            case events.NodeLost(intent=intent):
                self._joined.discard(intent)
            case events.InstanceGone(intent=intent) | events.LaunchFailed(intent=intent):
                self._asked.pop(intent, None)
                self._joined.discard(intent)
            case events.TrialStopped(session=session) | events.TrialFailed(session=session):
                self._leave(session)
            case events.TrialLost(session=session):
                self._leave(session)
            case _:
                pass

    def _start(self, command: commands.StartTrial) -> None:
        assert command.start_epoch < command.until_epoch
        trials = {_seat.trial for _seat in self._seats.values()}
        assert command.trial not in trials, f"{command.trial} has two sessions"
        self._seats[command.session] = command
        most = self._case.max_concurrent
        assert most is None or len(self._seats) <= most
        for piece in command.placement:
            intent = self._intent_of[piece.instance]
            assert intent in self._joined, f"{piece.instance} takes no trials"
            gpus = self._agents.setdefault(piece.instance, GpuSlots(self._gpus_of(intent)))
            seated = gpus.take(command.session, piece.gpus, piece.gpu)
            assert seated is not None, f"{piece} can't sit there"

    def _gpus_of(self, intent: str) -> int:
        return self._gpus[self._asked[intent].instance_type]

    def _leave(self, session: str) -> None:
        self._seats.pop(session, None)
        for gpus in self._agents.values():
            gpus.give(session)


def check_releases(entries: Sequence[Entry]) -> None:
    """None is waited for beyond twice the policy's patience: the run's end begins another wait."""
    waiting: dict[str, float] = {}
    for entry in entries:
        if isinstance(entry.event, events.InstanceGone | events.LaunchFailed):
            waiting.pop(entry.event.intent, None)
        for command in entry.commands:
            if isinstance(command, commands.Release):
                waiting[command.intent] = entry.event.at
        late = [intent for intent, at in waiting.items() if entry.event.at > at + 63.0]
        assert not late, f"{late} not confirmed at {entry.event.at}"
    assert not waiting


def no_storm(entries: Sequence[Entry]) -> None:
    """The policy's own alarms are few: two a second, and some for what happens besides."""
    fired = sum(isinstance(entry.event, events.TimerFired) for entry in entries)
    others = len(entries) - fired
    assert fired <= 2 * entries[-1].event.at + others + 20, f"{fired} timers, {others} events"


def holds(case: Case) -> tuple[RunPolicy, tuple[Entry, ...]]:
    policy, entries = case.play()
    assert policy.ended, f"it stands still at {policy.now:.0f} s"
    assert policy.fleet.alive() == []
    ends = [c for entry in entries for c in entry.commands if isinstance(c, commands.EndRun)]
    assert ends == [commands.EndRun(policy.ending or EndReason.FAILED)]
    watch = Watch(case)
    for entry in entries:
        watch.take(entry)
    check_releases(entries)
    no_storm(entries)
    assert flapped(policy, case.rentables, entries) == ()
    assert all(trial.epoch <= case.last for trial in policy.trials.values())
    return policy, entries


@settings(parent=thorough, max_examples=60)
@given(case=cases())
def test_a_run_ends_within_its_limits_and_leaves_nothing(case: Case) -> None:
    _, entries = holds(case)
    seconds, dollars = bill(case, entries)
    assert case.limits.deadline is None or seconds <= case.limits.deadline
    assert case.limits.budget is None or dollars <= case.limits.budget + 1e-9


@thorough
@given(case=cases(limited=False))
def test_a_run_without_limits_ends_when_its_strategy_does(case: Case) -> None:
    policy, _ = holds(case)
    assert policy.ending not in {EndReason.BUDGET, EndReason.DEADLINE}


@settings(parent=thorough, max_examples=45)
@given(case=cases(prompt=True) | cases(deaf=True))
def test_a_strange_cloud_changes_no_rule_and_no_record(case: Case) -> None:
    policy, entries = holds(case)
    again = case.policy()
    replay(again, entries)
    assert again.best == policy.best
    assert again.spent(policy.now) == policy.spent(policy.now)
