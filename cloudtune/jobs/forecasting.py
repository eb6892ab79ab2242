"""What a run may come to, told beforehand: by its stages, or by playing the very policy.

The two estimators fill the same `Forecast`, and rent nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import cycle
from statistics import NormalDist
from typing import TYPE_CHECKING, Protocol

from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.errors import UsageError
from cloudtune.jobs.figures import figures
from cloudtune.jobs.job import policy_of
from cloudtune.planners.estimate.outlook import outlook
from cloudtune.plans import Forecast, Limits, Spread
from cloudtune.scaling import DELAYS
from cloudtune.simulation.case import without_collection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.commands import Command
    from cloudtune.events import Event
    from cloudtune.experiment import Experiment
    from cloudtune.jobs.figures import Figures
    from cloudtune.planners.base import PlanRequest
    from cloudtune.plans import Plan, Rentable
    from cloudtune.policy.run import RunPolicy
    from cloudtune.scaling import Measurement

DRAWS = 1000
"""So often the durations of stages are drawn."""
RUNS = 20
MIN_RUNS = 3
SPOT_RUNS = 24
"""So often a run that follows stages is played on spot pools that come and go, at most."""
FORECAST_EVENTS = 100_000
"""All simulated runs together take about as many events at most, but for `MIN_RUNS`.

`MIN_RUNS` together take three times as many at most, but for the first.
"""
_POOL_BASES = (17, 19, 23, 29, 31)
MAX_EVENTS = 1_000_000
"""A run without limits that goes on after so many events is taken to be endless."""


class Estimator(Protocol):
    """Says what a run may come to."""

    def forecast(self) -> Forecast:
        """Return the spreads of a run's seconds and dollars, and how likely it keeps its limits."""
        ...


@dataclass(frozen=True)
class StageDraws:
    """Draws the durations of a plan's stages; `request.limits` are those that it is to keep.

    With `reacts` the run plans the rest anew when its speed isn't the profile's.
    """

    request: PlanRequest
    plan: Plan
    seed: int
    samples: int = DRAWS
    reacts: bool = False

    def forecast(self) -> Forecast:
        """Return the spreads of what the stages take, and how likely they keep the limits."""
        given = {"samples": self.samples, "seed": self.seed}
        return outlook(self.request, self.plan, reacts=self.reacts, **given)


@dataclass(frozen=True)
class PlayedRuns:
    """Plays the very policy, with made-up metrics, at speeds that may be those of the profiles.

    The runs ask for their first instance at `begin` (run seconds). Large jobs are played less
    often: `samples` times at most; those of more than `FORECAST_EVENTS` events once or a few times.
    A sampler that learns draws at random here: metrics are made up, and a configuration doesn't
    say how long it trains. A run that `follows` its stages is played for the spot pools that it
    rents from.
    """

    experiment: Experiment
    rentables: tuple[Rentable, ...]
    limits: Limits
    begin: float = 0.0
    staged: Plan | None = None
    samples: int = RUNS
    follows: bool = False

    def forecast(self) -> Forecast:
        """Return the spreads of what the runs come to, and how many keep the limits.

        Raises:
            UsageError: no limit is set, and a run wouldn't end.
        """
        played: list[RunPolicy] = []
        events = 0
        while len(played) < self.samples:
            most = FORECAST_EVENTS * (3 if len(played) < MIN_RUNS else 1)
            if played and events * (1 + 1 / len(played)) > most:
                break
            policy, taken = self._play(len(played))
            played.append(policy)
            events += taken
        source = "pools" if self.follows else "policy"
        return _told([figures(policy) for policy in played], played, self.limits, source)

    def _play(self, seed: int) -> tuple[RunPolicy, int]:
        """Return the policy of a run that is over, and how many events it took."""
        experiment, metric = self.experiment, self.experiment.metric
        policy = policy_of(
            experiment,
            self.rentables,
            self.limits,
            self.staged,
            heartbeat=False,
            checked=False,
            learns=False,
        )
        curves = synthetic_metric(metric.mode, seed)
        most = MAX_EVENTS if self.limits == Limits() else None
        real = tuple(
            _as_it_may_be(each, seed, base)
            for each, base in zip(self.rentables, cycle(_POOL_BASES), strict=False)
        )
        world = SimWorld(real, metric.name, curves, seed, begin=self.begin)
        counting = _Counting(world, most)
        with without_collection():
            run(policy, counting, _Nothing())
        if not policy.ended:
            raise UsageError(
                f"{experiment.strategy_name} would never end: {MAX_EVENTS:,} events of a simulated "
                "run are over, and it goes on. Set --deadline or --budget, or fewer --trials"
            )
        return policy, counting.events


