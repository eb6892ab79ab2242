"""Syne Tune's own schedulers in the same cells: played by its own simulator, on fixed fleets.

They rent nothing there, so its workers are the GPUs of a fleet that boots once and stays until the
deadline, or until it has cost the budget. All that is uncertain counts for them: no stop before a
limit, no minimum charge, nothing to return, the best metric up to the last moment.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from benchmarks.simulation_speed import answer
from benchmarks.strategies_cells import DELAYS, OFFER, SIZES, Cell, scale_of
from benchmarks.strategies_runs import ANY, Done, Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.compare.curves import Curves
    from benchmarks.strategies_cells import Ground

SYNE = ("syne-asha", "syne-bohb")
_ETAS: Mapping[str, Sequence[int]] = {"asha": (2, 3, 4), "bohb": (3,)}
_FLEETS: Mapping[str, Sequence[int]] = {"asha": SIZES, "bohb": SIZES[::2]}
"""Its model is slow to ask."""
_PLAYED_BY = "benchmarks.strategies_syne"
_WIDE = 100.0
"""Numbers whose largest is so many times the smallest are taken by their logarithm."""


def key(ground: str, seed: int) -> str:
    """Return what the runs of a table with a seed are kept as."""
    return f"{ground}||syne|{seed}"


def played(python: str, ground: Ground, seed: int, cells: Sequence[Cell]) -> Done:
    """Return what Syne Tune's schedulers come to in each cell, on each fleet."""
    limits = [ground.limits(cell) for cell in cells]
    until = max(each.deadline or 0.0 for each in limits)
    given = {
        "parameters": parameters(ground.curves),
        "metrics": scores(ground.curves),
        "seconds": [_seconds(ground, number) for number in range(len(ground.curves.curves))],
        "start": DELAYS.start,
        "until": until,
        "jobs": [
            {"method": method, "eta": eta, "workers": size * OFFER.gpus, "seed": seed}
            for method, etas in _ETAS.items()
            for eta in etas
            for size in _FLEETS[method]
        ],
    }
    lines = [json.loads(line) for line in answer(python, _PLAYED_BY, given).splitlines()]
    rows = [row for line in lines for row in _rows(ground, seed, cells, line)]
    return Done(key(ground.name, seed), tuple(rows), len(lines))


def _rows(
    ground: Ground, seed: int, cells: Sequence[Cell], line: Mapping[str, Any]
) -> Iterator[Row]:
    size = line["workers"] // OFFER.gpus
    scale, sign = scale_of(ground.curves), 1.0 if ground.curves.mode == "max" else -1.0
    method = f"syne-{line['method']}"
    label = f"{method} eta {line['eta']} constant:{size}"
    for cell in cells:
        limits = ground.limits(cell)
        assert limits.deadline is not None
        assert limits.budget is not None
        paid = limits.budget / (size * OFFER.usd_per_second)
        at = min(limits.deadline, DELAYS.launch + paid)
        bests = [best for when, best in line["bests"] if when <= at - DELAYS.launch - DELAYS.boot]
        metric = sign * bests[-1] if bests else None
        regret = scale.regret(ground.curves.regret(metric))
        dollars = min(limits.budget, size * OFFER.usd_per_second * (at - DELAYS.launch))
        named = (ground.name, ANY, method, label, seed)
        yield Row(*named, *cell, metric, regret, at, dollars, read=True)


def scores(curves: Curves) -> list[list[float]]:
    """Return the metrics, more being better; one that is missing is as bad as the worst."""
    sign = 1.0 if curves.mode == "max" else -1.0
    known = [sign * m for curve in curves.curves for m in curve.metrics if math.isfinite(m)]
    worst = min(known)
    return [
        [sign * m if math.isfinite(m) else worst for m in _whole(each.metrics, each.epochs)]
        for each in curves.curves
    ]


def _whole(metrics: Sequence[float], epochs: int) -> list[float]:
    return [*metrics, *[math.nan] * (epochs - len(metrics))][:epochs]


def _seconds(ground: Ground, number: int) -> list[float]:
    """Return the seconds of all epochs; those that nobody trained take as long as the last."""
    curve = ground.curves.curves[number]
    known = list(curve.seconds)[: curve.epochs] or [ground.epoch_seconds]
    return known + known[-1:] * (curve.epochs - len(known))


def parameters(curves: Curves) -> list[dict[str, float | str]]:
    """Return the configurations, numbers by their place from 0 to 1; a table without any has one.

    Where a parameter has words, it is a word everywhere.
    """
    names = dict.fromkeys(name for curve in curves.curves for name in curve.config)
    if not names:
        return [{"number": number / len(curves.curves)} for number in range(len(curves.curves))]
    columns = {name: _column([c.config.get(name) for c in curves.curves]) for name in names}
    return [{name: of[n] for name, of in columns.items()} for n in range(len(curves.curves))]


def _column(values: Sequence[object]) -> Sequence[float | str]:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        return [str(value) for value in values]
    if min(numbers) > 0 and max(numbers) > _WIDE * min(numbers):
        numbers = [math.log(value) for value in numbers]
    least, most = min(numbers), max(numbers)
    return [(value - least) / (most - least or 1.0) for value in numbers]
