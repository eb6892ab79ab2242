"""The timings of earlier runs of a script, combined with its measured profile.

The sources are a profile and runs, each with its seconds of an epoch by width and its delays. They
are weighted by precision: 1 / v, where v is the variance of a source,

    v = (configurations' spread)^2 / configurations + (machines' spread)^2 + (epoch's)^2 / epochs

with the spreads of priors.csv, and for a derived profile also its error. So a run of forty trials
counts for more than a measurement of one, and a measurement of eight for more than a run of two.
Published figures are another program's: they count as wrong by as much as they say.

Newer sources come first. An older source that contradicts all newer ones (by more than three
standard deviations of both) doesn't count: the data, or the machines, have changed. If only some
widths were seen, the others are scaled by the same factor.

A delay is the mean over its sources in the same way. Its spread from run to run is that of the
sources combined with the table's, which counts as four runs; the table's figure is how far one run
is from another, so the mean of R runs is off by sqrt((1 + 1/R) / 2) of it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cloudtune.model.scaling import ASSUMED, DELAYS, PUBLISHED, Measurement, ScalingProfile, Seen
from cloudtune.model.trial import Parallel, Width
from cloudtune.profiles.priors import Prior, prior

# Sources that differ by more standard deviations can't both be valid today.
_CONTRADICTS = 3.0
# How far published figures of another program may be off (relative).
_ANOTHERS = 1.0
# The table's spread from run to run counts as this many runs.
_WEIGHT = 4
_BY_MARKET = frozenset({"launch", "boot", "release"})
_PROFILE = ""


@dataclass(frozen=True)
class EpochTimes:
    """The seconds of a trial's epochs on one instance type at one width.

    Without the first epoch of each start, which is slower, unless there are no others (`first`).
    """

    instance_type: str
    width: float
    seconds: Measurement
    first: bool = False
    parallel: Parallel = ""


@dataclass(frozen=True)
class DelayTimes:
    """The times of one of a profile's `DELAYS` in a run, by instance type and market."""

    instance_type: str
    market: str
    delay: str
    seconds: Measurement


@dataclass(frozen=True)
class RunTimes:
    """The times of a run that began `at` (ISO 8601): `trials` has the epochs of each trial.

    `crowded` are the instance types and shares of a GPU at which a trial ran out of memory.
    """

    run: str
    at: str
    trials: tuple[tuple[EpochTimes, ...], ...]
    delays: tuple[DelayTimes, ...]
    crowded: frozenset[tuple[str, Width]] = frozenset()

    def tells(self, machine: str) -> bool:
        """Whether the run trained on an instance type, or booted one."""
        trained = any(times.instance_type == machine for trial in self.trials for times in trial)
        return trained or any(delay.instance_type == machine for delay in self.delays)


@dataclass(frozen=True)
class _Point:
    """The logarithm of the seconds of an epoch at a width, and its relative variance.

    `shares` are the contributions of its sources; `per_trial` is one over the number of
    configurations; `doubt` is the share that is left of the profile's error, `own` what is left of
    a predicted width's. `sd` is the spread of an epoch, over `count`.
    """

    log: float
    variance: float
    shares: Mapping[str, float]
    per_trial: float
    doubt: float
    sd: float
    count: int
    own: float = 0.0

    @property
    def measurement(self) -> Measurement:
        mean = math.exp(self.log)
        return Measurement(mean, self.sd * mean, self.count, self.own * mean)

    def at(self, log: float, like: "_Point") -> "_Point":
        """Return this point at another value, with the certainty of the point it comes from."""
        return replace(like, log=log, sd=self.sd, count=self.count, own=self.own)

    def with_older(self, older: "_Point", weight: float) -> "_Point":
        """Return the two combined, with that weight for the older."""
        if weight == 0:
            return self
        own = 1 - weight
        names = dict.fromkeys((*self.shares, *older.shares))
        count = self.count + older.count
        squares = self.count * self.sd**2 + older.count * older.sd**2
        return _Point(
            log=own * self.log + weight * older.log,
            variance=own**2 * self.variance + weight**2 * older.variance,
            shares={
                name: own * self.shares.get(name, 0.0) + weight * older.shares.get(name, 0.0)
                for name in names
            },
            per_trial=own**2 * self.per_trial + weight**2 * older.per_trial,
            doubt=own * self.doubt + weight * older.doubt,
            sd=math.sqrt(squares / count),
            count=count,
            own=own * self.own + weight * older.own,
        )


