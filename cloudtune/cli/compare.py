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

from cloudtune.cli.compare_options import (
    delay_options,
    offer_options,
    output_options,
    table_options,
    way_options,
)
from cloudtune.cli.exports import check_page, save_page
from cloudtune.cli.options import GroupedCommand
from cloudtune.display import comparison_tables
from cloudtune.display.comparison_tables import Cell
from cloudtune.errors import CloudtuneError, UsageError, need, shown
from cloudtune.jobs.history import past_runs
from cloudtune.plans import Limits
from cloudtune.policy.registry import WHOSE, chosen, sampler_for
from cloudtune.private_files import for_others
from cloudtune.scaling import DELAYS
from cloudtune.simulation.benchmark import Benchmark, Delays, benchmark
from cloudtune.simulation.case import Case, check
from cloudtune.simulation.curves import Columns, read_curves
from cloudtune.simulation.offer_table import offers_of
from cloudtune.simulation.parallel import play_all
from cloudtune.simulation.speed_table import scalings
from cloudtune.simulation.trace_file import matched, read_traces
from cloudtune.units import format_seconds, parse_dollars, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from cloudtune.catalog import Offer
    from cloudtune.engine.spot_pools import PoolTrace
    from cloudtune.policy.registry import Choice
    from cloudtune.simulation.case import Result

_SHOWN = 5
_WIDE = 160


@click.command(
    "simulate",
    cls=GroupedCommand,
    first=("--curves", "--metric", "--mode", "--strategy", "--profile", "--offers"),
)
@table_options
@offer_options
@way_options
@delay_options
@output_options
def simulate_curves(
    *, jobs: int | None, out: Path | None, html: Path | None, output: str, **given: Any
) -> int:
    """Compare strategies on recorded learning curves, in virtual time and virtual dollars.

    Every way (strategy, allocator, fleet, eta, sampler) is played within every deadline and budget,
    with every seed. Rents nothing; the same options give the same output.
    """
    check_page(html)
    tried = _benchmark(given)
    wanted = list(_tries(given))
    for one in wanted:
        check(tried, one)
    if out is not None:
        need("plots", "--out", "matplotlib")
        with _writing(out):
            pass  # before anything takes long
    _tell(tried.curves.notices)
    seeds = range(given["seed"], given["seed"] + given["seeds"])
    cells = _played(tried, wanted, seeds, jobs or os.cpu_count() or 1)
    _show(tried, cells, output)
    if out is not None:
        _write(out, tried, cells)
    if html is not None:
        from cloudtune.display.pages.comparisons import comparison_page  # noqa: PLC0415

        save_page(html, lambda: comparison_page(tried, cells))
    _refuse_violations(cells)
    return 0


# ---- what is asked -------------------------------------------------------------------------------


def _benchmark(given: Mapping[str, Any]) -> Benchmark:
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
    if given["billing"] is not None:
        offers = tuple(offer.billed(given["billing"]) for offer in offers)
    scaling = scalings(given["profile"], [offer.instance_type for offer in offers])
    epoch_seconds = _optional(given, "epoch_seconds") or curves.mean_seconds
    if epoch_seconds is None:
        raise UsageError(
            f"{given['curves']}: says nothing of how long an epoch takes; name its column with "
            "--seconds-column or --elapsed-column, or give --epoch-seconds, as in 5m"
        )
    return benchmark(
        curves,
        scaling,
        offers,
        epoch_seconds=epoch_seconds,
        delays=_delays(given),
        max_instances=given["max_instances"],
        traces=_traces(given["spot_trace"], given["spot_where"], offers),
    )


def _traces(
    file: Path | None, where: Sequence[str], offers: Sequence[Offer]
) -> Mapping[Offer, PoolTrace]:
    """Return the trace of each spot offer; none where no file is given.

    Raises:
        UsageError: a mistake in the file, or it isn't clear which trace is of which offer.
    """
    if file is None:
        if where:
            raise UsageError("--spot-where: is for --spot-trace FILE; give one, or leave it out")
        return {}
    return matched(read_traces(file, where), offers, file)


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
    if text.strip() in {"0", "0s"} and name in DELAYS:
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


def _tries(given: Mapping[str, Any]) -> Iterator[Case]:
    """Yield each way within each pair of limits, with the first seed."""
    pairs = itertools.product(_deadlines(given["deadline"]), _budgets(given["budget"]))
    limits = [Limits(deadline, budget) for deadline, budget in pairs]
    past = past_runs(_listed(given["history"]))
    for within, strategy in itertools.product(limits, _listed(given["strategy"])):
        etas = [_eta(one) for one in _listed(given["eta"])]
        for place, eta, sampler in itertools.product(
            _places(given, strategy), etas, _samplers(given, strategy)
        ):
            yield Case(
                strategy,
                within,
                allocator=place.allocator,
                fleet=place.fleet,
                eta=eta,
                min_epochs=given["min_epochs"],
                seed=given["seed"],
                sampler=sampler,
                max_trials=given["max_trials"],
                past=past,
            )


