"""Which region a run goes to, where its experiment names several."""

import dataclasses
import math
from collections.abc import Sequence

from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast.make import Planned, make_plan
from cloudtune.forecast.problem import load_catalog, select_markets, stored_profiles
from cloudtune.forecast.staged_plans import PlanOptions
from cloudtune.infra.provider import Provider, find_provider
from cloudtune.lifecycle import heads
from cloudtune.lifecycle.planning import load_problem, read_limits
from cloudtune.model.events import EpochDone
from cloudtune.model.text import count_noun
from cloudtune.model.trial import EndReason
from cloudtune.model.units import format_dollars, format_seconds
from cloudtune.planners.base import InfeasibleError
from cloudtune.runs.control import to_stderr
from cloudtune.runs.report import Report

# As many regions at most are named that lack the same.
_NAMED = 3


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """An experiment in one region; `worth` is less where it is better, `figure` says it."""

    experiment: Experiment
    worth: tuple[float, ...]
    figure: str


def rank_regions(
    wanted: Experiment, profile: str | None = None, options: PlanOptions | None = None
) -> Sequence[Experiment]:
    """Return an experiment for each region that can take it, the best region's first.

    Each is completed with its account's resources there. The best region is that of the best plan
    by the experiment's objective; while the script has no profile, that of the cheapest GPU-hour.
    Those where no plan meets the limits come last. The figures go to standard error. An experiment
    of one region comes back alone.

    Raises:
        UsageError: no region can take it; the message says why of each.
    """
    provider = find_provider(wanted.cloud.provider)
    names = wanted.cloud.regions
    if not names:
        return [provider.with_account_defaults(wanted)]
    candidates: list[_Candidate] = []
    lacking: dict[str, list[str]] = {}
    errors: tuple[type[Exception], ...] = (CloudtuneError, *provider.errors())
    for name in _list_regions(provider) if names == ("any",) else names:
        try:
            candidates.append(_candidate(provider, wanted, name, profile, options))
        except errors as error:
            lacking.setdefault(str(error).replace(name, "REGION"), []).append(name)
    refused = [f"{_some(names)}: {why}" for why, names in lacking.items()]
    if not candidates:
        raise UsageError(f"cloud.regions: none can take this run. {'. '.join(refused)}")
    candidates.sort(key=lambda candidate: candidate.worth)
    first, *others = [f"{it.experiment.cloud.region} ({it.figure})" for it in candidates]
    then = f"; next {', '.join(others)}" if others else ""
    to_stderr(f"Region {first}{then}")
    for text in refused:
        to_stderr(f"  not {text}")
    return [candidate.experiment for candidate in candidates]


def _some(names: Sequence[str]) -> str:
    left = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {left} more" if left > 0 else "")


def _list_regions(provider: Provider) -> Sequence[str]:
    try:
        return provider.regions()
    except provider.errors() as error:
        raise UsageError(f"cloud.regions: can't list the account's: {error}. Name some") from error


def _candidate(
    provider: Provider,
    wanted: Experiment,
    region: str,
    profile: str | None,
    options: PlanOptions | None,
) -> _Candidate:
    """Return an experiment in a region, and what it would come to there.

    Raises:
        CloudtuneError: it can't run there.
    """
    cloud = wanted.cloud.model_copy(update={"region": region, "regions": ()})
    regional = provider.with_account_defaults(wanted.model_copy(update={"cloud": cloud}))
    provider.check(regional)
    if profile is None and not stored_profiles(regional):
        named = (regional.cloud.instances, select_markets(regional), regional.cloud.zones)
        usd = min(it.usd_per_hour / it.gpus for it in load_catalog(regional).matching(*named))
        return _Candidate(regional, (usd,), f"from {format_dollars(usd)} a GPU-hour")
    priced = heads.with_head(regional, heads.offer_head(regional))
    problem = load_problem(priced, profile)
    try:
        planned = make_plan(problem, read_limits(priced), options, priced.charges.head_start)
    except InfeasibleError:
        return _Candidate(regional, (math.inf,), "no plan meets the limits")
    estimate = planned.plan.estimate
    trials = count_noun(round(planned.plan.forecast.trials.p50), "trial")
    figure = f"{trials}, {format_seconds(estimate.seconds)}, {format_dollars(estimate.dollars)}"
    return _Candidate(regional, _worth(planned), figure)


def _worth(planned: Planned) -> tuple[float, ...]:
    forecast = planned.plan.forecast
    estimate = planned.plan.estimate
    aim = "best" if planned.asked is None else planned.asked.aim
    if aim == "time":
        return (estimate.seconds, estimate.dollars)
    if aim == "cost":
        return (estimate.dollars, estimate.seconds)
    return (-forecast.epochs.p50, -forecast.trials.p50, estimate.dollars)


def after(before: Report, following: Experiment) -> Experiment | None:
    """Return an experiment in another region with what a run has left of its limits.

    None where nothing is left, and unless that run found no room at all, and so trained nothing.
    """
    trained = any(isinstance(entry.event, EpochDone) for entry in before.entries)
    if trained or before.ended is not EndReason.NO_CAPACITY:
        return None
    left = vars(read_limits(following).less(before.seconds, before.dollars))
    if any(value is not None and value <= 0 for value in left.values()):
        return None
    place = following.cloud.region
    to_stderr(f"No room in {before.job.experiment.cloud.region}: the run goes to {place}.")
    limits = following.limits.model_copy(update=left)
    return following.model_copy(update={"limits": limits})
