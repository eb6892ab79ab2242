"""The forecast of a run: by its stages, or by playing the policy itself.

The two estimators fill the same `Forecast`, and rent nothing.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import cycle
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from cloudtune.engine.loop import run, without_collection
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.errors import UsageError
from cloudtune.forecast.smaller_runs import SmallerRun
from cloudtune.forecast.staged_plans import Question
from cloudtune.model.catalog import Offer
from cloudtune.model.commands import Command
from cloudtune.model.events import Event
from cloudtune.model.plans import Forecast, Limits, Machines, Plan, Rentable, Spread
from cloudtune.model.scaling import DELAYS, Measurement
from cloudtune.policy.run import RunPolicy
from cloudtune.runs.figures import Figures, dearest_fleet, figures
from cloudtune.runs.job import make_policy

# The maximum number of simulated runs of a forecast. Any first 2^k - 1 are even about the median.
RUNS = 31
# With fewer runs there is no median.
MIN_RUNS = 3
# If a smaller share of drawn runs keeps the limits, the forecast plays runs: near a limit they drop
# trials, and cost less than their draws.
ALWAYS = 0.98
# A job of stages with more epochs isn't played for that: one run would take many seconds.
MAX_EPOCHS = 2_000
# The maximum of all simulated runs' events, times their offers if they plan over these: seconds of
# planning. `MIN_RUNS` may take three times as many, and the first run any number.
FORECAST_EVENTS = 50_000
# Offers that a simulated run may choose from, on top of its stages' instance types.
_OFFERS = 12
# How many of these are on demand: the cheapest epochs alone would all be on spot.
_STEADY = 3
# Offers of each number of GPUs that a run without stages may choose from, on spot and on demand.
_EACH_SIZE = 3
# Bases of Halton sequences, one for each pool; smaller primes draw speeds and delays.
_POOL_BASES = (17, 19, 23, 29, 31)
# A run without limits that continues after this many events counts as endless.
MAX_EVENTS = 1_000_000


class Played(NamedTuple):
    """The forecast by played runs, and the most expensive fleet that any of them had at once."""

    forecast: Forecast
    fleet: tuple[Machines, ...]


@dataclass(frozen=True)
class PlayedRuns:
    """Plays the real policy, with made-up metrics, at speeds drawn from the profiles.

    They are played `samples` times at most; jobs beyond `FORECAST_EVENTS` once or a few times. In
    place of a large run without stages a smaller one is played (`smaller_runs`), unless they are
    to be `whole`. A sampler that learns draws at random here, because metrics are made up and a
    configuration doesn't say how long it trains. A run that `follows` its stages is played for the
    spot pools that it rents from. `cores` are those on which trials start, if all
    machines share some.
    """

    question: Question
    staged: Plan | None = None
    samples: int = RUNS
    follows: bool = False
    cores: int | None = None
    whole: bool = False

    def forecast(self) -> Forecast:
        """Return the spreads of the runs' figures, and how many runs keep the limits.

        Raises:
            UsageError: no limit is set, and a run wouldn't end.
        """
        return self.play().forecast

    def play(self) -> Played:
        """Play the runs.

        Raises:
            UsageError: no limit is set, and a run wouldn't end.
        """
        played = [self._play(0)]
        while len(played) < self._affordable(played):
            further = range(len(played), 2 * len(played) + 1)
            played += map(self._play, further)
        source = "policy" if not self.follows else "pools" if self.on_pools else "runs"
        forecast = self._summarize(played, source)
        fleets = (self._dearest_fleet(one) for one in played)
        fleet = max(fleets, key=_usd_per_second)
        fleet.sort(key=lambda machines: -machines.offer.usd_per_second)
        return Played(forecast, tuple(fleet))

    @property
    def on_pools(self) -> bool:
        """Whether the stages are on spot pools, which come and go."""
        offers = () if self.staged is None else self.staged.offers
        rentables = self.question.problem.rentables
        return any(r.behaviours for r in rentables if r.offer in offers)

    def _affordable(self, played: Sequence["PlayedRun"]) -> int:
        """Return how many runs to play, by the events of those that were: 2^k - 1."""
        if self.whole:
            return self.samples
        per_run = sum(one.events for one in played) // len(played)
        if self.staged is not None:
            per_run *= len(self.likely)
        least = MIN_RUNS if per_run <= FORECAST_EVENTS else 1
        count = min(self.samples, max(least, FORECAST_EVENTS // max(1, per_run)))
        return (1 << (count + 1).bit_length() - 1) - 1

    @cached_property
    def likely(self) -> tuple[Rentable, ...]:
        """The offers that a run is played with; from a whole catalogue, the most likely ones.

        Replanning over hundreds of offers takes a third of a second, and a run does that at each
        rung. Offers with the cheapest epochs stay; for a run that follows stages also their
        instance types, in each zone and market, and for others the cheapest of each size.
        """
        rentables = self.question.problem.rentables
        if len(rentables) <= _OFFERS:
            return rentables
        cheapest = sorted(rentables, key=lambda rentable: rentable.epoch_dollars)
        if self.staged is None:
            return tuple(_of_each_size(cheapest))
        types = {offer.instance_type for offer in self.staged.offers}
        kept = [rentable for rentable in cheapest if rentable.offer.instance_type in types]
        others = [rentable for rentable in cheapest if rentable.offer.instance_type not in types]
        spot = [rentable for rentable in others if rentable.behaviours][: _OFFERS - _STEADY]
        steady = [rentable for rentable in others if not rentable.behaviours]
        return (*kept, *spot, *steady[: _OFFERS - len(spot)])

    def _choose_size(self, real: Sequence[Rentable]) -> SmallerRun:
        """Return how much smaller a run is played whose offers have these speeds.

        Runs with stages are played whole.
        """
        if self.whole or self.staged is not None or self.cores is not None:
            return SmallerRun()
        return SmallerRun.of(self.question, real)

    def _in_full(self, policy: RunPolicy) -> bool:
        """Whether a run did all the work of its stages; True without stages to follow.

        A run always ends within its limits, but its work may not fit in them.
        """
        if self.staged is None or not self.follows:
            return True
        trained = sum(max(trial.history, default=0) for trial in policy.trials.values())
        return trained >= self.staged.epochs

    def _play(self, seed: int) -> "PlayedRun":
        """Play a run to its end."""
        bases = cycle(_POOL_BASES)
        real = [
            draw_rentable(each, seed, base) for each, base in zip(self.likely, bases, strict=False)
        ]
        size = self._choose_size(real)
        question = self.question if size == SmallerRun() else size.question(self.question)
        experiment = question.problem.experiment
        limits = question.limits
        metric = experiment.metric
        policy = make_policy(
            experiment,
            tuple(map(size.rentable, self.likely)),
            limits,
            self.staged,
            heartbeat=False,
            checked=False,
            learns=False,
            stands_for=size.trials_each,
        )
        most = MAX_EVENTS if limits == Limits() else None
        world = SimWorld(
            tuple(map(size.rentable, real)),
            metric.name,
            synthetic_metric(metric.mode, seed),
            seed,
            begin=self.question.first_request,
            cores=self.cores,
            reports=size.reports(experiment),
            parts=size.slowdown,
        )
        counting = _Counting(world, most)
        with without_collection():
            run(policy, counting, _Nothing())
        if not policy.ended:
            raise UsageError(
                f"{experiment.strategy_name} doesn't end: a simulated run goes on after "
                f"{MAX_EVENTS:,} events. Set --deadline or --budget, or fewer --trials"
            )
        best = policy.best
        unreported = 0 if best is None else world.unreported_epochs(best.trial)
        return PlayedRun(policy, size, counting.events, unreported)

    def _dearest_fleet(self, played: "PlayedRun") -> list[Machines]:
        """Return the instances that a run had when these cost most."""
        offers = [rentable.offer for rentable in self.likely]
        return played.size.machines(played.dearest_fleet, offers)

    def _summarize(self, played: Sequence["PlayedRun"], source: str) -> Forecast:
        limits = self.question.limits
        deadline = limits.deadline or math.inf
        budget = limits.budget or math.inf
        results = [one.figures for one in played]
        in_full = [self._in_full(one.policy) for one in played]
        # Counted from the run's start, before the first request.
        in_time = [one.policy.over_at <= deadline for one in played]
        in_money = [result.dollars <= budget for result in results]
        in_time = [all(kept) for kept in zip(in_full, in_time, strict=True)]
        in_money = [all(kept) for kept in zip(in_full, in_money, strict=True)]
        both = [all(kept) for kept in zip(in_time, in_money, strict=True)]
        return Forecast(
            seconds=_spread([result.seconds for result in results]),
            dollars=_spread([result.dollars for result in results]),
            trials=_spread([result.trials for result in results]),
            epochs=_spread([result.epochs for result in results]),
            gpu_hours=_spread([result.gpu_hours for result in results]),
            instances=_spread([result.instances for result in results]),
            in_time=None if limits.deadline is None else _share(in_time),
            in_money=None if limits.budget is None else _share(in_money),
            within=None if limits == Limits() else _share(both),
            results=_share([one.policy.best is not None for one in played]),
            samples=len(results),
            seed=0,
            source=source,
        )


@dataclass(frozen=True)
class PlayedRun:
    """A run that was played to its end, how much smaller than it stands for, and its events.

    Its best trial has trained `unreported` epochs since its last report.
    """

    policy: RunPolicy
    size: SmallerRun
    events: int
    unreported: int

    @cached_property
    def figures(self) -> Figures:
        """The figures of the run that it stands for."""
        whole = self.size.whole(figures(self.policy), self.dearest_fleet)
        return replace(whole, epochs=whole.epochs + self.unreported)

    @cached_property
    def dearest_fleet(self) -> Mapping[Offer, int]:
        """The instances that it had when these cost most, as the smaller run counts them."""
        return dearest_fleet(self.policy)


def _of_each_size(cheapest: Sequence[Rentable]) -> Iterator[Rentable]:
    """Yield the cheapest of each number of GPUs: a search may have money for larger instances."""
    counts = Counter[tuple[int, bool]]()
    for rentable in cheapest:
        kind = (rentable.offer.gpus, bool(rentable.behaviours))
        counts[kind] += 1
        if counts[kind] <= _EACH_SIZE:
            yield rentable


def draw_rentable(rentable: Rentable, run: int, base: int) -> Rentable:
    """Return a rentable as drawn for a run, by the errors of its profile and its spot pool.

    Runs are spread evenly over the possibilities (a Halton sequence). All offers are slow together
    by `error`, and those with the same GPU model by `gpu_error`; their pools behave independently,
    by `base`. The returned profile has no error left, because the world would draw it again.
    """
    profile = rentable.profile
    gpu = rentable.offer.gpu_model
    slowness = math.exp(
        profile.error * _deviation(run, 2) + profile.gpu_error * _gpu_deviation(run, gpu)
    )
    bases = dict(zip(DELAYS, (3, 5, 7, 11, 13), strict=True))

    def off(name: str, delay: Measurement) -> Measurement:
        return replace(
            delay, mean=max(0.0, delay.mean + delay.error * _deviation(run, bases[name]))
        )

    ways = rentable.behaviours
    chosen = (ways[int(len(ways) * _halton_share(run, base))],) if ways else ()
    real = replace(profile.slow_down(slowness).with_delays(off), error=0.0, gpu_error=0.0)
    return replace(rentable, profile=real, behaviours=chosen)


def _deviation(run: int, base: int) -> float:
    """Return the standard normal of a run; the first is the median."""
    return NormalDist().inv_cdf(_halton_share(run, base))


@cache
def _gpu_deviation(run: int, gpu: str) -> float:
    """Return the standard normal of a run for a GPU model, independent of others'.

    The first is the median. Then 2, 4, 8 … runs are spread evenly, in an order of each model's own,
    so that each forecast of 2^k - 1 runs is even.
    """
    if run == 0:
        return 0.0
    size = 1 << (run + 1).bit_length() - 1
    order = list(range(size))
    Random(f"{gpu} {size}").shuffle(order)  # noqa: S311  not for secrets
    return NormalDist().inv_cdf((order[run + 1 - size] + 0.5) / size)


def _halton_share(run: int, base: int) -> float:
    """Return a run's number between 0 and 1.

    Digits are permuted by the golden section. Otherwise the first `base` numbers would ascend, and
    a few runs would all have the smallest.
    """
    share = 0.0
    digit = 1.0 / base
    left = run + 1
    factor = round(0.618 * base)
    while left:
        left, rest = divmod(left, base)
        share += rest * factor % base * digit
        digit /= base
    return share


class _Counting:
    """A world that counts its events, and ends after `most` of them."""

    def __init__(self, world: SimWorld, most: int | None) -> None:
        self._world = world
        self._most = most
        self.apply = world.apply
        self.events = 0

    def next_event(self) -> Event | None:
        self.events += 1
        over = self._most is not None and self.events > self._most
        return None if over else self._world.next_event()


class _Nothing:
    """A ledger that is never read."""

    def append(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Do nothing."""


def _usd_per_second(fleet: Sequence[Machines]) -> float:
    return sum(machines.offer.usd_per_second * machines.instances for machines in fleet)


def _share(of: Sequence[bool]) -> float:
    return sum(of) / len(of)


def _spread(draws: Sequence[float]) -> Spread:
    """Return the percentiles: the least draws that a given share doesn't exceed."""
    ordered = sorted(draws)
    count = len(draws)
    p5, p50, p95 = (ordered[max(0, -(-count * share // 100) - 1)] for share in (5, 50, 95))
    return Spread(p5, p50, p95, sum(draws) / count)
