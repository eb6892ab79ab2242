"""`cloudtune simulate --curves`: which strategy, before any money is spent."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from cloudtune import simulate_tables
from cloudtune.curves import Columns, read_curves
from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.offer_tables import offers_of
from cloudtune.plan import Limits
from cloudtune.simulate_options import (
    delay_options,
    offer_options,
    output_options,
    table_options,
    way_options,
)
from cloudtune.simulate_tables import Cell
from cloudtune.simulating import play_all
from cloudtune.staged import STAGED
from cloudtune.study import Delays, Study, study
from cloudtune.tables import scalings
from cloudtune.tactics import SUITED, sampler_for
from cloudtune.trying import Try, check
from cloudtune.units import parse_dollars, parse_seconds
from cloudtune.wording import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from cloudtune.trying import Outcome

_SHOWN = 5
_WIDE = 160
_DELAYS = frozenset({"launch", "boot", "start", "resize", "release"})


@click.command(name="simulate")
@table_options
@offer_options
@way_options
@delay_options
@output_options
def simulate_curves(*, jobs: int | None, out: Path | None, output: str, **given: Any) -> int:
    """Compare strategies on recorded learning curves, in virtual time and virtual dollars.

    Every way (strategy, allocator, fleet, eta, sampler) is played within every deadline and budget,
    with every seed. Rents nothing; the same options give the same output.
    """
    tried = _study(given)
    wanted = list(_tries(given))
    for one in wanted:
        check(tried, one)
    if out is not None:
        with _writing(out):
            pass  # before anything takes long
    _tell(tried.curves.notices)
    seeds = range(given["seed"], given["seed"] + given["seeds"])
    cells = _played(tried, wanted, seeds, jobs or os.cpu_count() or 1)
    _show(tried, cells, output)
    if out is not None:
        _write(out, tried, cells)
    _refuse_violations(cells)
    return 0


class Simulate(click.Command):
    """`simulate EXPERIMENT` and `simulate --curves FILE`: each has options of its own."""

    def __init__(self, experiment: click.Command) -> None:
        super().__init__("simulate", params=experiment.params, help=experiment.help)
        self._experiment = experiment

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of the one that the arguments ask for."""
        by_curves = any(arg.partition("=")[0] == "--curves" for arg in args)
        chosen = simulate_curves if by_curves else self._experiment
        return chosen.make_context(info_name, args, parent, **extra)


# ---- what is asked -------------------------------------------------------------------------------


def _study(given: Mapping[str, Any]) -> Study:
    """Return what there is to try strategies on.

    Raises:
        UsageError: a mistake in a table, or nobody says how long an epoch takes.
    """
    columns = Columns(
        given["config_column"],
        given["epoch_column"],
        given["seconds_column"],
        given["elapsed_column"],
        given["planned_column"],
        tuple(_listed(given["hyperparameters"])),
    )
    curves = read_curves(
        given["curves"],
        given["metric"],
        given["mode"],
        columns=columns,
        configs=given["configs"],
        where=[_condition(each) for each in given["where"]],
    )
    offers = offers_of(given["offers"], given["market"])
    scaling = scalings(given["profile"], [offer.instance_type for offer in offers])
    epoch_seconds = _optional(given, "epoch_seconds") or curves.mean_seconds
    if epoch_seconds is None:
        raise UsageError(
            f"{given['curves']}: says nothing of how long an epoch takes; name its column with "
            "--seconds-column or --elapsed-column, or give --epoch-seconds, as in 5m"
        )
    return study(
        curves,
        scaling,
        offers,
        epoch_seconds=epoch_seconds,
        delays=_delays(given),
        max_instances=given["max_instances"],
    )


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--where {shown(text)}: write COLUMN=VALUE")
    return column.strip(), value.strip()


def _delays(given: Mapping[str, Any]) -> Delays:
    return Delays(
        launch=_seconds("launch", given["launch"]),
        boot=_seconds("boot", given["boot"]),
        start=_optional(given, "start"),
        resize=_optional(given, "resize"),
        release=_seconds("release", given["release"]),
        spread=given["spread"],
    )


def _optional(given: Mapping[str, Any], name: str) -> float | None:
    return None if given[name] is None else _seconds(name, given[name])


def _seconds(name: str, text: str) -> float:
    option = name.replace("_", "-")
    if text.strip() in {"0", "0s"} and name in _DELAYS:
        return 0.0
    try:
        return parse_seconds(text)
    except UsageError as error:
        raise UsageError(f"--{option}: {error}") from None


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _deadlines(text: str) -> list[float | None]:
    found = _listed(text) or ["none"]
    return [None if one == "none" else _seconds("deadline", one) for one in found]


def _budgets(text: str) -> list[float | None]:
    return [None if one == "none" else _dollars(one) for one in _listed(text) or ["none"]]


def _dollars(text: str) -> float:
    """Return an amount; nothing is one too: what it buys is shown."""
    if text.removeprefix("$").replace(".", "").strip("0") == "" and "0" in text:
        return 0.0
    try:
        return parse_dollars(text)
    except UsageError as error:
        raise UsageError(f"--budget: {error}") from None


