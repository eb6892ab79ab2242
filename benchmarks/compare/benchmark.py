"""What strategies are tried on: recorded curves, and what can be rented to train on."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from benchmarks.compare.replay import on_traces
from cloudtune.engine.simulator import SimWorld
from cloudtune.model.catalog import pool
from cloudtune.model.plans import Rentable
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.model.trial import Trial
from cloudtune.policy.base import Brakes, Metric, drain_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.compare.curves import Curves
    from benchmarks.compare.pools import SpotTrace
    from benchmarks.compare.speeds import Scaling
    from cloudtune.model.catalog import Offer, PoolName

MAX_INSTANCES = 64
START, RESIZE = 10.0, 20.0


@dataclass(frozen=True)
class Delays:
    """Seconds around training, and the spread of all durations as a share of their mean.

    `launch` isn't billed; `boot` and `release` are. `start` and `resize` are None for what was
    measured along with the profile, else 10 and 20 seconds. The defaults are assumptions: measure
    yours.
    """

    launch: float = 20.0
    boot: float = 90.0
    start: float | None = None
    resize: float | None = None
    release: float = 5.0
    spread: float = 0.02

    def profile(self, offer: Offer, scaling: Scaling, epoch_seconds: float) -> ScalingProfile:
        """Return the profile of an offer on whose first GPU an epoch takes that long."""
        epoch = {width: self._of(epoch_seconds / v) for width, v in scaling.speeds.items()}
        return ScalingProfile(
            instance_type=offer.instance_type.name,
            epoch=epoch,
            launch=self._of(self.launch),
            boot=self._of(self.boot),
            start=self._of(_first(self.start, scaling.start, START)),
            resize=self._of(_first(self.resize, scaling.resize, RESIZE)),
            release=self._of(self.release),
            script_hash="",
            measured_at="",
            source="a table of relative speeds",
        )

    def _of(self, seconds: float) -> Measurement:
        return Measurement(seconds, seconds * self.spread)


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


class Row(dict[str, object]):
    """The hyperparameters of a configuration, and the number of its curve."""

    __slots__ = ("number",)

    def __init__(self, number: int, config: Mapping[str, object]) -> None:
        super().__init__(config)
        self.number = number

    def __reduce__(self) -> tuple[type[Row], tuple[int, dict[str, object]]]:
        return Row, (self.number, dict(self))


@dataclass(frozen=True)
class Benchmark:
    """Curves, and what can be rented to train on: all that strategies are tried on.

    `epoch_seconds` is what an epoch takes at the profile's width 1, for a curve of average speed.
    Spot pools have what the `traces` say, from a second on that each run's seed draws.
    """

    curves: Curves
    rentables: tuple[Rentable, ...]
    epoch_seconds: float
    max_instances: int = MAX_INSTANCES
    traces: Mapping[PoolName, SpotTrace] = field(default_factory=dict)

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        return tuple(
            Trial(curve.name, Row(number, curve.config), curve.epochs)
            for number, curve in enumerate(self.curves.curves)
        )

    @cached_property
    def metric(self) -> Metric:
        return Metric(self.curves.metric, self.curves.mode)

    @cached_property
    def brakes(self) -> Brakes:
        """How a run keeps its limits, at these delays."""
        profiles = [rentable.profile for rentable in self.rentables]
        usual = Brakes(drain=drain_seconds(*profiles))
        slowest = max(profile.launch.high + profile.boot.high for profile in profiles)
        return Brakes(drain=usual.drain, join=max(usual.join, 2 * slowest))

    def world(self, seed: int) -> SimWorld:
        curves = self.curves.curves
        metrics = [curve.metrics for curve in curves]
        seconds = [curve.seconds for curve in curves]
        mean = self.curves.mean_seconds

        def metric_of(config: Mapping[str, object], epoch: int) -> float:
            assert isinstance(config, Row)
            own = metrics[config.number]
            return own[min(epoch, len(own)) - 1]

        def pace_of(config: Mapping[str, object], epoch: int) -> float:
            assert isinstance(config, Row)
            own = seconds[config.number]
            return own[min(epoch, len(own)) - 1] / mean if own and mean else 1.0

        pools = self._pools(random.Random(f"where in the traces {seed}"))
        return SimWorld(self.rentables, self.metric.name, metric_of, seed, pace_of, pools=pools)

    def _pools(self, chance: random.Random) -> dict[PoolName, SpotTrace]:
        """Return the traces as they go by from a drawn second on; what costs more is gone."""
        prices = {pool(it.offer): it.offer.usd_per_hour for it in self.rentables}
        return {
            name: trace.begun_at(chance.uniform(0.0, trace.length)).capped(prices[name])
            for name, trace in self.traces.items()
        }


def benchmark(
    curves: Curves,
    scalings: Sequence[Scaling],
    offers: Sequence[Offer],
    *,
    epoch_seconds: float,
    delays: Delays | None = None,
    max_instances: int = MAX_INSTANCES,
    traces: Mapping[Offer, SpotTrace] | None = None,
) -> Benchmark:
    """Return a benchmark of these curves; a scaling for each offer.

    `epoch_seconds` is what an epoch takes on one GPU on average: the curves' mean, where they know.
    `traces` are those of spot offers: a pool counts at its trace's usual price.
    """
    delays = delays or Delays()
    traces = traces or {}
    rentables = tuple(
        Rentable(offer, delays.profile(offer, scaling, epoch_seconds), max_instances)
        for offer, scaling in zip(offers, scalings, strict=True)
    )
    priced = tuple(on_traces(rentables, traces))
    by_pool = {
        pool(rentable.offer): traces[offer]
        for offer, rentable in zip(offers, priced, strict=True)
        if offer in traces
    }
    return Benchmark(curves, priced, epoch_seconds, max_instances, by_pool)
