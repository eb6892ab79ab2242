"""What `--help` and a shell's completion show: what people use first, and the menu alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cloudtune.cli.main import Deferred, cli
from cloudtune.cli.plan import plan
from cloudtune.model import menu
from docs.reference import commands
from tests.bench import called


@pytest.mark.parametrize("verb", ["plan", "run", "simulate"])
def test_help_names_the_menu_alone(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    shown = " ".join(called(capsys, verb, "--help").out.split())
    assert ", ".join(menu.STRATEGIES) in shown
    assert "seer" not in shown


def test_an_unknown_strategy_is_answered_with_the_menu(capsys: pytest.CaptureFixture[str]) -> None:
    said = called(capsys, "plan", "experiment.yaml", "--strategy", "ashaa").refused()
    names = ", ".join(menu.STRATEGIES)
    assert f"unknown strategy 'ashaa'; choose one of {names} (cloudtune docs papers" in said.err


def _read_options(command: click.Command) -> tuple[list[str], list[str]]:
    """Return the options below each of the two headings of a command's help."""
    context = click.Context(command, info_name="x", help_option_names=["-h", "--help"])
    first, _, more = command.get_help(context).partition("Options:")[2].partition("More options:")
    option = re.compile(r"^ .*?(--[a-z-]+)", re.MULTILINE)
    return option.findall(first), option.findall(more)


@pytest.mark.parametrize(("typed", "item"), list(commands().items()))
def test_help_begins_with_six_options_at_most(typed: str, item: click.Command) -> None:
    first, more = _read_options(item)
    assert len(first) <= 6 + len(["--help"]), typed
    assert not more or len(first) == 6 + 1
    shown = {option.opts[-1] for option in item.params if isinstance(option, click.Option)}
    hidden = {o.opts[-1] for o in item.params if isinstance(o, click.Option) and o.hidden}
    assert {*first, *more} - {"--help"} == shown - hidden


def test_the_shell_completes_the_strategies_of_the_menu() -> None:
    option = next(param for param in plan.params if param.name == "strategy")
    words = option.shell_complete(click.Context(plan), "")
    assert tuple(word.value for word in words) == menu.STRATEGIES


@pytest.mark.parametrize("name", cli.commands)
def test_deferred_command_has_same_help(name: str) -> None:
    entry = cli.commands[name]
    command = entry.load() if isinstance(entry, Deferred) else entry
    assert (command.name, command.hidden) == (name, entry.hidden)
    assert entry.get_short_help_str(1000) == command.get_short_help_str(1000)


@pytest.mark.parametrize(
    ("arguments", "environment", "shown"),
    [
        (["--help"], {}, "Show a run's plan, duration and cost"),
        (
            [],
            {
                "_CLOUDTUNE_COMPLETE": "bash_complete",
                "COMP_WORDS": "cloudtune res",
                "COMP_CWORD": "1",
            },
            "plain,resume\n",
        ),
    ],
    ids=["help", "completion"],
)
def test_help_is_lean(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], shown: str
) -> None:
    loaded = list_imports(shown, *arguments, CLOUDTUNE_HOME=str(tmp_path), **environment)
    assert loaded & {"numpy", "pydantic", "rich", "boto3", "cloudtune.cli.options"} == set()


@pytest.mark.parametrize("name", ["plan", "run", "watch", "profile", "report", "simulate", "gc"])
def test_options_are_shown_without_what_a_command_needs(tmp_path: Path, name: str) -> None:
    loaded = list_imports("Options:", name, "--help", CLOUDTUNE_HOME=str(tmp_path))
    assert loaded & {"numpy", "pydantic", "boto3", "ray", "cloudtune.experiment"} == set()


def list_imports(shown: str, *arguments: str, **environment: str) -> set[str]:
    """Run cloudtune, which prints `shown`; return the modules that it imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cloudtune", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown in done.stdout
    loaded = set(re.findall(r"\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "click" in loaded
    return loaded
