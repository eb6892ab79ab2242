"""`cloudtune profile`: measure how a script scales, and ask before renting."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click
from rich.console import Console

from cloudtune.cli.options import (
    OUTPUT,
    PACE,
    TRY_FIRST,
    YES,
    GroupedCommand,
    confirm,
    experiment_options,
    print_data,
)
from cloudtune.clock import unix_time
from cloudtune.display.terminal import console
from cloudtune.model.units import format_dollars
from cloudtune.runs import control

if TYPE_CHECKING:
    from cloudtune.experiment import Experiment
    from cloudtune.lifecycle.outcomes import Measured
    from cloudtune.model.scaling import ScalingProfile
    from cloudtune.model.trial import Parallel
    from cloudtune.runs.job import Job


# Upper bound for GPUs per trial, against typing errors.
_WIDEST = 1024
_MOST_PACKED = 64


def confirm_rental(wanted: Experiment, job: Job | None, *, yes: bool) -> None:
    """Ask before spending money, if the provider requires it.

    Raises:
        UsageError: there is no terminal to ask on.
    """
    from cloudtune.infra.provider import find_provider
    from cloudtune.lifecycle.planning import read_limits
    from cloudtune.runs.job import make_basis

    whose = find_provider(wanted.cloud.provider).asks_first
    if not whose:
        return
    budget = read_limits(wanted).budget
    cap = "no cap" if budget is None else f"at most {format_dollars(budget)}"
    price = f"measuring the script, {cap}"
    if job is not None:
        basis = make_basis(job.experiment, job.rentables)
        expected = format_dollars(job.plan.estimate.dollars)
        price = f"{expected}, {cap}, by figures {basis.text}"
    refusal = f"renting from {whose} needs confirmation, without a terminal"
    confirm(f"Rent from {whose}: {price}. Continue?", refusal, yes=yes)


def _whole_gpus(_context: Any, _option: Any, text: str | None) -> tuple[int, ...]:
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= _WIDEST for part in parts):
        raise click.BadParameter(
            f"{text!r}: write whole GPUs, as in 1,2,3,4; for shares use --pack"
        )
    return tuple(map(int, parts))


def _trials_on_a_gpu(_context: Any, _option: Any, text: str | None) -> int | Literal["auto"]:
    if text is None:
        return 1
    if text == "auto":
        return "auto"
    if not (text.isdecimal() and 2 <= int(text) <= _MOST_PACKED):
        raise click.BadParameter(f"{text!r}: write auto, or a number from 2 to {_MOST_PACKED}")
    return int(text)


@click.command(
    cls=GroupedCommand,
    first=("--widths", "--pack", "--provider", "--instances", "--budget", "--save"),
)
@click.argument("experiment", type=click.Path(path_type=Path))
@experiment_options
@PACE
@TRY_FIRST
@click.option(
    "--epochs",
    type=click.IntRange(min=2),
    default=4,
    show_default=True,
    help="Number of epochs to train at each width.",
)
@click.option(
    "--pack",
    callback=_trials_on_a_gpu,
    metavar="2..64|auto",
    help="Also measure 2, 4, … up to this many trials per GPU; auto measures 2 and predicts more.",
)
@click.option(
    "--widths",
    callback=_whole_gpus,
    metavar="GPUS",
    help="GPUs per trial to measure, such as 1,2,4,8 (on several instances if need be).",
)
@click.option(
    "--parallel",
    type=click.Choice(("ddp,fsdp", "ddp", "fsdp")),
    help="Strategies to measure on several GPUs; the faster at each width counts.",
)
@click.option("--save", type=click.Path(path_type=Path), help="Also write the profile to a file.")
@YES
@OUTPUT
@control.outliving_its_terminal()
def profile(
    experiment: Path,
    *,
    pace: bool,
    epochs: int,
    pack: int | Literal["auto"],
    widths: tuple[int, ...],
    parallel: str | None,
    save: Path | None,
    yes: bool,
    output: str,
    **given: Any,
) -> None:
    """Measure how the script scales on rented instances of each type."""
    from cloudtune.api.experiments import for_renting
    from cloudtune.display.run_screen import print_measuring_event
    from cloudtune.forecast.problem import instance_types, stored_profiles
    from cloudtune.lifecycle import dry_run, measuring, runner
    from cloudtune.lifecycle.flow import refuse_partial_profiles
    from cloudtune.lifecycle.planning import read_limits
    from cloudtune.model.serialization import encode
    from cloudtune.profiles import store

    wanted = for_renting(experiment, given)
    runner.enter_environment(wanted)
    dry_run.check_script(wanted, has_run=bool(stored_profiles(wanted)))
    confirm_rental(wanted, None, yes=yes)
    # Of JSON there is one object, at the end: what happens until then goes to standard error.
    out = console() if output == "table" else Console(stderr=True)
    profiles: list[ScalingProfile] = []
    spent = 0.0
    began = unix_time()
    names = [machine.name for machine in instance_types(wanted)]
    tried = cast("list[Parallel]", [] if parallel is None else parallel.split(","))
    for number, name in enumerate(names):
        limits = read_limits(wanted).less(unix_time() - began, spent)
        measured = measuring.measure(
            wanted,
            name,
            functools.partial(print_measuring_event, out),
            pace=pace,
            limits=limits,
            epochs=epochs,
            pack=pack,
            widths=widths,
            share=1 / (len(names) - number),
            core_seconds=profiles[0].provenance.core_seconds if profiles else None,
            parallel=tried,
        )
        spent += measured.dollars
        profiles.append(measured.profile)
        show_profile(measured, measuring.keep_profile(measured.profile), out)
        refuse_partial_profiles(measured)
    if save is not None:
        store.write(save, profiles)
    if output == "json":
        print_data({"profiles": [encode(it) for it in profiles], "dollars": spent})
        return
    click.echo(measuring_cost(wanted, spent))


def measuring_cost(wanted: Experiment, dollars: float) -> str:
    """Return a sentence on the cost of a measurement."""
    from cloudtune.infra.provider import find_provider

    if not dollars:
        return "Measuring cost nothing"
    emulated = " (emulated: not billed)" if find_provider(wanted.cloud.provider).paced else ""
    return f"Measuring cost {format_dollars(dollars)}{emulated}"


def show_profile(measured: Measured, kept: Path, out: Console | None = None) -> None:
    """Show a measured profile and the file that keeps it."""
    from cloudtune.display.report_screen import show_profile

    out = out or console()
    show_profile(out, measured.profile)
    for note in measured.notes:
        out.print(f"note: {note}", markup=False)
    out.print(f"saved to {kept}", markup=False, soft_wrap=True)
