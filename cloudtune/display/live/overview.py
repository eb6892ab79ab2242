"""A run at one moment: its figures, its fleet and its trials, each with where it comes from."""

from collections import defaultdict
from dataclasses import dataclass

from cloudtune.model.fleet import Rented
from cloudtune.model.plans import Forecast, Spread
from cloudtune.model.progress import OVER, BestResult, TrialProgress
from cloudtune.model.text import machine_text
from cloudtune.model.trial import rank_key
from cloudtune.model.units import format_clock
from cloudtune.policy.run import RunPolicy


@dataclass(frozen=True)
class Outlook:
    """What something is expected to come to; `low` and `high` are its 5th and 95th percentile.

    `origin` says who says so: "planned" or "forecast" beforehand, or the plan that was made since.
    """

    expected: float
    low: float | None
    high: float | None
    origin: str


@dataclass(frozen=True)
class Bar:
    """How much of something is used: of `limit`, None where it has none, or it isn't known.

    `outlook` is None where it is unknown.
    """

    used: float
    limit: float | None
    outlook: Outlook | None


@dataclass(frozen=True)
class InstanceRow:
    """An instance; its name is empty as long as it is only asked for."""

    name: str
    machine: str
    state: str
    trials: tuple[str, ...]


@dataclass(frozen=True)
class TrialRow:
    """A trial; `width` is 0 and `instances` empty where it has no GPUs."""

    name: str
    status: str
    epoch: int
    metric: float | None
    width: float
    instances: tuple[str, ...]


@dataclass(frozen=True)
class Overview:
    """A run at one moment, in run seconds and dollars.

    `dollars` is None where nothing costs anything. `stage` counts from 1; (0, 0) without stages.
    `trials` begin with the best metric; those without one come last.
    """

    at: float
    time: Bar
    dollars: Bar | None
    epochs: Bar
    stage: tuple[int, int]
    metric: str
    best: BestResult | None
    ending: str
    instances: tuple[InstanceRow, ...]
    trials: tuple[TrialRow, ...]


def overview(
    policy: RunPolicy,
    at: float,
    *,
    forecast: Forecast | None = None,
    before: float = 0.0,
    free: bool = False,
) -> Overview:
    """Return what is known of a run at that time (run seconds).

    `forecast` was made before the run began; `before` are dollars that went into measuring the
    script, of the same budget. Where all is `free`, there are no dollars.
    """
    it = policy.itinerary
    ending = policy.ending
    return Overview(
        at=at,
        time=Bar(at, policy.limits.deadline, finish(policy, forecast)),
        dollars=None if free else _dollars(policy, at, forecast, before),
        epochs=_epochs(policy),
        stage=(0, 0) if it is None else (it.stage + 1, len(it.plan.stages)),
        metric=policy.state.metric.name,
        best=policy.best,
        ending="" if ending is None else ending.value,
        instances=_instances(policy),
        trials=_trials(policy),
    )


def billed(policy: RunPolicy, at: float) -> float:
    """Return the dollars spent until then.

    What is only asked for isn't billed yet, though the policy reckons with it.
    """
    asked = [rented for rented in policy.fleet.alive() if rented.launched_at is None]
    spent = policy.spent(at) - sum(rented.dollars(at) for rented in asked)
    return spent - len(asked) * policy.state.charges.usd_per_launch


def finish(policy: RunPolicy, forecast: Forecast | None) -> Outlook | None:
    """Return when the run is expected to end, in run seconds.

    One that is ending has no outlook but its end.
    """
    it = policy.itinerary
    began = policy.began
    if began is None:
        return None
    planned = 0.0
    if it is not None:
        planned = it.plan.estimate.seconds + (0.0 if it.replanned else began)
    return _outlook(policy, planned, None if forecast is None else forecast.seconds, began)


def _dollars(policy: RunPolicy, at: float, forecast: Forecast | None, before: float) -> Bar:
    budget = policy.limits.budget
    limit = None if budget is None else budget + before
    planned = 0.0 if policy.itinerary is None else policy.forecast(at) + before
    spread = None if forecast is None else forecast.dollars
    return Bar(billed(policy, at) + before, limit, _outlook(policy, planned, spread, before))


def _outlook(
    policy: RunPolicy, planned: float, spread: Spread | None, begin: float
) -> Outlook | None:
    """Return what is expected: as `planned` by the plan that is followed now, else by a forecast.

    The forecast, counted from `begin` on, has the range, but not of a plan that was made since.
    """
    it = policy.itinerary
    if policy.ending is not None or (it is None and spread is None):
        return None
    if it is not None and it.replanned:
        return Outlook(planned, None, None, f"replanned at {format_clock(it.planned_at)}")
    if spread is None:
        return Outlook(planned, None, None, "planned")
    low = spread.p5 + begin
    high = spread.p95 + begin
    if it is None:
        return Outlook(spread.p50 + begin, low, high, "forecast")
    return Outlook(planned, low, high, "planned")


def _epochs(policy: RunPolicy) -> Bar:
    """Return the epochs that count: those that were lost, or another trial trained, do not."""
    trained = sum(
        sum(epoch <= trial.epoch for epoch in trial.history) for trial in policy.trials.values()
    )
    it = policy.itinerary
    if it is None:
        return Bar(trained, None, None)
    return Bar(trained, it.plan.epochs, None)


def _instances(policy: RunPolicy) -> tuple[InstanceRow, ...]:
    on: defaultdict[str, list[str]] = defaultdict(list)
    for trial in policy.state.live:
        for part in trial.placement:
            on[part.instance].append(trial.id)
    return tuple(
        InstanceRow(
            rented.instance or "",
            machine_text(rented.offer.instance_type.name, rented.offer.market, rented.zone),
            _state(rented),
            tuple(on[rented.instance or ""]) if rented.instance else (),
        )
        for rented in policy.fleet.alive()
    )


def _state(rented: Rented) -> str:
    if rented.released:
        return "returning"
    if rented.lost:
        return "being lost"
    if rented.surplus:
        return "leaving"
    if rented.launched_at is None:
        return "asked for"
    if rented.joined:
        return "at risk" if rented.at_risk else "up"
    return "booting"


def _trials(policy: RunPolicy) -> tuple[TrialRow, ...]:
    mode = policy.state.mode
    ordered = sorted(
        policy.trials.values(), key=lambda t: (*rank_key(mode, t.metric), t.status in OVER)
    )
    return tuple(map(_row, ordered))


def _row(trial: TrialProgress) -> TrialRow:
    status = "paused" if trial.status == "parked" else trial.status
    on = tuple(dict.fromkeys(part.instance for part in trial.placement))
    return TrialRow(
        trial.id, status, trial.epoch, trial.metric, trial.width if trial.live else 0.0, on
    )
