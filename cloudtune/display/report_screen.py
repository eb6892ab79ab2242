"""The terminal output of reports, of profiles and of live instances."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rich.console import Console

from cloudtune.display import alternatives_tables, plan_tables
from cloudtune.display.terminal import Sheet, beside, print_sheet
from cloudtune.engine.record.accounting import Accounting, Amount
from cloudtune.engine.record.gpu_series import gpu_shares
from cloudtune.forecast.alternatives import Against
from cloudtune.lifecycle.cleanup import Found
from cloudtune.model.events import FORGOTTEN, EpochDone, InstanceGone
from cloudtune.model.plans import RunPlan
from cloudtune.model.progress import TrialProgress, trial_of
from cloudtune.model.scaling import MEASURED, Measurement, ScalingProfile
from cloudtune.model.text import (
    Scale,
    cost_format,
    count_noun,
    gpus_text,
    group_text,
    metric_text,
    percent,
    width_text,
)
from cloudtune.model.units import format_seconds
from cloudtune.policy.registry import origin
from cloudtune.runs.figures import LegFigures, legs
from cloudtune.runs.job import Job
from cloudtune.runs.report import Report, StageReport, WidthChange

# The maximum number of lines of one kind; the JSON has all.
_MAX_LINES = 24
# The share of all GPU time above which it is said how to lose less.
_MUCH_LOST = 0.05
# Where a price table has its facts from.
_BRACKETS = re.compile(r" \([^()]*\)")
_LABELS = {
    "training": "training",
    "checkpoint": "checkpoints",
    "start-up": "start-up of instances and trials",
    "barrier": "trials that waited for others",
    "lost": "epochs lost or trained again",
    "idle": "GPUs without a trial",
    "kept": "kept after a trial failed",
    "returning": "giving back",
    "minimum": "to the minimum charge",
    "rounding": "rounded up to whole seconds",
    "launches": "charges per launch",
    "hourly": "charges per hour",
}


def show_profile(out: Console, profile: ScalingProfile) -> None:
    """Print a script's speed on one instance type."""
    unsure = (
        [f"derived, uncertain by {percent(profile.speed_error)}"] if profile.speed_error > 0 else []
    )
    origins = [] if profile.provenance.origin == MEASURED else [profile.provenance.origin]
    caveats = ", ".join((*origins, *unsure))
    title = f"Profile: {profile.instance_type}" + (f" ({caveats})" if caveats else "")

    def row(what: str, timing: Measurement, count: str = "", memory: str = "") -> tuple[str, ...]:
        count = count if timing.n else f"predicted ± {timing.error / timing.mean:.0%}"
        return what, f"{timing.mean:.2f} s", f"{timing.sd:.2f} s", count or f"{timing.n}", memory

    count = "" if profile.provenance.core_seconds is None else "emulated"
    rows = []
    for width in profile.widths:
        timing = profile.epoch[width]
        gain = profile.epoch[profile.widths[0]].mean / timing.mean
        memory = f"{profile.memory[width]:,.0f} MiB" if width in profile.memory else ""
        gpus = gpus_text(width, profile.parallel.get(width, ""))
        rows.append(row(f"epoch on {gpus} (x{gain:.2f})", timing, count, memory))
    delays = {
        "request to launch": profile.launch,
        "launch to node ready": profile.boot,
        "start of a trial": profile.start,
        "checkpoint, stop, start again": profile.resize,
        "return of an instance": profile.release,
    }
    rows += [row(what, timing) for what, timing in delays.items()]
    columns = ("what", "mean", "spread", "measured", "GPU memory each")
    sheet = Sheet(title, columns, tuple(rows), frozenset({"what"}))
    if not profile.memory:
        sheet = sheet.without("GPU memory each")
    print_sheet(out, sheet)
    out.print(profile.source, markup=False)


