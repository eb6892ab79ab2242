"""Plans on disk: what `plan --save` writes and `run` carries out, if nothing has changed since."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from cloudtune import planning
from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.job import Job, strategy
from cloudtune.plan import Plan
from cloudtune.profiles import store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cloudtune.catalog import Catalog, Market
    from cloudtune.elastic_plan import ElasticPlan
    from cloudtune.plan import Limits
    from cloudtune.planning import Planned

VERSION = 2
TOLERANCE = 0.05
"""By how much a price may have moved since the plan was made, as a share of it."""


def job_of(planned: Planned, limits: Limits, began: float, *, paced: bool) -> Job:
    """Return the job that carries a plan out."""
    catalog = planned.problem.catalog
    return Job(
        run="",
        experiment=planned.problem.experiment,
        plan=planned.plan,
        rentables=planned.rentables,
        standins=planned.standins,
        limits=limits,
        began=began,
        paced=paced,
        price_source=f"{catalog.source}, {catalog.as_of}",
    )


def save_plan(path: Path, planned: Planned, limits: Limits) -> None:
    """Write a plan down so that `run` can carry out exactly that plan.

    Raises:
        UsageError: it can't be written there.
    """
    data = {"cloudtune_plan": VERSION, **job_of(planned, limits, 0.0, paced=False).to_json()}
    try:
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--save: {path} can't be written: {error.strerror}") from None


def load_plan(path: Path) -> Job | None:
    """Return a saved plan; None if the file isn't one (it may be an experiment).

    Raises:
        UsageError: the script has changed since, or the plan is damaged or of another version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or "cloudtune_plan" not in data:
        return None
    if data["cloudtune_plan"] != VERSION:
        raise UsageError(f"{path}: a plan of another version of cloudtune; plan again")
    try:
        job = Job.from_json(data)
        trouble = _damage(job)
    except (AttributeError, CloudtuneError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: a damaged plan ({error}); make it again") from None
    if trouble:
        raise UsageError(f"{path}: a damaged plan ({trouble}); make it again")
    job.experiment.check_train()
    measured = {each.profile.script_hash for each in job.rentables} - {""}
    if measured - {store.script_hash(job.experiment.train_file)}:
        raise UsageError(
            f"{path}: {job.experiment.train_file} has changed since this was planned; plan again"
        )
    return job


def _damage(job: Job) -> str:
    """Return what makes a plan impossible to carry out, "" where nothing does."""
    forecast = strategy(job.experiment).stages()
    stages = job.plan.stages if isinstance(job.plan, Plan) else ()
    if tuple(stage.stage for stage in stages) != forecast:
        return "its stages aren't those of its experiment"
    known = {each.offer for each in job.rentables}
    for stage in stages:
        if sum(group.trials for group in stage.groups) != stage.stage.trials:
            return "a stage's groups don't have its trials"
        if any(g.instances < 1 or g.width <= 0 or g.waves < 1 for g in stage.groups):
            return "a group has no instances, no width or no waves"
        if stage.instances > job.plan.max_instances:
            return "a stage has more instances than the plan allows"
    if not set(job.plan.offers) <= known:
        return "nothing is known of one of its offers"
    figures = (job.plan.estimate.seconds, job.plan.estimate.dollars)
    return "" if all(map(math.isfinite, figures)) else "its time or price is no number"


def refuse_moved_prices(path: Path, job: Job, tolerance: float) -> None:
    """Pass if the plan's prices are today's, give or take the tolerance (a share of each).

    Raises:
        UsageError: some are not, or are not offered any more; names them.
    """
    markets: tuple[Market, ...] = tuple(dict.fromkeys(o.market for o in job.plan.offers))
    today = planning.catalog_of(job.experiment, markets)
    moved = list(_moved(job.plan, today, tolerance))
    if moved:
        raise UsageError(
            f"{path}: prices have moved by more than {tolerance:.0%} since this was planned: "
            f"{'; '.join(moved)}. Plan again, or accept it with --price-tolerance"
        )


def _moved(plan: Plan | ElasticPlan, today: Catalog, tolerance: float) -> Iterator[str]:
    for offer in plan.offers:
        name = f"{offer.instance_type.name} {offer.market}"
        zone = offer.zone or None
        try:
            now = today.offer(offer.instance_type.name, offer.market, zone).usd_per_hour
        except UsageError:
            yield f"{name} is not offered any more"
            continue
        if abs(now - offer.usd_per_hour) > tolerance * offer.usd_per_hour:
            yield f"{name} was ${offer.usd_per_hour:g} an hour and is ${now:g}"
