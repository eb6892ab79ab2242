"""From an experiment and its profiles to a plan, saved or not. Rents nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtune import home
from cloudtune.errors import InfeasibleError, UsageError
from cloudtune.infra.pricing import PRICED_REGION, catalog
from cloudtune.job import Job, drain_seconds, strategy
from cloudtune.plan import Limits, Plan, PlanRequest
from cloudtune.planners.elastic import ElasticPlanner
from cloudtune.planners.static import StaticPlanner
from cloudtune.profiles import store

if TYPE_CHECKING:
    from pathlib import Path

    from cloudtune.catalog import Catalog, Offer
    from cloudtune.experiment import Experiment
    from cloudtune.scaling import ScalingProfile

MARGIN = 0.05
"""The share of deadline and budget that a plan leaves for what it can't foresee."""
SETUP_SECONDS = 12.0
"""What a run takes before its first request: the check of the script, and Ray's head."""


@dataclass(frozen=True)
class Planned:
    """A plan, the best static cluster where there is one, and what they were made from."""

    plan: Plan
    static: Plan | None
    profile: ScalingProfile
    catalog: Catalog


def catalog_of(experiment: Experiment) -> Catalog:
    """Return the prices that apply to an experiment."""
    cloud = experiment.cloud
    if cloud.provider == "aws" and cloud.region != PRICED_REGION:
        raise UsageError(
            f"cloud.region: only the prices of {PRICED_REGION} are known yet, and without those of "
            f"{cloud.region} a budget can't be kept; use {PRICED_REGION}"
        )
    return catalog(experiment.cloud.region, experiment.cloud.market)


def stored_profiles(experiment: Experiment, given: Path | None) -> list[ScalingProfile]:
    """Return the usable profiles of an experiment's script on its instance types."""
    return store.find(
        store.script_hash(experiment.train_file),
        experiment.cloud.instances,
        given=given,
        store=home.home() / "profiles",
        beside=experiment.directory,
    )


def planning_limits(limits: Limits, profile: ScalingProfile, elapsed: float = 0.0) -> Limits:
    """Return what a plan may take, so that the run stays within `limits` with room to spare."""
    deadline, budget = limits.deadline, limits.budget
    reserve = elapsed + SETUP_SECONDS + drain_seconds(profile)
    return Limits(
        deadline=None if deadline is None else max(0.0, (deadline - reserve) * (1 - MARGIN)),
        budget=None if budget is None else budget * (1 - MARGIN),
    )


def make_plan(
    experiment: Experiment,
    profiles: list[ScalingProfile],
    limits: Limits,
    elapsed: float = 0.0,
) -> Planned:
    """Return the cheapest elastic plan on any one of the experiment's instance types.

    Raises:
        InfeasibleError: no type has one; carries the fastest and the cheapest plan of all.
    """
    prices = catalog_of(experiment)
    found: list[Planned] = []
    refusals: list[InfeasibleError] = []
    for profile in profiles:
        offer = prices.offer(profile.instance_type)
        within = planning_limits(limits, profile, elapsed)
        request = _request(experiment, profile, offer, within)
        try:
            plan = ElasticPlanner().plan(request)
        except InfeasibleError as error:
            refusals.append(error)
        else:
            found.append(Planned(plan, _static(request), profile, prices))
    if found:
        return min(found, key=lambda planned: planned.plan.estimate.dollars)
    raise _merged(refusals)


def _request(
    experiment: Experiment, profile: ScalingProfile, offer: Offer, limits: Limits
) -> PlanRequest:
    return PlanRequest(
        work=strategy(experiment).stages(),
        profile=profile,
        offer=offer,
        limits=limits,
        max_instances=experiment.cloud.max_instances,
    )


def _static(request: PlanRequest) -> Plan | None:
    try:
        return StaticPlanner().plan(request)
    except InfeasibleError:
        return None


def _merged(refusals: list[InfeasibleError]) -> InfeasibleError:
    """Return the refusal of the type that comes nearest, with the extremes of all types."""
    fastest = [error.fastest for error in refusals if error.fastest]
    cheapest = [error.cheapest for error in refusals if error.cheapest]
    if not fastest:
        return refusals[0]
    quick = min(fastest, key=lambda plan: plan.estimate.seconds)
    message = next(str(error) for error in refusals if error.fastest is quick)
    return InfeasibleError(message, quick, min(cheapest, key=lambda p: p.estimate.dollars))


def forced_plan(
    experiment: Experiment, profiles: list[ScalingProfile], limits: Limits, elapsed: float = 0.0
) -> Planned:
    """Return a plan for a run that ends at its limits: in time if possible, else the fastest."""
    try:
        return make_plan(experiment, profiles, Limits(limits.deadline, None), elapsed)
    except InfeasibleError as error:
        if error.fastest is None:
            raise
        name = error.fastest.offer.instance_type.name
        profile = next(p for p in profiles if p.instance_type == name)
        return Planned(error.fastest, None, profile, catalog_of(experiment))


def save_plan(path: Path, experiment: Experiment, planned: Planned, limits: Limits) -> None:
    """Write a plan down so that `run` can carry out exactly that plan."""
    job = Job(
        run="",
        experiment=experiment,
        plan=planned.plan,
        profile=planned.profile,
        limits=limits,
        began=0.0,
        paced=False,
        price_source=f"{planned.catalog.source}, {planned.catalog.as_of}",
    )
    data = {"cloudtune_plan": 1, **job.to_json()}
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def load_plan(path: Path) -> Job | None:
    """Return a saved plan; None if the file isn't one (it may be an experiment).

    Raises:
        UsageError: the script has changed since, or the plan is damaged.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or "cloudtune_plan" not in data:
        return None
    try:
        job = Job.from_json(data)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: a damaged plan ({error}); make it again") from None
    job.experiment.check_train()
    if store.script_hash(job.experiment.train_file) != job.profile.script_hash:
        raise UsageError(
            f"{path}: {job.experiment.train_file} has changed since this was planned; plan again"
        )
    return job


def no_profile(experiment: Experiment) -> UsageError:
    """Return the error for a plan that has nothing to go by."""
    types = ", ".join(experiment.cloud.instances)
    return UsageError(
        f"no profile of {experiment.train_file} on {types}; planning rents nothing, so measure "
        "it with `cloudtune profile`, or name one with --profile FILE"
    )
