"""`cloudtune exec` and `shell`: a person's way into the instances of a live run."""

from __future__ import annotations

import click

from cloudtune.cli.options import RUN
from cloudtune.errors import UsageError
from cloudtune.runs import home


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument(
    "words",
    metavar="RUN [INSTANCE|TRIAL] -- COMMAND",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
)
def exec_(words: tuple[str, ...]) -> int:
    """Run a command on an instance of a live run, as its trials find it.

    It runs in the folder of the script, with the Python and the packages of its trials, and
    returns the command's exit code. INSTANCE is an id of `cloudtune status`, or head; it may be
    left out where there is only one. What was run is kept for its report.
    """
    from cloudtune.lifecycle.entering import enter

    if "--" not in words:
        raise UsageError("write the command after two dashes: cloudtune exec RUN -- nvidia-smi")
    at = words.index("--")
    named, command = words[:at], words[at + 1 :]
    if not command or len(named) > len(("run", "target")):
        raise UsageError("write cloudtune exec RUN [INSTANCE|TRIAL] -- COMMAND")
    run, target = (*named, "", "")[:2]
    return enter(home.find_run(run or None), target, command)


@click.command()
@RUN
@click.argument("target", metavar="INSTANCE|TRIAL", required=False)
def shell(run: str | None, target: str | None) -> int:
    """Open a terminal on an instance of a live run.

    INSTANCE is an id of `cloudtune status`, or head; it may be left out where there is only one.
    """
    from cloudtune.lifecycle.entering import enter

    return enter(home.find_run(run), target or "", ())
