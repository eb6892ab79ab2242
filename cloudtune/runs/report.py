"""The report of a run, planned and actual: read from its ledger, by replaying it."""

import bisect
import contextlib
import functools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cloudtune.clock import utc_date
from cloudtune.engine.ledger import DAMAGED, Entry, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.record.accounting import (
    Accounting,
    Amount,
    InstanceAccount,
    compute_accounting,
)
from cloudtune.engine.record.gpu_series import gpu_shares
from cloudtune.engine.record.summary import Summary, Target
from cloudtune.engine.record.timeline import EpochSpan, Timeline, prices, read
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.errors import CloudtuneError, UnsavedError
from cloudtune.model.commands import PlanAnew
from cloudtune.model.fleet import Rented
from cloudtune.model.plans import StagePlan
from cloudtune.model.progress import BestResult, TrialProgress
from cloudtune.model.serialization import encode
from cloudtune.model.trial import EndReason, rank_key
from cloudtune.policy.run import RunPolicy
from cloudtune.policy.schedule.itinerary import Itinerary
from cloudtune.profiles.provenance import Basis
from cloudtune.runs import home
from cloudtune.runs.delivery import DeliveredModel, deliver, read_delivery, undelivered
from cloudtune.runs.figures import Figures, RungReport, figures, rung_reports
from cloudtune.runs.job import Job, job_of_ledger, make_basis
from cloudtune.runs.moved import Places, read_moved_entries
from cloudtune.runs.visits import Visit, read_visits
from cloudtune.strategies.rungs import rung_epochs
from cloudtune.train.best import RESCUED
from cloudtune.train.checkpoint import CheckpointStore, standing
from cloudtune.train.storage import CheckpointError


@dataclass(frozen=True)
class StageReport:
    """One stage, planned and actual; `actual` is None for a stage that never began."""

    plan: StagePlan
    seconds: float | None
    dollars: float | None


@dataclass(frozen=True)
class WidthChange:
    """A trial that continued at another width: epochs before and after, without a gap."""

    trial: str
    before: float
    after: float
    last_epoch: int
    next_epoch: int


