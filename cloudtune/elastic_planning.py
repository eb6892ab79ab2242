"""From an experiment that decides as it goes to a job: what it may rent, and a forecast.

There are no stages to plan, but the policy is the very one of the run, so it is played: some
simulated runs, at the profile's speeds and with made-up metrics. Rents nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cloudtune import home, planning
from cloudtune.elastic_figures import figures
from cloudtune.elastic_plan import ElasticPlan, Figures, Forecast, Machines
from cloudtune.engine import run
from cloudtune.errors import InfeasibleError, UsageError
from cloudtune.job import Job, charges_of, elastic, sampler_name
from cloudtune.plan import Limits, Spread
from cloudtune.plan_tables import limits_text
from cloudtune.proposal import ElasticProposal, PriceNote
from cloudtune.proposing import profile_note, worst_bill
from cloudtune.simulator import SimWorld, synthetic_metric

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cloudtune.commands import Command
    from cloudtune.elastic import ElasticPolicy
    from cloudtune.events import Event
    from cloudtune.plan import Rentable
    from cloudtune.planning import Problem

SAMPLES = 20
LEAST_SAMPLES = 3
FORECAST_EVENTS = 100_000
"""All simulated runs together take about as many events at most, but for `LEAST_SAMPLES`."""
MOST_EVENTS = 1_000_000
"""A run without limits that goes on after so many events is taken to be endless."""


def elastic_job(
    problem: Problem,
    limits: Limits,
    began: float,
    *,
    elapsed: float = 0.0,
    paced: bool = False,
    force: bool = False,
) -> Job:
    """Return the job of an experiment, with its forecast; `elapsed` seconds are gone already.

    Raises:
        InfeasibleError: in no simulated run a trial finished an epoch (unless `force`).
        UsageError: it would never end, or a choice has no such name.
    """
    plan = elastic_plan(problem, limits, elapsed)
    if plan.forecast.results == 0 and not force:
        raise InfeasibleError(_no_result(plan, limits), None, None)
    catalog = problem.catalog
    return Job(
        run="",
        experiment=problem.experiment,
        plan=plan,
        rentables=problem.rentables,
        limits=limits,
        began=began,
        paced=paced,
        price_source=f"{catalog.source}, {catalog.as_of}",
    )


def _no_result(plan: ElasticPlan, limits: Limits) -> str:
    samples, epoch = plan.forecast.samples, "no trial finished an epoch"
    return (
        f"in none of {samples} simulated runs within {limits_text(limits)} anything came of it: "
        f"{epoch}. Raise --deadline or --budget (--force runs it all the same)"
    )


def elastic_plan(problem: Problem, limits: Limits, elapsed: float = 0.0) -> ElasticPlan:
    """Return what a run may rent, and what simulations of it come to.

    Raises:
        UsageError: it would never end, or a choice has no such name.
    """
    if not problem.rentables:
        raise planning.no_profile(problem.experiment)
    policy = elastic(problem.experiment, problem.rentables, limits)
    cloud = problem.experiment.cloud
    wanted = policy.fleet_rule.target(policy, policy.fleet_rule.most_gpus(policy))
    return ElasticPlan(
        strategy=policy.strategy.name,
        allocator=policy.allocator.name,
        fleet_rule=policy.fleet_rule.name,
        offers=tuple(each.offer for each in problem.rentables),
        fleet=tuple(Machines(offer, count) for offer, count in wanted.items() if count),
        max_instances=cloud.max_instances,
        forecast=forecast(problem, limits, elapsed + planning.SETUP_SECONDS),
        charges=charges_of(problem.experiment),
        vcpu_quotas=cloud.vcpu_quotas,
    )


# ---- the forecast --------------------------------------------------------------------------------


def forecast(problem: Problem, limits: Limits, begin: float = 0.0) -> Forecast:
    """Return what simulated runs come to; they ask for their first instance at `begin`.

    Large jobs are played less often: at least `LEAST_SAMPLES` times, `SAMPLES` at most.

    Raises:
        UsageError: no limit is set, and a run wouldn't end.
    """
    found: list[Figures] = []
    results = events = 0
    while len(found) < LEAST_SAMPLES or (
        len(found) < SAMPLES and events * (1 + 1 / len(found)) <= FORECAST_EVENTS
    ):
        policy, world = _played(problem, limits, begin, len(found))
        found.append(figures(policy))
        results += policy.best is not None
        events += world.events
    return Forecast(
        seconds=_spread([each.seconds for each in found]),
        dollars=_spread([each.dollars for each in found]),
        trials=_spread([each.trials for each in found]),
        epochs=_spread([each.epochs for each in found]),
        gpu_hours=_spread([each.gpu_hours for each in found]),
        instances=_spread([each.instances for each in found]),
        results=results / len(found),
        samples=len(found),
    )


def _played(
    problem: Problem, limits: Limits, begin: float, seed: int
) -> tuple[ElasticPolicy, _Counting]:
    experiment, metric = problem.experiment, problem.experiment.metric
    policy = elastic(experiment, problem.rentables, limits, heartbeat=False, checked=False)
    curves = synthetic_metric(metric.mode, seed)
    most = MOST_EVENTS if limits == Limits() else None
    world = _Counting(SimWorld(problem.rentables, metric.name, curves, seed, begin=begin), most)
    run(policy, world, _Nothing())
    if not policy.ended:
        raise UsageError(
            f"{experiment.strategy.name} would never end: {MOST_EVENTS:,} events of a simulated "
            "run are over, and it goes on. Set --deadline or --budget, or fewer --trials"
        )
    return policy, world


class _Counting:
    """A world that counts its events, and ends after `most` of them, whatever goes on."""

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


def _spread(draws: Sequence[float]) -> Spread:
    """Return the percentiles: the least draws that so large a share of all doesn't exceed."""
    ordered, count = sorted(draws), len(draws)
    p5, p50, p95 = (ordered[max(0, -(-count * share // 100) - 1)] for share in (5, 50, 95))
    return Spread(p5, p50, p95, sum(draws) / count)


# ---- what `plan` tells ---------------------------------------------------------------------------


def propose_elastic(problem: Problem, job: Job) -> ElasticProposal:
    """Return what there is to tell of a job that decides as it goes."""
    plan, experiment, catalog = job.plan, job.experiment, problem.catalog
    assert isinstance(plan, ElasticPlan)
    today = time.strftime("%Y-%m-%d")
    worst, why = _worst(plan, job.limits, job.rentables)
    notes = (profile_note(each.profile, today) for each in problem.rentables)
    return ElasticProposal(
        name=experiment.name,
        trials=experiment.trials,
        epochs=(experiment.epochs.min, experiment.epochs.max),
        eta=experiment.eta,
        sampler=sampler_name(experiment),
        max_concurrent=experiment.strategy.max_concurrent,
        target=experiment.strategy.target,
        metric=experiment.metric.name,
        limits=job.limits,
        plan=plan,
        prices=PriceNote(catalog.source, catalog.as_of, catalog.age_days(today), catalog.warnings),
        profiles=tuple(dict.fromkeys(notes)),
        worst_dollars=worst,
        worst_why=why,
        storage=home.storage(experiment.storage),
        assumptions=tuple(_assumptions(problem)),
    )


def _worst(plan: ElasticPlan, limits: Limits, rentables: Sequence[Rentable]) -> tuple[float, str]:
    """Return the largest bill that a run can end with, and when it does."""
    launched = plan.most_instances * plan.charges.usd_per_launch
    joining = max(planning.join_seconds(each.profile) for each in rentables)
    longest = planning.longest(plan, limits)
    return worst_bill(longest, limits, plan.usd_per_second, launched, joining)


def _assumptions(problem: Problem) -> Iterator[str]:
    yield (
        "the forecast's metrics are made up: who goes on, and so how much is trained, will differ; "
        "seconds and dollars are the profile's and the catalog's"
    )
    yield from problem.notes
    charges = charges_of(problem.experiment)
    if not (charges.usd_per_launch or charges.usd_per_second):
        yield "instances only: this machine, storage and transfer are not in the price (charges)"
    if any(each.offer.interruptions_per_hour for each in problem.rentables):
        yield "spot: interruptions by EC2's bands, work since the last epoch is lost"
    if any(each.profile.error for each in problem.rentables):
        yield "speed is derived, not measured: measure it with `cloudtune profile` before a big run"
    for quota, vcpus in problem.experiment.cloud.vcpu_quotas.items():
        yield f"quota {quota}: {vcpus} vCPUs at once"