def show_report(out: Console, report: Report) -> None:
    """Print a run's report, compared with its plan or forecast."""
    run = f"Run {report.job.run}" if report.job.run else "Simulated"
    plan = report.job.plan
    out.print(f"{run}: {plan.by}, {plan.allocator} allocator, {plan.fleet_rule} fleet rule")
    if paper := origin(plan.strategy):
        out.print(f"{plan.strategy} is {paper}", markup=False)
    _show_best(out, report)
    print_sheet(out, planned_and_actual(report))
    if plan.followed is None:
        print_sheet(out, plan_tables.rungs(report))
    if report.accounting.instances:
        sheet = money(report.accounting, plan)
        print_sheet(out, sheet.beside("emulated" * report.basis.emulated))
        out.print(use(report.accounting, free=plan.free))
        gone = [it.event for it in report.entries if isinstance(it.event, InstanceGone)]
        if forgotten := sum(event.reason == FORGOTTEN for event in gone):
            ends = f"the end of {count_noun(forgotten, 'instance')}"
            out.print(f"The cloud has no record of {ends}: the bill counts until it was noticed.")
    _show_facts(out, report)
    _show_coverage(out, report)


def show_against(out: Console, report: Report, against: Against) -> None:
    """Print the bill beside those of alternatives, and what random search would buy."""
    print_sheet(out, alternatives_tables.bills(report, against, basis_text(report)))
    out.print(
        "Simulated rows were not run: they use the same prices and measurements, within the same "
        "limits."
    )
    out.print(alternatives_tables.random_text(report, against))


def basis_text(report: Report) -> str:
    """Return the basis of the seconds and dollars of a report, planned and actual."""
    text = report.basis.text
    return text if report.basis.emulated else f"planned by figures {text}"


def planned_and_actual(report: Report) -> Sheet:
    """Return a run's figures beside its plan, stage by stage, or beside its forecast."""
    run = f"Run {report.job.run}" if report.job.run else "Simulated"
    plan = report.job.plan
    word = "actual" if report.job.run else "simulated"
    rests_on = basis_text(report)
    cost = cost_format(plan.offers)
    if plan.followed is None:
        return plan_tables.against(report, run, word).beside(rests_on)
    total = (
        *("total", "", "", ""),
        f"{format_seconds(plan.estimate.seconds)} / {format_seconds(report.seconds)}",
        f"{cost(plan.estimate.dollars)} / {cost(report.dollars)}",
    )
    stages = enumerate(report.stages, start=1)
    rows = tuple(row for number, stage in stages for row in _stage_rows(number, stage))
    columns = ("stage", "trials", "GPUs each", "instances", "time", "cost")
    title = beside(f"{run}: planned / {word}", rests_on)
    sheet = Sheet(title, columns, (*rows, total), total=True)
    return sheet.without("cost") if plan.free else sheet


def _stage_rows(number: int, stage: StageReport) -> Iterator[tuple[str, ...]]:
    """Yield a row for each group of a stage; time and cost are the stage's."""
    plan = stage.plan
    cost = cost_format(group.offer for group in plan.groups)
    for place, group in enumerate(plan.groups):
        first = place == 0
        yield (
            str(number) if first else "",
            str(group.trials),
            width_text(group.width),
            group_text(group),
            _against(plan.seconds, stage.seconds, format_seconds) if first else "",
            _against(plan.dollars, stage.dollars, cost) if first else "",
        )


def _against(planned: float, actual: float | None, show: Callable[[float], str]) -> str:
    return f"{show(planned)} / {'-' if actual is None else show(actual)}"


def money(accounting: Accounting, plan: RunPlan) -> Sheet:
    """Return what was paid for, without empty categories, and without dollars if it was free."""
    cost = cost_format(plan.offers)
    rows = []
    for name, amount in accounting.amounts.items():
        if amount.gpu_seconds > 0 or amount.dollars > 0:
            rows.append((_LABELS[name], *_cells(amount, accounting.whole, cost)))
        if name == "start-up" and 0 < accounting.boot.gpu_seconds < amount.gpu_seconds:
            rows.append(("  booting", *_cells(accounting.boot, accounting.whole, cost)))
    if accounting.added > 0:
        added = Amount(0.0, accounting.added)
        rows.append(("  of it per instance-hour", *_cells(added, accounting.whole, cost)))
    rows.append(("total", *_cells(accounting.whole, accounting.whole, cost)))
    columns = ("", "GPU time", "of all", "cost", "of the bill")
    sheet = Sheet("Where the money went", columns, tuple(rows), frozenset({""}), total=True)
    if not plan.free:
        return sheet
    return replace(sheet, title="Where the time went").without("cost", "of the bill")


