"""The command line. Reads options, prints, and returns the documented exit codes."""

import contextlib
import importlib
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import get_completion_class

from cloudtune.display.streams import use_steady_streams
from cloudtune.errors import CloudtuneError
from cloudtune.model.plain_text import clean
from cloudtune.runs import home

INTERRUPTED = 130


# Commands whose `-o json` is a stream of lines, with an end.
_STREAMS = frozenset({"run", "resume", "watch", "logs"})


def main() -> None:
    """Run the command line; errors print one message and set the exit code, without a traceback."""
    use_steady_streams()
    as_json = _wants_json(sys.argv[1:])
    error: Exception | None = None
    try:
        home.close()
        code = cli.main(prog_name="cloudtune", standalone_mode=False)
    except click.exceptions.Abort as raised:
        error = raised
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    except click.ClickException as raised:
        error = raised
        raised.show()
        code = 2
    except CloudtuneError as raised:
        error = raised
        click.echo(f"error: {clean(str(raised))}", err=True)
        code = raised.exit_code
    except OSError as raised:  # such as a full disk, or a home folder that can't be written
        where = f"{raised.filename}: " if raised.filename else ""
        error = CloudtuneError(f"{where}{raised.strerror or raised}")
        with contextlib.suppress(OSError):
            click.echo(clean(f"error: {error}"), err=True)
        code = CloudtuneError.exit_code
    except Exception as raised:
        if not as_json:
            raise
        error = raised  # a bug: a program that reads the stream still gets its end
        traceback.print_exc()
        code = CloudtuneError.exit_code
    if as_json:
        with contextlib.suppress(OSError):
            _finish_json(error, code or 0, is_stream=sys.argv[1] in _STREAMS)
    sys.exit(code)


def _wants_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, also one with a mistake."""
    asked = " ".join(words).replace("--output", "-o").replace("-o ", "-o").replace("-o=", "-o")
    return "-ojson" in asked


def _finish_json(error: Exception | None, code: int, *, is_stream: bool) -> None:
    """Print an error as JSON, and the end of a stream."""
    from cloudtune.cli.options import print_line

    if error is not None:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        message = clean(message) or "interrupted"
        place = _PLACE.match(message)
        what, advice = _halves(message[place.end() if place else 0 :])
        print_line(
            "error",
            exit_code=code,
            error=type(error).__name__,
            message=message,
            where=place[1] if place else None,
            what=what,
            do=advice or None,
        )
    if is_stream:
        print_line("end", exit_code=code)


def _halves(message: str) -> tuple[str, str]:
    """Return a message up to its first semicolon that stands in no brackets, and the rest."""
    parts = message.split("; ")
    for count in range(1, len(parts)):
        what = "; ".join(parts[:count])
        if what.count("(") == what.count(")"):
            return what, "; ".join(parts[count:])
    return message, ""


# The file and line with which a message begins.
_PLACE = re.compile(r"(\S+:\d+(?::\d+)?): ")


# Name, module of cloudtune.cli, and the first sentence of the help: enough for `--help` and for a
# shell's completion, which import no command. tests/cli/test_help.py compares them.
COMMANDS = (
    ("init", "plan", "Write a commented experiment file for a training function or program."),
    ("plan", "plan", "Show a run's plan, duration and cost, and the alternatives."),
    ("catalog", "catalog", "List GPU instance types and their prices."),
    ("emulator", "emulator", "Inspect this machine's emulated EC2, and inject faults into it."),
    ("aws", "aws", "Set up an AWS account for cloudtune, check it, and undo the setup."),
    ("status", "cleanup", "Show cloudtune's live instances, their runs and their prices."),
    ("gc", "cleanup", "Terminate what dead runs left behind: instances and local processes."),
    ("rm", "cleanup", "Delete runs: local records, and checkpoints and logs in storage."),
    (
        "try",
        "run",
        "Train one trial on this machine for an epoch, or a minute, to find a script's errors.",
    ),
    ("run", "run", "Tune: rent instances, train and select trials, and report."),
    ("resume", "run", "Resume a run that died, was interrupted, or reached a limit."),
    ("stop", "run", "Stop a run gracefully, as Ctrl-C does in its own terminal."),
    ("watch", "watch", "Follow a run live, as in its own terminal."),
    ("logs", "watch", "Print the output of the workers of RUN, or of TRIAL only."),
    ("exec", "enter", "Run a command on an instance of a live run, as its trials find it."),
    ("shell", "enter", "Open a terminal on an instance of a live run."),
    ("runs", "watch", "List this machine's runs with results and costs, latest first."),
    ("export", "exports", "Export a run's trials, with every metric of every epoch."),
    ("profile", "profile", "Measure how the script scales on rented instances of each type."),
    (
        "simulate",
        "plan",
        "Simulate the run in virtual time: same policy, synthetic learning curves, no cloud.",
    ),
    ("report", "watch", "Show what a run did, planned versus actual."),
    ("docs", "docs", "Print a page of this version's documentation."),
)


class Deferred(click.Command):
    """A command that is imported only when more than its name and short help is needed."""

    def __init__(self, name: str, module: str, sentence: str) -> None:
        super().__init__(name, help=sentence)
        self._module = module

    def load(self) -> click.Command:
        module = importlib.import_module(f"cloudtune.cli.{self._module}")
        command = getattr(module, str(self.name), None) or getattr(module, f"{self.name}_")
        assert isinstance(command, click.Command)
        return command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        return self.load().make_context(info_name, args, parent, **extra)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="cloudtune")
def cli() -> None:
    """Find the best model within a deadline and a dollar budget, on rented GPUs.

    Exit codes: 0 done, 1 error, 2 usage or bad experiment, 3 infeasible, 4 stopped by budget,
    5 stopped by deadline, 6 no capacity, 7 clean-up not confirmed, 8 best model not
    saved, 9 detached: the run continues on its head and bills, 130 interrupted.
    """


for entry in COMMANDS:
    cli.add_command(Deferred(*entry))


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that makes a shell complete commands, options and runs.

    Bash: eval "$(cloudtune completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc, with zsh;
    fish: cloudtune completion fish > ~/.config/fish/completions/cloudtune.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "cloudtune", "_CLOUDTUNE_COMPLETE").source())
