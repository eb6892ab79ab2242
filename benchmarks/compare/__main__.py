"""Compare strategies on recorded learning curves, in virtual time and virtual dollars.

    python -m benchmarks.compare --curves FILE --metric COLUMN --mode max|min --profile FILE|NAME
                                 --offers FILE|NAME --strategy NAMES [--deadline TIMES] …

Every way (strategy, allocator, fleet, eta, sampler) is played within every deadline and budget,
with every seed. Rents nothing; the same options give the same output. See README.md beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from benchmarks.compare import cells as tables
from benchmarks.compare.benchmark import MAX_INSTANCES, Benchmark, Delays, benchmark
from benchmarks.compare.case import Case, check, play_all
from benchmarks.compare.cells import Cell
from benchmarks.compare.curves import Columns, read_curves
from benchmarks.compare.offers import offers_of
from benchmarks.compare.speeds import scalings
from benchmarks.compare.traces import matched, read_traces
from cloudtune.display.terminal import console, print_sheet
from cloudtune.errors import CloudtuneError, UsageError, quote
from cloudtune.model import menu
from cloudtune.model.catalog import BillingUnit
from cloudtune.model.plans import Limits
from cloudtune.model.units import format_seconds, parse_dollars, parse_seconds
from cloudtune.policy.registry import choose_sampler, chosen, origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SHOWN = 5
_WIDE = 160


def parser() -> argparse.ArgumentParser:
    usual = Delays()
    options = argparse.ArgumentParser("python -m benchmarks.compare", description=__doc__)
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    add = options.add_argument
    add("--curves", type=Path, required=True, help="recorded curves, CSV or Parquet")
    add("--configs", type=Path, help="table of the hyperparameters of the configurations")
    add("--metric", required=True, help="column to optimize")
    add("--mode", choices=["max", "min"], required=True, help="maximize or minimize it")
    add("--config-column", default="", help="the configuration of a row")
    add("--epoch-column", default="", help="the epoch or step of a row")
    add("--seconds-column", default="", help="seconds of the epoch on one GPU")
    add("--elapsed-column", default="", help="seconds since training began, on one GPU")
    add("--planned-column", default="", help="in --configs: the number of epochs to train")
    add("--hyperparameters", type=_listed, default=[], help="in --configs: columns to learn from")
    add("--where", action="append", default=[], metavar="COLUMN=VALUE", help="rows to use")
    add("--epoch-seconds", type=_seconds, help="average time of an epoch on one GPU, such as 5m")
    add("--profile", required=True, help="speed by width: a file or a bundled profile")
    add("--offers", required=True, help="a file, or types such as g5.xlarge,'g6.*'")
    add("--market", choices=["on-demand", "spot", "any"], default="on-demand")
    add("--billing", choices=get_args(BillingUnit), help="billing unit (default: as on EC2)")
    add("--spot-trace", type=Path, help="table of spot availability to replay (README.md)")
    add("--spot-where", action="append", default=[], metavar="COLUMN=VALUE")
    add("--max-instances", type=_count, default=MAX_INSTANCES, help="at a time")
    add("--strategy", type=_listed, required=True, help=f"such as {','.join(menu.STRATEGIES)}")
    add("--allocator", type=_listed, default=[], help="GPUs per trial (default: what suits)")
    add("--fleet", type=_listed, default=[], help="such as constant:8,naive:4")
    add("--eta", type=_etas, default=[3], help="one in eta trials goes on from a rung")
    add("--sampler", type=_listed, default=[], help="such as random,tpe")
    add("--deadline", type=_deadlines, default=[None], help="such as 2h,4h; none: no limit")
    add("--budget", type=_budgets, default=[None], help="such as 20,40,80; none: no limit")
    add("--seeds", type=_count, default=20, help="number of runs of each combination")
    add("--seed", type=int, default=0, help="the first one")
    add("--min-epochs", type=_count, default=1, help="epochs before the first comparison")
    add("--max-trials", type=_count, help="configurations to try at most")
    add("--launch", type=_delay, default=usual.launch, help="until an instance launches (20s)")
    add("--boot", type=_delay, default=usual.boot, help="until it takes trials (90s)")
    add("--start", type=_delay, help="time to set up a trial (the profile's, or 10s)")
    add("--resize", type=_delay, help="the same from a checkpoint (the profile's, or 20s)")
    add("--release", type=_delay, default=usual.release, help="until billing ends (5s)")
    add("--spread", type=float, default=usual.spread, help="deviation of durations, as a fraction")
    add("--jobs", type=_count, default=os.cpu_count() or 1, help="number of processes")
    add("--out", type=Path, help="folder for cells.csv and runs.csv")
    add("-o", "--output", choices=["table", "json", "csv"], default="table")
    return options


# ---- what is asked -------------------------------------------------------------------------------


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{quote(text)}: write a whole number above 0")
    return int(text)


def _etas(text: str) -> list[int]:
    if not all(part.isdecimal() and int(part) > 1 for part in _listed(text)):
        raise argparse.ArgumentTypeError(f"{quote(text)}: write whole numbers above 1, as in 2,3,4")
    return [int(part) for part in _listed(text)]


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _delay(text: str) -> float:
    return 0.0 if text.strip() in {"0", "0s"} else _seconds(text)


def _deadlines(text: str) -> list[float | None]:
    return [None if part == "none" else _seconds(part) for part in _listed(text)]


def _budgets(text: str) -> list[float | None]:
    return [None if part == "none" else _dollars(part) for part in _listed(text)]


def _dollars(text: str) -> float:
    """Return an amount; 0 is one too: what it buys is shown."""
    try:
        return 0.0 if text.strip("$0.") == "" and "0" in text else parse_dollars(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--where {quote(text)}: write COLUMN=VALUE")
    return column.strip(), value.strip()


def _benchmark(given: argparse.Namespace) -> Benchmark:
    """Return what there is to try strategies on.

    Raises:
        UsageError: a mistake in a table, or nothing says how long an epoch takes.
    """
    columns = Columns(
        given.config_column,
        given.epoch_column,
        given.seconds_column,
        given.elapsed_column,
        given.planned_column,
        tuple(given.hyperparameters),
    )
    curves = read_curves(
        given.curves,
        given.metric,
        given.mode,
        columns=columns,
        configs=given.configs,
        where=[_condition(text) for text in given.where],
    )
    offers = offers_of(given.offers, given.market)
    if given.billing is not None:
        offers = tuple(offer.with_billing(given.billing) for offer in offers)
    epoch_seconds = given.epoch_seconds or curves.mean_seconds
    if epoch_seconds is None:
        raise UsageError(
            f"{given.curves}: says nothing of how long an epoch takes; name its column with "
            "--seconds-column or --elapsed-column, or give --epoch-seconds, as in 5m"
        )
    if given.spot_where and given.spot_trace is None:
        raise UsageError("--spot-where: is for --spot-trace FILE; give one, or leave it out")
    traces = {}
    if given.spot_trace is not None:
        traces = matched(read_traces(given.spot_trace, given.spot_where), offers, given.spot_trace)
    return benchmark(
        curves,
        scalings(given.profile, [offer.instance_type for offer in offers]),
        offers,
        epoch_seconds=epoch_seconds,
        delays=Delays(
            given.launch, given.boot, given.start, given.resize, given.release, given.spread
        ),
        max_instances=given.max_instances,
        traces=traces,
    )


def _cases(given: argparse.Namespace) -> Iterator[Case]:
    """Yield each way within each pair of limits, with the first seed."""
    for deadline, budget, strategy, allocator, fleet, eta in itertools.product(
        given.deadline,
        given.budget,
        given.strategy,
        given.allocator or [""],
        given.fleet or [""],
        given.eta,
    ):
        place = chosen(strategy, allocator, fleet)
        for sampler in given.sampler or [choose_sampler(strategy)[0]]:
            yield Case(
                strategy,
                Limits(deadline, budget),
                allocator=place.allocator,
                fleet=place.fleet,
                eta=eta,
                min_epochs=given.min_epochs,
                seed=given.seed,
                sampler=sampler,
                max_trials=given.max_trials,
            )


# ---- what comes of it ----------------------------------------------------------------------------


def compare(given: argparse.Namespace) -> None:
    """Play all that is asked for, and show it.

    Raises:
        UsageError: a mistake of the caller.
        CloudtuneError: a run passed its limits, or flapped.
    """
    tried = _benchmark(given)
    cases = list(_cases(given))
    for case in cases:
        check(tried, case)
    if given.out is not None:
        _make_folder(given.out)  # before anything takes long
    for notice in tried.curves.notices:
        print(f"note: {notice}", file=sys.stderr)
    runs = [replace(case, seed=case.seed + n) for case in cases for n in range(given.seeds)]
    began = time.perf_counter()
    results = list(play_all(tried, runs, given.jobs))
    took = time.perf_counter() - began
    print(
        f"{len(runs)} jobs in {took:.1f} s: {len(runs) / took:.1f} jobs a second", file=sys.stderr
    )
    cells = [
        Cell(case, tuple(results[n * given.seeds : (n + 1) * given.seeds]))
        for n, case in enumerate(cases)
    ]
    _show(tried, cells, given.output)
    if given.out is not None:
        (given.out / "cells.csv").write_text(tables.cells_csv(cells), encoding="utf-8")
        (given.out / "runs.csv").write_text(tables.runs_csv(cells), encoding="utf-8")
    _refuse_violations(cells)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: can't be written ({error.strerror})") from None


def _show(tried: Benchmark, cells: Sequence[Cell], output: str) -> None:
    if output == "json":
        print(json.dumps(tables.to_json(tried, cells), indent=1, allow_nan=False))
        return
    if output == "csv":
        print(tables.cells_csv(cells), end="")
        return
    out = console()
    curves = tried.curves
    if not out.is_terminal:
        out.width = max(out.width, _WIDE)
    out.print(
        f"{len(curves.curves)} configurations of up to {curves.max_epochs} epochs; "
        f"the best {curves.metric} there is: {curves.best:.4g} ({curves.mode})"
    )
    out.print(
        f"Simulated: an epoch on one GPU counts as {format_seconds(tried.epoch_seconds)}; "
        "other widths and types follow --profile, and costs the prices of the offers"
    )
    for sheet in tables.sheets(tried, cells, out.width):
        print_sheet(out, sheet)
    results = [result for cell in cells for result in cell.results]
    within = sum(not result.violations for result in results)
    out.print(f"\n{within} of {len(results)} runs kept their limits, by their ledgers")
    for name in dict.fromkeys(cell.case.strategy for cell in cells):
        if paper := origin(name):
            out.print(f"{name} is {paper}", markup=False)


def _refuse_violations(cells: Sequence[Cell]) -> None:
    """Pass if every run kept its limits and rented nothing in vain, by its ledger.

    Raises:
        CloudtuneError: some didn't; the message says which, and how.
    """
    wrong = [
        f"{cell.name}, {tables.limits_text(cell.limits)}, seed {seed}: {violation}"
        for cell in cells
        for seed, result in cell.seeds
        for violation in (*result.violations, *result.flaps)
    ]
    if wrong:
        more = f"\n… and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        first = "\n".join(wrong[:_SHOWN])
        raise CloudtuneError(
            f"runs passed their limits or flapped (a bug in cloudtune):\n{first}{more}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        compare(parser().parse_args(arguments))
    except CloudtuneError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
