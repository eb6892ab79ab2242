"""What `cloudtune simulate --curves` tells: a row for each cell, by its runs."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from cloudtune.phrases import percent
from cloudtune.plan_tables import Sheet
from cloudtune.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from cloudtune.plan import Limits
    from cloudtune.study import Study
    from cloudtune.trying import Outcome, Try

    Value: TypeAlias = str | int | float | None


@dataclass(frozen=True)
class Cell:
    """The runs of one way, within the same limits, with a seed each; `wanted` is the first."""

    wanted: Try
    outcomes: tuple[Outcome, ...]

    @property
    def limits(self) -> Limits:
        """Deadline and budget."""
        return self.wanted.limits

    @property
    def seeds(self) -> Iterator[tuple[int, Outcome]]:
        """The runs by their seeds."""
        return enumerate(self.outcomes, start=self.wanted.seed)

    @property
    def name(self) -> str:
        """What it is, in a few words: "asha, constant:8, eta 3"."""
        wanted = self.wanted
        parts = (wanted.strategy, wanted.allocator, wanted.fleet, f"eta {wanted.eta}")
        return ", ".join(part for part in parts if part)

    def mean(self, of: Callable[[Outcome], float | None]) -> float | None:
        """Return a mean over the runs that have such a figure; None if none has."""
        found = _known(map(of, self.outcomes))
        return fmean(found) if found else None

    def error(self, of: Callable[[Outcome], float | None]) -> float | None:
        """Return the standard error of that mean; None for less than two runs."""
        found = _known(map(of, self.outcomes))
        return stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None

    @cached_property
    def row(self) -> Mapping[str, Value]:
        """The cell as figures, by the names of the columns of CSV and JSON."""
        runs = len(self.outcomes)
        return {
            **_key(self.wanted),
            "runs": runs,
            "without_result": sum(each.metric is None for each in self.outcomes),
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
            "idle_share": _share(self.outcomes),
            "resizes": self.mean(lambda o: o.resizes),
            "within_limits": sum(not each.violations for each in self.outcomes) / runs,
        }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _share(outcomes: Sequence[Outcome]) -> float | None:
    paid = math.fsum(each.gpu_seconds for each in outcomes)
    return math.fsum(each.idle for each in outcomes) / paid if paid > 0 else None


def _key(wanted: Try) -> dict[str, Value]:
    return {
        "strategy": wanted.strategy,
        "allocator": wanted.allocator or None,
        "fleet": wanted.fleet or None,
        "eta": wanted.eta,
        "sampler": wanted.sampler,
        "deadline_seconds": wanted.limits.deadline,
        "budget_dollars": wanted.limits.budget,
    }


# ---- for programs --------------------------------------------------------------------------------


def cells_csv(cells: Sequence[Cell]) -> str:
    """Return a line for each cell."""
    return _csv([cell.row for cell in cells])


def runs_csv(cells: Sequence[Cell]) -> str:
    """Return a line for each run."""
    return _csv([_run(cell.wanted, seed, one) for cell in cells for seed, one in cell.seeds])


def _run(wanted: Try, seed: int, outcome: Outcome) -> dict[str, Value]:
    return {
        **_key(wanted),
        "seed": seed,
        "metric": outcome.metric,
        "regret": outcome.regret,
        "winner": outcome.winner,
        "winner_epochs": outcome.epochs if outcome.winner else None,
        "seconds": outcome.seconds,
        "dollars": outcome.dollars,
        "trials": outcome.trials,
        "gpu_seconds": outcome.gpu_seconds,
        "idle_gpu_seconds": outcome.idle,
        "trained_gpu_seconds": outcome.trained,
        "resizes": outcome.resizes,
        "ended": outcome.ended,
        "violations": "; ".join(outcome.violations) or None,
    }


def _csv(rows: Sequence[Mapping[str, Value]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def to_json(study: Study, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return all cells, and what they were tried on, as strict JSON; None is what there isn't."""
    curves = study.curves
    return {
        "metric": curves.metric,
        "mode": curves.mode,
        "best": curves.best,
        "configurations": len(curves.curves),
        "max_epochs": curves.max_epochs,
        "epoch_seconds": study.epoch_seconds,
        "offers": [str(each.offer) for each in study.rentables],
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


def sheets(study: Study, cells: Sequence[Cell], width: int) -> Iterator[Sheet]:
    """Yield a table for each deadline and budget, for so many columns of text.

    A choice has a column if a strategy was tried with several: what suits it isn't repeated.
    """
    varied = [name for name in _VARIED if _varies(name, cells)]
    names = ("strategy", *varied, study.curves.metric, "regret", "cost", "time", "trials",
             "epochs", "idle", "resizes")  # fmt: skip
    for limits, own in by_limits(cells).items():
        rows = tuple((*_names(cell, varied), *_figures(cell)) for cell in own)
        left = frozenset({"strategy", "allocator", "fleet", "sampler"})
        yield _fitting(Sheet(limits_text(limits).capitalize(), names, rows, left), width)


def _fitting(sheet: Sheet, width: int) -> Sheet:
    """Return the table; if it is too wide, every cell of it may take several lines."""
    columns = zip(sheet.columns, *sheet.rows, strict=True)
    needed = sum(max(map(len, column)) + 2 for column in columns)
    return sheet if needed <= width else replace(sheet, wraps=frozenset(sheet.columns))


def kept(cells: Sequence[Cell]) -> str:
    """Return how many runs kept their limits."""
    outcomes = [outcome for cell in cells for outcome in cell.outcomes]
    within = sum(not outcome.violations for outcome in outcomes)
    return f"{within} of {len(outcomes)} runs kept their limits, by their ledgers"


def _varies(name: str, cells: Sequence[Cell]) -> bool:
    ways = {(cell.wanted.strategy, cell.row[name]) for cell in cells}
    return len(ways) > len({strategy for strategy, _ in ways})


def _names(cell: Cell, varied: Sequence[str]) -> list[str]:
    shown = ("-" if cell.row[name] is None else str(cell.row[name]) for name in varied)
    return [cell.wanted.strategy, *shown]


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
