"""`cloudtune plan`: what a run would do, take and cost, and what else could be done."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune import planning
from cloudtune.cli_elastic import refuse_plan_options, show_elastic, told_elastic
from cloudtune.cli_options import (
    OUTPUT_YAML,
    PROFILE,
    STRATEGY,
    experiment_options,
    limits_of,
    load_experiment,
    planning_options,
    wish_of,
)
from cloudtune.elastic_planning import elastic_job
from cloudtune.errors import InfeasibleError

if TYPE_CHECKING:
    from cloudtune.experiment import Experiment
    from cloudtune.plan import Limits
    from cloudtune.planning import Planned, Problem


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@experiment_options
@STRATEGY
@planning_options
@PROFILE
@click.option("--compare", is_flag=True, help="Show what every planner comes to.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw it: FILE.png or FILE.html.")
@click.option("--save", type=click.Path(path_type=Path), help="Write the plan down for `run`.")
@OUTPUT_YAML
def plan(
    *,
    experiment: Path,
    profile: str | None,
    compare: bool,
    plot: Path | None,
    save: Path | None,
    output: str,
    **given: Any,
) -> int:
    """Show what a run would do, take and cost, and what else could be done. Rents nothing."""
    wanted = load_experiment(experiment, given)
    limits = limits_of(wanted)
    problem = load_problem(wanted, profile)
    if not wanted.strategy.staged:
        refuse_plan_options(wanted, {**given, "compare": compare, "plot": plot, "save": save})
        return _plan_elastic(problem, limits, output)
    try:
        planned = planning.make_plan(problem, limits, wish_of(given))
    except InfeasibleError as error:
        return show_infeasible(error, output)
    if save is not None:
        from cloudtune.plan_files import save_plan  # noqa: PLC0415

        save_plan(save, planned, limits)
    show_planned(planned, limits, output, compare=compare, plot=plot)
    return 0


def _plan_elastic(problem: Problem, limits: Limits, output: str) -> int:
    try:
        job = elastic_job(problem, limits, 0.0)
    except InfeasibleError as error:
        return show_infeasible(error, output)
    if output == "table":
        show_elastic(problem, job)
    else:
        _dump({"feasible": True, **told_elastic(problem, job)}, output)
    return 0


def load_problem(wanted: Experiment, profile: str | None) -> Problem:
    """Return what there is to choose from for an experiment.

    Raises:
        UsageError: nothing is known of the script's speed on any of its instance types.
    """
    profiles = planning.stored_profiles(wanted, profile)
    if not profiles:
        raise planning.no_profile(wanted)
    return planning.problem_of(wanted, profiles)


def show_planned(
    planned: Planned,
    limits: Limits,
    output: str = "table",
    *,
    compare: bool = False,
    plot: Path | None = None,
) -> None:
    """Print a plan and all that is told of it; draw it if asked to."""
    from cloudtune.proposal import to_json  # noqa: PLC0415
    from cloudtune.proposing import propose  # noqa: PLC0415

    proposal = propose(planned, limits, compare=compare)
    if plot is not None:
        from cloudtune.plot_plan import save  # noqa: PLC0415  matplotlib takes a second

        save(plot, proposal)
    if output == "table":
        from cloudtune.screen import console  # noqa: PLC0415
        from cloudtune.screen_plan import show_plan  # noqa: PLC0415

        show_plan(console(), proposal)
    else:
        _dump({"feasible": True, **to_json(proposal)}, output)


def show_infeasible(error: InfeasibleError, output: str) -> int:
    """Print why there is no plan, and the nearest there are; return the exit code."""
    if output == "table":
        from cloudtune.screen import console  # noqa: PLC0415
        from cloudtune.screen_plan import show_nearest  # noqa: PLC0415

        show_nearest(console(), error.fastest, error.cheapest, error.nearest)
        click.echo(f"infeasible: {error}", err=True)
        return error.exit_code
    from cloudtune.codec import encode  # noqa: PLC0415

    data = {"feasible": False, "message": str(error)}
    for name in ("fastest", "cheapest", "nearest"):
        found = getattr(error, name)
        data[name] = None if found is None else encode(found)
    _dump(data, output)
    return error.exit_code


def _dump(data: Any, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(data, indent=1, allow_nan=False))
        return
    from ruamel.yaml import YAML  # noqa: PLC0415

    YAML(typ="safe", pure=True).dump(data, sys.stdout)
