"""The options of `cloudtune simulate --curves`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import click

from cloudtune.catalog import BillingUnit
from cloudtune.cli.exports import HTML
from cloudtune.policy.registry import MENU
from cloudtune.simulation.benchmark import MAX_INSTANCES, RESIZE, START, Delays

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Command = TypeVar("Command", bound=Callable[..., Any])

Option: TypeAlias = "Callable[[Any], Any]"

_USUAL = Delays()


def _with(command: Command, *options: Option) -> Command:
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def _text(name: str, metavar: str, told: str, **more: Any) -> Option:
    """Return an option that is text; a default that says something is shown."""
    return click.option(
        name, metavar=metavar, help=told, show_default=bool(more.get("default")), **more
    )


def _column(name: str, told: str) -> Option:
    return _text(name, "COLUMN", told, default="")


def _file(name: str, metavar: str, told: str, **more: Any) -> Option:
    return click.option(name, type=click.Path(path_type=Path), metavar=metavar, help=told, **more)


def _number(name: str, told: str, least: int = 1, **more: Any) -> Option:
    kind = click.IntRange(min=least)
    return click.option(name, type=kind, help=told, show_default="default" in more, **more)


def table_options(command: Command) -> Command:
    """Give a command the options that say what the tables of curves hold."""
    return _with(
        command,
        _file(
            "--curves", "FILE", "Recorded curves, CSV or Parquet (docs/simulate.md).", required=True
        ),
        _file("--configs", "FILE", "Table of the hyperparameters of the configurations."),
        _text("--metric", "COLUMN", "Metric to optimize.", required=True),
        click.option(
            "--mode",
            type=click.Choice(["max", "min"]),
            required=True,
            help="Maximize or minimize it.",
        ),
        _column("--config-column", "Column with the configuration of a row."),
        _column("--epoch-column", "Column with the epoch or step of a row."),
        _column("--seconds-column", "Column with the seconds of the epoch on one GPU."),
        _column("--elapsed-column", "Column with the seconds since training began, on one GPU."),
        _column("--planned-column", "In --configs: column with the number of epochs to train."),
        _text(
            "--hyperparameters",
            "COLUMNS",
            "In --configs: columns that a sampler learns from.",
            default="",
        ),
        _text(
            "--where",
            "COLUMN=VALUE",
            "Use only rows (or configurations) with this value.",
            multiple=True,
        ),
    )


def offer_options(command: Command) -> Command:
    """Give a command the options that say how fast training is, and what can be rented."""
    return _with(
        command,
        _text("--epoch-seconds", "TIME", "Average time of an epoch on one GPU, such as 5m."),
        _text(
            "--profile", "FILE|NAME", "Speed by width: a file or a bundled profile.", required=True
        ),
        _text(
            "--offers",
            "FILE|NAME",
            "Types and prices: a file, or names such as g5.xlarge,'g6.*'.",
            required=True,
        ),
        click.option(
            "--market",
            type=click.Choice(["on-demand", "spot", "any"]),
            default="on-demand",
            show_default=True,
            help="Market of offers given by name.",
        ),
        click.option(
            "--billing",
            type=click.Choice(get_args(BillingUnit)),
            help="Billing unit of instances (default: as on EC2, by the second from a minute on). "
            "function: bill the GPU-seconds of trials instead of instances.",
        ),
        _file(
            "--spot-trace",
            "FILE",
            "Table of spot availability to replay, starting where the seed says.",
        ),
        _text(
            "--spot-where",
            "COLUMN=VALUE",
            "Use only the rows of the trace with this value.",
            multiple=True,
        ),
        _number("--max-instances", "Maximum number of instances at a time.", default=MAX_INSTANCES),
    )


def way_options(command: Command) -> Command:
    """Give a command the options that say what is tried, within which limits."""
    return _with(
        command,
        _text(
            "--strategy",
            "NAMES",
            f"Strategies to compare: {', '.join(MENU)} (docs/papers.md lists the others).",
            required=True,
        ),
        _text(
            "--allocator", "NAMES", "GPUs per trial (default: what suits the strategy).", default=""
        ),
        _text(
            "--fleet", "NAMES", "Such as constant:8,naive:4 (default: what suits it).", default=""
        ),
        _text("--eta", "NUMBERS", "One in eta trials goes on from a rung.", default="3"),
        _text("--sampler", "NAMES", "Samplers of configurations, such as random,tpe.", default=""),
        _text("--history", "RUNS", "Earlier runs to take configurations from.", default=""),
        _text("--deadline", "TIMES", "Deadlines, such as 2h,4h.", default="none"),
        _text("--budget", "DOLLARS", "Budgets, such as 20,40,80.", default="none"),
        _number("--seeds", "Number of runs of each combination.", default=20),
        _number("--seed", "First seed.", least=0, default=0),
        _number("--min-epochs", "Number of epochs before the first comparison.", default=1),
        _number("--max-trials", "Maximum number of configurations to try."),
    )


def delay_options(command: Command) -> Command:
    """Give a command the options that say what happens around training."""
    return _with(
        command,
        _text(
            "--launch",
            "TIME",
            "Time from a request to the launch (not billed).",
            default=_of(_USUAL.launch),
        ),
        _text(
            "--boot",
            "TIME",
            "Time from the launch until trials can start.",
            default=_of(_USUAL.boot),
        ),
        _text(
            "--start", "TIME", f"Time to set up a trial (default: the profile's, or {_of(START)})."
        ),
        _text(
            "--resize",
            "TIME",
            f"The same from a checkpoint (default: the profile's, or {_of(RESIZE)}).",
        ),
        _text(
            "--release",
            "TIME",
            "Time from giving back until billing ends.",
            default=_of(_USUAL.release),
        ),
        click.option(
            "--spread",
            type=click.FloatRange(0.0, 1.0),
            default=_USUAL.spread,
            show_default=True,
            help="Standard deviation of all durations, as a fraction.",
        ),
    )


def _of(seconds: float) -> str:
    return f"{seconds:g}s"


def output_options(command: Command) -> Command:
    """Give a command the options that say how to play, and where the results go."""
    return _with(
        command,
        _number("--jobs", "Number of processes (default: one per CPU)."),
        _file("--out", "DIR", "Folder to write cells.csv, runs.csv and the plots to."),
        HTML,
        click.option(
            "-o",
            "--output",
            type=click.Choice(["table", "json", "csv"]),
            default="table",
            show_default=True,
        ),
    )
