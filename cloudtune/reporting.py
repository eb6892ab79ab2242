"""What a run did, against what was planned: read from its ledger, by replaying it."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cloudtune.accounting import account
from cloudtune.codec import encode
from cloudtune.commands import StartTrial
from cloudtune.elastic import ElasticPolicy
from cloudtune.elastic_figures import RungReport, figures, rung_reports
from cloudtune.elastic_plan import ElasticPlan
from cloudtune.events import EpochDone, InstanceGone, InstanceLaunched
from cloudtune.job import Job
from cloudtune.ledger import read_entries, read_header
from cloudtune.strategies.rungs import rung_epochs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cloudtune.accounting import Accounting, Amount, InstanceAccount
    from cloudtune.elastic_plan import Figures, Forecast
    from cloudtune.fleet import Rented
    from cloudtune.job import JobPolicy
    from cloudtune.ledger import Entry
    from cloudtune.plan import Group, StagePlan
    from cloudtune.policy import RunPolicy
    from cloudtune.progress import TrialProgress


@dataclass(frozen=True)
class StageReport:
    """One stage, planned against actual; `actual` is None for a stage that never began."""

    plan: StagePlan
    seconds: float | None
    dollars: float | None


@dataclass(frozen=True)
class WidthChange:
    """A trial that went on at another width: epochs before and after, without a gap."""

    trial: str
    before: float
    after: float
    last_epoch: int
    next_epoch: int


@dataclass(frozen=True)
class Report:
    """Everything that can be told of a run from its ledger.

    One whose strategy decided as results came in has no stages, but rungs and `figures`, to be
    held against its forecast.
    """

    job: Job
    policy: JobPolicy
    entries: tuple[Entry, ...]
    stages: tuple[StageReport, ...]
    fleet: tuple[tuple[float, int], ...]
    width_changes: tuple[WidthChange, ...]
    seconds: float
    dollars: float
    rungs: tuple[RungReport, ...] = ()
    figures: Figures | None = None

    @property
    def forecast(self) -> Forecast | None:
        """What simulations of the policy said before the run; None where there was a plan."""
        return self.job.plan.forecast if isinstance(self.job.plan, ElasticPlan) else None

    @cached_property
    def accounting(self) -> Accounting:
        """Where the money went; its total is `dollars`."""
        return account(self.entries, self.job.offers, self.policy.charges)

    @property
    def planned_seconds(self) -> float:
        """What the plan said that the run takes, from its first request on."""
        return self.job.plan.estimate.seconds

    def synced(self) -> dict[str, tuple[int, int]]:
        """Return, for each trial with several ranks, epochs in sync and epochs checked."""
        found: dict[str, tuple[int, int]] = {}
        for entry in self.entries:
            event = entry.event
            if isinstance(event, EpochDone) and event.in_sync is not None:
                trial = event.session.rpartition(".")[0]
                equal, checked = found.get(trial, (0, 0))
                found[trial] = (equal + event.in_sync, checked + 1)
        return found


def load(folder: Path) -> Report:
    """Return the report of a run's folder.

    Raises:
        CloudtuneError: it holds no ledger that this program reads.
    """
    path = folder / "ledger.jsonl"
    job = Job.from_json(read_header(path))
    return build(job, tuple(read_entries(path)))


def build(job: Job, entries: tuple[Entry, ...]) -> Report:
    """Return the report of a job and what was recorded of it."""
    policy = job.policy()
    for entry in entries:
        policy.handle(entry.event)
    if isinstance(policy, ElasticPolicy):
        return _elastic(job, policy, entries)
    end = policy.over_at
    return Report(
        job=job,
        policy=policy,
        entries=entries,
        stages=tuple(_stages(policy, end)),
        fleet=tuple(_fleet_sizes(entries)),
        width_changes=tuple(_width_changes(entries)),
        seconds=end - policy.stage_began[0] if policy.stage_began else 0.0,
        dollars=policy.spent(end),
    )


def _elastic(job: Job, policy: ElasticPolicy, entries: tuple[Entry, ...]) -> Report:
    found, experiment = figures(policy), job.experiment
    rungs = rung_epochs(experiment.epochs.min, experiment.epochs.max, experiment.eta)
    return Report(
        job=job,
        policy=policy,
        entries=entries,
        stages=(),
        fleet=tuple(_fleet_sizes(entries)),
        width_changes=tuple(_width_changes(entries)),
        seconds=found.seconds,
        dollars=found.dollars,
        rungs=rung_reports(policy, entries, rungs),
        figures=found,
    )


def _stages(policy: RunPolicy, end: float) -> Sequence[StageReport]:
    # EC2 may tell an end before the moment at which the last stage began.
    bounds = [*policy.stage_began, max([end, *policy.stage_began[-1:]])]
    charges, launches = policy.plan.charges, _launches(policy)
    reports = []
    for number, plan in enumerate(policy.plan.stages):
        if number >= len(policy.stage_began):
            reports.append(StageReport(plan, None, None))
            continue
        begin, until = bounds[number], bounds[number + 1]
        dollars = sum(_dollars_within(rented, begin, until, end) for rented in policy.fleet)
        dollars += (until - begin) * charges.usd_per_second
        dollars += launches[number] * charges.usd_per_launch
        reports.append(StageReport(plan, until - begin, dollars))
    return reports


def _launches(policy: RunPolicy) -> Counter[int]:
    """Return how many instances were launched in each stage; a request may be one."""
    began = policy.stage_began[1:]
    launched = [rented for rented in policy.fleet if rented.launched]
    return Counter(bisect.bisect_right(began, rented.began_at) for rented in launched)


def _dollars_within(rented: Rented, begin: float, until: float, end: float) -> float:
    """Return what an instance cost in a window; what its minimum adds falls due at its end."""
    if not rented.launched:
        return 0.0
    gone = end if rented.gone_at is None else rented.gone_at
    rate = rented.offer.usd_per_second
    lived = max(0.0, min(until, gone) - max(begin, rented.began_at)) * rate
    if begin < gone <= until:
        lived += rented.dollars(gone) - (gone - rented.began_at) * rate
    return lived


def _fleet_sizes(entries: Sequence[Entry]) -> Sequence[tuple[float, int]]:
    """Return the number of billing instances after each change.

    After a takeover an instance may be told a second time: it counts once, as last told.
    """
    events = [entry.event for entry in entries]
    begun = {e.intent: e.launched_at for e in events if isinstance(e, InstanceLaunched)}
    gone = {e.intent: e.gone_at for e in events if isinstance(e, InstanceGone)}
    ends = (at for intent, at in gone.items() if intent in begun)
    size, sizes = 0, []
    for at, change in sorted([*((at, 1) for at in begun.values()), *((at, -1) for at in ends)]):
        size += change
        sizes.append((at, size))
    return sizes


def _width_changes(entries: Sequence[Entry]) -> Sequence[WidthChange]:
    widths: dict[str, tuple[str, float]] = {}
    epochs: dict[str, int] = {}
    trained: dict[str, tuple[float, int]] = {}
    changes = []
    for entry in entries:
        event = entry.event
        if isinstance(event, EpochDone):
            trial, width = widths[event.session]
            before = trained.get(trial)
            if before is not None and before[0] != width:
                changes.append(WidthChange(trial, before[0], width, epochs[trial], event.epoch))
            trained[trial], epochs[trial] = (width, event.epoch), event.epoch
        for command in entry.commands:
            if isinstance(command, StartTrial):
                widths[command.session] = (command.trial, command.width)
    return changes


def to_json(report: Report) -> dict[str, Any]:
    """Return a report as strict JSON: a number that isn't finite becomes null."""
    policy, job = report.policy, report.job
    best = policy.best
    data = {
        "run": job.run,
        "experiment": job.experiment.name,
        "strategy": job.experiment.strategy.name,
        "ended": policy.ending.value if policy.ended and policy.ending else None,
        "exit_code": policy.ending.exit_code if policy.ended and policy.ending else None,
        "paced": job.paced,
        "limits": {"deadline": job.limits.deadline, "budget": job.limits.budget},
        "seconds": {"planned": report.planned_seconds, "actual": report.seconds},
        "dollars": {"planned": job.plan.estimate.dollars, "actual": report.dollars},
        "best": best
        and {
            "trial": best.trial,
            "epoch": best.epoch,
            "metric": job.experiment.metric.name,
            "value": best.metric,
            "config": dict(policy.trials[best.trial].trial.config),
            "checkpoint": best.checkpoint,
        },
        "stages": [_stage_json(stage) for stage in report.stages],
        "forecast": encode(report.forecast),
        "figures": encode(report.figures),
        "rungs": encode(report.rungs),
        "accounting": _accounting_json(report.accounting),
        "fleet": [{"at": at, "instances": size} for at, size in report.fleet],
        "width_changes": [vars(change) for change in report.width_changes],
        "parameters_equal": {
            trial: {"epochs": checked, "equal": equal}
            for trial, (equal, checked) in report.synced().items()
        },
        "trials": [_trial_json(trial) for trial in policy.ranking()],
    }
    return _finite(data)  # type: ignore[no-any-return]