def _eta(text: str) -> int:
    if not (text.isdecimal() and int(text) > 1):
        raise UsageError(f"--eta {shown(text)}: write whole numbers above 1, as in 2,3,4")
    return int(text)


def _tries(given: Mapping[str, Any]) -> Iterator[Try]:
    """Yield each way within each pair of limits, with the first seed."""
    pairs = itertools.product(_deadlines(given["deadline"]), _budgets(given["budget"]))
    limits = [Limits(deadline, budget) for deadline, budget in pairs]
    for within, strategy in itertools.product(limits, _listed(given["strategy"])):
        etas = [_eta(one) for one in _listed(given["eta"])]
        for allocator, fleet, eta, sampler in itertools.product(
            *_places(given, strategy), etas, _samplers(given, strategy)
        ):
            yield Try(
                strategy,
                within,
                allocator=allocator,
                fleet=fleet,
                eta=eta,
                min_epochs=given["min_epochs"],
                seed=given["seed"],
                sampler=sampler,
                max_trials=given["max_trials"],
            )


def _samplers(given: Mapping[str, Any], strategy: str) -> list[str]:
    """Return the samplers for a strategy: those asked for, or the one that suits it."""
    return _listed(given["sampler"]) or [sampler_for(strategy)[0]]


def _places(given: Mapping[str, Any], strategy: str) -> tuple[list[str], list[str]]:
    """Return the allocators and the fleets for a strategy; one that plans itself has its own."""
    if strategy in STAGED:
        return [""], [""]
    allocator, fleet = SUITED.get(strategy, ("same", "naive"))
    return _listed(given["allocator"]) or [allocator], _listed(given["fleet"]) or [fleet]


# ---- what comes of it ----------------------------------------------------------------------------


def _played(study: Study, wanted: Sequence[Try], seeds: range, processes: int) -> list[Cell]:
    """Play every way with every seed, and say how fast that went."""
    runs = [replace(one, seed=seed) for one in wanted for seed in seeds]
    began = time.perf_counter()
    found = list(_watched(play_all(study, runs, processes), len(runs)))
    took = time.perf_counter() - began
    click.echo(f"{len(runs)} jobs in {took:.1f} s: {len(runs) / took:.1f} jobs a second", err=True)
    size = len(seeds)
    return [
        Cell(one, tuple(found[number * size : (number + 1) * size]))
        for number, one in enumerate(wanted)
    ]


def _watched(outcomes: Iterator[Outcome], total: int) -> Iterator[Outcome]:
    """Pass outcomes on, with a bar on a terminal."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import track  # noqa: PLC0415

    out = Console(stderr=True)
    if not out.is_terminal:
        return outcomes
    return iter(track(outcomes, "Simulating", total, console=out, transient=True))


def _tell(notices: Sequence[str]) -> None:
    for notice in notices:
        click.echo(f"note: {notice}", err=True)


def _show(study: Study, cells: Sequence[Cell], output: str) -> None:
    if output == "json":
        data = simulate_tables.to_json(study, cells)
        click.echo(json.dumps(data, indent=1, allow_nan=False))
    elif output == "csv":
        click.echo(simulate_tables.cells_csv(cells), nl=False)
    else:
        from cloudtune.screen import console  # noqa: PLC0415
        from cloudtune.screen_sheets import print_sheet  # noqa: PLC0415

        out, curves = console(), study.curves
        if not out.is_terminal:
            out.width = max(out.width, _WIDE)
        out.print(
            f"{len(curves.curves)} configurations of up to {curves.max_epochs} epochs; "
            f"the best {curves.metric} there is: {curves.best:.4g} ({curves.mode})"
        )
        for sheet in simulate_tables.sheets(study, cells, out.width):
            print_sheet(out, sheet)
        out.print()
        out.print(simulate_tables.kept(cells))


def _write(folder: Path, study: Study, cells: Sequence[Cell]) -> None:
    """Write all that is told of the cells.

    Raises:
        UsageError: it can't be written there.
    """
    from cloudtune.plot_runs import plots  # noqa: PLC0415  matplotlib takes a second

    with _writing(folder):
        (folder / "cells.csv").write_text(simulate_tables.cells_csv(cells), encoding="utf-8")
        (folder / "runs.csv").write_text(simulate_tables.runs_csv(cells), encoding="utf-8")
        for name, content in plots(study, cells):
            (folder / name).write_bytes(content)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(
            f"--out {folder}: can't be written ({error.strerror}); name a folder that is yours"
        ) from None


def _refuse_violations(cells: Sequence[Cell]) -> None:
    """Pass if every run kept its limits, by its ledger.

    Raises:
        CloudtuneError: some didn't; the message says which, and how.
    """
    found = [
        f"{cell.name}, {simulate_tables.limits_text(cell.limits)}, seed {seed}: {violation}"
        for cell in cells
        for seed, outcome in cell.seeds
        for violation in outcome.violations
    ]
    if found:
        more = f"\n… and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        first = "\n".join(found[:_SHOWN])
        raise CloudtuneError(f"runs passed their limits (a bug in cloudtune):\n{first}{more}")
