"""The command line. Reads options, prints, and returns the documented exit codes."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

import click
from click.shell_completion import get_completion_class

from cloudtune.display.streams import steady
from cloudtune.errors import CloudtuneError
from cloudtune.runs import home

INTERRUPTED = 130


def main() -> None:
    """Run the command line; a mistake gives one message and its exit code, never a traceback."""
    steady()
    try:
        home.close()
        code = cli.main(prog_name="cloudtune", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = 2
    except CloudtuneError as error:
        click.echo(f"error: {error}", err=True)
        code = error.exit_code
    except OSError as error:  # a disk that is full, a home that can't be written
        where = f"{error.filename}: " if error.filename else ""
        with contextlib.suppress(OSError):
            click.echo(f"error: {where}{error.strerror or error}", err=True)
        code = CloudtuneError.exit_code
    sys.exit(code)


# Name, module of cloudtune.cli, and the first sentence of the help: enough for `--help` and for a
# shell's completion, which import no command. tests/cli/test_help.py compares them.
COMMANDS = (
    ("init", "plan", "Write a commented experiment for a function that trains, or a program."),
    ("plan", "plan", "Show what a run would do, take and cost, and what else could be done."),
    ("catalog", "catalog", "List the instance types with GPUs, and what they cost."),
    ("emulator", "emulator", "Look into this machine's emulated EC2, and inject faults into it."),
    ("aws", "aws", "Make an AWS account ready for cloudtune, look whether it is, and undo it."),
    (
        "status",
        "cleanup",
        "Show which instances of ours are alive, whose they are, what they cost.",
    ),
    ("gc", "cleanup", "Give back what dead runs have left: instances, and processes here."),
    ("rm", "cleanup", "Remove runs: their records here, checkpoints and logs in the storage."),
    ("run", "run", "Tune: rent, train, cut, grow, give back, and report."),
    ("resume", "run", "Go on with the trials of a run that died, was interrupted, or met a limit."),
    ("stop", "run", "End a run in order, as Ctrl-C does where it runs."),
    ("watch", "watch", "Show a run as it goes, as its own terminal does."),
    ("logs", "watch", "Print what the workers of RUN have printed, or those of TRIAL."),
    ("runs", "watch", "List this machine's runs, the latest first: what they found and cost."),
    ("export", "exports", "Write a run's trials, every metric of every epoch, for other programs."),
    ("profile", "profile", "Measure how the script scales on rented instances of each type."),
    (
        "simulate",
        "simulate",
        "Play the run in virtual time: the same policy, made-up learning curves, no cloud.",
    ),
    ("report", "report", "Show what a run did, planned against actual."),
)


class Deferred(click.Command):
    """A command that is imported when it is asked for anything but its name and short help."""

    def __init__(self, name: str, module: str, sentence: str) -> None:
        super().__init__(name, help=sentence)
        self._module = module

    def load(self) -> click.Command:
        """Return the command itself."""
        command = getattr(importlib.import_module(f"cloudtune.cli.{self._module}"), str(self.name))
        assert isinstance(command, click.Command)
        return command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of the command itself."""
        return self.load().make_context(info_name, args, parent, **extra)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="cloudtune")
def cli() -> None:
    """Find the best model that a deadline and a dollar budget can buy, on rented GPUs.

    Exit codes: 0 done, 1 error, 2 usage or bad experiment, 3 infeasible, 4 stopped by budget,
    5 stopped by deadline, 6 no capacity, 7 clean-up not confirmed, 8 best model not
    saved, 130 interrupted and clean.
    """


for entry in COMMANDS:
    cli.add_command(Deferred(*entry))


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands, options and runs.

    Bash: eval "$(cloudtune completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc, with zsh;
    fish: cloudtune completion fish > ~/.config/fish/completions/cloudtune.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "cloudtune", "_CLOUDTUNE_COMPLETE").source())