def _cells(
    amount: Amount, whole: Amount, cost: Callable[[float], str]
) -> tuple[str, str, str, str]:
    seconds = amount.gpu_seconds
    dollars = amount.dollars
    return (
        format_seconds(seconds) if seconds > 0 else "",
        percent(seconds / whole.gpu_seconds) if seconds > 0 else "",
        cost(dollars),
        percent(dollars / whole.dollars) if whole.dollars > 0 else "",
    )


def use(accounting: Accounting, *, free: bool = False) -> str:
    """Return how busy the GPUs were, and how often trials changed their width."""
    held = "held" if free else "billed"
    return (
        f"GPUs trained in {percent(accounting.busy_share)} of the time {held}; "
        f"{count_noun(accounting.restarts, 'restart')} of trials, {accounting.resizes} at another "
        "width"
    )


def _leg_text(number: int, leg: LegFigures, plan: RunPlan) -> str:
    """Return the limits of a leg, and what it spent, in a line."""
    cost = cost_format(plan.offers)
    terms = [f"within {format_seconds(leg.deadline)}"] if leg.deadline is not None else []
    if leg.budget is not None and not plan.free:
        terms.append(f"{cost(leg.budget)} in all")
    terms += [f"with {count_noun(leg.more, 'more trial')}"] if leg.more else []
    came_to = "goes on" if leg.ended is None else f"ended: {leg.ended.value}"
    span = f"{format_seconds(leg.begin)} to {format_seconds(leg.end)}"
    spent = came_to if plan.free else f"{cost(leg.dollars)} spent, {came_to}"
    return f"Leg {number}, {span}: {', '.join(terms) or 'no limits'}; {spent}"


