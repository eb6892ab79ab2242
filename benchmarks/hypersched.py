"""HyperSched against ASHA on 8 GPUs: the best model at three deadlines, and how many trials.

    python -m benchmarks.hypersched [--epoch-seconds 60] [--seeds 5] [--trials 100] [--scale 0.1]

The setting is the paper's as far as it can be had: speed-ups of ResNet-50 on CIFAR-10 at 1, 2, 4
and 8 V100 (ucbrise/hypersched @8b5435e, numbers only; 3 GPUs interpolated, as it does), one
instance of 8 GPUs, r = 2, R = 200, eta = 4, 100 trials, deadlines of 900, 1800 and 3600 s from when
the instance is up. The curves are its made-up ones, not CIFAR-10's:

    loss(k) = 1 / (b0 k / 100 + 0.1 b1 + 0.5) + 0.01 b2 + |N(0, 0.005)|,  accuracy = (2 - loss) / 2
    b0 ~ Exp with a mean of `--scale`, b1 and b2 ~ U(0, 1)

How long an epoch takes on one GPU is not published: `--epoch-seconds` states it. At 60 s (of 20, 40
and 60) ASHA starts as many trials as published, so that is what is taken. A start takes 10 s.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import numpy as np

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld
from cloudtune.model.catalog import InstanceType, Offer
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.model.trial import Trial
from cloudtune.policy.base import Brakes, Components, Metric
from cloudtune.policy.context import BuildContext
from cloudtune.policy.registry import run_policy
from cloudtune.strategies.allocators.hypersched import HyperSchedAllocator
from cloudtune.strategies.allocators.same import SameWidth
from cloudtune.strategies.asha import Asha
from cloudtune.strategies.fleets import ConstantFleet
from cloudtune.strategies.hypersched import HyperSched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cloudtune.strategies.base import Allocator, Strategy

    Choice = tuple[Strategy, Allocator]

RESNET50 = {1.0: 1.0, 2.0: 1.870, 3.0: (1.870 + 3.421) / 2, 4.0: 3.421, 8.0: 5.598}
DEADLINES = (900.0, 1800.0, 3600.0)
PUBLISHED = {
    "asha": ((0.833, 35), (0.886, 51), (0.908, 90)),
    "hypersched": ((0.879, 14), (0.916, 20), (0.938, 33)),
}
"""Accuracy and trials started by each deadline, in real training on CIFAR-10."""
_FIRST, _LAST, _ETA = 2, 200, 4
_NOISE = 0.005


class _Trials:
    """A sampler of so many trials, each named by its number."""

    def __init__(self, count: int) -> None:
        self._left = iter(Trial(f"t{n:03d}", {"x": n}) for n in range(count))

    def more(self, _trials: int) -> int:
        """Return 0: there are those that were given."""
        return 0

    def ask(self) -> Trial | None:
        return next(self._left, None)

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn nothing: the trials are given."""


@dataclass(frozen=True)
class Bench:
    """What strategies are tried on; times in seconds, `scale` is the mean of b0."""

    epoch_seconds: float = 60.0
    start_seconds: float = 10.0
    trials: int = 100
    scale: float = 0.1
    speedups: Mapping[float, float] = field(default_factory=lambda: RESNET50)

    def rentable(self) -> Rentable:
        """Return an instance of eight GPUs that is up at once."""
        machine = InstanceType("p3.16xlarge", 8, "V100", 16384, 64, 499712)
        offer = Offer(machine, "on-demand", "us-east-1", 24.48, 60.0)
        nothing, start = Measurement(0.0), Measurement(self.start_seconds)
        profile = ScalingProfile(
            instance_type=machine.name,
            epoch={w: Measurement(self.epoch_seconds / s) for w, s in self.speedups.items()},
            launch=nothing,
            boot=nothing,
            start=start,
            resize=start,
            release=nothing,
            script_hash="",
            measured_at="2019",
            source="ucbrise/hypersched @8b5435e",
        )
        return Rentable(offer, profile, 1)

    def curves(self, seed: int) -> list[list[float]]:
        """Return the accuracies of each trial, epoch by epoch."""
        rng = np.random.default_rng(seed)
        epochs = np.arange(1, _LAST + 1)
        found = []
        for _ in range(self.trials):
            b0, b1, b2 = rng.exponential(self.scale), rng.random(), rng.random()
            noise = np.abs(rng.normal(0.0, _NOISE, len(epochs)))
            loss = 1 / (b0 * epochs / 100 + 0.1 * b1 + 0.5) + 0.01 * b2 + noise
            found.append([float(accuracy) for accuracy in (2 - loss) / 2])
        return found


