"""What a ledger tells of durations: epochs and delays, counted as a profile counts them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from cloudtune.model.events import TrialStopped
from cloudtune.model.scaling import Measurement
from cloudtune.profiles.observed_timings import DelayTimes, EpochTimes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cloudtune.engine.record.timeline import Instance, Session, Timeline
    from cloudtune.model.trial import TrialId


def epoch_times(timeline: Timeline) -> Mapping[TrialId, tuple[EpochTimes, ...]]:
    """Return what each trial's epochs took, by instance type and width."""
    first: dict[tuple[TrialId, str, float], list[float]] = defaultdict(list)
    later: dict[tuple[TrialId, str, float], list[float]] = defaultdict(list)
    types = _by_instance(timeline)
    for session in timeline.sessions.values():
        instance = types.get(session.start.placement[0].instance)
        if instance is None:
            continue
        place = (session.start.trial, instance.launch.instance_type, session.start.width)
        for number, epoch in enumerate(session.epochs):
            if epoch.told.seconds > 0:  # else nobody knows
                (later if number else first)[place].append(epoch.told.seconds)
    found: dict[TrialId, list[EpochTimes]] = defaultdict(list)
    for place in dict.fromkeys((*first, *later)):
        trial, kind, width = place
        seconds = Measurement.of(later.get(place) or first[place])
        found[trial].append(EpochTimes(kind, width, seconds, first=place not in later))
    return {trial: tuple(times) for trial, times in found.items()}


def delay_times(timeline: Timeline) -> tuple[DelayTimes, ...]:
    """Return what launches, boots, starts, resizes and returns took, by instance type and market.

    Without what went on while nobody looked: until another controller took the run over.
    """
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for instance in timeline.instances.values():
        for delay, took in _of_instance(timeline, instance):
            found[instance.launch.instance_type, instance.launch.market, delay].append(took)
    types = _by_instance(timeline)
    stopped = {after.start.session: before for before, after in timeline.restarts()}
    for session in timeline.sessions.values():
        where = types.get(session.start.placement[0].instance)
        seconds = _set_up(timeline, session, stopped.get(session.start.session))
        if where is not None and seconds is not None:
            delay = "resize" if session.start.start_epoch else "start"
            found[where.launch.instance_type, where.launch.market, delay].append(seconds)
    return tuple(DelayTimes(*place, Measurement.of(seen)) for place, seen in found.items())


def _by_instance(timeline: Timeline) -> dict[str, Instance]:
    return {each.instance: each for each in timeline.instances.values() if each.instance}


def _of_instance(timeline: Timeline, it: Instance) -> Iterator[tuple[str, float]]:
    if it.launched_at is None or it.joined_at is None:
        return
    if not _taken_over(timeline, it.requested_at, it.joined_at):
        yield "launch", max(0.0, it.launched_at - it.requested_at)
        yield "boot", max(0.0, it.joined_at - it.launched_at)
    noticed = any(notice.intent == it.intent for notice in timeline.notices)
    if not it.released or noticed or it.left_at is None or it.gone_at is None:
        return  # it goes on, or the cloud took it
    if it.gone_at >= it.left_at and not _taken_over(timeline, it.left_at, it.gone_at):
        yield "release", it.gone_at - it.left_at


def _set_up(timeline: Timeline, session: Session, before: Session | None) -> float | None:
    """Return what a start took, with the stop before it and what its first epoch took longer.

    None where nobody knows: it never trained, or another controller heard of it.
    """
    epochs = [each.told.seconds for each in session.epochs]
    if session.started is None or not epochs:
        return None
    if _taken_over(timeline, session.begin, session.started):
        return None
    slower = max(0.0, epochs[0] - sum(epochs[1:]) / len(epochs[1:])) if epochs[1:] else 0.0
    stop = 0.0
    if before is not None and before.stopping is not None:
        stop = before.end - before.stopping if isinstance(before.ending, TrialStopped) else 0.0
    return session.started - session.begin + slower + max(0.0, stop)


def _taken_over(timeline: Timeline, begin: float, end: float) -> bool:
    return any(begin <= at <= end for at in timeline.takeovers)