def _show_facts(out: Console, report: Report) -> None:
    if report.timeline.legs:
        legs_of_run = legs(report.policy, report.timeline, report.job.limits)
        plan = report.job.plan
        _print_some(out, [_leg_text(n, leg, plan) for n, leg in enumerate(legs_of_run, start=1)])
    if not report.policy.ended:
        out.print(
            "This run is still going, or its controller died: time and cost are those of its last "
            "record. `cloudtune status` shows what is alive."
        )
    if report.policy.state.why_narrow:
        out.print(
            "From then on each trial had one GPU, as the workers of a trial on several didn't "
            f"train one model: {report.policy.state.why_narrow}. Give the model to prepare_model, "
            "or to DistributedDataParallel.",
            markup=False,
        )
    if report.target is not None:
        out.print(report.target.text(report.metric))
    out.print(report.summary.sentence())
    _print_some(out, list(_busy_gpus(report)))
    sizes = ["0", *(str(size) for _, size in report.fleet)]
    if len(sizes) > _MAX_LINES:
        sizes = [*sizes[: _MAX_LINES // 2], "…", *sizes[-_MAX_LINES // 2 :]]
    out.print(f"Fleet over time: {' -> '.join(sizes)}")
    warnings = [
        f"{report.policy.fleet[it.intent].instance} (at {format_seconds(it.at)})"
        for it in report.timeline.recommendations
    ]
    if warnings:
        out.print(f"The cloud warned that it might take back {', '.join(warnings)}")
    changes = [
        f"Replanned after {format_seconds(at)}: {change.why}: {change.plan}"
        for at, change in report.plan_changes
    ]
    _print_some(out, changes)
    scale = report.job.experiment.scale
    _print_some(out, [_change_text(change, scale) for change in report.width_changes])
    synced = [
        f"{trial}: parameters equal on all ranks after {equal} of {checked} epochs"
        for trial, (equal, checked) in report.timeline.sync_counts().items()
    ]
    _print_some(out, synced)
    failed = [trial for trial in report.policy.trials.values() if trial.error]
    _print_some(out, [_failure_text(trial, scale) for trial in failed])
    _print_some(out, list(_early_ends(report)))
    _print_some(out, list(_epochs_that_begin_again(report)))
    _print_some(out, list(_saves_too_rarely(report)))
    _print_some(out, [f"Entered by {visit}" for visit in report.visits])
    if report.job.measuring:
        cost = cost_format(report.job.plan.offers)
        whole = cost(report.dollars + report.job.measuring)
        out.print(
            f"Measuring the script beforehand took {cost(report.job.measuring)} of the "
            f"same budget: {whole} in all."
        )
    if report.basis.emulated and report.job.run:
        out.print(emulated_text(report.job))


def _failure_text(trial: TrialProgress, scale: Scale) -> str:
    if trial.status == "diverged":
        return f"{trial.id} diverged: {trial.error}"
    return f"{trial.id} failed at {scale.at(trial.epoch)}: {trial.error}"


def _early_ends(report: Report) -> Iterator[str]:
    """Yield a line on the trials whose scripts ended by themselves, if any did."""
    scale = report.job.experiment.scale
    last = report.job.experiment.span.max
    trials = report.policy.trials.values()
    early = [it for it in trials if it.status == "finished" and it.epoch < it.last(last)]
    if early:
        where = [f"{trial.id} at {scale.at(trial.epoch)}" for trial in early]
        more = f" and {len(where) - _MAX_LINES} more" if len(where) > _MAX_LINES else ""
        shown = ", ".join(where[:_MAX_LINES])
        yield f"Their scripts ended before {scale.at(last)}: {shown}{more}"


def _epochs_that_begin_again(report: Report) -> Iterator[str]:
    """Yield a line on the trials whose scripts named an epoch before the one that they had named.

    Of folds of the data, or phases of a training: a trial may have ended in the midst of them.
    """
    named: dict[str, float] = {}
    again: list[str] = []
    events = [entry.event for entry in report.entries if isinstance(entry.event, EpochDone)]
    for event in events:
        own = event.metrics.get("epoch")
        if isinstance(own, int | float):
            before = named.get(event.session, own)
            named[event.session] = own
            trial = trial_of(event.session)
            if own < before and trial not in again:
                again.append(trial)
    if again:
        experiment = report.job.experiment
        yield (
            f"The epochs that scripts name began again in {', '.join(again[:_MAX_LINES])}, as of "
            "folds or phases: they were counted on, and trials end at "
            f"{experiment.scale.at(experiment.span.max)} of all, epochs.max"
        )


def _saves_too_rarely(report: Report) -> Iterator[str]:
    """Yield a line where trials pause before their script first saves, if that cost much."""
    experiment = report.job.experiment
    whole = report.accounting.whole.gpu_seconds
    if not whole or report.accounting.amounts["lost"].gpu_seconds < _MUCH_LOST * whole:
        return
    epochs = [entry.event for entry in report.entries if isinstance(entry.event, EpochDone)]
    first = min((it.epoch for it in epochs if it.checkpoint is not None), default=0)
    if first > experiment.span.min:
        scale = experiment.scale
        yield (
            f"The script first saves at {scale.at(first)}, and trials pause from "
            f"{scale.at(experiment.span.min)} on, which then begin again: write "
            f"epochs: {{min: {scale.units(first):g}}}, or save more often"
        )


def _busy_gpus(report: Report) -> Iterator[str]:
    """Yield, for each instance with several GPUs, the share of time in which each trained."""
    for name, shares in gpu_shares(report.timeline, report.accounting).items():
        if len(shares) > 1:
            yield f"GPUs of {name} trained {', '.join(map(percent, shares))} of the time billed"


def emulated_text(job: Job) -> str:
    """Return what is real about a run on the emulated cloud, and what isn't."""
    how = "are those of this machine's CPU"
    if job.paced:
        how = "follow a pace (--no-pace turns that off)"
    prices = _BRACKETS.sub("", job.price_source)
    return (
        f"Emulated cloud: learning is real, nothing is paid. Seconds {how}; dollars are these "
        f"seconds at a price ({prices})."
    )


def _print_some(out: Console, lines: Sequence[str]) -> None:
    """Print the lines; if there are very many, only the first ones."""
    for line in lines[:_MAX_LINES]:
        out.print(line, markup=False)
    if len(lines) > _MAX_LINES:
        out.print(f"… and {len(lines) - _MAX_LINES} more like that: `cloudtune report -o json`")


def _change_text(change: WidthChange, scale: Scale) -> str:
    return (
        f"{change.trial} went from {width_text(change.before)} to {gpus_text(change.after)}: "
        f"{scale.at(change.last_epoch)}, then {scale.at(change.next_epoch)}"
    )


def _show_coverage(out: Console, report: Report) -> None:
    """Print, for a run without an end, how much of it the report covers."""
    if report.policy.ended:
        return
    until = format_seconds(report.policy.state.now)
    out.print(f"The run has no end in its ledger: this covers its first {until}.")
    if report.billed is not None:
        billed = cost_format(report.job.plan.offers)(report.billed)
        out.print(f"By the cloud's own records its instances cost {billed}.")


def _show_best(out: Console, report: Report) -> None:
    policy = report.policy
    best = policy.best
    scale = report.job.experiment.scale
    if best is None:
        out.print("No trial reported a result.")
        return
    config = config_text(policy.trials[best.trial].trial.config)
    out.print(
        f"Best: {policy.state.metric.name} {metric_text(best.metric)}, {best.trial} at "
        f"{scale.at(best.epoch)}"
    )
    out.print(f"  configuration: {config}", markup=False)
    epoch = report.timeline.final_epochs().get((best.trial, best.epoch))
    if epoch is not None and epoch.report.texts:
        texts = ", ".join(f"{name}: {text}" for name, text in epoch.report.texts.items())
        out.print(f"  {texts}", markup=False)
    if lost := policy.best_lost:
        out.print(
            f"  {lost.trial} reached {metric_text(lost.metric)} at {scale.at(lost.epoch)}, "
            "but its checkpoint wasn't kept, so it can't be delivered"
            + (f" ({lost.unsaved})" if lost.unsaved else ""),
            markup=False,
        )
    if report.rescued:
        out.print(f"  its files are kept on this machine: {report.rescued}", markup=False)
    if not report.job.run:
        return  # nothing was trained, and nothing saved
    if best.checkpoint is not None and report.kept != best.checkpoint:
        out.print(
            f"  the checkpoint of {scale.at(best.epoch)} is gone: {best.checkpoint}", markup=False
        )
    delivery = report.delivery
    if report.undelivered:
        out.print(f"  no checkpoint of the run can be read: {report.undelivered}", markup=False)
        return
    if delivery is not None and delivery.why:
        out.print(f"  its checkpoint can't be read: {delivery.why}", markup=False)
        out.print(
            f"  delivered instead: {delivery.trial} at {scale.at(delivery.epoch)}, "
            f"{metrics_text(delivery.metrics)}",
            markup=False,
        )
    missing = "none: the script saves none" if best.checkpoint is None else "none is left"
    path = report.kept or missing if delivery is None else delivery.path
    out.print(f"  checkpoint: {path}", markup=False)
    out.print(f"  in Python: cloudtune.load_run('{report.job.run}').best", markup=False)


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return metrics in a line: "loss 0.1234, accuracy 0.9"."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def config_text(config: Mapping[str, object]) -> str:
    """Return a configuration in a line."""
    return ", ".join(
        f"{name}={value:.5g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in config.items()
    )


def show_instances(out: Console, instances: Sequence[Found]) -> None:
    """Print which instances of ours are alive and what they cost per hour."""
    if not instances:
        out.print("No instance of cloudtune is alive.")
        return
    by_run: dict[str, list[tuple[str, ...]]] = {}
    for one in instances:
        it = one.instance
        care = "`cloudtune gc` returns" if one.orphan else "looked after" if one.controlled else "?"
        price = f"{one.usd_per_hour:.3f}" + " emulated" * one.emulated
        row = (it.id, it.instance_type, it.state, price)
        by_run.setdefault(f"{it.run}: {care}", []).append(row)
    columns = ("instance", "type", "state", "$/h")
    for title, rows in by_run.items():
        print_sheet(out, Sheet(title, columns, tuple(rows), left=frozenset(columns)))
    total = sum(one.usd_per_hour for one in instances if not one.emulated)
    made_up = sum(one.usd_per_hour for one in instances if one.emulated)
    more = f", ${made_up:.2f} emulated" if made_up else ""
    out.print(f"{count_noun(len(instances), 'instance')}, ${total:.2f} per hour{more}")
