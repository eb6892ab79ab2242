"""What `--help` and a shell's completion show: what people use first, and the menu alone."""

from __future__ import annotations

import re

import click
import pytest

from cloudtune.cli.plan import plan
from cloudtune.policy.registry import MENU
from docs.reference import commands
from tests.bench import called


@pytest.mark.parametrize("verb", ["plan", "run", "simulate"])
def test_the_help_names_the_strategies_of_the_menu_alone(
    capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    shown = " ".join(called(capsys, verb, "--help").out.split())
    assert ", ".join(MENU) in shown
    assert "seer" not in shown


def test_an_unknown_strategy_is_answered_with_the_menu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = called(capsys, "plan", "experiment.yaml", "--strategy", "ashaa")
    assert said.code == 2
    assert f"unknown strategy 'ashaa'; choose one of {', '.join(MENU)} (docs/papers.md" in said.err


def _listed(command: click.Command) -> tuple[list[str], list[str]]:
    """Return the options below each of the two headings of a command's help."""
    context = click.Context(command, info_name="x", help_option_names=["-h", "--help"])
    first, _, more = command.get_help(context).partition("Options:")[2].partition("More options:")
    option = re.compile(r"^ .*?(--[a-z-]+)", re.MULTILINE)
    return option.findall(first), option.findall(more)


@pytest.mark.parametrize(("typed", "each"), list(commands().items()))
def test_help_begins_with_six_options_at_most(typed: str, each: click.Command) -> None:
    first, more = _listed(each)
    assert len(first) <= 6 + len(["--help"]), typed
    assert not more or len(first) == 6 + 1
    shown = {option.opts[-1] for option in each.params if isinstance(option, click.Option)}
    hidden = {o.opts[-1] for o in each.params if isinstance(o, click.Option) and o.hidden}
    assert {*first, *more} - {"--help"} == shown - hidden


def test_the_shell_completes_the_strategies_of_the_menu() -> None:
    option = next(each for each in plan.params if each.name == "strategy")
    words = option.shell_complete(click.Context(plan), "")
    assert tuple(word.value for word in words) == MENU
