"""Plans on disk: what `plan --save` writes and `run` carries out, if nothing has changed since."""

import json
import math
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast.make import Planned
from cloudtune.forecast.problem import load_catalog
from cloudtune.forecast.staged_plans import work
from cloudtune.model.catalog import Catalog, Market
from cloudtune.model.plans import Plan, RunPlan
from cloudtune.policy.registry import SEARCHES, explores
from cloudtune.private_files import for_others
from cloudtune.profiles import store
from cloudtune.runs import home
from cloudtune.runs.identity import identify
from cloudtune.runs.job import Job, read_choice, trials

# The version of the format; a file of another version is refused.
VERSION = 3


def make_job(planned: Planned, began: float, *, paced: bool) -> Job:
    """Return the job that carries out a plan."""
    wanted = planned.problem.experiment
    catalog = planned.problem.catalog
    with home.with_module(wanted):
        identity = identify(wanted)
        script_hash = store.script_hash(wanted.train_file) if wanted.train_file.exists() else ""
    return Job(
        run="",
        experiment=wanted.named,
        plan=planned.plan,
        rentables=planned.rentables,
        standins=planned.standins,
        limits=planned.limits,
        began=began,
        paced=paced,
        price_source=f"{catalog.source}, {catalog.as_of}",
        script_hash=script_hash,
        identity=identity,
    )


def save_plan(path: Path, planned: Planned) -> None:
    """Save a plan so that `run` can carry out exactly that plan.

    Raises:
        UsageError: it can't be written there.
    """
    data = plan_bytes(make_job(planned, 0.0, paced=False))
    try:
        with for_others():
            path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"--save: {path} can't be written: {error.strerror}") from None


def plan_bytes(job: Job) -> bytes:
    """Return the contents of the file of a saved plan."""
    data = {"cloudtune_plan": VERSION, **job.to_json()}
    return (json.dumps(data, indent=1) + "\n").encode()


def load_plan(path: Path) -> Job | None:
    """Return a saved plan; None if the file isn't one (it may be an experiment).

    Raises:
        UsageError: the script has changed since, or the plan is damaged or of another version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply for a plan") from None
    if not isinstance(data, dict) or "cloudtune_plan" not in data:
        return None
    if data["cloudtune_plan"] != VERSION:
        raise UsageError(f"{path}: a plan of another version of cloudtune; plan again")
    try:
        job = Job.from_json(data)
        trouble = _damage(job)
        planned = {
            job.script_hash,
            *(rentable.profile.script_hash for rentable in job.rentables),
        } - {""}
    except (AttributeError, CloudtuneError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: a damaged plan ({error}); make it again") from None
    if trouble:
        raise UsageError(f"{path}: a damaged plan ({trouble}); make it again")
    if not job.experiment.runs_command:
        home.put_back(job.experiment.train_file)
    job.experiment.check_train()
    script = job.experiment.train_file
    changed = [] if job.identity is None else list(job.identity.changes(identify(job.experiment)))
    if changed or planned - {store.script_hash(script)}:
        what = f" ({'; '.join(changed)})" if changed else ""
        raise UsageError(f"{path}: {script} has changed since this was planned{what}; plan again")
    return job


def _damage(job: Job) -> str:
    """Return why a plan can't be carried out; "" if it can."""
    plan = job.plan
    choice = read_choice(job.experiment)
    if (plan.strategy, plan.allocator, plan.fleet_rule) != astuple(choice):
        return "its strategy, allocator and fleet aren't those of its experiment"
    if choice.planned != (plan.staged is not None):
        return "it has no stages to go by" if choice.planned else "its strategy uses no stages"
    if not set(plan.offers) <= {rentable.offer for rentable in job.rentables}:
        return "one of its offers isn't described in it"
    figures = (plan.estimate.seconds, plan.estimate.dollars, *filter(None, astuple(job.limits)))
    if not all(map(math.isfinite, figures)):
        return "its time, its price or a limit isn't a number"
    asked = job.experiment.limits
    derived = asked.deadline is None and job.experiment.strategy_name in SEARCHES
    deadline = job.limits.deadline if derived else asked.deadline
    if (job.limits.deadline, job.limits.budget) != (deadline, asked.budget):
        return "its limits aren't those of its experiment"
    return "" if plan.staged is None else _damaged_stages(job.experiment, plan.staged)


def _damaged_stages(experiment: Experiment, plan: Plan) -> str:
    stages = tuple(stage.stage for stage in plan.stages)
    wished = work(experiment, len(trials(experiment)), experiment.span.max)
    if stages != wished and not explores(experiment.strategy_name):
        return "its stages aren't those of its experiment"
    for stage in plan.stages:
        if sum(group.trials for group in stage.groups) != stage.stage.trials:
            return "a stage's groups don't have its trials"
        if any(g.instances < 1 or g.width <= 0 or g.waves < 1 for g in stage.groups):
            return "a group has no instances, no width or no waves"
        if stage.instances > plan.max_instances:
            return "a stage has more instances than the plan allows"
    return "" if plan.stages else "it has no stages to go by"


def refuse_moved_prices(path: Path, job: Job, tolerance: float) -> None:
    """Check that the plan's prices are today's, within the tolerance (a share of each).

    Raises:
        UsageError: some prices have moved, or are no longer offered; the message names them.
    """
    markets: tuple[Market, ...] = tuple(dict.fromkeys(o.market for o in job.plan.offers))
    today = load_catalog(job.experiment, markets)
    moved = list(_price_changes(job.plan, today, tolerance))
    if moved:
        raise UsageError(
            f"{path}: prices have moved by more than {tolerance:.0%} since this was planned: "
            f"{'; '.join(moved)}. Plan again, or accept it with --price-tolerance"
        )


def _price_changes(plan: RunPlan, today: Catalog, tolerance: float) -> Iterator[str]:
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
