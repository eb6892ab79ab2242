"""What the command line can say, Python can, and the other way round."""

import inspect
from collections.abc import Callable
from typing import Any

import click
import pytest

import cloudtune
from cloudtune.api.experiments import OPTIONS
from cloudtune.cli.plan import plan
from cloudtune.cli.run import resume, run

# Options of the command line for how to print and show; in Python a reporter chooses.
PRINTING = {"quiet", "output", "html", "port"}
# What `cloudtune plan` does with its plan; in Python these are methods of `cloudtune.Plan`.
OF_A_PLAN = {"html", "save", "verbose", "output"}
REPORTERS = {"reporter", "on_event", "progress"}
# Configurations, as a mapping each, which a file has as `initial:`.
VALUES = {"initial"}


@pytest.mark.parametrize(
    ("command", "function", "for_commands", "for_programs"),
    [
        (run, cloudtune.run, PRINTING, REPORTERS | VALUES),
        (resume, cloudtune.resume, PRINTING, REPORTERS),
        (plan, cloudtune.plan, OF_A_PLAN, {"reporter", "try_first", "keep_failed"} | VALUES),
    ],
    ids=["run", "resume", "plan"],
)
def test_options_are_parameters(
    command: click.Command,
    function: Callable[..., Any],
    for_commands: set[str],
    for_programs: set[str],
) -> None:
    options = {item.name for item in command.params if isinstance(item, click.Option)}
    parameters = inspect.signature(function).parameters.values()
    names = {item.name for item in parameters if item.kind is item.KEYWORD_ONLY}
    if any(item.kind is item.VAR_KEYWORD for item in parameters):
        names |= set(OPTIONS)
    assert options - for_commands == names - for_programs
    assert for_commands <= options
    assert for_programs <= names