@dataclass(frozen=True)
class Outcome:
    """What one job found, and what it took."""

    best: float
    trials: int
    resizes: int
    longest: int
    sessions: int


def asha(trials: int, *, stopping: bool = False) -> Choice:
    """Return ASHA at one GPU a trial, of the promotion or of the stopping type."""
    made = Asha(
        _Trials(trials),
        min_epochs=_FIRST,
        max_epochs=_LAST,
        eta=_ETA,
        mode="max",
        kind="stopping" if stopping else "promotion",
    )
    return made, SameWidth()


def hypersched(trials: int, *, patient: bool = False) -> Choice:
    """Return HyperSched with its own allocator, as published, or ours."""
    made = HyperSched(
        _Trials(trials),
        min_epochs=_FIRST,
        max_epochs=_LAST,
        eta=_ETA,
        mode="max",
        patient=patient,
    )
    return made, HyperSchedAllocator()


CHOICES: dict[str, Callable[[int], Choice]] = {
    "asha": asha,
    "asha, stopping": partial(asha, stopping=True),
    "hypersched": hypersched,
    "hypersched-patient": partial(hypersched, patient=True),
}


def job(bench: Bench, choice: Choice, deadline: float, seed: int) -> Outcome:
    """Simulate one job to its deadline."""
    rentable, curves = bench.rentable(), bench.curves(seed)
    policy = run_policy(
        BuildContext((rentable,), 1, Limits(deadline, None), "max", 1, 10**6),
        Components(choice[0], choice[1], ConstantFleet(rentable.offer, 1)),
        Metric("accuracy", "max"),
        Brakes(tick=0.0, drain=0.0),
        heartbeat=False,
        checked=False,
    )

    def accuracy(config: Mapping[str, object], epoch: int) -> float:
        number = config["x"]
        assert isinstance(number, int)
        return curves[number][epoch - 1]

    run(policy, SimWorld((rentable,), "accuracy", accuracy, seed), MemoryLedger())
    best = policy.best
    longest = max((max(t.history, default=0) for t in policy.trials.values()), default=0)
    sessions = sum(trial.sessions for trial in policy.trials.values())
    found = best.metric if best else 0.0
    return Outcome(found, len(policy.trials), policy.resizes, longest, sessions)


def outcomes(bench: Bench, name: str, deadline: float, seeds: Sequence[int]) -> list[Outcome]:
    """Return what a choice found by a deadline, seed by seed."""
    return [job(bench, CHOICES[name](bench.trials), deadline, seed) for seed in seeds]


def table(bench: Bench, seeds: Sequence[int]) -> list[str]:
    """Return the comparison, line by line, beside the published figures."""
    names = f"{'best':>13} {'trials':>7} {'resizes':>8} {'epochs':>7} {'sessions':>9}"
    lines = [f"{'deadline':>8}  {'':18} {names}"]
    for column, deadline in enumerate(DEADLINES):
        for name in CHOICES:
            found = outcomes(bench, name, deadline, seeds)
            lines.append(f"{deadline:8.0f}  {name:18} {_row(found)}{_published(name, column)}")
    return lines


def _row(found: Sequence[Outcome]) -> str:
    best = [each.best for each in found]
    error = stdev(best) if len(best) > 1 else 0.0
    trials, resizes = fmean(each.trials for each in found), fmean(each.resizes for each in found)
    longest = fmean(each.longest for each in found)
    sessions = fmean(each.sessions for each in found)
    return (
        f"{fmean(best):.3f} ± {error:.3f} {trials:7.1f} {resizes:8.1f} {longest:7.1f} "
        f"{sessions:9.1f}"
    )


def _published(name: str, column: int) -> str:
    if name not in PUBLISHED:
        return ""
    best, trials = PUBLISHED[name][column]
    return f"   published: {best:.3f}, {trials} trials"


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epoch-seconds", type=float, default=60.0)
    parser.add_argument("--start-seconds", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--scale", type=float, default=0.1)
    given = parser.parse_args()
    bench = Bench(given.epoch_seconds, given.start_seconds, given.trials, given.scale)
    print("\n".join(table(bench, range(1, given.seeds + 1))))


if __name__ == "__main__":
    main()
