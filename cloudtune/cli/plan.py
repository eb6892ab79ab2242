"""`cloudtune init`, `plan` and `simulate`: a first experiment, its plan, and its run simulated."""

from __future__ import annotations

import gc
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune.cli import options
from cloudtune.cli.exports import HTML, check_page, save_page
from cloudtune.errors import UsageError
from cloudtune.private_files import for_others

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cloudtune.forecast.make import Planned
    from cloudtune.forecast.staged_plans import Problem
    from cloudtune.planners.base import Enough, InfeasibleError

# New objects between two collections. Planning makes millions of small ones and few cycles, and
# ends within seconds: with the usual 700, looking for cycles takes a twentieth of the time.
_NEW_OBJECTS = 200_000
# Between two sentences of a message.
_SENTENCE = re.compile(r"(?<=[.]) (?=[A-Z(])")
# Sentences whose figures stand in lines of their own.
_FIGURES = ("The fastest takes", "The cheapest takes")


@click.command(cls=options.GroupedCommand)
@click.argument("script", type=click.Path(path_type=Path))
@click.option(
    "--out",
    "target",
    type=click.Path(path_type=Path),
    help="File to write (default: experiment.yaml beside the script, or in this folder if both are "
    "of one project).",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@options.OUTPUT
@click.argument("words", metavar="[-- ARGUMENTS]", nargs=-1)
def init(
    *, script: Path, words: tuple[str, ...], target: Path | None, force: bool, output: str
) -> None:
    """Write a commented experiment file for a training function or program.

    A function is read. A program is run here with --help, and then with its defaults, or with
    ARGUMENTS, for up to a minute in a copy of its folder: what it prints and writes has its metrics
    and checkpoints. Ranges are guesses from names and defaults, and marked as such.
    """
    from cloudtune.api.experiments import load_experiment
    from cloudtune.api.scripts import draft_script, experiment_folder

    folder = experiment_folder(script)
    target = target or folder / "experiment.yaml"
    if target.parent.resolve() != folder.resolve():
        raise UsageError(
            f"{target}: the experiment must be in {folder.resolve()}, whose files instances get"
        )
    if target.exists() and not force:
        raise UsageError(
            f"{target} already exists; choose another file with --out, or overwrite it with --force"
        )
    draft = draft_script(script, words, show=lambda line: click.echo(line, err=True))
    text = draft.text(script.stem)
    with for_others():
        target.write_text(text, encoding="utf-8")
    gaps = draft.gaps()
    if not gaps:
        load_experiment(target, {})  # a mistake shows here, with its line
    if output == "json":
        options.print_data({"wrote": str(target), "gaps": [vars(gap) for gap in gaps]})
        return
    click.echo(f"Wrote {target}. Review it, then run: cloudtune plan {target}")


@click.command(cls=options.GroupedCommand, first=options.USUAL)
@click.argument("experiment", metavar="EXPERIMENT|SCRIPT", type=click.Path(path_type=Path))
@options.experiment_options
@options.search_options
@options.planning_options
@click.option(
    "--point",
    type=int,
    metavar="N",
    help="Choose this point of the front, by its number in `plan`.",
)
@HTML
@click.option(
    "--save", type=click.Path(path_type=Path), help="Save the plan to a file for `cloudtune run`."
)
@options.OUTPUT_YAML
@click.option("-v", "--verbose", is_flag=True, help="Show all details of the plan.")
def plan(
    *,
    experiment: Path,
    html: Path | None,
    save: Path | None,
    output: str,
    verbose: bool,
    **given: Any,
) -> int:
    """Show a run's plan, duration and cost, and the alternatives. Rents nothing."""
    gc.set_threshold(_NEW_OBJECTS)  # for the imports, too

    from cloudtune.api import plans
    from cloudtune.lifecycle.reporter import Reporter
    from cloudtune.planners.base import InfeasibleError

    class PlanReporter(Reporter):
        """Prints why there is no plan."""

        def on_infeasible(self, error: InfeasibleError, problem: Problem) -> None:
            show_infeasible(error, output, problem)

    check_page(html)
    source = options.find_file(experiment, given)
    try:
        made = plans.plan(source, reporter=PlanReporter(), **given)
    except InfeasibleError as error:  # already shown
        return error.exit_code
    if save is not None:
        made.save(save)
    cloud = made.planned.problem.experiment.cloud
    if given["provider"] is None and "provider" not in cloud.model_fields_set:
        given["provider"] = cloud.provider  # `run` would ask where to run
    words = command_words(source, {**given, "point": None})
    show_proposal(made.planned, output, command=words, verbose=verbose, html=html)
    return 0


def command_words(experiment: Path, given: Mapping[str, Any]) -> list[str]:
    """Return the words after `cloudtune run` that request the same."""
    words = [str(experiment)]
    for name, value in given.items():
        for argument in value if isinstance(value, tuple) else (value,):
            words += [] if argument is None else [f"--{name.replace('_', '-')}", f"{argument}"]
    return [shlex.quote(word) for word in words]


def show_proposal(
    planned: Planned,
    output: str = "table",
    *,
    command: Sequence[str] = (),
    verbose: bool = False,
    html: Path | None = None,
) -> None:
    """Print a plan with its forecast, alternatives and costs; write its page if `html` is given."""
    from cloudtune.forecast.proposal import propose, to_json

    everything = verbose or html is not None or output != "table"
    proposal = propose(planned, others="all" if everything else "screen")
    if html is not None:
        from cloudtune.display.pages.plans import plan_page

        save_page(html, lambda: plan_page(proposal))
    if output == "table":
        from cloudtune.display.plan_screen import show_all, show_plan
        from cloudtune.display.terminal import console

        if verbose:
            show_all(console(), proposal)
        else:
            show_plan(console(), proposal, command)
    else:
        options.print_data({"feasible": True, **to_json(proposal)}, output)


def show_warning() -> None:
    """Print that the run starts although no plan meets its limits."""
    click.echo("No plan meets the limits; the run continues until it reaches one.", err=True)


def show_infeasible(error: InfeasibleError, output: str, problem: Problem) -> int:
    """Print why there is no plan, and limits that would do; return the exit code."""
    if output == "table":
        for line in _infeasible_lines(error):
            click.echo(line, err=True)
        return error.exit_code
    from cloudtune.model.serialization import encode
    from cloudtune.runs.job import make_basis

    basis = make_basis(problem.experiment, problem.rentables)
    options.print_data(
        {"feasible": False, **infeasible_json(error), "provenance": encode(basis)}, output
    )
    return error.exit_code


def infeasible_json(error: InfeasibleError) -> dict[str, Any]:
    """Return why there is no plan, and the nearest three with limits that would do."""
    from cloudtune.model.serialization import encode

    data: dict[str, Any] = {"message": str(error)}
    for name in ("fastest", "cheapest", "nearest"):
        plan = getattr(error, name)
        enough = error.enough.get(name)
        data[name] = None if plan is None else encode(plan)
        if enough is not None:
            data[name] = {**(data[name] or {}), **encode(enough)}
    return data


def _infeasible_lines(error: InfeasibleError) -> Iterator[str]:
    """Yield what doesn't fit, limits that would do, and what else helps."""
    first, *others = _SENTENCE.split(str(error))
    yield f"infeasible: {first}"
    if not error.enough:
        yield from (f"  {sentence}" for sentence in others)
        return
    names: dict[Enough, list[str]] = {}
    for name, enough in error.enough.items():
        names.setdefault(enough, []).append(name)
    for enough, which in names.items():
        yield f"  {enough.text}: {', '.join(which)}"
    yield from (f"  {sentence}" for sentence in others if not sentence.startswith(_FIGURES))


@click.command(cls=options.GroupedCommand, first=options.USUAL)
@click.argument("experiment", type=click.Path(path_type=Path))
@options.experiment_options
@options.search_options
@options.planning_options
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
    from cloudtune.api.experiments import load_experiment
    from cloudtune.display.report_screen import show_report
    from cloudtune.display.terminal import console
    from cloudtune.forecast.plan_file import make_job
    from cloudtune.forecast.problem import shared_cores
    from cloudtune.lifecycle.planning import load_problem, plan_run, read_limits
    from cloudtune.planners.base import InfeasibleError
    from cloudtune.runs.report import simulate as simulate_job
    from cloudtune.runs.report import to_json

    check_page(html)
    wanted = load_experiment(experiment, given)
    problem = load_problem(wanted, profile)
    try:
        planned = plan_run(
            problem,
            read_limits(wanted),
            options.select_plan_options(given),
            force=force,
            insists=show_warning,
        )
    except InfeasibleError as error:
        return show_infeasible(error, output, problem)
    job = make_job(planned, 0.0, paced=False)
    played = simulate_job(job, shared_cores(problem))
    if html is not None:
        from cloudtune.display.pages.reports import run_page

        save_page(html, lambda: run_page(played))
    if output == "json":
        options.print_data(to_json(played))
    else:
        console().print("Simulated: metrics are synthetic; times and costs come from the profile.")
        show_report(console(), played)
    ending = played.policy.ending
    return ending.exit_code if ending else 1
