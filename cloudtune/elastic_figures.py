"""What a run that decides as it goes has come to, as its policy and its record tell it."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtune.commands import StartTrial
from cloudtune.elastic_plan import Figures
from cloudtune.events import EpochDone
from cloudtune.trial import better

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cloudtune.elastic import ElasticPolicy
    from cloudtune.ledger import Entry


def figures(policy: ElasticPolicy) -> Figures:
    """Return what a run has come to so far; of one that has ended, in all."""
    end, best = policy.over_at, policy.best
    began = end if policy.began is None else policy.began
    rented = [each for each in policy.fleet if each.launched]
    lives = [(r.began_at, end if r.gone_at is None else r.gone_at, r.offer.gpus) for r in rented]
    return Figures(
        seconds=max(0.0, end - began),
        dollars=policy.spent(end),
        trials=len(policy.trials),
        epochs=max(policy.trials[best.trial].history) if best is not None else 0,
        gpu_hours=sum(gpus * max(0.0, until - since) for since, until, gpus in lives) / 3600.0,
        instances=_most((since, until) for since, until, _ in lives),
    )


def _most(lives: Iterable[tuple[float, float]]) -> int:
    """Return how many there were at once; one that begins as another ends comes after it."""
    changes = sorted(
        change for since, until in lives if until > since for change in ((since, 1), (until, -1))
    )
    size = most = 0
    for _, change in changes:
        size += change
        most = max(most, size)
    return most


@dataclass(frozen=True)
class RungReport:
    """How many trials trained until an epoch, the best of them there, and what it took.

    `gpu_hours` were trained in the epochs since the rung before, by all trials; `first_at` and
    `last_at` are when the first and the last of them reached it.
    """

    epoch: int
    trials: int
    best: float | None
    gpu_hours: float
    first_at: float | None
    last_at: float | None


def rung_reports(
    policy: ElasticPolicy, entries: Sequence[Entry], rungs: Sequence[int]
) -> tuple[RungReport, ...]:
    """Return a report of each rung; `rungs` ascends, and ends with the last epoch."""
    arrived: list[dict[str, float]] = [{} for _ in rungs]
    seconds = [0.0 for _ in rungs]
    widths: dict[str, float] = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, EpochDone):
            level = min(bisect.bisect_left(rungs, event.epoch), len(rungs) - 1)
            seconds[level] += event.seconds * widths[event.session]
            if event.epoch >= rungs[level]:
                arrived[level].setdefault(event.session.rpartition(".")[0], event.at)
        for command in entry.commands:
            if isinstance(command, StartTrial):
                widths[command.session] = command.width
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


def _best(policy: ElasticPolicy, names: Iterable[str], epoch: int) -> float | None:
    best: float | None = None
    for name in names:
        metric = policy.trials[name].history.get(epoch)
        if better(policy.mode, metric, best):
            best = metric
    return best
