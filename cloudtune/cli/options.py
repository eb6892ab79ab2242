"""The options that several commands share."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.model import menu
from cloudtune.model.providers import PROVIDERS
from cloudtune.runs import home
from cloudtune.script.printed_lines import EXAMPLE

if TYPE_CHECKING:
    from pathlib import Path

    from cloudtune.forecast.staged_plans import PlanOptions
    from cloudtune.script.drafts import Gap

Command = TypeVar("Command", bound=Callable[..., Any])


# The most used options of an experiment.
USUAL = ("--deadline", "--budget", "--strategy", "--provider", "--instances", "--max-instances")
_FIRST = 6


class GroupedCommand(click.Command):
    """A command whose help starts with its most used options.

    `first` lists them in order (default: the first six of the command).
    """

    def __init__(self, *args: Any, first: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._first = first

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {
            parameter.opts[-1]: record
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            and (record := parameter.get_help_record(ctx)) is not None
        }
        help_record = records.pop("--help")
        first = self._first or tuple(records)[:_FIRST]
        more = [record for name, record in records.items() if name not in first]
        with formatter.section("Options"):
            formatter.write_dl([*(records[name] for name in first), help_record])
        if more:
            with formatter.section("More options"):
                formatter.write_dl(more)


def run_names(context: click.Context, parameter: click.Parameter, prefix: str) -> list[str]:  # noqa: ARG001
    """Return the runs whose names start with `begun`, latest first, for shell completion."""
    try:
        folders = home.run_folders()
    except (CloudtuneError, OSError):
        return []
    return [folder.name for folder in reversed(folders) if folder.name.startswith(prefix)]


RUN = click.argument("run", required=False, shell_complete=run_names)


def _together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command, in this order."""
    return lambda command: functools.reduce(lambda it, add: add(it), reversed(options), command)


class ProviderChoice(click.Choice[str]):
    """The clouds of the core; those of other packages are looked up once one is named."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value if value in PROVIDERS else super().convert(value, param, ctx)


# The options that override fields of the experiment.
experiment_options = _together(
    click.option("--deadline", metavar="TIME", help="Finish within this time, such as 2h or 90s."),
    click.option("--budget", metavar="DOLLARS", help="Spend at most this much, such as '$40'."),
    click.option("--trials", type=int, help="Maximum number of configurations."),
    click.option("--max-instances", type=int, help="Maximum number of instances at a time."),
    click.option(
        "--provider", type=ProviderChoice(list(PROVIDERS.core)), help="Cloud to rent from."
    ),
    click.option(
        "--instances", metavar="TYPES", help="Instance types to use, such as g5.xlarge,'g6.*'."
    ),
    click.option(
        "--market", type=click.Choice(["on-demand", "spot", "any"]), help="Market to rent in."
    ),
    click.option("--seed", type=int, help="Seed for the search and for training."),
    click.option("--storage", metavar="URI", help="Folder or bucket for checkpoints."),
    click.option(
        "--log-to",
        metavar="NAMES",
        help="Log trials as they train: wandb, mlflow, tensorboard, or several of these.",
    ),
    click.option(
        "--like",
        metavar="RUN",
        shell_complete=run_names,
        help="Begin with the five best configurations of an earlier run, while they do well.",
    ),
    click.option(
        "--history",
        metavar="RUNS",
        help="Earlier runs to learn times from: auto, off, or names such as RUN,RUN.",
    ),
)


def _strategies(context: click.Context, parameter: click.Parameter, prefix: str) -> list[str]:  # noqa: ARG001
    """Return the strategies on the menu whose names start with `begun`."""
    return [name for name in menu.STRATEGIES if name.startswith(prefix)]


def _strategy(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:  # noqa: ARG001
    if name is None:
        return None
    from cloudtune.policy.registry import STRATEGIES, check_name

    return check_name("strategy", name, {*STRATEGIES, *menu.STRATEGIES})


# The options for what the text of a script may leave open, and for the strategy.
search_options = _together(
    click.option(
        "--search",
        metavar="NAME=SPACE",
        multiple=True,
        help="Parameter to search, such as 'lr=loguniform(1e-4, 1)'; repeatable.",
    ),
    click.option("--metric", metavar="NAME:MODE", help="Metric to optimize, such as accuracy:max."),
    click.option("--epochs", type=int, help="Number of epochs of a full training."),
    click.option(
        "--strategy",
        metavar="NAME",
        callback=_strategy,
        shell_complete=_strategies,
        help=f"Strategy: {', '.join(menu.STRATEGIES)} (others: cloudtune docs papers).",
    ),
)


def find_file(path: Path, given: Mapping[str, Any]) -> Path:
    """Return the experiment file: `path`, or the one beside a script, written if it is missing.

    On a terminal, asks for what the script leaves open.

    Raises:
        UsageError: script and options leave something open, and there is no terminal to ask.
    """
    from cloudtune.api.scripts import experiment_beside, is_script

    if not is_script(path):
        return path
    ask = _ask if at_terminal() else None
    return experiment_beside(path, given, ask=ask, show=lambda line: click.echo(line, err=True))


def confirm(question: str, refusal: str, *, yes: bool) -> None:
    """Ask a person, unless `yes`; without a terminal say `refusal`.

    Raises:
        UsageError: there is no terminal to ask on.
        click.Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{refusal}: add --yes")
    click.confirm(question, abort=True)


