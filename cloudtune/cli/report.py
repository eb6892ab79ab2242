"""`cloudtune report`: what a run did, planned versus actual."""

import json
from pathlib import Path

import click

from cloudtune.cli.exports import BESIDE, HTML_OF_RUN, check_page, save_page
from cloudtune.cli.options import OUTPUT, RUN, GroupedCommand, print_data
from cloudtune.display.terminal import console
from cloudtune.runs import home


@click.command(cls=GroupedCommand)
@RUN
@HTML_OF_RUN
@click.option(
    "--against",
    is_flag=True,
    help="Compare the bill with simulated fixed and naively elastic clusters.",
)
@OUTPUT
def report(run: str | None, *, html: Path | None, against: bool, output: str) -> None:
    """Show what a run did, planned versus actual. Without RUN, the last one.

    --html writes a page with curves, GPUs, fleet and spend, the bill and configurations.
    """
    from cloudtune.display.alternatives_tables import against_json
    from cloudtune.display.report_screen import show_against, show_report
    from cloudtune.planning import alternatives
    from cloudtune.runs.report import cloud_records, load, to_json

    check_page(html)
    folder = home.find_run(run)
    run_report = load(folder)
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
        click.echo(json.dumps({**to_json(run_report), **cloud_records(folder)}, indent=1))
    elif html is None:
        show_report(console(), run_report)
