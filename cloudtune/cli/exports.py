"""Exports of runs and plans: HTML pages, and the formats of other programs."""

from collections.abc import Callable
from pathlib import Path

import click

from cloudtune.cli.options import OUTPUT, RUN, GroupedCommand, print_data
from cloudtune.errors import UsageError

FORMATS = ("csv", "parquet", "tensorboard", "mlflow", "wandb")

HTML = click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a page of interactive charts (works offline).",
)
HTML_OF_RUN = click.option(
    "--html",
    type=click.Path(path_type=Path),
    is_flag=False,
    flag_value=Path("-"),
    metavar="[FILE]",
    help="Write a page of interactive charts (works offline; default: RUN.html).",
)
FIGURE = click.option(
    "--figure",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Write one picture of the run: which trial had which GPU, and the metric over time.",
)
# The value of `--html` without a file.
BESIDE = Path("-")


def check_page(path: Path | None) -> None:
    """Check, before any work, that a page can be written to `path`.

    Raises:
        UsageError: `path` doesn't name a page, or plotly isn't installed.
    """
    if path is None:
        return
    from cloudtune.display.pages.document import require_plotly

    if path != BESIDE and path.suffix.lower() not in {".html", ".htm"}:
        raise UsageError(
            f"--html {path}: name a file that ends in .html (a run's or an experiment's name goes "
            "before --html)"
        )
    require_plotly()


def check_figure(path: Path | None) -> None:
    """Check, before any work, that a figure can be written to `path`.

    Raises:
        UsageError: it has another ending.
    """
    if path is not None and path.suffix.lower() != ".svg":
        raise UsageError(f"--figure {path}: name a file that ends in .svg")


def save_page(path: Path, page: Callable[[], str], option: str = "--html") -> None:
    """Write a page or a figure, and print its path to standard error.

    Raises:
        UsageError: the file can't be written.
    """
    from cloudtune.display.pages.document import write

    click.echo(write(path, page(), option), err=True)


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
@OUTPUT
def export(run: str | None, kind: str, out: str | None, output: str) -> None:
    """Export a run's trials, with every metric of every epoch.

    Without RUN, the last one. TensorBoard, MLflow and Weights & Biases get one run per trial,
    written by their own libraries; csv and parquet get one file each for trials, history, GPUs and
    summary. No data leaves the machine unless --out names an MLflow server.
    """
    from cloudtune.api.exports import export_run
    from cloudtune.api.results import load_run

    run_result = load_run(run)
    target = f"{run_result.name}-{kind}" if out is None else out
    said = export_run(run_result, kind, target)
    if output == "json":
        print_data({"run": run_result.name, "to": kind, "out": target})
        return
    click.echo(said)
