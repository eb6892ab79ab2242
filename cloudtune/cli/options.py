"""The options that several commands share."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import click

from cloudtune.api.scripts import experiment_beside, is_script
from cloudtune.errors import CloudtuneError
from cloudtune.jobs import home
from cloudtune.jobs.stages import PLANNERS, PlanOptions
from cloudtune.providers import PROVIDERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import TypeVar

    from cloudtune.api.drafts import Gap

    Command = TypeVar("Command", bound=Callable[..., Any])


def _run_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:  # noqa: ARG001
    """Return the runs whose names begin like that, the latest first, for a shell's completion."""
    try:
        folders = home.run_folders()
    except (CloudtuneError, OSError):
        return []
    return [folder.name for folder in reversed(folders) if folder.name.startswith(begun)]


RUN = click.argument("run", required=False, shell_complete=_run_names)


def experiment_options(command: Command) -> Command:
    """Give a command the options that override fields of the experiment."""
    options = [
        click.option(
            "--deadline", metavar="TIME", help="Finish within this time, as in 2h or 90s."
        ),
        click.option("--budget", metavar="DOLLARS", help="Spend no more than this, as in '$40'."),
        click.option("--trials", type=int, help="How many configurations to try."),
        click.option(
            "--search",
            metavar="NAME=SPACE",
            multiple=True,
            help="A parameter to search, as in 'lr=loguniform(1e-4, 1)'; once for each.",
        ),
        click.option(
            "--metric", metavar="NAME:MODE", help="The metric that decides, as in accuracy:max."
        ),
        click.option("--epochs", type=int, help="Epochs of a full training."),
        click.option("--max-instances", type=int, help="Rent no more instances at once."),
        click.option("--provider", type=click.Choice(list(PROVIDERS)), help="Which cloud."),
        click.option(
            "--instances", metavar="TYPES", help="Instance types, as in g5.xlarge,'g6.*'."
        ),
        click.option(
            "--market", type=click.Choice(["on-demand", "spot", "any"]), help="Where to rent."
        ),
        click.option("--seed", type=int, help="Seed of the search and of the training."),
        click.option("--storage", metavar="URI", help="Where checkpoints go."),
        click.option(
            "--history",
            metavar="RUNS",
            help="Earlier runs that have a say: auto, off, or their names, as in RUN,RUN.",
        ),
    ]
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def file_of(path: Path, given: Mapping[str, Any]) -> Path:
    """Return the experiment file: the one that was given, or the one of a script, made if need be.

    What a script doesn't say is asked for on a terminal.

    Raises:
        UsageError: it says too little, and the options don't say the rest.
    """
    if not is_script(path):
        return path
    return experiment_beside(
        path,
        given,
        ask=_ask if at_terminal() else None,
        show=lambda line: click.echo(line, err=True),
    )


def at_terminal() -> bool:
    """Whether a person is there to be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask(gap: Gap) -> str:
    hints = {
        "metric": "NAME:max or NAME:min",
        "epochs": "a number",
        "search": "NAME=SPACE, as in lr=loguniform(1e-4, 1)",
        "reports": "a regular expression for what it prints, as in (?P<accuracy>[0-9.]+)%",
    }
    hint = hints.get(gap.what, "as in loguniform(1e-4, 1) or choice(32, 64)")
    return str(click.prompt(f"{gap.question[0].upper()}{gap.question[1:]} ({hint})", err=True))


def planning_options(command: Command) -> Command:
    """Give a command the options that say how to plan."""
    options = [
        click.option(
            "--objective",
            type=click.Choice(["best", "cost", "time", "trials"]),
            help="best: the best model within the limits. cost, time: a fixed number of trials, as "
            "cheaply or as fast as possible. trials: as many trials as possible.",
        ),
        click.option(
            "--planner", type=click.Choice(PLANNERS), help="Who plans; the default is exact."
        ),
        click.option(
            "--confidence",
            type=click.FloatRange(0.5, 0.999),
            help="Keep the limits with this probability, instead of on average.",
        ),
    ]
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def watching_options(command: Command) -> Command:
    """Give a command the options that say how a run is told of as it goes."""
    quiet = click.option("-q", "--quiet", is_flag=True, help="Print the end alone.")
    return quiet(OUTPUT_JSONL(command))


def plan_options_of(given: Mapping[str, Any]) -> PlanOptions:
    """Return how to plan, by the options that were given."""
    return PlanOptions(given.get("objective"), given.get("planner"), given.get("confidence"))


STRATEGY = click.option(
    "--strategy",
    metavar="NAME",
    help="Take this one, as in sha or asha; seer-barrier is our reconstruction of SEER, seer is "
    "ours.",
)
PROFILE = click.option(
    "--profile",
    "profile",
    metavar="FILE|NAME",
    help="Use a measured profile, or published figures, as in resnet50-cifar10@v100.",
)
HERE = click.option(
    "--here",
    is_flag=True,
    help="Carry the run on this machine, which is in the VPC, and not on a head (aws).",
)
OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
OUTPUT_JSONL = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "jsonl"]),
    default="table",
    show_default=True,
    help="jsonl: a JSON object a line, for programs (docs/watch.md).",
)
OUTPUT_YAML = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
)
PACE = click.option(
    "--pace/--no-pace",
    default=True,
    help="On the emulated cloud: let training take what the instance type's speed curve says.",
)
