"""What becomes of planned runs whose world isn't that of their profile.

    python -m benchmarks.reality table            # one job, training slower than its profile
    python -m benchmarks.reality share [--jobs 500] [--out FILE]   # random jobs, profiles off
    python -m benchmarks.reality spot [--jobs 40]       # pools that are dry
    python -m benchmarks.reality elastic [--jobs 40]    # seer, where wide trials are slower

`share` draws jobs and limits that a plan by the profile keeps; in the world epochs take 0.7 to 1.5
times as long, in half of the jobs more so the wider a trial is, and starts 0.7 to 1.5 times. It
tells the share of jobs whose winner is trained to the last epoch, and the same of a planner that
knew the world's figures from the beginning. Virtual time throughout: seconds to minutes.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, _Intent, synthetic_metric
from cloudtune.infra.aws import pricing
from cloudtune.model.catalog import InstanceType, Offer, of_pool
from cloudtune.model.events import LaunchFailed
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.model.trial import Trial
from cloudtune.planners.base import InfeasibleError
from cloudtune.policy.base import Brakes, Metric, drain_seconds
from cloudtune.policy.context import BuildContext
from cloudtune.policy.planned.stages import plan_stages
from cloudtune.policy.registry import chosen, components, run_policy
from cloudtune.profiles import bundled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloudtune.model.commands import Launch
    from cloudtune.model.events import Event
    from cloudtune.model.plans import Plan
    from cloudtune.policy.run import RunPolicy


@dataclass(frozen=True)
class Job:
    """A job as it is planned, and `real`: what can be rented as it really is."""

    rentables: tuple[Rentable, ...]
    real: tuple[Rentable, ...]
    trials: int
    epochs: tuple[int, int]
    limits: Limits
    max_instances: int = 16
    eta: int = 2
    strategy: str = "sha"
    seed: int = 0
    dry: tuple[tuple[float, float], ...] = ()  # spot is refused from, until

    @property
    def brakes(self) -> Brakes:
        """The brakes that the command line would set."""
        return Brakes(drain=drain_seconds(*(each.profile for each in self.rentables)))

    @property
    def context(self) -> BuildContext:
        """What strategies are made from."""
        sizes = (*self.epochs, self.eta, self.trials, self.seed)
        return BuildContext(self.rentables, self.max_instances, self.limits, "max", *sizes)

    def plan(self) -> Plan:
        """Return the plan, or the fastest where none keeps the limits."""
        try:
            return plan_stages(self.strategy, self.context, self.brakes, trials=self.trials)
        except InfeasibleError as error:
            if error.fastest is None:
                raise
            return error.fastest

    def policy(self) -> RunPolicy:
        """Return the policy of a run."""
        choice = chosen(self.strategy)
        plan = self.plan() if choice.planned else None
        made = components(self.context, _Given(self.trials), choice, self.brakes, plan)
        metric = Metric("acc", "max")
        return run_policy(self.context, made, metric, self.brakes, heartbeat=False, checked=False)


class _Given:
    """A sampler of so many trials."""

    def __init__(self, count: int) -> None:
        self._left = iter([Trial(f"t{n:02d}", {"x": n}) for n in range(count)])

    def ask(self) -> Trial | None:
        return next(self._left, None)

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn nothing."""