@dataclass(frozen=True)
class Report:
    """Everything that a run's ledger says about it.

    `stages` are those of a planned run; `figures` are compared with its forecast. `timeline` is
    read from its ledger, the `entries`. `kept` is the existing checkpoint of the best trial: of its
    best epoch, or of a later one if that is gone; `delivery` is what was copied to plain files,
    None if nothing was. `undelivered` says why not even another checkpoint could be. `billed` is
    what the cloud says that its instances cost, in dollars, if the ledger doesn't know their ends.
    `rescued` is the best checkpoint of all, on this machine, if it could not be saved in the
    storage. `visits` are those of people to its instances.
    """

    job: Job
    policy: RunPolicy
    entries: tuple[Entry, ...]
    timeline: Timeline
    stages: tuple[StageReport, ...]
    fleet: tuple[tuple[float, int], ...]
    width_changes: tuple[WidthChange, ...]
    rungs: tuple[RungReport, ...]
    figures: Figures
    kept: str | None = None
    delivery: DeliveredModel | None = None
    undelivered: str = ""
    billed: float | None = None
    rescued: str | None = None
    visits: tuple[Visit, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds of the run, from its first request on; so far, if it isn't over."""
        return self.figures.seconds

    @property
    def dollars(self) -> float:
        """The bill."""
        return self.figures.dollars

    @property
    def ended(self) -> EndReason | None:
        """Why the run ended; None if it isn't over or its controller died."""
        return self.policy.ending if self.policy.ended else None

    @property
    def exit_code(self) -> int | None:
        """The documented exit code of the run; None before its end."""
        if not self.policy.ended:
            return None
        instead = self.undelivered or (self.delivery is not None and self.delivery.why)
        return self.policy.exit_code or (UnsavedError.exit_code if instead else 0)

    @property
    def metric(self) -> str:
        return self.policy.state.metric.name

    def best_first(self) -> list[TrialProgress]:
        """Return all trials: the winner, then the others by the best that they reported.

        What diverged, and what reported nothing, comes last.
        """
        mode = self.policy.state.mode
        best = self.policy.best
        winner = "" if best is None else best.trial

        def place(trial: TrialProgress) -> tuple[bool, int, float, str]:
            values = () if trial.status == "diverged" else trial.history.values()
            return (
                trial.id != winner,
                *min(map(key, values), default=rank_key(mode, None)),
                trial.id,
            )

        key = functools.partial(rank_key, mode)
        return sorted(self.policy.trials.values(), key=place)

    @cached_property
    def basis(self) -> Basis:
        """The origin of its plan's figures, as of the day that it began."""
        day = utc_date(self.job.began or None)
        return make_basis(self.job.experiment, self.job.rentables, day)

    @property
    def plan_changes(self) -> tuple[tuple[float, PlanAnew], ...]:
        """When and why the rest of the run was replanned, in the order of the ledger."""
        return tuple(
            (entry.event.at, command)
            for entry in self.entries
            for command in entry.commands
            if isinstance(command, PlanAnew)
        )

    @cached_property
    def accounting(self) -> Accounting:
        """Where the money went; its total is `dollars`."""
        return compute_accounting(self.timeline, self.job.offers, self.policy.state.charges)

    def spent(self, at: float) -> float:
        """Return the bill in dollars if everything was returned at a time (run second)."""
        held = [account for account in self.accounting.instances if account.begin <= at]
        offers = {account.intent: account.offer for account in held}
        return (
            math.fsum(account.dollars(at) for account in held)
            + self.timeline.used_dollars(offers, end=at)
            + self.policy.state.charges.dollars(len(held), self.timeline.running(at))
        )

    @cached_property
    def epochs_by_trial(self) -> Mapping[str, list[EpochSpan]]:
        """The epochs of each trial that count, by their number."""
        by_trial: dict[str, list[EpochSpan]] = {}
        for epoch in sorted(self.timeline.final_epochs().values(), key=lambda e: e.number):
            by_trial.setdefault(epoch.trial, []).append(epoch)
        return by_trial

    @cached_property
    def improvements(self) -> list[EpochSpan]:
        """The epochs that were the best so far when they were reported."""
        return self.timeline.improvements(self.metric, self.policy.state.mode)

    @cached_property
    def target(self) -> Target | None:
        """The metric that ends the run, and when it was reached; None if none is set."""
        wanted = self.policy.target
        metric = self.policy.state.metric
        if wanted is None:
            return None
        return Target.of(self.timeline, metric.name, metric.mode, wanted)

    @cached_property
    def summary(self) -> Summary:
        """The best epoch, and how far trials were trained."""
        metric = self.policy.state.metric
        return Summary.of(self.timeline, metric.name, metric.mode)


def load(folder: Path) -> Report:
    """Return the report of a run's folder.

    Raises:
        CloudtuneError: the folder holds no ledger that this program reads, or a damaged one.
    """
    path = folder / home.LEDGER
    job = job_of_ledger(path)
    entries = tuple(read_moved_entries(path, job))
    try:
        report = build(job, entries)
        to_json(report)  # so that damage shows here
    except DAMAGED as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise CloudtuneError(
            f"{path}: not what a run of this version wrote, or damaged ({what})"
        ) from error
    best = report.policy.best
    kept = None if best is None or best.checkpoint is None else standing(best.checkpoint)
    delivery = None if best is None else read_delivery(folder, best, kept, Places.of(job))
    billed = None if report.policy.ended else _bill_total(report, folder / "instances.json")
    return replace(
        report,
        kept=kept,
        delivery=delivery,
        undelivered=undelivered(folder),
        billed=billed,
        rescued=_rescue(folder, report.policy.best_lost or best),
        visits=read_visits(folder),
    )


def with_delivery(folder: Path, report: Report) -> Report:
    """Return a finished run's report, with its best model copied to `best/` in its storage.

    Raises:
        StorageError: the storage failed repeatedly.
    """
    if report.policy.best is None or report.kept is None:
        return report
    uri = home.run_storage(report.job.experiment.storage, report.job.run)
    try:
        delivery = deliver(folder, report.policy, uri, report.kept)
    except CheckpointError as error:
        return replace(report, undelivered=str(error))
    return replace(report, delivery=delivery)


def _rescue(folder: Path, lost: BestResult | None) -> str | None:
    if lost is None or not (folder / RESCUED).is_dir():
        return None
    store = CheckpointStore(str(folder / RESCUED), ())
    path = store.path(lost.trial, lost.epoch)
    return path if store.is_whole(path) else None


def _bill_total(report: Report, path: Path) -> float | None:
    """Return the cost of the instances in the cloud's record; None if it has none."""
    offers = prices(report.timeline, report.job.offers)
    total = 0.0
    for instance in _instances(path):
        try:
            offer = offers[instance["intent"]]
            total += offer.charge(max(0.0, instance["ended_at"] - instance["launched_at"]))
        except (KeyError, TypeError):
            return None
    return total or None


def build(job: Job, entries: tuple[Entry, ...]) -> Report:
    """Return the report of a job, from the entries of its ledger in order."""
    policy = job.policy()
    timeline = read(entries)
    epochs = job.experiment.span
    for entry in entries:
        policy.handle(entry.event)
    rungs = rung_epochs(epochs.min, epochs.max, job.experiment.eta)
    itinerary = policy.itinerary
    stages = () if itinerary is None else tuple(_stages(policy, itinerary, timeline))
    return Report(
        job=job,
        policy=policy,
        entries=entries,
        timeline=timeline,
        stages=stages,
        fleet=timeline.fleet_sizes(),
        width_changes=tuple(_width_changes(timeline)),
        rungs=rung_reports(policy, timeline, rungs),
        figures=figures(policy),
        kept=None if policy.best is None else policy.best.checkpoint,
    )


def simulate(job: Job, cores: int | None = None) -> Report:
    """Return the report of a job in virtual time, with made-up learning curves.

    `cores` are those on which trials start, if all machines share some.

    Raises:
        CloudtuneError: the run decides forever.
    """
    metric = job.experiment.metric
    seed = job.experiment.seed
    rentables = (*job.rentables, *job.standins)
    curves = synthetic_metric(metric.mode, seed)
    world = SimWorld(rentables, metric.name, curves, seed, cores=cores)
    ledger = MemoryLedger()
    policy = job.policy()
    run(policy, world, ledger)
    return build(job, tuple(ledger.entries))


def _stages(policy: RunPolicy, itinerary: Itinerary, timeline: Timeline) -> Sequence[StageReport]:
    # EC2 may report an end that is earlier than the start of the last stage.
    end = policy.over_at
    bounds = [*itinerary.stage_began, max([end, *itinerary.stage_began[-1:]])]
    charges = itinerary.plan.charges
    began = itinerary.stage_began[1:]
    launched = [rented for rented in policy.fleet if rented.launched]
    launches = Counter(bisect.bisect_right(began, rented.began_at) for rented in launched)
    reports = []
    for number, plan in enumerate(itinerary.plan.stages):
        if number >= len(itinerary.stage_began):
            reports.append(StageReport(plan, None, None))
            continue
        begin = bounds[number]
        until = bounds[number + 1]
        dollars = sum(_dollars_within(rented, begin, until, end) for rented in policy.fleet)
        dollars += timeline.used_dollars({r.intent: r.offer for r in policy.fleet}, begin, until)
        dollars += charges.dollars(launches[number], until - begin)
        reports.append(StageReport(plan, until - begin, dollars))
    return reports


def _dollars_within(rented: Rented, begin: float, until: float, end: float) -> float:
    """Return the cost of an instance in a window; what its minimum adds falls due at its end."""
    if not rented.launched:
        return 0.0
    gone = end if rented.gone_at is None else rented.gone_at
    rate = rented.offer.held_usd_per_second
    lived = max(0.0, min(until, gone) - max(begin, rented.began_at)) * rate
    if begin < gone <= until:
        lived += rented.dollars(gone) - (gone - rented.began_at) * rate
    return lived


def _width_changes(timeline: Timeline) -> Iterator[WidthChange]:
    before: dict[str, EpochSpan] = {}
    for epoch in timeline.epochs:
        last = before.get(epoch.trial)
        if last is not None and last.width != epoch.width:
            yield WidthChange(epoch.trial, last.width, epoch.width, last.number, epoch.number)
        before[epoch.trial] = epoch


def to_json(report: Report) -> dict[str, Any]:
    """Return a report as strict JSON: numbers that aren't finite become null."""
    policy = report.policy
    job = report.job
    best = policy.best
    lost = policy.best_lost
    data = {
        "run": job.run,
        "experiment": job.experiment.name,
        "strategy": job.plan.strategy,
        "allocator": job.plan.allocator,
        "fleet_rule": job.plan.fleet_rule,
        "rules": job.plan.rules,
        "target": report.target and encode(report.target),
        "summary": encode(report.summary),
        "gpus": gpu_shares(report.timeline, report.accounting),
        "ended": report.ended and report.ended.value,
        "exit_code": report.exit_code,
        "paced": job.paced,
        "provenance": {**encode(report.basis), "prices": job.price_source},
        "limits": {"deadline": policy.limits.deadline, "budget": policy.limits.budget},
        "legs": [
            {"until": leg.over_at, "ended": leg.ended.value, "went_on_at": leg.event.at}
            | {"trials": leg.event.trials}
            for leg in report.timeline.legs
        ],
        "seconds": {"planned": job.plan.estimate.seconds, "actual": report.seconds},
        "dollars": {
            "planned": job.plan.estimate.dollars,
            "actual": report.dollars,
            "measuring": job.measuring,
        },
        "billed_by_cloud": report.billed,
        "best": best and _best_json(report, best),
        "best_lost": lost
        and {
            "trial": lost.trial,
            "epoch": lost.epoch,
            "value": lost.metric,
            "rescued": report.rescued,
        },
        "progress": encode(job.experiment.scale),
        "stages": [_stage_json(stage) for stage in report.stages],
        "visits": [encode(visit) for visit in report.visits],
        "plan_changes": [{"at": at, **encode(change)} for at, change in report.plan_changes],
        "forecast": encode(job.plan.forecast),
        "figures": encode(report.figures),
        "rungs": encode(report.rungs),
        "accounting": _accounting_json(report.accounting),
        "fleet": [{"at": at, "instances": size} for at, size in report.fleet],
        "width_changes": [vars(change) for change in report.width_changes],
        "parameters_equal": {
            trial: {"epochs": checked, "equal": equal}
            for trial, (equal, checked) in report.timeline.sync_counts().items()
        },
        "trials": [_trial_json(trial) for trial in report.best_first()],
    }
    strict: dict[str, Any] = json.loads(json.dumps(data), parse_constant=lambda _: None)
    return strict


def _best_json(report: Report, best: BestResult) -> dict[str, Any]:
    return {
        "trial": best.trial,
        "epoch": best.epoch,
        "metric": report.job.experiment.metric.name,
        "value": best.metric,
        "config": dict(report.policy.trials[best.trial].trial.config),
        "checkpoint": report.kept,
        "folder": None if report.delivery is None else report.delivery.path,
        "delivered": None if report.delivery is None else vars(report.delivery),
    }


def _accounting_json(accounting: Accounting) -> dict[str, Any]:
    return {
        "total": encode(accounting.whole),
        "categories": _amounts_json(accounting.amounts),
        "boot": encode(accounting.boot),
        "by_instance_hour": accounting.added,
        "busy_share": accounting.busy_share,
        "restarts": accounting.restarts,
        "resizes": accounting.resizes,
        "instances": [_account_json(account) for account in accounting.instances],
        "trials": {name: _amounts_json(amounts) for name, amounts in accounting.trials.items()},
    }


def _account_json(account: InstanceAccount) -> dict[str, Any]:
    return {
        "intent": account.intent,
        "instance": account.instance,
        "offer": str(account.offer),
        "gpus": account.offer.gpus,
        "begin": account.begin,
        "end": account.end,
        "returned": account.returned,
        "total": encode(account.whole),
        "categories": _amounts_json(account.amounts),
        "boot": encode(account.boot),
        "busy_share": account.busy_share,
        "busy": [{"at": at, "gpus": gpus} for at, gpus in account.busy],
    }


def _amounts_json(amounts: Mapping[str, Amount]) -> dict[str, Any]:
    return {name.replace("-", "_"): encode(amount) for name, amount in amounts.items()}


def _stage_json(stage: StageReport) -> dict[str, Any]:
    plan = stage.plan
    return {
        "trials": plan.stage.trials,
        "epochs": [plan.stage.start_epoch, plan.stage.end_epoch],
        "groups": [
            {
                "offer": str(group.offer),
                "instances": group.instances,
                "width": group.width,
                "trials": group.trials,
            }
            for group in plan.groups
        ],
        "instances": plan.instances,
        "seconds": {"planned": plan.seconds, "actual": stage.seconds},
        "dollars": {"planned": plan.dollars, "actual": stage.dollars},
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


def cloud_records(folder: Path) -> dict[str, Any]:
    """Return the three records of a run's folder; an absent one is empty.

    `autoscaler_events`: what Ray's autoscaler decided, in its own words. `provider_calls`: what it
    then requested from EC2 through our node provider. `instances`: EC2's own record.
    """
    return {
        "autoscaler_events": _json_lines(folder / "event_AUTOSCALER.log"),
        "provider_calls": _json_lines(folder / "provider.jsonl"),
        "instances": _instances(folder / "instances.json"),
    }


def _json_lines(path: Path) -> list[Any]:
    """Return the values in a file of JSON lines, without damaged lines."""
    values = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, RecursionError):
            values.append(json.loads(line))
    return values


def _instances(path: Path) -> list[Any]:
    """Return EC2's record of the instances; empty if it is missing or damaged."""
    try:
        recorded = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return []
    return recorded if isinstance(recorded, list) else []