def with_earlier_runs(
    profile: ScalingProfile | None,
    *,
    runs: Iterable[RunTimes],
    machine: str,
    market: str,
    where: str,
    paced: bool = False,
    script: str = "",
) -> ScalingProfile | None:
    """Return a profile combined with earlier runs on its instance type, in a provider's market.

    Without a profile, the result only has the runs' times, or is None if they aren't enough. If
    training is `paced` by the profile itself, its seconds of an epoch stay, because the runs only
    followed it. Without a usable run the profile is returned unchanged; so is one that was combined
    before.
    """
    if profile is not None and profile.assumed:
        return profile
    fitting = sorted((run for run in runs if run.tells(machine)), key=lambda run: run.at)[::-1]
    if not fitting or (profile is None and paced):
        return profile
    speeds = not paced or (profile is not None and profile.provenance.core_seconds is not None)
    curve = _curve(profile, fitting, machine, where) if speeds else {}
    published = profile is not None and not _is_own(profile)
    delays = {}
    for name in DELAYS:
        pools = [_pool(_find_delays(run, name, machine, market)) for run in fitting]
        measured = None if profile is None else getattr(profile, name)
        delays[name] = _delay(pools, measured, prior(name, where), published=published)
    seen = tuple(_summarize(run, machine, curve) for run in fitting)
    if profile is None:
        delays["resize"] = delays["resize"] or delays["start"]
        if not curve or not all(delays.values()):
            return None
        unknown: dict[str, Any] = dict.fromkeys(DELAYS, Measurement(0.0))
        profile = ScalingProfile(
            instance_type=machine,
            epoch={},
            **unknown,
            script_hash=script,
            measured_at=fitting[0].at,
            source="seen in earlier runs",
        )
    with_delays = profile.with_delays(lambda name, measured: delays[name] or measured)
    if not curve:
        return replace(with_delays, seen=seen)
    # What is left of the error that the profile began with.
    remaining = max(point.doubt for point in curve.values())
    return replace(
        with_delays,
        epoch={width: curve[width].measurement for width in sorted(curve)},
        error=remaining * profile.error,
        gpu_error=remaining * profile.gpu_error,
        configurations=max(1, math.floor(1 / max(p.per_trial for p in curve.values()) + 1e-9)),
        seen=seen,
    )


def _summarize(run: RunTimes, machine: str, curve: Mapping[Width, _Point]) -> Seen:
    epochs = [epoch for trial in run.trials for epoch in trial if epoch.instance_type == machine]
    trials = [trial for trial in run.trials if any(it.instance_type == machine for it in trial)]
    boots = [e for e in run.delays if (e.instance_type, e.delay) == (machine, "boot")]
    shares = [point.shares.get(run.run, 0.0) for point in curve.values()]
    return Seen(
        run=run.run,
        at=run.at,
        epochs=sum(epoch.seconds.n for epoch in epochs),
        trials=len(trials),
        instances=sum(boot.seconds.n for boot in boots),
        share=round(math.fsum(shares) / len(shares), 4) if shares else 0.0,
    )


def _curve(
    profile: ScalingProfile | None, runs: Sequence[RunTimes], machine: str, where: str
) -> dict[Width, _Point]:
    """Return the seconds of an epoch by width; empty if no run trained on the type."""
    parallel = {} if profile is None else profile.parallel
    sources = [(run.at, _of_run(run, machine, parallel, where)) for run in runs]
    if not any(points for _, points in sources):
        return {}
    if profile is not None:
        sources.append(
            (profile.measured_at if _is_own(profile) else "", _of_profile(profile, where))
        )
    curve: dict[Width, _Point] = {}
    for _, points in sorted(sources, key=lambda source: source[0], reverse=True):
        curve = _with_older(curve, points)
    return curve


def _is_own(profile: ScalingProfile) -> bool:
    """Whether a profile's seconds are the script's, and neither another program's nor assumed."""
    return profile.provenance.origin not in {PUBLISHED, ASSUMED}


def _of_profile(profile: ScalingProfile, where: str) -> dict[Width, _Point]:
    off = profile.speed_error + _ANOTHERS * (profile.provenance.origin == PUBLISHED)
    own = {width: measured.error / measured.mean for width, measured in profile.epoch.items()}
    per_trial = 1 / max(1, profile.configurations)
    return {
        width: _Point(
            math.log(measured.mean),
            off**2 + own[width] ** 2 + _variance(per_trial, measured.n, where),
            {_PROFILE: 1.0},
            per_trial,
            1.0,
            measured.sd / measured.mean,
            measured.n,
            own[width],
        )
        for width, measured in profile.epoch.items()
    }


def _of_run(
    run: RunTimes, machine: str, parallel: Mapping[Width, Parallel], where: str
) -> dict[Width, _Point]:
    """Return a run's points: at the width that most trials used, their mean.

    At other widths it is that mean, times the ratio of the trials that trained at both.
    """
    cells: dict[Width, dict[int, EpochTimes]] = {}
    for number, trial in enumerate(run.trials):
        for epoch in trial:
            strategy = parallel.get(epoch.width) or "ddp"
            is_of_it = epoch.instance_type == machine and (epoch.parallel or "ddp") == strategy
            if is_of_it and epoch.seconds.mean > 0:
                cells.setdefault(epoch.width, {})[number] = epoch
    for width, cell in cells.items():  # first epochs count if there are no others
        steady = {number: epochs for number, epochs in cell.items() if not epochs.first}
        cells[width] = steady or cell
    if not cells:
        return {}
    most = max(cells, key=lambda width: (len(cells[width]), -width))
    level = _average(run, cells[most], where)
    points = {most: level}
    for width, cell in cells.items():
        both = [number for number in cell if number in cells[most]]
        own = _average(run, cell, where)
        if width != most and both:
            ratios = [(cell[n].seconds, cells[most][n].seconds) for n in both]
            counts = [min(one.n, other.n) for one, other in ratios]
            log = math.fsum(
                count * math.log(one.mean / other.mean)
                for count, (one, other) in zip(counts, ratios, strict=True)
            ) / sum(counts)
            variance = _variance(level.per_trial, own.count, where)
            own = replace(own.at(level.log + log, level), variance=variance)
        points[width] = own
    return points


