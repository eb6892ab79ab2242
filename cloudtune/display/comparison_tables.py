"""What `cloudtune simulate --curves` tells: a row for each cell, by its runs."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from cloudtune.display.terminal import Sheet
from cloudtune.text import percent
from cloudtune.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from cloudtune.plans import Limits
    from cloudtune.simulation.benchmark import Benchmark
    from cloudtune.simulation.case import Case, Result

    Value: TypeAlias = str | int | float | None


@dataclass(frozen=True)
class Cell:
    """The runs of one way, within the same limits, with a seed each; `case` has the first seed."""

    case: Case
    results: tuple[Result, ...]

    @property
    def limits(self) -> Limits:
        """Deadline and budget."""
        return self.case.limits

    @property
    def seeds(self) -> Iterator[tuple[int, Result]]:
        """The runs by their seeds."""
        return enumerate(self.results, start=self.case.seed)

    @property
    def name(self) -> str:
        """The way that was played, in a few words: "asha, constant:8, eta 3"."""
        case = self.case
        parts = (case.strategy, case.allocator, case.fleet, f"eta {case.eta}")
        return ", ".join(part for part in parts if part)

    def mean(self, of: Callable[[Result], float | None]) -> float | None:
        """Return a mean over the runs that have such a figure; None if none has."""
        found = _known(map(of, self.results))
        return fmean(found) if found else None

    def error(self, of: Callable[[Result], float | None]) -> float | None:
        """Return the standard error of that mean; None for less than two runs."""
        found = _known(map(of, self.results))
        return stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None

    @cached_property
    def row(self) -> Mapping[str, Value]:
        """The cell as figures, by the names of the columns of CSV and JSON."""
        runs = len(self.results)
        return {
            **_key(self.case),
            "runs": runs,
            "without_result": sum(each.metric is None for each in self.results),
            "metric": self.mean(lambda o: o.metric),
            "metric_se": self.error(lambda o: o.metric),
            "regret": self.mean(lambda o: o.regret),
            "regret_se": self.error(lambda o: o.regret),
            "seconds": self.mean(lambda o: o.seconds),
            "dollars": self.mean(lambda o: o.dollars),
            "trials": self.mean(lambda o: o.trials),
            "winner_epochs": self.mean(lambda o: o.epochs if o.winner else None),
            "gpu_seconds": self.mean(lambda o: o.gpu_seconds),
            "idle_gpu_seconds": self.mean(lambda o: o.idle),
            "idle_share": _share(self.results),
            "resizes": self.mean(lambda o: o.resizes),
            "within_limits": sum(not each.violations for each in self.results) / runs,
        }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _share(results: Sequence[Result]) -> float | None:
    paid = math.fsum(each.gpu_seconds for each in results)
    return math.fsum(each.idle for each in results) / paid if paid > 0 else None


def _key(case: Case) -> dict[str, Value]:
    return {
        "strategy": case.strategy,
        "allocator": case.allocator or None,
        "fleet": case.fleet or None,
        "eta": case.eta,
        "sampler": case.sampler,
        "deadline_seconds": case.limits.deadline,
        "budget_dollars": case.limits.budget,
    }


# ---- for programs --------------------------------------------------------------------------------


def cells_csv(cells: Sequence[Cell]) -> str:
    """Return a line for each cell."""
    return _csv([cell.row for cell in cells])


def runs_csv(cells: Sequence[Cell]) -> str:
    """Return a line for each run."""
    return _csv([_run(cell.case, seed, one) for cell in cells for seed, one in cell.seeds])


def _run(case: Case, seed: int, result: Result) -> dict[str, Value]:
    return {
        **_key(case),
        "seed": seed,
        "metric": result.metric,
        "regret": result.regret,
        "winner": result.winner,
        "winner_epochs": result.epochs if result.winner else None,
        "seconds": result.seconds,
        "dollars": result.dollars,
        "trials": result.trials,
        "gpu_seconds": result.gpu_seconds,
        "idle_gpu_seconds": result.idle,
        "trained_gpu_seconds": result.trained,
        "resizes": result.resizes,
        "ended": result.ended,
        "violations": "; ".join(result.violations) or None,
    }


def _csv(rows: Sequence[Mapping[str, Value]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def to_json(benchmark: Benchmark, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return all cells, and what they were tried on, as strict JSON; None is what there isn't."""
    curves = benchmark.curves
    return {
        "metric": curves.metric,
        "mode": curves.mode,
        "best": curves.best,
        "configurations": len(curves.curves),
        "max_epochs": curves.max_epochs,
        "epoch_seconds": benchmark.epoch_seconds,
        "offers": [str(each.offer) for each in benchmark.rentables],
        "cells": [dict(cell.row) for cell in cells],
    }


