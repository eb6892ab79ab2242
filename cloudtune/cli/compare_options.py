"""The options of `cloudtune simulate --curves`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import click

from cloudtune.catalog import BillingUnit
from cloudtune.cli.exports import HTML
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
            "--curves", "FILE", "Recorded curves: CSV or Parquet (docs/simulate.md).", required=True
        ),
        _file("--configs", "FILE", "The configurations that can be tried: their hyperparameters."),
        _text("--metric", "COLUMN", "The metric that decides.", required=True),
        click.option(
            "--mode", type=click.Choice(["max", "min"]), required=True, help="Is more better?"
        ),
        _column("--config-column", "Which configuration a row is of."),
        _column("--epoch-column", "Which epoch, or step, it is of."),
        _column("--seconds-column", "What the epoch took on one GPU."),
        _column("--elapsed-column", "Seconds since training began, on one GPU."),
        _column("--planned-column", "In --configs: how many epochs each is to train."),
        _text(
            "--hyperparameters", "COLUMNS", "In --configs: what a sampler learns from.", default=""
        ),
        _text("--where", "COLUMN=VALUE", "Only rows (or configurations) with it.", multiple=True),
    )


def offer_options(command: Command) -> Command:
    """Give a command the options that say how fast training is, and what can be rented."""
    return _with(
        command,
        _text("--epoch-seconds", "TIME", "What an epoch takes on one GPU on average, as in 5m."),
        _text("--profile", "FILE|NAME", "Speed by width, or a bundled profile.", required=True),
        _text(
            "--offers", "FILE|NAME", "Types and prices, or names: g5.xlarge,'g6.*'.", required=True
        ),
        click.option(
            "--market",
            type=click.Choice(["on-demand", "spot", "any"]),
            default="on-demand",
            show_default=True,
            help="Where to rent offers given by name.",
        ),
        click.option(
            "--billing",
            type=click.Choice(get_args(BillingUnit)),
            help="By what instances are billed; else as EC2 does, by the second from a minute on. "
            "By the function: the GPU-seconds of trials, and no instance.",
        ),
        _file(
            "--spot-trace",
            "FILE",
            "Spot pools as this table has them, from a second on that the seed draws.",
        ),
        _text("--spot-where", "COLUMN=VALUE", "Of the trace only the rows with it.", multiple=True),
        _number("--max-instances", "Rent no more at once.", default=MAX_INSTANCES),
    )


def way_options(command: Command) -> Command:
    """Give a command the options that say what is tried, within which limits."""
    return _with(
        command,
        _text(
            "--strategy",
            "NAMES",
            "Which to try, as in asha,hypersched; seer-barrier is our reconstruction of SEER, seer "
            "is ours.",
            required=True,
        ),
        _text(
            "--allocator", "NAMES", "How wide trials are; else what suits the strategy.", default=""
        ),
        _text("--fleet", "NAMES", "As in constant:8,naive:4; else what suits it.", default=""),
        _text("--eta", "NUMBERS", "One of so many goes on from a rung.", default="3"),
        _text("--sampler", "NAMES", "As in random,tpe: draws configurations.", default=""),
        _text("--deadline", "TIMES", "As in 2h,4h.", default="none"),
        _text("--budget", "DOLLARS", "As in 20,40,80.", default="none"),
        _number("--seeds", "Runs of each cell.", default=20),
        _number("--seed", "The first seed.", least=0, default=0),
        _number("--min-epochs", "Epochs before the first comparison.", default=1),
        _number("--max-trials", "Try no more configurations."),
    )


def delay_options(command: Command) -> Command:
    """Give a command the options that say what happens around training."""
    return _with(
        command,
        _text(
            "--launch",
            "TIME",
            "From a request to the launch; not billed.",
            default=_of(_USUAL.launch),
        ),
        _text("--boot", "TIME", "From launch until trials can start.", default=_of(_USUAL.boot)),
        _text("--start", "TIME", f"Set-up of a trial; the profile's, or {_of(START)}."),
        _text("--resize", "TIME", f"Set-up from a checkpoint; the profile's, or {_of(RESIZE)}."),
        _text(
            "--release",
            "TIME",
            "From giving back until it bills no more.",
            default=_of(_USUAL.release),
        ),
        click.option(
            "--spread",
            type=click.FloatRange(0.0, 1.0),
            default=_USUAL.spread,
            show_default=True,
            help="Standard deviation of all durations, as a share.",
        ),
    )


def _of(seconds: float) -> str:
    return f"{seconds:g}s"


def output_options(command: Command) -> Command:
    """Give a command the options that say how to play, and where the results go."""
    return _with(
        command,
        _number("--jobs", "Processes; the default is one for each CPU."),
        _file("--out", "DIR", "Write cells.csv, runs.csv and the plots there."),
        HTML,
        click.option(
            "-o",
            "--output",
            type=click.Choice(["table", "json", "csv"]),
            default="table",
            show_default=True,
        ),
    )
