"""What runs and plans are written to: pages of HTML, and the formats of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloudtune.cli.options import RUN, GroupedCommand

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS = ("csv", "parquet", "tensorboard", "mlflow", "wandb")

HTML = click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a page of interactive charts that works offline.",
)
HTML_OF_RUN = click.option(
    "--html",
    type=click.Path(path_type=Path),
    is_flag=False,
    flag_value=Path("-"),
    metavar="[FILE]",
    help="Write a page of interactive charts that works offline (default: RUN.html).",
)
BESIDE = Path("-")
"""What `--html` without a file gives."""


def check_page(path: Path | None) -> None:
    """Pass if a page can be written there, as far as that can be known before anything is done.

    Raises:
        UsageError: it is no name of a page, or plotly isn't installed.
    """
    if path is None:
        return
    from cloudtune.display.pages.document import check_installed, check_path  # noqa: PLC0415

    if path != BESIDE:
        check_path(path)
    check_installed()


def save_page(path: Path, page: Callable[[], str]) -> None:
    """Write a page, and say so on standard error.

    Raises:
        UsageError: it can't be written there.
    """
    from cloudtune.display.pages.document import write  # noqa: PLC0415

    click.echo(write(path, page()), err=True)


@click.command(cls=GroupedCommand)
@RUN
@click.option(
    "--to", "kind", type=click.Choice(FORMATS), required=True, help="Program to export for."
)
@click.option(
    "--out",
    metavar="FOLDER|URI",
    help="Folder to write to (default: RUN-FORMAT); for MLflow also the URI of a server.",
)
def export(run: str | None, kind: str, out: str | None) -> None:
    """Write a run's trials, every metric of every epoch, for other programs.

    Without RUN, the last one. TensorBoard, MLflow and Weights & Biases by their own libraries, a
    run for each trial; csv and parquet: trials, history, GPUs and summary, a file each. Nothing
    leaves the machine but to an MLflow server that --out names.
    """
    from cloudtune.api.exports import export_run  # noqa: PLC0415
    from cloudtune.api.results import load_run  # noqa: PLC0415

    found = load_run(run)
    target = f"{found.name}-{kind}" if out is None else out
    click.echo(export_run(found, kind, target))
