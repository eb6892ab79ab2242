"""The tables of a comparison: a row for each cell, by its runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import pandas as pd

from cloudtune.display.terminal import Sheet
from cloudtune.model.text import percent
from cloudtune.model.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.compare.benchmark import Benchmark
    from benchmarks.compare.case import Case, Result
    from cloudtune.model.plans import Limits

_VARIED = ("allocator", "fleet", "eta", "sampler")


@dataclass(frozen=True)
class Cell:
    """The runs of one way, within the same limits, with a seed each; `case` has the first seed."""

    case: Case
    results: tuple[Result, ...]

    @property
    def limits(self) -> Limits:
        return self.case.limits

    @property
    def seeds(self) -> Iterator[tuple[int, Result]]:
        return enumerate(self.results, start=self.case.seed)

    @property
    def name(self) -> str:
        """The way that was played, in a few words: "asha, constant:8, eta 3"."""
        case = self.case
        parts = (case.strategy, case.allocator, case.fleet, f"eta {case.eta}")
        return ", ".join(part for part in parts if part)

    def mean(self, of: Callable[[Result], float | None]) -> float | None:
        """Return a mean over the runs that have such a figure; None if none has."""
        values = self._values(of)
        return fmean(values) if values else None

    def error(self, of: Callable[[Result], float | None]) -> float | None:
        """Return the standard error of that mean; None for fewer than two runs."""
        values = self._values(of)
        return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None

    def _values(self, of: Callable[[Result], float | None]) -> list[float]:
        return [value for value in map(of, self.results) if value is not None]

    @cached_property
    def row(self) -> Mapping[str, Any]:
        """The cell as figures, by the names of the columns of CSV and JSON."""
        runs = len(self.results)
        paid = math.fsum(run.gpu_seconds for run in self.results)
        idle = math.fsum(run.idle for run in self.results)
        return {
            **_key(self.case),
            "runs": runs,
            "without_result": sum(run.metric is None for run in self.results),
            "metric": self.mean(lambda run: run.metric),
            "metric_se": self.error(lambda run: run.metric),
            "regret": self.mean(lambda run: run.regret),
            "regret_se": self.error(lambda run: run.regret),
            "seconds": self.mean(lambda run: run.seconds),
            "dollars": self.mean(lambda run: run.dollars),
            "trials": self.mean(lambda run: run.trials),
            "winner_epochs": self.mean(lambda run: run.epochs if run.winner else None),
            "gpu_seconds": self.mean(lambda run: run.gpu_seconds),
            "idle_gpu_seconds": self.mean(lambda run: run.idle),
            "idle_share": idle / paid if paid > 0 else None,
            "resizes": self.mean(lambda run: run.resizes),
            "within_limits": sum(not run.violations for run in self.results) / runs,
        }


def _key(case: Case) -> dict[str, Any]:
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
    return pd.DataFrame([cell.row for cell in cells], dtype=object).to_csv(index=False)


def runs_csv(cells: Sequence[Cell]) -> str:
    rows = [_run(cell.case, seed, run) for cell in cells for seed, run in cell.seeds]
    return pd.DataFrame(rows, dtype=object).to_csv(index=False)


def _run(case: Case, seed: int, run: Result) -> dict[str, Any]:
    return {
        **_key(case),
        "seed": seed,
        "metric": run.metric,
        "regret": run.regret,
        "winner": run.winner,
        "winner_epochs": run.epochs if run.winner else None,
        "seconds": run.seconds,
        "dollars": run.dollars,
        "trials": run.trials,
        "gpu_seconds": run.gpu_seconds,
        "idle_gpu_seconds": run.idle,
        "trained_gpu_seconds": run.trained,
        "resizes": run.resizes,
        "ended": run.ended,
        "violations": "; ".join(run.violations) or None,
    }


def to_json(benchmark: Benchmark, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return all cells, and what they were tried on, as strict JSON; None is a missing figure."""
    curves = benchmark.curves
    return {
        "metric": curves.metric,
        "mode": curves.mode,
        "best": curves.best,
        "configurations": len(curves.curves),
        "max_epochs": curves.max_epochs,
        "epoch_seconds": benchmark.epoch_seconds,
        "offers": [str(rentable.offer) for rentable in benchmark.rentables],
        "cells": [dict(cell.row) for cell in cells],
    }


# ---- for people ----------------------------------------------------------------------------------


def by_limits(cells: Sequence[Cell]) -> dict[Limits, list[Cell]]:
    """Return the cells of each deadline and budget, in their order."""
    groups: dict[Limits, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.limits, []).append(cell)
    return groups


def limits_text(limits: Limits) -> str:
    """Return "deadline 2h, budget $40"."""
    deadline = "no deadline"
    if limits.deadline is not None:
        deadline = f"deadline {format_seconds(limits.deadline)}"
    budget = "no budget" if limits.budget is None else f"budget {format_dollars(limits.budget)}"
    return f"{deadline}, {budget}"


def sheets(benchmark: Benchmark, cells: Sequence[Cell], width: int) -> Iterator[Sheet]:
    """Yield a table for each deadline and budget, for a screen of that width.

    A choice has a column only if a strategy was tried with several.
    """
    varied = [name for name in _VARIED if _varies(name, cells)]
    figures = ("regret", "cost", "time", "trials", "epochs", "idle", "resizes")
    names = ("strategy", *varied, benchmark.curves.metric, *figures)
    left = frozenset({"strategy", "allocator", "fleet", "sampler"})
    for limits, own in by_limits(cells).items():
        rows = tuple((*_names(cell, varied), *_figures(cell)) for cell in own)
        sheet = Sheet(limits_text(limits).capitalize(), names, rows, left)
        needed = sum(max(map(len, column)) + 2 for column in zip(names, *rows, strict=True))
        # If it is too wide, every cell may take several lines.
        yield sheet if needed <= width else replace(sheet, wraps=frozenset(names))


def _varies(name: str, cells: Sequence[Cell]) -> bool:
    ways = {(cell.case.strategy, cell.row[name]) for cell in cells}
    return len(ways) > len({strategy for strategy, _ in ways})


def _names(cell: Cell, varied: Sequence[str]) -> list[str]:
    shown = ("-" if cell.row[name] is None else str(cell.row[name]) for name in varied)
    return [cell.case.strategy, *shown]


def _figures(cell: Cell) -> list[str]:
    row = cell.row
    metric = _rounded(row["metric"], row["metric_se"])
    if row["metric_se"]:
        metric += f" ± {row['metric_se']:.1g}"
    if row["without_result"] and row["metric"] is not None:
        metric += f" ({row['without_result']} without)"
    return [
        metric,
        _rounded(row["regret"], row["regret_se"]),
        format_dollars(row["dollars"]),
        format_seconds(row["seconds"]),
        _short(row["trials"]),
        _short(row["winner_epochs"]),
        "-" if row["idle_share"] is None else percent(row["idle_share"]),
        _short(row["resizes"]),
    ]


def _rounded(mean: float | None, error: float | None) -> str:
    if mean is None:
        return "none"
    if not error:
        return f"{mean:.4g}"
    return f"{mean:.{max(0, -math.floor(math.log10(error)))}f}"


def _short(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