def _average(run: RunTimes, cell: Mapping[int, EpochTimes], where: str) -> _Point:
    measured = [epochs.seconds for epochs in cell.values()]
    count = sum(times.n for times in measured)
    mean = math.fsum(times.n * times.mean for times in measured) / count
    free = sum(times.n - 1 for times in measured)
    squares = math.fsum((times.n - 1) * (times.sd / times.mean) ** 2 for times in measured)
    per_trial = sum(times.n**2 for times in measured) / count**2
    sd = math.sqrt(squares / free) if free else 0.0
    return _Point(
        math.log(mean),
        _variance(per_trial, count, where),
        {run.run: 1.0},
        per_trial,
        0.0,
        sd,
        count,
    )


def _variance(per_trial: float, epochs: int, where: str) -> float:
    """Return the relative variance of a mean; `per_trial` is one over its configurations."""
    configurations = prior("speed of other configurations", where).between
    machines = prior("speed of other machines", where).between
    within = prior("epoch", where).within
    return configurations**2 * per_trial + machines**2 + within**2 / max(1, epochs)


def _with_older(newer: dict[Width, _Point], older: dict[Width, _Point]) -> dict[Width, _Point]:
    """Return two sources combined; if the older contradicts, only the shape of its curve counts."""
    both = [width for width in newer if width in older]
    if not both:
        return {**older, **newer}
    sure = {width: 1 / (newer[width].variance + older[width].variance) for width in both}
    apart = math.fsum(sure[w] * (older[w].log - newer[w].log) for w in both) / sum(sure.values())
    contradicts = abs(apart) > _CONTRADICTS * math.sqrt(len(both) / sum(sure.values()))
    weights = {w: 0.0 if contradicts else newer[w].variance * sure[w] for w in both}
    weight = math.fsum(sure[w] * weights[w] for w in both) / sum(sure.values())
    joined = {width: newer[width].with_older(older[width], weights[width]) for width in both}
    for width in (*newer, *older):
        if width in both:
            continue
        like = joined[min(both, key=lambda other: abs(math.log(other / width)))]
        own = newer.get(width) or older[width]
        moved = weight * apart if width in newer else (weight - 1) * apart
        joined[width] = own.at(own.log + moved, like)
    return joined


def _delay(
    runs: Sequence[Measurement | None],
    measured: Measurement | None,
    assumed: Prior,
    *,
    published: bool,
) -> Measurement | None:
    """Return a delay combined from runs and a profile; None if no run has seen it."""
    delays = [delay for delay in runs if delay is not None]
    if not delays:
        return None
    if measured is not None:
        delays.append(measured)
    usual = sum(times.mean for times in delays) / len(delays)
    between = max(assumed.between * usual, assumed.floor)
    variances = [between**2 + (assumed.within * usual) ** 2 / max(1, times.n) for times in delays]
    if published:
        variances[-1] += (_ANOTHERS * usual) ** 2
    sure = [1 / variance for variance in variances]
    weights = [precision / sum(sure) for precision in sure]
    mean = math.fsum(w * times.mean for w, times in zip(weights, delays, strict=True))
    effective_runs = 1 / math.fsum(weight**2 for weight in weights)
    apart = effective_runs * math.fsum(
        weight * (times.mean - mean) ** 2 for weight, times in zip(weights, delays, strict=True)
    )
    spread = (_WEIGHT * between**2 + apart) / (_WEIGHT + effective_runs - 1)
    pooled = _pool(delays)
    assert pooled is not None
    error = math.sqrt(spread * (1 + 1 / effective_runs) / 2) if mean > 0 else 0.0
    return Measurement(mean, pooled.sd, pooled.n, error)


def _find_delays(run: RunTimes, name: str, machine: str, market: str) -> list[Measurement]:
    """Return a run's times of a delay on a type: in the market, or else in any."""
    delays = [e for e in run.delays if (e.instance_type, e.delay) == (machine, name)]
    here = [delay for delay in delays if delay.market == market and name in _BY_MARKET]
    return [delay.seconds for delay in (here or delays)]


def _pool(measurements: Sequence[Measurement]) -> Measurement | None:
    """Return several means pooled, with the spread around each; None if there are none."""
    if not measurements:
        return None
    count = sum(max(1, times.n) for times in measurements)
    mean = math.fsum(max(1, times.n) * times.mean for times in measurements) / count
    free = sum(max(0, times.n - 1) for times in measurements)
    squares = math.fsum(max(0, times.n - 1) * times.sd**2 for times in measurements)
    sd = math.sqrt(squares / free) if free else 0.0
    return Measurement(mean, sd, count)