def _samplers(given: Mapping[str, Any], strategy: str) -> list[str]:
    """Return the samplers for a strategy: those asked for, or the one that suits it."""
    return _listed(given["sampler"]) or [sampler_for(strategy)[0]]


def _places(given: Mapping[str, Any], strategy: str) -> list[Choice]:
    """Return the allocators and the fleets for a strategy: those asked for, or what suits it."""
    asked = itertools.product(_listed(given["allocator"]) or [""], _listed(given["fleet"]) or [""])
    return [chosen(strategy, allocator, fleet) for allocator, fleet in asked]


# ---- what comes of it ----------------------------------------------------------------------------


def _played(
    benchmark: Benchmark, cases: Sequence[Case], seeds: range, processes: int
) -> list[Cell]:
    """Play every way with every seed, and say how fast that went."""
    runs = [replace(case, seed=seed) for case in cases for seed in seeds]
    began = time.perf_counter()
    found = list(_watched(play_all(benchmark, runs, processes), len(runs)))
    took = time.perf_counter() - began
    click.echo(f"{len(runs)} jobs in {took:.1f} s: {len(runs) / took:.1f} jobs a second", err=True)
    size = len(seeds)
    return [
        Cell(case, tuple(found[number * size : (number + 1) * size]))
        for number, case in enumerate(cases)
    ]


def _watched(results: Iterator[Result], total: int) -> Iterator[Result]:
    """Pass results on, with a bar on a terminal."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import track  # noqa: PLC0415

    out = Console(stderr=True)
    if not out.is_terminal:
        return results
    return iter(track(results, "Simulating", total, console=out, transient=True))


def _tell(notices: Sequence[str]) -> None:
    for notice in notices:
        click.echo(f"note: {notice}", err=True)


def _show(benchmark: Benchmark, cells: Sequence[Cell], output: str) -> None:
    if output == "json":
        data = comparison_tables.to_json(benchmark, cells)
        click.echo(json.dumps(data, indent=1, allow_nan=False))
    elif output == "csv":
        click.echo(comparison_tables.cells_csv(cells), nl=False)
    else:
        from cloudtune.display.terminal import console, print_sheet  # noqa: PLC0415

        out, curves = console(), benchmark.curves
        if not out.is_terminal:
            out.width = max(out.width, _WIDE)
        out.print(
            f"{len(curves.curves)} configurations of up to {curves.max_epochs} epochs; "
            f"the best {curves.metric} there is: {curves.best:.4g} ({curves.mode})"
        )
        out.print(
            f"Simulated: an epoch on one GPU counts as {format_seconds(benchmark.epoch_seconds)}; "
            "other widths and types follow --profile, and costs the prices of the offers"
        )
        for sheet in comparison_tables.sheets(benchmark, cells, out.width):
            print_sheet(out, sheet)
        out.print()
        out.print(comparison_tables.kept(cells))
        for name in dict.fromkeys(cell.case.strategy for cell in cells):
            if name in WHOSE:
                out.print(f"{name} is {WHOSE[name]}", markup=False)


def _write(folder: Path, benchmark: Benchmark, cells: Sequence[Cell]) -> None:
    """Write all that is told of the cells.

    Raises:
        UsageError: it can't be written there.
    """
    from cloudtune.display.comparison_plot import plots  # noqa: PLC0415  matplotlib takes a second

    with _writing(folder):
        (folder / "cells.csv").write_text(comparison_tables.cells_csv(cells), encoding="utf-8")
        (folder / "runs.csv").write_text(comparison_tables.runs_csv(cells), encoding="utf-8")
        for name, content in plots(benchmark, cells):
            (folder / name).write_bytes(content)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        with for_others():
            folder.mkdir(parents=True, exist_ok=True)
            yield
    except OSError as error:
        raise UsageError(
            f"--out {folder}: can't be written ({error.strerror}); name a folder that is yours"
        ) from None


def _refuse_violations(cells: Sequence[Cell]) -> None:
    """Pass if every run kept its limits and rented nothing in vain, by its ledger.

    Raises:
        CloudtuneError: some didn't; the message says which, and how.
    """
    found = [
        f"{cell.name}, {comparison_tables.limits_text(cell.limits)}, seed {seed}: {violation}"
        for cell in cells
        for seed, result in cell.seeds
        for violation in (*result.violations, *result.flaps)
    ]
    if found:
        more = f"\n… and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        first = "\n".join(found[:_SHOWN])
        raise CloudtuneError(
            f"runs passed their limits or flapped (a bug in cloudtune):\n{first}{more}"
        )
