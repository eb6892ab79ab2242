"""`cloudtune simulate EXPERIMENT`: the run in virtual time."""

import json
from pathlib import Path
from typing import Any

import click

from cloudtune.cli import options
from cloudtune.cli.exports import HTML, check_page, save_page
from cloudtune.cli.plan import show_infeasible, tell_insisted
from cloudtune.display.terminal import console


@click.command(cls=options.GroupedCommand, first=options.USUAL)
@click.argument("experiment", type=click.Path(path_type=Path))
@options.experiment_options
@options.search_options
@options.STRATEGY
@options.planning_options
@options.PROFILE
@click.option("--force", is_flag=True, help="Simulate even if no plan meets the limits.")
@HTML
@options.OUTPUT
def simulate(
    *,
    experiment: Path,
    profile: str | None,
    force: bool,
    html: Path | None,
    output: str,
    **given: Any,
) -> int:
    """Simulate the run in virtual time: same policy, synthetic learning curves, no cloud."""
    from cloudtune.api.experiments import limits_of, load_experiment, load_problem, plan_or_forced
    from cloudtune.display.report_screen import show_report
    from cloudtune.planners.base import InfeasibleError
    from cloudtune.planning.plan_file import job_of
    from cloudtune.planning.problem import shared_cores
    from cloudtune.runs.report import simulate as simulate_job
    from cloudtune.runs.report import to_json

    check_page(html)
    wanted = load_experiment(experiment, given)
    problem = load_problem(wanted, profile)
    try:
        planned = plan_or_forced(
            problem,
            limits_of(wanted),
            options.plan_options_of(given),
            force=force,
            insists=tell_insisted,
        )
    except InfeasibleError as error:
        return show_infeasible(error, output, problem)
    job = job_of(planned, 0.0, paced=False)
    played = simulate_job(job, shared_cores(problem))
    if html is not None:
        from cloudtune.display.pages.reports import run_page

        save_page(html, lambda: run_page(played))
    if output == "json":
        click.echo(json.dumps(to_json(played), indent=1))
    else:
        console().print("Simulated: metrics are synthetic; times and costs come from the profile.")
        show_report(console(), played)
    ending = played.policy.ending
    return ending.exit_code if ending else 1