def _as_it_may_be(rentable: Rentable, run: int, base: int) -> Rentable:
    """Return a rentable as it may be in a run, by the errors of its profile and by its spot pool.

    Runs are spread evenly over what may be (a Halton sequence), and all offers are slow together;
    their pools behave each in a way of its own, by `base`.
    """
    profile = rentable.profile
    slowness = math.exp(profile.error * _deviation(run, 2))
    bases = dict(zip(DELAYS, (3, 5, 7, 11, 13), strict=True))

    def off(name: str, delay: Measurement) -> Measurement:
        return replace(
            delay, mean=max(0.0, delay.mean + delay.error * _deviation(run, bases[name]))
        )

    ways = rentable.behaviours
    chosen = (ways[int(len(ways) * _share_of(run, base))],) if ways else ()
    return replace(rentable, profile=profile.slowed(slowness).with_delays(off), behaviours=chosen)


def _deviation(run: int, base: int) -> float:
    """Return the standard normal of a run; the first is the median."""
    return NormalDist().inv_cdf(_share_of(run, base))


def _share_of(run: int, base: int) -> float:
    """Return the number between 0 and 1 of a run."""
    share, digit, left = 0.0, 1.0 / base, run + 1
    while left:
        left, rest = divmod(left, base)
        share += rest * digit
        digit /= base
    return share


class _Counting:
    """A world that counts its events, and ends after `most` events, whatever goes on."""

    def __init__(self, world: SimWorld, most: int | None) -> None:
        self._world, self._most = world, most
        self.apply = world.apply
        self.events = 0

    def next_event(self) -> Event | None:
        self.events += 1
        over = self._most is not None and self.events > self._most
        return None if over else self._world.next_event()


class _Nothing:
    """A ledger of what nobody will ask about."""

    def append(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Forget it."""


def _told(
    found: Sequence[Figures], played: Sequence[RunPolicy], limits: Limits, source: str
) -> Forecast:
    deadline, budget = limits.deadline, limits.budget
    # Counted from the run's begin, when nothing was asked for yet.
    in_time = [deadline is None or policy.over_at <= deadline for policy in played]
    in_money = [budget is None or each.dollars <= budget for each in found]
    both = [one and other for one, other in zip(in_time, in_money, strict=True)]
    return Forecast(
        seconds=_spread([each.seconds for each in found]),
        dollars=_spread([each.dollars for each in found]),
        trials=_spread([each.trials for each in found]),
        epochs=_spread([each.epochs for each in found]),
        gpu_hours=_spread([each.gpu_hours for each in found]),
        instances=_spread([each.instances for each in found]),
        in_time=None if deadline is None else _share(in_time),
        in_money=None if budget is None else _share(in_money),
        within=None if limits == Limits() else _share(both),
        results=_share([policy.best is not None for policy in played]),
        samples=len(found),
        seed=0,
        source=source,
    )


def _share(of: Sequence[bool]) -> float:
    return sum(of) / len(of)


def _spread(draws: Sequence[float]) -> Spread:
    """Return the percentiles: the least draws that so large a share of all doesn't exceed."""
    ordered, count = sorted(draws), len(draws)
    p5, p50, p95 = (ordered[max(0, -(-count * share // 100) - 1)] for share in (5, 50, 95))
    return Spread(p5, p50, p95, sum(draws) / count)