# The version of what `-o json` writes: another number once a field has another meaning, or is gone.
SCHEMA = 1


def print_data(data: Mapping[str, Any], output: str = "json") -> None:
    """Print data as JSON, or as YAML, with the version of its fields."""
    data = {"schema": SCHEMA, **data}
    if output == "json":
        click.echo(json.dumps(data, indent=1, allow_nan=False))
        return
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 10_000  # no sentence is folded
    yaml.dump(data, sys.stdout)


def print_line(kind: str, **fields: Any) -> None:
    """Print a line of a stream of JSON."""
    click.echo(json.dumps({"schema": SCHEMA, "type": kind, **fields}))


def at_terminal() -> bool:
    """Whether the command can ask a person."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask(gap: Gap) -> str:
    hints = {
        "metric": "NAME:max or NAME:min",
        "epochs": "a number",
        "search": "NAME=SPACE, as in lr=loguniform(1e-4, 1)",
        "reports": f"where its output has a number, as in {EXAMPLE}",
    }
    hint = hints.get(gap.what, "as in loguniform(1e-4, 1) or choice(32, 64)")
    return str(click.prompt(f"{gap.question[0].upper()}{gap.question[1:]} ({hint})", err=True))


# The options for planning, the profile among them.
planning_options = _together(
    click.option(
        "--objective",
        type=click.Choice(["best", "cost", "time", "trials"]),
        help="best: the best model within the limits. cost, time: a fixed number of trials, as "
        "cheaply or as fast as possible. trials: as many trials as possible.",
    ),
    click.option(
        "--planner", type=click.Choice(menu.PLANNERS), help="Planner to use (default: exact)."
    ),
    click.option(
        "--confidence",
        type=click.FloatRange(0.5, 0.999),
        help="Meet the limits with this probability, rather than on average.",
    ),
    click.option(
        "--profile",
        metavar="FILE|NAME",
        help="Profile to use: a file, or a published one such as resnet50-cifar10@v100.",
    ),
)


def select_plan_options(given: Mapping[str, Any]) -> PlanOptions:
    """Return the planning options among `given`."""
    from cloudtune.forecast.staged_plans import PlanOptions

    return PlanOptions(given.get("objective"), given.get("planner"), given.get("confidence"))


def _output(*forms: str, text: str | None = None) -> Callable[[Command], Command]:
    """Return the option that chooses a form of output other than a table."""
    kind = click.Choice(["table", *forms])
    return click.option("-o", "--output", type=kind, default="table", show_default=True, help=text)


HERE = click.option(
    "--here/--head",
    default=None,
    help="Control the run from this machine, which must be in the VPC, or from a head (aws).",
)
TRY_FIRST = click.option(
    "--try-first/--no-try-first",
    default=None,
    help="Train one trial for an epoch on this machine before renting (aws: unless profiled).",
)
KEEP_FAILED = click.option(
    "--keep-failed",
    metavar="TIME",
    help="Keep an instance whose trial failed for this long, to look at it (within the limits).",
)
OUTPUT = _output("json")
OUTPUT_YAML = _output("json", "yaml")
# A stream of lines; `jsonl` is the older name of the same.
STREAM = _output(
    "json", "jsonl", text="json: one JSON object per line, for programs (cloudtune docs watch)."
)
# The options for a page in a browser, of a run that goes on.
page_options = _together(
    click.option(
        "--html",
        is_flag=True,
        help="Serve the run's page, for this machine's browsers, until it ends.",
    ),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=0,
        help="Port of the page (default: any free one).",
    ),
)
# The options for the output of a live run.
watching_options = _together(
    click.option("-q", "--quiet", is_flag=True, help="Print only the final report."),
    STREAM,
    page_options,
)
YES = click.option("-y", "--yes", is_flag=True, help="Rent without asking first (aws asks).")
PACE = click.option(
    "--pace/--no-pace",
    default=True,
    help="On the emulated cloud, train at the speed of the instance type's scaling curve.",
)
