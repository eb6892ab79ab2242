"""The figures of a run, from its policy and its record."""

import bisect
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cloudtune.engine.record.timeline import Timeline, levels
from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Limits
from cloudtune.model.trial import EndReason, better
from cloudtune.policy.run import RunPolicy


@dataclass(frozen=True)
class Figures:
    """The figures of a run, the same for a simulated and a real one.

    `epochs` are those of the best trial; `gpu_hours` are paid for, used or not; `instances` is the
    largest number at once.
    """

    seconds: float
    dollars: float
    trials: float
    epochs: float
    gpu_hours: float
    instances: float


@dataclass(frozen=True)
class LegFigures:
    """A part of a run up to an end, in seconds of the run: its limits, and what it spent.

    `more` are the trials that it added; `ended` is None if it isn't over.
    """

    begin: float
    end: float
    ended: EndReason | None
    dollars: float
    deadline: float | None
    budget: float | None
    more: int


def legs(policy: RunPolicy, timeline: Timeline, first: Limits) -> list[LegFigures]:
    """Return the parts of a run that was resumed after an end; `first` are its first limits.

    Their dollars add up to the run's.
    """
    starts = [timeline.began or 0.0, *(leg.event.at for leg in timeline.legs)]
    until = [*(leg.over_at for leg in timeline.legs), policy.over_at]
    ended = [*(leg.ended for leg in timeline.legs), timeline.ended]
    bounds = [(first.deadline, first.budget, 0)]
    bounds += [(leg.event.deadline, leg.event.budget, leg.event.trials) for leg in timeline.legs]
    charges = policy.state.charges
    parts = []
    for begin, end, reason, limits in zip(starts, until, ended, bounds, strict=True):
        rented = [r for r in policy.fleet if r.launched and begin <= r.began_at <= end]
        dollars = math.fsum(instance.dollars(end) for instance in rented)
        dollars += charges.dollars(len(rented), end - begin)
        parts.append(LegFigures(begin, end, reason, dollars, *limits))
    return parts


def figures(policy: RunPolicy) -> Figures:
    """Return the figures of a run so far; in total if it has ended."""
    end = policy.over_at
    best = policy.best
    began = end if policy.began is None else policy.began
    lives = _lives(policy)
    sizes = levels(
        change for since, until, _ in lives if until > since for change in ((since, 1), (until, -1))
    )
    return Figures(
        seconds=max(0.0, end - began),
        dollars=policy.spent(end),
        trials=len(policy.trials),
        epochs=0 if best is None else max([best.epoch, *policy.trials[best.trial].history]),
        gpu_hours=sum(offer.gpus * max(0.0, until - since) for since, until, offer in lives) / 3600,
        instances=round(max((size for _, size in sizes), default=0)),
    )


def _lives(policy: RunPolicy) -> list[tuple[float, float, Offer]]:
    """Return when each instance of a run began and ended, and its offer; as if it were over now."""
    end = policy.over_at
    rented = [instance for instance in policy.fleet if instance.launched]
    return [(r.began_at, end if r.gone_at is None else r.gone_at, r.offer) for r in rented]


def dearest_fleet(policy: RunPolicy) -> Counter[Offer]:
    """Return the instances of a run that were alive when these cost most; empty without any."""
    changes = []
    for since, until, offer in _lives(policy):
        changes += [(since, 1, offer), (until, -1, offer)]
    alive = Counter[Offer]()
    dearest = Counter[Offer]()
    rate = most = 0.0
    for _, change, offer in sorted(changes, key=lambda item: item[:2]):
        alive[offer] += change
        rate += change * offer.usd_per_second
        if rate > most or not dearest:
            most = rate
            dearest = +alive
    return dearest


@dataclass(frozen=True)
class RungReport:
    """How many trials reached an epoch, the best of them there, and the GPU-hours.

    `gpu_hours` are those of all trials in the epochs since the previous rung; `first_at` and
    `last_at` are the run seconds at which the first and the last trial reached the rung.
    """

    epoch: int
    trials: int
    best: float | None
    gpu_hours: float
    first_at: float | None
    last_at: float | None


def rung_reports(
    policy: RunPolicy, timeline: Timeline, rungs: Sequence[int]
) -> tuple[RungReport, ...]:
    """Return a report of each rung; `rungs` ascends, and ends with the last epoch."""
    arrived: list[dict[str, float]] = [{} for _ in rungs]
    seconds = [0.0 for _ in rungs]
    for epoch in timeline.epochs:
        level = min(bisect.bisect_left(rungs, epoch.number), len(rungs) - 1)
        seconds[level] += epoch.report.seconds * epoch.width
        if epoch.number >= rungs[level]:
            arrived[level].setdefault(epoch.trial, epoch.report.at)
    return tuple(
        RungReport(
            epoch=epoch,
            trials=len(times),
            best=_best(policy, times, epoch),
            gpu_hours=spent / 3600.0,
            first_at=min(times.values(), default=None),
            last_at=max(times.values(), default=None),
        )
        for epoch, times, spent in zip(rungs, arrived, seconds, strict=True)
    )


def _best(policy: RunPolicy, names: Iterable[str], epoch: int) -> float | None:
    best: float | None = None
    for name in names:
        trial = policy.trials[name]
        metric = None if trial.status == "diverged" else trial.history.get(epoch)
        if better(policy.state.mode, metric, best):
            best = metric
    return best
