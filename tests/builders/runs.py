"""One description of a job to be simulated, one way to play it, and what has been played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from benchmarks.compare.stages import plan_stages
from cloudtune.engine.ledger import Entry, FileLedger, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.record.timeline import read
from cloudtune.engine.simulator import SimWorld
from cloudtune.engine.spot_pools import PoolTrace
from cloudtune.experiment import Experiment
from cloudtune.model import events
from cloudtune.model.catalog import Offer
from cloudtune.model.commands import Command, Launch, StartTrial, StopTrial
from cloudtune.model.plans import Allowance, Charges, Limits, Plan, Rentable
from cloudtune.model.scaling import ScalingProfile
from cloudtune.model.trial import Mode, Trial, TrialId
from cloudtune.planners.base import Planner, PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.policy.base import Brakes, Metric, TrialRules, drain_seconds
from cloudtune.policy.context import BuildContext
from cloudtune.policy.registry import STRATEGIES, chosen, components, run_policy
from cloudtune.policy.run import RunPolicy
from cloudtune.runs.job import Job
from cloudtune.strategies.allocators.same import SameWidth
from cloudtune.strategies.base import Allocator, Sampler, Strategy, TrialGroup
from cloudtune.strategies.fleets import ConstantFleet, NaiveFleet
from cloudtune.strategies.successive_halving import SuccessiveHalving
from tests.builders.machines import LINEAR, NO_CHARGES, NO_LIMITS, offer, profile
from tests.builders.plans import run_plan
from tests.builders.policies import by_plan, plan_of, policy_with
from tests.builders.trials import Given, Watched, level, trials
from tests.flapping import flaps

Build: TypeAlias = "Callable[[Sampler, Setting], Strategy]"
Decider: TypeAlias = "Plan | str | Build"
Mishap: TypeAlias = "Callable[[str, int, int], Literal['', 'failed', 'lost', 'ended']]"
"""What becomes of a trial, in its session, after an epoch."""


@dataclass(frozen=True)
class Setting:
    """All that a simulated job is made from, and the world that it meets.

    `by` says who decides: a plan (the exact planner's, where nothing is said); the strategy of a
    name, with the allocator and the fleet that suit it; or a way to build a strategy, which then
    has a fleet of `max_instances` and the `allocator` (the same `width` for all, if none is given).

    `others` may be rented besides `offer`. Of `pace`, of what is `real`, of `trouble` and of
    No decider knows `mishap` beforehand. `metric` is of a trial's number and an epoch.
    """

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
    caps: Mapping[int, int] = field(default_factory=dict)
    # who decides
    by: Decider | None = None
    naive: bool = False
    width: float = 1.0
    allocator: Callable[[], Allocator] | None = None
    mode: Mode = "max"
    max_concurrent: int | None = None
    target: float | None = None
    brakes: Brakes | None = None
    rules: TrialRules | None = None
    heartbeat: bool | None = None  # only where a plan is carried out, if nothing is said
    checked: bool = True
    # the world
    metric: Callable[[int, int], float] | None = None  # as `level`, of the seed
    pace: Callable[[Mapping[str, object], int], float] | None = None
    real: tuple[Rentable, ...] | None = None
    trouble: Sequence[events.Event] = ()
    mishap: Mishap = lambda _trial, _session, _epoch: ""
    saves_every: int = 1
    reports_every: int = 1
    copies: bool = False  # on several GPUs the script trains the same model on each
    pools: Mapping[tuple[str, str, str], PoolTrace] = field(default_factory=dict)

    def but(self, **changes: object) -> Setting:
        return replace(self, **changes)  # type: ignore[arg-type]

    def mirrored(self) -> Setting:
        """Return the setting in which less is better, and all else is the same."""
        mode: Mode = "min" if self.mode == "max" else "max"
        target = None if self.target is None else -self.target
        return self.but(metric=lambda n, e: -self.reaches(n, e), mode=mode, target=target)

    def reaches(self, number: int, epoch: int) -> float:
        return self.metric(number, epoch) if self.metric else level(number, epoch, self.seed)

    @property
    def rentables(self) -> tuple[Rentable, ...]:
        return (Rentable(self.offer, self.profile, self.max_instances), *self.others)

    @property
    def given(self) -> tuple[Trial, ...]:
        return trials(self.trials, self.caps)

    # ---- who decides ---------------------------------------------------------------------

    @property
    def strategy(self) -> SuccessiveHalving:
        return SuccessiveHalving(
            self.trials, self.min_epochs, self.max_epochs, self.eta, mode=self.mode
        )

    def request(self, limits: Limits = NO_LIMITS) -> PlanRequest:
        return PlanRequest(
            self.strategy.stages(),
            self.rentables,
            Allowance(limits.deadline, limits.budget),
            self.max_instances,
            charges=self.charges,
            mix=self.mix,
            vcpu_quotas=self.vcpu_quotas,
        )

    def plan(self, planner: Planner | None = None, limits: Limits = NO_LIMITS) -> Plan:
        return (planner or ExactPlanner()).plan(self.request(limits))

    def policy(self, by: Decider | None = None, sampler: Sampler | None = None) -> RunPolicy:
        by = by or self.by or self.plan()
        if isinstance(by, Plan):
            return self._by_plan(by)
        sampler = sampler or Given(self.given)
        return self._named(by, sampler) if isinstance(by, str) else self._built(by, sampler)

    @property
    def _brakes(self) -> Brakes:
        drain = drain_seconds(*(rentable.profile for rentable in self.rentables))
        return self.brakes or Brakes(drain=drain)

    def _by_plan(self, plan: Plan) -> RunPolicy:
        return by_plan(
            plan,
            self.strategy,
            self.rentables,
            limits=self.limits,
            brakes=self._brakes,
            given=trials(plan.stages[0].stage.trials, self.caps),
            rules=self.rules,
            heartbeat=self.heartbeat is not False,
        )

    def _named(self, name: str, sampler: Sampler) -> RunPolicy:
        """Return a policy as the command line makes it, but for the checks."""
        context, choice = self.context(), chosen(name)
        plan = None
        if choice.planned:
            plan = plan_stages(
                name, context, self._brakes, trials=self.trials, charges=self.charges
            )
        made = components(context, sampler, choice, self._brakes, plan)
        if not choice.planned:
            made = replace(made, strategy=Watched(made.strategy))
        return run_policy(
            context,
            made,
            Metric("score", self.mode),
            self._brakes,
            charges=self.charges,
            max_concurrent=self.max_concurrent,
            target=self.target,
            rules=self.rules,
            heartbeat=bool(self.heartbeat),
            checked=self.checked,
        )

    def _built(self, build: Build, sampler: Sampler) -> RunPolicy:
        rule = NaiveFleet if self.naive else ConstantFleet
        return policy_with(
            Watched(build(sampler, self)),
            self.allocator() if self.allocator else SameWidth(self.width),
            rule(self.offer, self.max_instances),
            rentables=self.rentables,
            max_instances=self.max_instances + 1,
            metric=Metric("score", self.mode),
            limits=self.limits,
            brakes=self._brakes,
            charges=self.charges,
            max_concurrent=self.max_concurrent,
            target=self.target,
            rules=self.rules,
            heartbeat=bool(self.heartbeat),
            checked=self.checked,
        )

    def context(self, **changes: object) -> BuildContext:
        made = BuildContext(
            self.rentables,
            self.max_instances,
            self.limits,
            self.mode,
            self.min_epochs,
            self.max_epochs,
            self.eta,
            trials=self.trials,
            seed=self.seed,
        )
        return replace(made, **changes)  # type: ignore[arg-type]

    # ---- the world -----------------------------------------------------------------------

    def world(self) -> SimWorld:

        def metric_of(config: Mapping[str, object], epoch: int) -> float:
            number = config["x"]
            assert isinstance(number, int)
            return self.reaches(number, epoch)

        real, pools = self.real or self.rentables, self.pools
        world = SimWorld(real, "score", metric_of, self.seed, self.pace, pools=pools)
        for event in self.trouble:
            world.schedule(event)
        return world

    def job(self, plan: Plan | None = None) -> Job:
        experiment = Experiment(
            name="made-up",
            train="train.py:train",
            metric={"name": "score", "mode": "max"},
            search={"x": {"randint": [0, 999]}},
            trials=self.trials,
            epochs={"min": self.min_epochs, "max": self.max_epochs},
            eta=self.eta,
            seed=self.seed,
            cloud={"max_instances": self.max_instances, "vcpu_quotas": dict(self.vcpu_quotas)},
            charges={
                "per_launch": self.charges.usd_per_launch or None,
                "per_hour": self.charges.usd_per_second * 3600 or None,
            },
        )
        planned = run_plan(plan or self.plan())
        return Job("r1", experiment, planned, self.rentables, self.limits, 0.0, False, "made up")


def by_name(
    name: str, *, min_epochs: int = 1, max_epochs: int = 9, eta: int = 3, trials: int | None = None
) -> Build:
    """Return a way to build a strategy as the command line would; `trials` as in `BuildContext`."""

    def build(sampler: Sampler, setting: Setting) -> Strategy:
        context = setting.context(
            min_epochs=min_epochs, max_epochs=max_epochs, eta=eta, trials=trials
        )
        return STRATEGIES[name].build(context, sampler)

    return build


def gone(intents: Mapping[str, float]) -> list[events.Event]:
    """Return that the instances of some intents are taken back at some time."""
    return [events.InstanceGone(at, intent, at, "taken back") for intent, at in intents.items()]


def refused(intents: Mapping[str, float]) -> list[events.Event]:
    return [
        events.LaunchFailed(at, intent, "NoMore", "none left", permanent=True)
        for intent, at in intents.items()
    ]


@dataclass(frozen=True)
class Played:
    """A simulated run that has ended; `sampler` has its results where a strategy was asked."""

    setting: Setting
    policy: RunPolicy
    world: SimWorld
    sampler: Given
    entries: tuple[Entry, ...]

    @property
    def seconds(self) -> float:
        """When the last instance was gone, as the policy has it."""
        return max((r.gone_at for r in self.policy.fleet if r.gone_at is not None), default=0.0)

    @property
    def dollars(self) -> float:
        """The bill, as the policy has it."""
        return self.policy.spent(self.policy.now)

    @property
    def commands(self) -> list[tuple[Command, ...]]:
        return [entry.commands for entry in self.entries]

    @property
    def starts(self) -> list[StartTrial]:
        return [c for commands in self.commands for c in commands if isinstance(c, StartTrial)]

    @property
    def widths(self) -> list[float]:
        return [start.width for start in self.starts]

    @property
    def epochs(self) -> dict[TrialId, int]:
        return {name: max(t.history, default=0) for name, t in self.policy.trials.items()}

    @property
    def furthest(self) -> int:
        """How far the trial that came furthest was trained."""
        return max(self.epochs.values())

    @property
    def members(self) -> list[int]:
        """How many trials each stage had, by the plan that was followed in the end."""
        return [stage.stage.trials for stage in plan_of(self.policy).stages]

    def groups(self) -> list[TrialGroup]:
        watched = self.policy.strategy
        assert isinstance(watched, Watched)
        return watched.groups

    def parts(self, prefix: str) -> dict[str, int]:
        """Return how many tasks each group of such a name asked for, each trial once."""
        result: dict[str, set[TrialId]] = {}
        for group in self.groups():
            if group.name.startswith(prefix):
                result.setdefault(group.name, set()).update(t.trial.id for t in group.tasks)
        return {name: len(trials) for name, trials in result.items()}

    def max_at_once(self) -> int:
        """Return how many sessions were alive at once, at most."""
        alive: set[str] = set()
        most = 0
        for entry in self.entries:
            if isinstance(entry.event, events.TrialStopped | events.TrialFailed | events.TrialLost):
                alive.discard(entry.event.session)
            elif isinstance(entry.event, events.InstanceGone):  # what sat there is gone at once
                alive -= {c.session for c in entry.commands if isinstance(c, StopTrial)}
            alive |= {c.session for c in entry.commands if isinstance(c, StartTrial)}
            most = max(most, len(alive))
        return most

    def bill(self) -> tuple[float, float]:
        """Return when the last instance was gone and what all cost, by the cloud's word alone."""
        offers, charges = self._offers(), self.setting.charges
        begins: dict[str, float] = {}
        seconds = dollars = 0.0
        for event in (entry.event for entry in self.entries):
            if isinstance(event, events.InstanceLaunched):
                begins[event.intent] = event.launched_at
                dollars += charges.usd_per_launch
            elif isinstance(event, events.InstanceGone) and event.intent in begins:
                seconds = max(seconds, event.gone_at)
                lived = event.gone_at - begins.pop(event.intent)
                dollars += offers[event.intent].charge(lived)
        assert not begins, f"never given back: {begins}"
        return seconds, dollars + seconds * charges.usd_per_second

    def _offers(self) -> dict[str, Offer]:
        offers = [item.offer for item in self.setting.rentables]
        known = {(item.instance_type.name, str(item.market)): item for item in offers}
        asked = [c for said in self.commands for c in said if isinstance(c, Launch)]
        return {c.intent: known[c.instance_type, c.market] for c in asked}


def play(setting: Setting, by: Decider | RunPolicy | None = None) -> Played:
    """Simulate a job to its end, with its trouble on the way."""
    sampler, ledger = Given(setting.given), MemoryLedger()
    if not isinstance(by, RunPolicy):
        setting = setting if by is None else setting.but(by=by)
        by = setting.policy(sampler=sampler)
    world = setting.world()
    run(by, _Troubled(setting, world), ledger)
    assert by.ended, f"the run stands still at {by.now:.0f} s: {_still(by)}"
    assert flapped(by, setting.rentables, ledger.entries) == ()
    return Played(setting, by, world, sampler, tuple(ledger.entries))


def flapped(
    policy: RunPolicy, rentables: Sequence[Rentable], entries: Sequence[Entry]
) -> tuple[str, ...]:
    """Return what a run took back or rented again for no cause: nothing, as it must be."""
    state, known = policy.state, read(entries)
    stages = policy.itinerary.stage_began if policy.itinerary else ()
    return flaps(entries, known, rentables, brakes=state.brakes, metric=state.metric, stages=stages)


class _Troubled:
    """A world with mishaps, that forgets some checkpoints and gives up on a run without end."""

    def __init__(self, setting: Setting, world: SimWorld) -> None:
        self._setting, self._world = setting, world
        self._left = max(20_000, 100 * setting.trials)
        self._widths: dict[str, float] = {}

    def apply(self, command: Command) -> None:
        if isinstance(command, StartTrial):
            self._widths[command.session] = command.width
        self._world.apply(command)

    def next_event(self) -> events.Event | None:
        self._left -= 1
        assert self._left, f"the run doesn't end: it is at {self._world.now:.0f} s"
        event = self._world.next_event()
        return self._troubled(event) if isinstance(event, events.EpochDone) else event

    def _troubled(self, event: events.EpochDone) -> events.Event:
        if self._setting.copies and self._widths[event.session] > 1:
            self._world.drop(event.session)
            return events.TrialFailed(event.at, event.session, "no gradients", "", unsynced=True)
        trial, _, session = event.session.rpartition(".")
        kind = self._setting.mishap(trial, int(session), event.epoch)
        if kind == "lost":
            self._world.schedule(events.TrialLost(event.at, event.session, "gone"))
        elif kind == "failed":
            self._world.schedule(events.TrialFailed(event.at, event.session, "boom", ""))
        elif kind == "ended":
            self._world.drop(event.session)
            self._world.schedule(events.TrialStopped(event.at, event.session, by_itself=True))
        if event.epoch % self._setting.reports_every:
            event = self._passed(event, int(trial[1:]))
        return replace(event, checkpoint=None) if event.epoch % self._setting.saves_every else event

    def _passed(self, event: events.EpochDone, number: int) -> events.EpochDone:
        """Return an epoch of a script that next reports a few epochs later."""
        every = self._setting.reports_every
        named = -(-event.epoch // every) * every
        metrics = {"score": self._setting.reaches(number, named)}
        return replace(event, metrics=metrics, checkpoint=None, of_epoch=named)


def _still(policy: RunPolicy) -> Counter[str]:
    return Counter(trial.status for trial in policy.trials.values())


def keep_run(home: Path, job: Job, entries: Iterable[Entry]) -> Path:
    """Write a run down in a home as `cloudtune run` does; return its folder."""
    folder = home / "runs" / job.run
    folder.mkdir(parents=True)
    write_ledger(folder, job.to_json(), entries)
    return folder


def write_ledger(folder: Path, header: Mapping[str, Any], entries: Iterable[Entry]) -> None:
    ledger = FileLedger(folder / "ledger.jsonl", header)
    for entry in entries:
        ledger.append(entry.event, entry.commands)
    ledger.close()