# ---- for people ----------------------------------------------------------------------------------

_VARIED = ("allocator", "fleet", "eta", "sampler")


def by_limits(cells: Sequence[Cell]) -> dict[Limits, list[Cell]]:
    """Return the cells of each deadline and budget, in their order."""
    found: dict[Limits, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.limits, []).append(cell)
    return found


def limits_text(limits: Limits) -> str:
    """Return "deadline 2h, budget $40"."""
    deadline = (
        "no deadline" if limits.deadline is None else f"deadline {format_seconds(limits.deadline)}"
    )
    budget = "no budget" if limits.budget is None else f"budget {format_dollars(limits.budget)}"
    return f"{deadline}, {budget}"


def sheets(benchmark: Benchmark, cells: Sequence[Cell], width: int) -> Iterator[Sheet]:
    """Yield a table for each deadline and budget, for so many columns of text.

    A choice has a column if a strategy was tried with several: what suits it isn't repeated.
    """
    varied = [name for name in _VARIED if _varies(name, cells)]
    names = ("strategy", *varied, benchmark.curves.metric, "regret", "cost", "time", "trials",
             "epochs", "idle", "resizes")  # fmt: skip
    for limits, own in by_limits(cells).items():
        rows = tuple((*_names(cell, varied), *_figures(cell)) for cell in own)
        left = frozenset({"strategy", "allocator", "fleet", "sampler"})
        yield _fitting(Sheet(limits_text(limits).capitalize(), names, rows, left), width)


def _fitting(sheet: Sheet, width: int) -> Sheet:
    """Return the table; if it is too wide, every cell may take several lines."""
    columns = zip(sheet.columns, *sheet.rows, strict=True)
    needed = sum(max(map(len, column)) + 2 for column in columns)
    return sheet if needed <= width else replace(sheet, wraps=frozenset(sheet.columns))


def kept(cells: Sequence[Cell]) -> str:
    """Return how many runs kept their limits."""
    results = [result for cell in cells for result in cell.results]
    within = sum(not result.violations for result in results)
    return f"{within} of {len(results)} runs kept their limits, by their ledgers"


def _varies(name: str, cells: Sequence[Cell]) -> bool:
    ways = {(cell.case.strategy, cell.row[name]) for cell in cells}
    return len(ways) > len({strategy for strategy, _ in ways})


def _names(cell: Cell, varied: Sequence[str]) -> list[str]:
    shown = ("-" if cell.row[name] is None else str(cell.row[name]) for name in varied)
    return [cell.case.strategy, *shown]


def _figures(cell: Cell) -> list[str]:
    row = cell.row
    without, seconds, dollars = row["without_result"], row["seconds"], row["dollars"]
    lacking = f" ({without} without)" if without and row["metric"] is not None else ""
    return [
        _mean(row["metric"], row["metric_se"]) + lacking,
        _rounded(row["regret"], row["regret_se"]),
        format_dollars(float(dollars or 0.0)),
        format_seconds(float(seconds or 0.0)),
        _short(row["trials"]),
        _short(row["winner_epochs"]),
        "-" if row["idle_share"] is None else percent(float(row["idle_share"])),
        _short(row["resizes"]),
    ]


def _mean(mean: Value, error: Value) -> str:
    if mean is None or not error:
        return _rounded(mean, error)
    return f"{_rounded(mean, error)} ± {float(error):.1g}"


def _rounded(mean: Value, error: Value) -> str:
    """Return a mean to the digit that its standard error is of."""
    if mean is None:
        return "none"
    if not error:
        return f"{float(mean):.4g}"
    return f"{float(mean):.{max(0, -math.floor(math.log10(float(error))))}f}"


def _short(value: Value) -> str:
    return "none" if value is None else f"{value:.3g}" if float(value) < 100 else f"{value:.0f}"