class _World(SimWorld):
    """A world whose spot pools are dry at times; whoever asks then is refused."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.real, "acc", synthetic_metric("max", job.seed), job.seed)
        self._dry = job.dry

    def _launch(self, command: Launch) -> None:
        if command.market == "spot" and any(a <= self.now < b for a, b in self._dry):
            at = self.now + 1.0
            asked = of_pool(self._rentables, command.instance_type, command.market, command.zone)
            self._intents[command.intent] = _Intent(asked, at)
            self.schedule(LaunchFailed(at, command.intent, "Dry", "none left", kind="capacity"))
            return
        super()._launch(command)


@dataclass(frozen=True)
class Came:
    """What a run came to; `slowest` are the seconds of its slowest decision."""

    ending: str
    epoch: int
    seconds: float
    dollars: float
    launches: int
    slowest: float

    def __str__(self) -> str:
        minutes = self.seconds / 60
        return f"{self.ending:11} epoch {self.epoch:2}  {minutes:6.1f} min  ${self.dollars:7.2f}"


def play(job: Job) -> Came:
    """Return what a job comes to in its world."""
    policy = job.policy()
    slowest, handle = 0.0, policy.handle

    def timed(event: Event) -> object:
        nonlocal slowest
        began = time.perf_counter()
        said = handle(event)
        slowest = max(slowest, time.perf_counter() - began)
        return said

    policy.handle = timed  # type: ignore[method-assign, assignment]
    run(policy, _World(job), MemoryLedger())
    assert policy.ending is not None
    deepest = max((max(t.history, default=0) for t in policy.trials.values()), default=0)
    dollars, launches = policy.spent(policy.now), policy.fleet.launches
    return Came(policy.ending.value, deepest, policy.over_at, dollars, launches, slowest)


# ---- the world's figures -------------------------------------------------------------------


def off(rentable: Rentable, pace: float, per_doubling: float = 1.0, delay: float = 1.0) -> Rentable:
    """Return a rentable whose epochs take `pace` times as long, and more for each doubling."""
    profile = rentable.profile
    epoch = {
        width: _times(m, pace * per_doubling ** max(0.0, math.log2(width)))
        for width, m in profile.epoch.items()
    }
    late = {name: _times(getattr(profile, name), delay) for name in ("launch", "boot", "start")}
    late["resize"] = _times(profile.resize, delay)
    return replace(rentable, profile=replace(profile, epoch=epoch, **late))


def _times(measured: Measurement, factor: float) -> Measurement:
    return replace(measured, mean=measured.mean * factor, sd=measured.sd * factor)


def sure(profile: ScalingProfile) -> ScalingProfile:
    """Return a profile without spread or error."""
    delays = {
        name: replace(getattr(profile, name), sd=0.0)
        for name in ("launch", "boot", "start", "resize", "release")
    }
    epoch = {width: replace(m, sd=0.0) for width, m in profile.epoch.items()}
    return replace(profile, epoch=epoch, error=0.0, **delays)


def bundled_rentables(types: Iterable[str], most: int = 16) -> tuple[Rentable, ...]:
    """Return on-demand offers of types, with the published profile of ResNet-50 on CIFAR-10."""
    found = []
    for offer in pricing.catalog("us-east-1").offers:
        if offer.instance_type.name not in types:
            continue
        profile = bundled.load("resnet50-cifar10@v100", offer.instance_type)
        found.append(Rentable(offer, sure(profile), most))
    return tuple(found)


# ---- the table of R1 -------------------------------------------------------------------------

WORLDS = (
    ("as profiled", 1.0, 1.0),
    ("1.15x slower", 1.15, 1.0),
    ("1.3x slower", 1.3, 1.0),
    ("1.5x slower", 1.5, 1.0),
    ("1.15x a doubling of width", 1.0, 1.15),
    ("1.3x a doubling of width", 1.0, 1.3),
    ("1.15x, 1.15x a doubling", 1.15, 1.15),
)


def table() -> None:
    """Print what a job comes to whose training is slower than its profile."""
    for types, trials, hours in (("p3.8xlarge", 64, 1.0), ("p3.2xlarge", 16, 2.0)):
        rentables = bundled_rentables([types])
        limits = Limits(hours * 3600, 400.0)
        planned = Job(rentables, rentables, trials, (1, 64), limits).plan().estimate
        print(
            f"{types}, {trials} trials, epochs 1 to 64, deadline {hours:g} h, budget $400; "
            f"planned {planned.seconds / 60:.1f} min, ${planned.dollars:.2f}"
        )
        for name, pace, wide in WORLDS:
            real = tuple(off(each, pace, wide) for each in rentables)
            knew = play(Job(real, real, trials, (1, 64), limits))
            print(f"  {name:26} {play(Job(rentables, real, trials, (1, 64), limits))}", end="")
            print(f"   | knew: {knew}", flush=True)


# ---- random jobs -----------------------------------------------------------------------------


def drawn(number: int) -> Job | None:
    """Return the job of that number; None where no plan keeps its limits."""
    draw = random.Random(number)
    base, beta = draw.choice([20.0, 60.0, 180.0]), draw.uniform(0.6, 1.0)
    kinds = draw.sample([("g.1x", 1, 1.0), ("g.4x", 4, 4.2), ("g.8x", 8, 8.8)], draw.choice([1, 2]))
    rentables = []
    for name, gpus, usd in kinds:
        widths = [w for w in (1.0, 2.0, 4.0, 8.0) if w <= gpus]
        speed = draw.uniform(0.8, 1.25)
        spread = draw.choice([0.0, 0.03])
        epoch = {w: Measurement(base * speed / w**beta, base * spread / w**beta, 3) for w in widths}
        delays = [Measurement(m, 0.1 * m, 3) for m in (10.0, draw.uniform(30, 120), 8.0, 12.0, 4.0)]
        profile = ScalingProfile(name, epoch, *delays, "abc", "2026-01-01", "made up")
        offer = Offer(InstanceType(name, gpus, "T4", 16384, 4 * gpus, 65536), "on-demand", "", usd)
        rentables.append(Rentable(offer, profile, 16))
    trials, last = draw.choice([4, 8, 16, 32]), draw.choice([16, 27, 64])
    pace = math.exp(draw.uniform(math.log(0.7), math.log(1.5)))
    wide = draw.choice([1.0, draw.uniform(0.95, 1.25)])
    delay = math.exp(draw.uniform(math.log(0.7), math.log(1.5)))
    real = tuple(off(each, pace, wide, delay) for each in rentables)
    job = Job(tuple(rentables), real, trials, (1, last), Limits(), draw.choice([4, 8, 16]))
    fastest = _ends(job)
    if fastest is None:
        return None
    seconds, dollars = fastest
    deadline = seconds * draw.uniform(1.15, 2.5) + 60
    in_time = replace(job, limits=Limits(deadline, None), seed=number)
    budget = in_time.plan().estimate.dollars * draw.choice([1.2, 1.5, 2.0, 4.0])
    return replace(in_time, limits=Limits(deadline, max(budget, dollars * 0.3)))


def _ends(job: Job) -> tuple[float, float] | None:
    """Return the seconds and dollars of the fastest plan; None where there is none."""
    try:
        plan_stages(
            job.strategy,
            replace(job.context, limits=Limits(1.0, None)),
            job.brakes,
            trials=job.trials,
        )
    except InfeasibleError as error:
        return (
            None
            if error.fastest is None
            else (error.fastest.estimate.seconds, error.fastest.estimate.dollars)
        )
    raise AssertionError("no job is done in a second")


def share(jobs: int, out: Path | None) -> None:
    """Print the share of random jobs whose winner is trained in full."""
    rows: list[dict[str, object]] = []
    number = 0
    while len(rows) < jobs:
        number += 1
        job = drawn(number)
        if job is None:
            continue
        came, knew = play(job), play(replace(job, rentables=job.real))
        last = job.epochs[1]
        rows.append(
            {
                "job": number,
                "ending": came.ending,
                "full": came.epoch >= last,
                "epochs": came.epoch / last,
                "dollars": came.dollars,
                "within": came.dollars <= (job.limits.budget or math.inf) + 1e-6
                and came.seconds <= (job.limits.deadline or math.inf) + 1e-6,
                "launches": came.launches,
                "slowest": came.slowest,
                "knew ending": knew.ending,
                "knew full": knew.epoch >= last,
                "knew dollars": knew.dollars,
            }
        )
    if out is not None:
        with out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    full = sum(bool(row["full"]) for row in rows)
    knew_full = sum(bool(row["knew full"]) for row in rows)
    both = [row for row in rows if row["full"] and row["knew full"]]
    ratios = sorted(float(str(r["dollars"])) / float(str(r["knew dollars"])) for r in both)
    print(f"{jobs} jobs, of numbers 1 to {number}")
    print(f"winner fully trained      {full / jobs:6.1%}  ({full})")
    print(f"by who knew the truth     {knew_full / jobs:6.1%}  ({knew_full})")
    print(f"within both limits        {sum(bool(r['within']) for r in rows) / jobs:6.1%}")
    print(f"endings                   {dict(Counter(str(r['ending']) for r in rows))}")
    print(
        f"dollars against who knew  median {median(ratios):.2f}, "
        f"90th percentile {ratios[int(0.9 * len(ratios))]:.2f}, of {len(ratios)} that both finish"
    )
    print(f"slowest decision          {max(float(str(r['slowest'])) for r in rows):.2f} s")


# ---- spot pools that are dry -------------------------------------------------------------------


def spot(jobs: int) -> None:
    """Print how runs end whose spot pool is dry for long, with on-demand beside it or alone."""
    for beside in (True, False):
        endings: Counter[str] = Counter()
        full, dollars = 0, []
        for number in range(jobs):
            job = _on_spot(number, beside=beside)
            came = play(job)
            endings[came.ending] += 1
            full += came.epoch >= job.epochs[1]
            dollars.append(came.dollars)
        print(
            f"{'spot or on-demand' if beside else 'spot alone':18} {jobs} runs: {dict(endings)}, "
            f"winner fully trained {full / jobs:.0%}, mean ${sum(dollars) / jobs:.2f}"
        )


def _on_spot(number: int, *, beside: bool) -> Job:
    draw = random.Random(number)
    (known,) = bundled_rentables(["p3.2xlarge"])
    cheap = replace(known, offer=replace(known.offer, market="spot", usd_per_hour=0.92))
    dry, at = [], 0.0
    while at < 5 * 3600:
        wet = draw.expovariate(1 / 2400) if at or number % 2 else 0.0
        gap = draw.expovariate(1 / 1500)
        dry.append((at + wet, at + wet + gap))
        at += wet + gap
    rentables = (cheap, known) if beside else (cheap,)
    limits = Limits(4.83 * 3600, 100.0)
    return Job(rentables, rentables, 8, (1, 64), limits, 1, seed=number, dry=tuple(dry))


# ---- seer, where wide trials are slower ----------------------------------------------------------


def elastic(jobs: int) -> None:
    """Print how far seer trains its best where a wide trial is slower than profiled."""
    for wide in (1.0, 1.3, 1.6):
        full, wider, epochs = 0, 0, 0
        for number in range(jobs):
            draw = random.Random(number)
            epoch = {w: Measurement(8.0 / w, 0.0, 3) for w in (1.0, 2.0, 4.0)}
            delays = [Measurement(m, 0.0, 3) for m in (1.0, 20.0, 4.0, 6.0, 2.0)]
            profile = ScalingProfile("g.4x", epoch, *delays, "abc", "2026-01-01", "made up")
            machine = InstanceType("g.4x", 4, "T4", 16384, 16, 65536)
            known = Rentable(Offer(machine, "on-demand", "", 36.0), profile, 4)
            alone = 27 * min(m.mean for m in off(known, 1.0, wide).profile.epoch.values()) + 40
            deadline = alone * draw.uniform(1.02, 2.5)
            limits = Limits(deadline, 2 * deadline * known.offer.usd_per_second)
            job = Job(
                (known,), (off(known, 1.0, wide),), 100, (1, 27), limits, 2, 3, "seer", number
            )
            policy = job.policy()
            run(policy, _World(job), MemoryLedger())
            best = max((max(t.history, default=0) for t in policy.trials.values()), default=0)
            full += best >= 27
            epochs += sum(len(t.history) for t in policy.trials.values())
            wider += policy.resizes
        print(
            f"{wide:g} times a doubling: winner fully trained in {full} of {jobs}, "
            f"{epochs / jobs:.0f} epochs and {wider / jobs:.1f} resizes a run"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["table", "share", "spot", "elastic"])
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.what == "table":
        table()
    elif given.what == "share":
        share(given.jobs or 500, given.out)
    else:
        {"spot": spot, "elastic": elastic}[given.what](given.jobs or 40)


if __name__ == "__main__":
    main()
