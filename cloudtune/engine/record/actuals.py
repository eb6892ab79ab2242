"""The durations in a ledger: epochs and delays, counted as a profile counts them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from cloudtune.engine.record.timeline import InstanceSpan, SessionSpan, Timeline
from cloudtune.model.events import TrialFailed, TrialStopped
from cloudtune.model.scaling import Measurement
from cloudtune.model.trial import Parallel, TrialId, Width
from cloudtune.profiles.observed_timings import DelayTimes, EpochTimes


def epoch_times(timeline: Timeline) -> Mapping[TrialId, tuple[EpochTimes, ...]]:
    """Return the times of each trial's epochs, by instance type and width."""
    first: dict[tuple[TrialId, str, float, Parallel], list[float]] = defaultdict(list)
    later: dict[tuple[TrialId, str, float, Parallel], list[float]] = defaultdict(list)
    types = _by_instance(timeline)
    for session in timeline.sessions.values():
        instance = types.get(session.start.placement[0].instance)
        if instance is None:
            continue
        start = session.start
        place = (start.trial, instance.launch.instance_type, start.width, start.parallel)
        for number, epoch in enumerate(session.epochs):
            if epoch.report.seconds > 0:  # otherwise unknown
                (later if number else first)[place].append(epoch.report.seconds)
    by_trial: dict[TrialId, list[EpochTimes]] = defaultdict(list)
    for place in dict.fromkeys((*first, *later)):
        trial, kind, width, parallel = place
        seconds = Measurement.of(later.get(place) or first[place])
        times = EpochTimes(kind, width, seconds, first=place not in later, parallel=parallel)
        by_trial[trial].append(times)
    return {trial: tuple(times) for trial, times in by_trial.items()}


def crowded_places(timeline: Timeline) -> Mapping[TrialId, tuple[tuple[str, Width], ...]]:
    """Return the instance types and shares of a GPU at which trials ran out of memory."""
    places: dict[TrialId, tuple[tuple[str, Width], ...]] = {}
    types = _by_instance(timeline)
    for session in timeline.sessions.values():
        start = session.start
        end = session.ending
        instance = types.get(start.placement[0].instance)
        full = isinstance(end, TrialFailed) and end.out_of_memory and start.width < 1
        if full and instance is not None:
            place = (instance.launch.instance_type, start.width)
            places[start.trial] = (*places.get(start.trial, ()), place)
    return places


def delay_times(timeline: Timeline) -> tuple[DelayTimes, ...]:
    """Return the times of launches, boots, starts, resizes and returns, by type and market.

    Those in flight when another controller took over are left out: their times are unknown.
    """
    durations: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for instance in timeline.instances.values():
        for delay, took in _of_instance(timeline, instance):
            durations[instance.launch.instance_type, instance.launch.market, delay].append(took)
    types = _by_instance(timeline)
    stopped = {after.start.session: before for before, after in timeline.restarts()}
    for session in timeline.sessions.values():
        where = types.get(session.start.placement[0].instance)
        seconds = _set_up(timeline, session, stopped.get(session.start.session))
        if where is not None and seconds is not None:
            delay = "resize" if session.start.start_epoch else "start"
            durations[where.launch.instance_type, where.launch.market, delay].append(seconds)
    return tuple(DelayTimes(*place, Measurement.of(seen)) for place, seen in durations.items())


def _by_instance(timeline: Timeline) -> dict[str, InstanceSpan]:
    return {
        instance.instance: instance for instance in timeline.instances.values() if instance.instance
    }


def _of_instance(timeline: Timeline, instance: InstanceSpan) -> Iterator[tuple[str, float]]:
    if instance.launched_at is None or instance.joined_at is None:
        return
    if not _taken_over(timeline, instance.requested_at, instance.joined_at):
        yield "launch", max(0.0, instance.launched_at - instance.requested_at)
        yield "boot", max(0.0, instance.joined_at - instance.launched_at)
    noticed = any(notice.intent == instance.intent for notice in timeline.notices)
    if not instance.released or noticed or instance.left_at is None or instance.gone_at is None:
        return  # it isn't over, or the cloud took it
    if instance.gone_at >= instance.left_at and not _taken_over(
        timeline, instance.left_at, instance.gone_at
    ):
        yield "release", instance.gone_at - instance.left_at


def _set_up(timeline: Timeline, session: SessionSpan, before: SessionSpan | None) -> float | None:
    """Return the seconds of a start, with the stop before it and the first epoch's excess.

    None if unknown: it never trained, or another controller received its start.
    """
    epochs = [epoch.report.seconds for epoch in session.epochs]
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