def _accounting_json(found: Accounting) -> dict[str, Any]:
    return {
        "total": encode(found.whole),
        "categories": _amounts_json(found.amounts),
        "boot": encode(found.boot),
        "busy_share": found.busy_share,
        "restarts": found.restarts,
        "resizes": found.resizes,
        "instances": [_instance_json(each) for each in found.instances],
        "trials": {name: _amounts_json(amounts) for name, amounts in found.trials.items()},
    }


def _instance_json(found: InstanceAccount) -> dict[str, Any]:
    return {
        "intent": found.intent,
        "instance": found.instance,
        "offer": str(found.offer),
        "gpus": found.offer.gpus,
        "begin": found.begin,
        "end": found.end,
        "returned": found.returned,
        "total": encode(found.whole),
        "categories": _amounts_json(found.amounts),
        "boot": encode(found.boot),
        "busy_share": found.busy_share,
        "busy": [{"at": at, "gpus": gpus} for at, gpus in found.busy],
    }


def _amounts_json(amounts: Mapping[str, Amount]) -> dict[str, Any]:
    return {name.replace("-", "_"): encode(amount) for name, amount in amounts.items()}


def _stage_json(stage: StageReport) -> dict[str, Any]:
    plan = stage.plan
    return {
        "trials": plan.stage.trials,
        "epochs": [plan.stage.start_epoch, plan.stage.end_epoch],
        "groups": [_group_json(group) for group in plan.groups],
        "instances": plan.instances,
        "seconds": {"planned": plan.seconds, "actual": stage.seconds},
        "dollars": {"planned": plan.dollars, "actual": stage.dollars},
    }


def _group_json(group: Group) -> dict[str, Any]:
    return {
        "offer": str(group.offer),
        "instances": group.instances,
        "width": group.width,
        "trials": group.trials,
    }


def _trial_json(trial: TrialProgress) -> dict[str, Any]:
    return {
        "trial": trial.id,
        "status": trial.status,
        "epoch": trial.epoch,
        "metric": trial.metric,
        "config": dict(trial.trial.config),
        "checkpoint": trial.checkpoint,
        "error": trial.error or None,
        "traceback": trial.traceback or None,
        "history": {str(epoch): value for epoch, value in trial.history.items()},
    }


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
