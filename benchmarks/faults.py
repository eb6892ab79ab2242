"""A fault campaign in virtual time: runs whose controller dies and whose cloud misbehaves.

Each run is drawn from a seed: its limits, its strategy, up to three deaths of the controller at
boundaries of any kind, and what the cloud does: refusals, interruptions with and without notice,
nodes that die, workers that crash, memory that is full. What is counted must be zero:

    instances left        that exist when the run has ended
    unknown purchases     that no record names
    $ over budget         by the simulated cloud's own bill
    s past deadline       of the last instance's end
    reports lost          reported epochs that no ledger has
    flapping              instances asked for again or given back, and nothing explains it
    other decisions       against the same run without deaths (only runs whose cloud behaves)

    python -m benchmarks.faults [--runs 1000] [--seed 0]
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.fault_world import Kill, survive
from benchmarks.runner import parser
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.experiment.search_space import Uniform
from cloudtune.model.catalog import InstanceType, Offer
from cloudtune.model.commands import Launch
from cloudtune.model.events import (
    EpochDone,
    InstanceGone,
    InstanceLaunched,
    InterruptionNotice,
    LaunchFailed,
    NodeLost,
    RebalanceRecommended,
    TrialFailed,
    TrialLost,
)
from cloudtune.model.plans import Allowance, Limits, Rentable
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.model.trial import Trial
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.policy.base import Brakes, Metric
from cloudtune.policy.context import BuildContext
from cloudtune.policy.registry import chosen, components, run_policy
from cloudtune.policy.schedule.stages import Planning, follow
from cloudtune.strategies.samplers.sampler import SpaceSampler
from cloudtune.strategies.successive_halving import SuccessiveHalving
from tests.builders import flapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.fault_world import Survived
    from cloudtune.model.events import Event
    from cloudtune.model.trial import TrialId
    from cloudtune.policy.run import RunPolicy

_TYPES = {
    "small.1x": (1, 1.0),
    "mid.4x": (4, 3.6),
    "big.8x": (8, 8.0),
}
_EPOCHS = {1.0: 8.0, 2.0: 4.6, 4.0: 2.9, 8.0: 2.4, 0.5: 12.0}
_ELASTIC = ("asha", "hyperband", "hypersched", "seer", "pbt", "random")


@dataclass(frozen=True)
class Case:
    """One run of the campaign, whole from its seed."""

    seed: int
    strategy: str
    allocator: str
    limits: Limits
    rentables: tuple[Rentable, ...]
    trouble: tuple[Event, ...]
    kills: tuple[Kill, ...]

    @property
    def behaved(self) -> bool:
        """Whether nothing but the controller dies, and nothing else can stop the run early."""
        return not self.trouble and self.limits == Limits() and self.strategy == "sha"

    def policy(self) -> RunPolicy:
        return _planned(self) if self.strategy == "sha" else _as_it_goes(self)

    def world(self) -> SimWorld:
        metric = synthetic_metric("max", self.seed)
        world = SimWorld(self.rentables, "score", metric, self.seed)
        for event in self.trouble:
            world.schedule(event)
        return world


@dataclass
class Tally:
    """What went wrong, over all runs: how much of what, and the seeds to look into."""

    runs: int = 0
    deaths: int = 0
    faults: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    wrong: dict[str, float] = field(default_factory=dict)
    seeds: dict[str, list[int]] = field(default_factory=dict)

    def add(self, what: str, amount: float, seed: int) -> None:
        self.wrong[what] = self.wrong.get(what, 0) + amount
        if amount:
            self.seeds.setdefault(what, []).append(seed)


# ---- drawing cases -------------------------------------------------------------------------------


def case(seed: int) -> Case:
    """Return the run of a seed."""
    rng = random.Random(seed)
    behaved = rng.random() < 0.25
    strategy = "sha" if behaved else rng.choice(("sha", *_ELASTIC))
    spread = rng.choice((0.0, 0.1, 0.3))
    rentables = tuple(_rentables(rng, spread, spot=not behaved and rng.random() < 0.5))
    limits = Limits() if behaved else _limits(rng, strategy)
    trouble = () if behaved else tuple(_trouble(rng, seed, limits.deadline or 400.0))
    own = strategy in {"hypersched", "seer"}
    allocator = "" if own else rng.choice(("", "static-fluid", "dynamic-fluid"))
    return Case(seed, strategy, allocator, limits, rentables, trouble, tuple(_kills(rng)))


def _rentables(rng: random.Random, spread: float, *, spot: bool) -> Iterator[Rentable]:
    names = rng.sample(sorted(_TYPES), rng.choice((1, 2, 3)))
    for name in names:
        gpus, price = _TYPES[name]
        kind = InstanceType(name, gpus, "T4", 16384, 4 * gpus, 65536)
        minimum = rng.choice((0.0, 60.0))
        grain = rng.choice((0.0, 1.0))
        widths = {w: s for w, s in _EPOCHS.items() if w <= 2 * gpus}
        profile = _profile(name, widths, spread)
        yield Rentable(Offer(kind, "on-demand", "x", price, minimum, grain), profile, 4)
        if spot:
            rate = rng.choice((0.0, 20.0))
            offer = Offer(kind, "spot", "x", price / 3, minimum, grain, "", rate)
            yield Rentable(offer, profile, 4)


def _profile(name: str, widths: dict[float, float], spread: float) -> ScalingProfile:
    def measured(seconds: float) -> Measurement:
        return Measurement(seconds, seconds * spread, 3)

    return ScalingProfile(
        instance_type=name,
        epoch={width: measured(seconds) for width, seconds in widths.items()},
        launch=measured(2.0),
        boot=measured(20.0),
        start=measured(3.0),
        resize=measured(1.0),
        release=measured(2.0),
        script_hash="",
        measured_at="2026-11-21",
        source="made up",
    )


def _limits(rng: random.Random, strategy: str) -> Limits:
    deadline = rng.choice((None, 150.0, 300.0, 600.0))
    budget = rng.choice((None, 0.15, 0.5, 1.5))
    if deadline is None and budget is None and strategy != "sha":
        deadline = 300.0  # some strategies go on for as long as they may
    return Limits(deadline, budget)


def _trouble(rng: random.Random, seed: int, horizon: float) -> Iterator[Event]:
    other = random.Random(-1 - seed)  # a seed's other trouble is what it was without them
    for number in range(other.choice((0, 0, 1, 3))):
        yield RebalanceRecommended(other.uniform(0.0, horizon), f"i{number:03d}")
    for _ in range(rng.choice((0, 1, 2, 4, 8))):
        at, intent = rng.uniform(0.0, horizon), f"i{rng.randrange(6):03d}"
        trial = f"t{rng.randrange(9):02d}.{rng.randrange(1, 4)}"
        yield rng.choice(
            (
                LaunchFailed(rng.uniform(0.0, 2.0), intent, "Dry", "none left", kind="capacity"),
                LaunchFailed(rng.uniform(0.0, 2.0), intent, "Full", "enough", kind="quota"),
                InterruptionNotice(at, intent, at + 120.0),
                InstanceGone(at, intent, at, "taken back"),
                NodeLost(at, intent, "its machine is dead"),
                TrialLost(at, trial, "its worker was killed"),
                TrialFailed(at, trial, "out of memory", "", out_of_memory=True),
                TrialFailed(at, trial, "ValueError", ""),
            )
        )


def _kills(rng: random.Random) -> Iterator[Kill]:
    for _ in range(rng.choice((1, 1, 2, 3))):
        away = rng.choice((0.5, 5.0, 60.0, 600.0))
        yield Kill(rng.randrange(1, 700), away, workers=rng.random() < 0.3)


# ---- playing them --------------------------------------------------------------------------------


def _strategy() -> SuccessiveHalving:
    return SuccessiveHalving(9, 1, 9, 3, "max")


def _planned(case: Case) -> RunPolicy:
    context = _context(case, trials=9)
    plan = ExactPlanner().plan(PlanRequest(_strategy().stages(), case.rentables, Allowance(), 4))
    trials = [Trial(f"t{n:02d}", {"lr": n}) for n in range(9)]
    parts = follow("sha", Planning("exact"), context, plan, trials, brakes=BRAKES)
    return run_policy(context, parts, METRIC, BRAKES)


def _as_it_goes(case: Case) -> RunPolicy:
    context = _context(case, trials=12)
    sampler = SpaceSampler({"lr": Uniform(0.0, 1.0)}, seed=case.seed, most=12)
    choice = chosen(case.strategy, case.allocator)
    return run_policy(context, components(context, sampler, choice, BRAKES), METRIC, BRAKES)


def _context(case: Case, *, trials: int) -> BuildContext:
    return BuildContext(
        rentables=case.rentables,
        max_instances=4,
        limits=case.limits,
        mode="max",
        min_epochs=1,
        max_epochs=9,
        trials=trials,
        seed=case.seed,
    )


BRAKES = Brakes(avoid=30.0)
METRIC = Metric("score", "max")
_ROUNDING = 1e-9


def judge(case: Case, tally: Tally) -> None:
    """Play a case, and take down what went wrong."""
    survived = survive(case.policy, case.world(), case.kills)
    policy = survived.policy
    tally.runs += 1
    tally.deaths += survived.deaths
    tally.faults += len(case.trouble)
    assert policy.ending is not None
    tally.endings[policy.ending.value] += 1
    _judge_instances(case, survived, tally)
    seconds, dollars = bill(survived, case.rentables)
    limits = case.limits
    over = 0.0 if limits.budget is None else dollars - limits.budget
    past = 0.0 if limits.deadline is None else seconds - limits.deadline
    tally.add("dollars over budget", over if over > _ROUNDING else 0.0, case.seed)
    tally.add("seconds past deadline", past if past > _ROUNDING else 0.0, case.seed)
    events = [entry.event for entry in survived.entries]
    recorded = {(event.session, event.epoch) for event in events if isinstance(event, EpochDone)}
    tally.add("reports lost", len(survived.cloud.reported.keys() - recorded), case.seed)
    if case.behaved:
        undisturbed = survive(case.policy, case.world(), ())
        tally.compared += 1
        differ = _rungs(policy) != _rungs(undisturbed.policy)
        tally.add("other decisions", int(differ), case.seed)


def _judge_instances(case: Case, survived: Survived, tally: Tally) -> None:
    entries = survived.entries
    asked = Counter(c.intent for e in entries for c in e.commands if isinstance(c, Launch))
    launched = {e.event.intent for e in entries if isinstance(e.event, InstanceLaunched)}
    tally.add("instances left", len(survived.cloud.world.alive()), case.seed)
    tally.add("unknown purchases", len(launched - asked.keys()), case.seed)
    tally.add("double purchases", sum(count > 1 for count in asked.values()), case.seed)
    flapping = flapped(survived.policy, case.rentables, entries)
    tally.add("flapping", len(flapping), case.seed)


def bill(survived: Survived, rentables: Sequence[Rentable]) -> tuple[float, float]:
    """Return when the last instance was gone, and the dollars of all, by the cloud's own words."""
    offers: dict[tuple[str, str], Offer] = {
        (r.offer.instance_type.name, r.offer.market): r.offer for r in rentables
    }
    asked: dict[str, Offer] = {}
    begun: dict[str, float] = {}
    gone: dict[str, float] = {}
    for entry in survived.entries:
        if isinstance(entry.event, InstanceLaunched):
            begun[entry.event.intent] = entry.event.launched_at
        if isinstance(entry.event, InstanceGone):
            gone[entry.event.intent] = entry.event.gone_at
        for command in entry.commands:
            if isinstance(command, Launch):
                asked[command.intent] = offers[command.instance_type, command.market]
    end = survived.cloud.world.now
    dollars = sum(asked[i].charge(gone.get(i, end) - at) for i, at in begun.items())
    return max(gone.values(), default=0.0), dollars


def _rungs(policy: RunPolicy) -> tuple[object, ...]:
    best = policy.best
    fates: dict[TrialId, tuple[str, int]] = {
        name: (trial.status, trial.epoch) for name, trial in policy.trials.items()
    }
    return (policy.ending, None if best is None else (best.trial, best.epoch, best.metric), fates)


def campaign(runs: int, seed: int, watch: Callable[[int], None] = lambda _: None) -> Tally:
    tally = Tally()
    for number in range(seed, seed + runs):
        judge(case(number), tally)
        watch(number)
    return tally


def main() -> None:
    given = parser(__doc__, runs=1000, seed=0).parse_args()
    began = time.monotonic()
    tally = campaign(given.runs, given.seed)
    counts = {**vars(tally), **tally.wrong}
    del counts["wrong"]
    for name, value in counts.items():
        shown = dict(value) if isinstance(value, Counter) else value
        print(f"{name:22} {shown}")
    print(f"{'seconds':22} {time.monotonic() - began:.0f}")


if __name__ == "__main__":
    main()
