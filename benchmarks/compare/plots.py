"""Simulated runs as a picture for each deadline and budget: of each cell, over its seeds."""

from __future__ import annotations

import bisect
import io
import math
from statistics import fmean, median
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.compare.cells import by_limits, limits_text
from cloudtune.model.trial import rank_key
from cloudtune.model.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.axes import Axes

    from benchmarks.compare.audit import Point
    from benchmarks.compare.benchmark import Benchmark
    from benchmarks.compare.cells import Cell
    from cloudtune.model.plans import Limits

_POINTS = 200
_MAX_LINES = 10
_LIMIT = "#8c8c8c"


def plots(benchmark: Benchmark, cells: Sequence[Cell]) -> Iterator[tuple[str, bytes]]:
    """Yield a file name and a PNG for each deadline and budget."""
    for limits, own in by_limits(cells).items():
        deadline = "none"
        if limits.deadline is not None:
            deadline = format_seconds(limits.deadline).replace(" ", "")
        budget = "none" if limits.budget is None else f"{limits.budget:g}"
        yield f"deadline-{deadline}-budget-{budget}.png", _png(benchmark, limits, own)


def _png(benchmark: Benchmark, limits: Limits, cells: Sequence[Cell]) -> bytes:
    figure = Figure(figsize=(19, 5), layout="constrained")
    by_time, by_dollars, gpus = figure.subplots(1, 3)
    mode = benchmark.curves.mode
    best_first = sorted(cells, key=lambda cell: rank_key(mode, cell.mean(lambda run: run.metric)))
    shown = best_first[:_MAX_LINES]
    runs = [run for cell in shown for run in cell.results]
    seconds = max(run.seconds for run in runs) or 1.0
    dollars = max(run.dollars for run in runs) or 1.0
    _draw_metric(by_time, benchmark, shown, limits.deadline, lambda point: point.at)
    _draw_metric(by_dollars, benchmark, shown, limits.budget, lambda point: point.dollars)
    by_time.legend(fontsize="small")
    for cell in shown:
        times = _grid(seconds)
        sizes = [fmean(_size(run.fleet, at) for run in cell.results) for at in times]
        gpus.step(times, sizes, where="post", label=cell.name)
    gpus.set_ylim(bottom=0.0)
    gpus.set(title="GPUs that bill (mean)")
    _scale(by_time, seconds, "time", format_seconds)
    _scale(by_dollars, dollars, "cost", format_dollars)
    _scale(gpus, seconds, "time", format_seconds)
    figure.suptitle(limits_text(limits).replace("$", r"\$").capitalize())
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _scale(axes: Axes, end: float, name: str, show: Callable[[float], str]) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 3, 6, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: show(value).replace("$", r"\$"))
    axes.set_xlim(0.0, end)
    axes.set_xlabel(name)


def _draw_metric(
    axes: Axes,
    benchmark: Benchmark,
    cells: Sequence[Cell],
    limit: float | None,
    place: Callable[[Point], float],
) -> None:
    """Draw the median of the best so far over the seeds, from where half of them have a result."""
    worst = -math.inf if benchmark.curves.mode == "max" else math.inf
    last = [place(run.path[-1]) for cell in cells for run in cell.results if run.path]
    places = _grid(max([*last, limit or 0.0]))
    for cell in cells:
        values = [
            median(_best(run.path, place, at, worst) for run in cell.results) for at in places
        ]
        shown = [(at, value) for at, value in zip(places, values, strict=True) if value != worst]
        axes.step(*(zip(*shown, strict=True) if shown else ([], [])), where="post", label=cell.name)
    axes.axhline(benchmark.curves.best, color=_LIMIT, ls=":")
    if limit is not None:
        axes.axvline(limit, color=_LIMIT, ls="--")
    axes.set(title=f"Best {benchmark.curves.metric} so far (median; dotted: the best there is)")


def _grid(end: float) -> list[float]:
    return [end * step / _POINTS for step in range(_POINTS + 1)]


def _best(path: Sequence[Point], place: Callable[[Point], float], at: float, worst: float) -> float:
    number = bisect.bisect_right(path, at, key=place)
    return path[number - 1].metric if number else worst


def _size(fleet: Sequence[tuple[float, float]], at: float) -> float:
    number = bisect.bisect_right(fleet, at, key=lambda change: change[0])
    return fleet[number - 1][1] if number else 0
