"""The options that several commands share, and the experiment that they lead to."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune.experiment import Experiment
from cloudtune.infra.pricing import instance_types
from cloudtune.plan import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    Command = TypeVar("Command", bound=Callable[..., Any])


def experiment_options(command: Command) -> Command:
    """Give a command the options that override fields of the experiment."""
    options = [
        click.option(
            "--deadline", metavar="TIME", help="Finish within this time, as in 2h or 90s."
        ),
        click.option("--budget", metavar="DOLLARS", help="Spend no more than this, as in '$40'."),
        click.option("--trials", type=int, help="How many configurations to try."),
        click.option("--max-instances", type=int, help="Rent no more instances at once."),
        click.option("--provider", type=click.Choice(["emulated", "aws"]), help="Which cloud."),
        click.option("--seed", type=int, help="Seed of the search and of the training."),
        click.option("--storage", metavar="URI", help="Where checkpoints go."),
    ]
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


PROFILE = click.option(
    "--profile", "profile", type=click.Path(path_type=Path), help="Use this measured profile."
)
OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
PACE = click.option(
    "--pace/--no-pace",
    default=True,
    help="On the emulated cloud: let training take what the instance type's speed curve says.",
)
_OVERRIDES = {
    "deadline": "limits.deadline",
    "budget": "limits.budget",
    "trials": "trials",
    "max_instances": "cloud.max_instances",
    "provider": "cloud.provider",
    "seed": "seed",
    "storage": "storage",
}


def load_experiment(path: Path, given: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a file, with the options that were given over it.

    Raises:
        ExperimentError: mistakes in either.
    """
    overrides = {
        field: given[option]
        for option, field in _OVERRIDES.items()
        if given.get(option) is not None
    }
    experiment = Experiment.load(path, overrides, known_instances=instance_types())
    experiment.check_train()
    return experiment


def limits_of(experiment: Experiment) -> Limits:
    """Return what an experiment may take."""
    return Limits(experiment.limits.deadline, experiment.limits.budget)
