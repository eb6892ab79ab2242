"""The page of a run: ended, still running, dead, or simulated."""

import io
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from rich.console import Console

from cloudtune.display import plan_tables, report_screen
from cloudtune.display.pages import fleet, gantt, trials
from cloudtune.display.pages.document import (
    PageSection,
    content,
    document,
    facts,
    fold,
    paragraph,
    table,
)
from cloudtune.display.pages.figures import Figure
from cloudtune.display.run_screen import make_panel
from cloudtune.display.terminal import Fact, Sheet
from cloudtune.model.progress import TrialProgress
from cloudtune.model.text import cost_format, limits_text
from cloudtune.model.trial import flat
from cloudtune.model.units import format_seconds
from cloudtune.runs.report import Report

_WIDTH = 110


def run_page(report: Report, *, live: bool = False) -> str:
    """Return the page of a run, as far as it has come.

    Raises:
        UsageError: plotly isn't installed.
    """
    title = (
        f"Run {report.job.run}" if report.job.run else f"Simulated: {report.job.experiment.name}"
    )
    return document(title, *_parts(report, live=live), live=live)


def live_content(report: Report) -> dict[str, Any]:
    """Return what changes on a live page."""
    return content(*_parts(report, live=True))


def _parts(report: Report, *, live: bool) -> tuple[str, list[PageSection], dict[str, str]]:
    followed = {t.id: _trial_line(report, t) for t in report.best_first()}
    return facts(list(_facts(report, live=live))), list(_sections(report)), followed


def figures(report: Report) -> Mapping[str, Figure]:
    """Return the charts of a run by name, without empty ones."""
    charts = {}
    if report.timeline.epochs:
        charts["metric"] = trials.metric_by_time(report)
        if not report.job.plan.free:
            charts["metric_by_dollars"] = trials.metric_by_dollars(report)
    if report.accounting.instances:
        charts["gpus"] = gantt.gpus(report)
        charts["spend"] = fleet.fleet(report)
    if report.policy.trials:
        charts["configurations"] = trials.configurations(report)
    return charts


def _facts(report: Report, *, live: bool) -> Iterator[Fact]:
    policy = report.policy
    if live and not policy.ended:
        at = policy.state.now
        expected = make_panel(report.job, policy).next_text(at)
        yield Fact("now", f"{format_seconds(at)} of the run; {expected}")
    elif not policy.ended or policy.ending is None:
        until = format_seconds(policy.state.now)
        yield Fact(
            "ended",
            f"not yet, or its controller died: drawn until {until} of the run",
            warning=True,
        )
    else:
        yield Fact("ended", policy.ending.value, warning=policy.ending.exit_code != 0)
    best = policy.best
    if best is not None:
        value = f"{policy.state.metric.name} {best.metric:.5g}"
        yield Fact("best", f"{value}, {best.trial} at epoch {best.epoch}")
        yield Fact(
            "configuration", report_screen.config_text(flat(policy.trials[best.trial].trial.config))
        )
        if report.job.run:
            yield Fact("checkpoint", report.kept or "none")
    planned = report.job.plan.estimate
    took = format_seconds(report.seconds)
    cost = cost_format(report.job.plan.offers)
    yield Fact("took", f"{took} (planned {format_seconds(planned.seconds)})")
    if not report.job.plan.free:
        yield Fact("cost", f"{cost(report.dollars)} (planned {cost(planned.dollars)})")
    if report.job.measuring:
        yield Fact("", f"and {cost(report.job.measuring)} to measure the script before")
    limits = report.job.limits
    yield Fact("limits", limits_text(limits.deadline, limits.budget, cost))
    plan = report.job.plan
    rules = f"{plan.allocator} allocator, {plan.fleet_rule} fleet rule"
    yield Fact("strategy", f"{plan.by}, {rules}")
    yield Fact("figures", report_screen.basis_text(report))
    if not report.job.run:
        yield Fact("", "simulated: the metrics are made up, nothing was trained", warning=True)
    elif report.basis.emulated:
        yield Fact("", report_screen.emulated_text(report.job))


def _trial_line(report: Report, trial: TrialProgress) -> str:
    error = f"; failed: {trial.error}" if trial.error else ""
    config = report_screen.config_text(flat(trial.trial.config))
    value = "" if trial.metric is None else f", {report.metric} {trial.metric:.5g}"
    return f"{trial.status}, epoch {trial.epoch}{value}: {config}{error}"


def _sections(report: Report) -> Iterator[PageSection]:
    drawn = figures(report)
    if "metric" in drawn:
        name = report.metric
        priced = "metric_by_dollars" in drawn
        yield PageSection(f"{name} against time", drawn["metric"], wide=not priced)
        if priced:
            yield PageSection(f"{name} against dollars", drawn["metric_by_dollars"], wide=False)
    if "gpus" in drawn:
        yield PageSection("GPUs: which trial had them", drawn["gpus"])
        yield PageSection("Fleet and spend", drawn["spend"])
        plan = report.job.plan
        sheet = report_screen.money(report.accounting, plan)
        below = table(sheet) + paragraph(report_screen.use(report.accounting, free=plan.free))
        yield PageSection(sheet.title, None, below, wide=False)
    if report.rungs and report.timeline.epochs:
        below = table(plan_tables.rungs(report))
        yield PageSection("Rungs", None, below, wide=False)
    if "configurations" in drawn:
        yield PageSection("Configurations", drawn["configurations"])
    yield PageSection("Plan against actual", None, table(report_screen.planned_and_actual(report)))
    if report.policy.trials:
        yield PageSection(
            "Trials", None, fold("All trials, the best first", table(_trials(report)))
        )
    file = io.StringIO()
    out = Console(file=file, width=_WIDTH, highlight=False, force_jupyter=False)
    report_screen.show_report(out, report)
    text = f"<pre>{escape(file.getvalue())}</pre>"
    yield PageSection("The report as text", None, fold("cloudtune report", text))


def _trials(report: Report) -> Sheet:
    ranked = report.best_first()
    names = list(dict.fromkeys(n for t in ranked for n in flat(t.trial.config)))
    cost = cost_format(report.job.plan.offers)
    errors = ("error",) if any(trial.error for trial in ranked) else ()
    rows = []
    for trial in ranked:
        config = flat(trial.trial.config)
        spent = report.accounting.trials.get(trial.id, {}).values()
        rows.append(
            (
                *(trial.id, trial.status, str(trial.epoch)),
                "" if trial.metric is None else f"{trial.metric:.5g}",
                cost(sum(amount.dollars for amount in spent)),
                *(trials.value_text(config[n]) if n in config else "" for n in names),
                *(trial.error or "" for _ in errors),
            )
        )
    columns = ("trial", "status", "epochs", report.metric, "cost", *names, *errors)
    return Sheet("Trials", columns, tuple(rows), frozenset({"trial", "status", *errors}))
