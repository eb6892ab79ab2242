"""`cloudtune watch`, `logs`, `runs`, `report`: follow runs, print logs, say what runs did."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloudtune.cli.exports import (
    BESIDE,
    FIGURE,
    HTML_OF_RUN,
    check_figure,
    check_page,
    save_page,
)
from cloudtune.cli.options import (
    OUTPUT,
    RUN,
    STREAM,
    GroupedCommand,
    page_options,
    print_data,
    print_line,
)
from cloudtune.display.terminal import console
from cloudtune.errors import UsageError
from cloudtune.model.plain_text import clean_output
from cloudtune.runs import control, home

# Seconds between two looks whether a run is still driven.
_GLANCE = 0.5

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cloudtune.api.run_logs import Log


@click.command(cls=GroupedCommand)
@RUN
@STREAM
@page_options
def watch(run: str | None, *, output: str, html: bool, port: int) -> int:
    """Follow a run live, as in its own terminal. Without RUN, the last one.

    Ends with the run and returns its exit code, or 1 if its controller has died. Ctrl-C stops
    watching, not the run.
    """
    from cloudtune.cli.reporters import JsonReporter, PageReporter, TerminalReporter
    from cloudtune.cli.run import resume_extended
    from cloudtune.lifecycle.contact import is_driven
    from cloudtune.lifecycle.following import follow_entries
    from cloudtune.runs.job import job_of_ledger

    folder = home.find_run(run)
    job = job_of_ledger(folder / home.LEDGER)
    policy = job.policy()
    ledger = folder / home.LEDGER
    reporter = TerminalReporter() if output == "table" else JsonReporter()
    page = PageReporter(port) if html else None
    if page is not None:
        check_page(BESIDE)
        page.on_run_start(job, policy)
    reporter.on_run_start(job, policy)
    try:
        for entry in follow_entries(ledger, lambda: policy.ended, is_driven(folder)):
            policy.handle(entry.event)
            reporter.on_event(entry.event, entry.commands)
    finally:
        reporter.on_run_end()
        if page is not None:
            page.on_run_end()
    screen = reporter.screen if isinstance(reporter, TerminalReporter) else None
    if screen is not None and console().is_terminal:
        console().print(screen.draw(policy.now))
    if policy.ended and policy.exit_code is not None:
        if output == "table":
            console().print(f"More: cloudtune report {folder.name}")
        if page is not None and page.extension:
            while control.is_driven(folder):  # it still gives its instances back
                time.sleep(_GLANCE)
            return resume_extended(page, reporter, policy.exit_code)
        return policy.exit_code
    if not policy.ended:
        click.echo(
            f"the controller of run {folder.name} has died: resume the run with `cloudtune resume "
            f"{folder.name}`, or terminate its instances with `cloudtune gc`",
            err=True,
        )
    return 1


@click.command(cls=GroupedCommand)
@RUN
@click.argument("trial", required=False)
@click.option("-f", "--follow", is_flag=True, help="Print new output until the run ends.")
@click.option(
    "--nodes",
    is_flag=True,
    help="Print the logs of the instances instead: output of the processes that start workers.",
)
@STREAM
def logs(run: str | None, trial: str | None, *, follow: bool, nodes: bool, output: str) -> None:
    """Print the output of the workers of RUN, or of TRIAL only. Without RUN, of the last one.

    Titles name trial, session (a trial starts a new one each time it starts or moves) and rank. The
    logs are in the run's storage, beside the checkpoints.
    """
    from cloudtune.api.run_logs import RunLogs

    if trial is not None and nodes:
        raise UsageError(
            "--nodes can't be combined with TRIAL: the logs of instances belong to no trial"
        )
    folder = home.find_run(run)
    kept = RunLogs(folder)

    def list_now() -> Sequence[Log]:
        if not follow:
            return kept.list_logs(trial, nodes=nodes)
        # Wait for a trial that hasn't started.
        return [log for log in kept.list_logs(nodes=nodes) if trial in (None, log.trial)]

    driven = functools.partial(control.is_driven, folder)
    pieces = kept.follow(list_now, driven) if follow else kept.news(list_now())
    if not (_print(pieces) if output == "table" else _written(pieces)):
        of = f"of {trial} " if trial else ""
        click.echo(f"no logs {of}in {kept.uri} yet", err=True)


def _written(pieces: Iterable[tuple[str, str]]) -> int:
    """Write pieces of logs as lines of JSON; return their number."""
    count = 0
    for title, text in pieces:
        count += 1
        print_line("log", name=title, text=clean_output(text))
    return count


def _print(pieces: Iterable[tuple[str, str]]) -> int:
    """Print pieces of logs under the titles of their logs; return their number."""
    last = ""
    count = 0
    for title, text in pieces:
        count += 1
        if title != last:
            last = title
            click.echo(f"==> {title} <==")
        shown = clean_output(text)
        click.echo(shown, nl=not shown.endswith("\n"))
    return count


@click.command(cls=GroupedCommand)
@click.argument("experiment", required=False, type=click.Path(path_type=Path))
@OUTPUT
def runs(experiment: Path | None, output: str) -> None:
    """List this machine's runs with results and costs, latest first.

    The last column shows whether later runs can learn from it how long things take (`history`).
    With EXPERIMENT, whether a run of that experiment would. No data leaves the machine.
    """
    from cloudtune.api.experiments import load_experiment
    from cloudtune.display.runs_table import show_runs
    from cloudtune.runs import history

    wanted = None if experiment is None else load_experiment(experiment, {"history": "auto"})
    records = list(history.list_runs(wanted))
    if output == "json":
        print_data({"runs": [history.to_json(record) for record in records]})
    else:
        show_runs(console(), records)


@click.command(cls=GroupedCommand)
@RUN
@HTML_OF_RUN
@FIGURE
@click.option(
    "--against",
    is_flag=True,
    help="Compare the bill with simulated fixed and naively elastic clusters.",
)
@OUTPUT
def report(
    run: str | None, *, html: Path | None, figure: Path | None, against: bool, output: str
) -> None:
    """Show what a run did, planned versus actual. Without RUN, the last one.

    --html writes a page with curves, GPUs, fleet and spend, the bill and configurations; --figure
    one picture of GPUs and curves, for a paper.
    """
    from cloudtune.display.alternatives_tables import against_json
    from cloudtune.display.report_screen import show_against, show_report
    from cloudtune.forecast import alternatives
    from cloudtune.runs.report import cloud_records, load, to_json

    check_page(html)
    check_figure(figure)
    folder = home.find_run(run)
    run_report = load(folder)
    if figure is not None:
        from cloudtune.display.pages.picture import draw

        save_page(figure, lambda: draw(run_report), "--figure")
    if html is not None:
        from cloudtune.display.pages.reports import run_page

        path = Path(f"{folder.name}.html") if html == BESIDE else html
        save_page(path, lambda: run_page(run_report))
    if against:
        other = alternatives.against(run_report.job, run_report.dollars)
        if output == "json":
            print_data(against_json(other))
        else:
            show_against(console(), run_report, other)
    elif output == "json":
        print_data({**to_json(run_report), **cloud_records(folder)})
    elif html is None and figure is None:
        show_report(console(), run_report)
