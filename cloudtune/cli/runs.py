"""`cloudtune runs`: the runs that this machine knows, and which of them have something to tell."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cloudtune.api.experiments import load_experiment
from cloudtune.cli.options import OUTPUT


@click.command()
@click.argument("experiment", required=False, type=click.Path(path_type=Path))
@OUTPUT
def runs(experiment: Path | None, output: str) -> None:
    """List the runs of this machine, the latest first: what they found, and what that cost.

    The last column says whether a later run can learn from it (`history`): which configurations are
    good, and how long things take. With EXPERIMENT, whether a run of that one would. Nothing of
    this leaves the machine.
    """
    from cloudtune.display.runs_table import show_runs  # noqa: PLC0415
    from cloudtune.display.terminal import console  # noqa: PLC0415
    from cloudtune.jobs import history  # noqa: PLC0415

    wanted = None if experiment is None else load_experiment(experiment, {"history": "auto"})
    found = list(history.listed(wanted))
    if output == "json":
        click.echo(json.dumps([history.to_json(each) for each in found], indent=1, allow_nan=False))
    else:
        show_runs(console(), found)
