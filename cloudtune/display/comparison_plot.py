"""Simulated runs as a picture, for each deadline and budget: a PNG of four panels.

The metric against time and against dollars, and the GPUs against time: of each cell, over its
seeds. And one run as a Gantt chart. matplotlib is imported when a plot is asked for.
"""

from __future__ import annotations

import bisect
import io
import math
from statistics import fmean, median
from typing import TYPE_CHECKING

from cloudtune.display.chart import DOLLAR_STEPS, TIME_STEPS, axis
from cloudtune.display.comparison_tables import by_limits, limits_text
from cloudtune.simulation.case import record
from cloudtune.trial import rank_key
from cloudtune.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.axes import Axes

    from cloudtune.display.comparison_tables import Cell
    from cloudtune.engine.audit import Audit, Point
    from cloudtune.plans import Limits
    from cloudtune.simulation.benchmark import Benchmark
    from cloudtune.simulation.case import Result

_POINTS = 200
_MAX_LINES = 10
_LIMIT = "#8c8c8c"


def plots(benchmark: Benchmark, cells: Sequence[Cell]) -> Iterator[tuple[str, bytes]]:
    """Yield a file name and a PNG for each deadline and budget."""
    for limits, own in by_limits(cells).items():
        deadline = "none" if limits.deadline is None else _plain(format_seconds(limits.deadline))
        budget = "none" if limits.budget is None else f"{limits.budget:g}"
        yield f"deadline-{deadline}-budget-{budget}.png", _png(benchmark, limits, own)


def _plain(text: str) -> str:
    return text.replace(" ", "")


def _png(benchmark: Benchmark, limits: Limits, cells: Sequence[Cell]) -> bytes:
    from matplotlib.figure import Figure  # noqa: PLC0415  see the module's docstring

    figure = Figure(figsize=(13, 9), layout="constrained")
    (by_time, by_dollars), (gpus, gantt) = figure.subplots(2, 2)
    shown = best_first(benchmark, cells)[:_MAX_LINES]
    _draw_metric(by_time, benchmark, shown, limits.deadline, lambda point: point.at)
    _draw_metric(by_dollars, benchmark, shown, limits.budget, lambda point: point.dollars)
    by_time.legend(fontsize="small")
    _draw_gpus(gpus, shown)
    _scale(by_time, _ends(shown, lambda o: o.seconds), "time", format_seconds, TIME_STEPS)
    _scale(by_dollars, _ends(shown, lambda o: o.dollars), "cost", format_dollars, DOLLAR_STEPS)
    _scale(gpus, _ends(shown, lambda o: o.seconds), "time", format_seconds, TIME_STEPS)
    _draw_gantt(gantt, shown[0], record(benchmark, shown[0].case).audit)
    figure.suptitle(limits_text(limits).replace("$", r"\$").capitalize())
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def best_first(benchmark: Benchmark, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells by their mean result."""
    mode = benchmark.curves.mode
    return sorted(cells, key=lambda cell: rank_key(mode, cell.mean(lambda o: o.metric)))


def _ends(cells: Sequence[Cell], of: Callable[[Result], float]) -> float:
    return max((of(one) for cell in cells for one in cell.results), default=0.0) or 1.0


def _scale(
    axes: Axes, end: float, name: str, show: Callable[[float], str], steps: Sequence[float]
) -> None:
    ticks = [tick for tick in axis([0.0, end], None, steps, 6).ticks if tick <= end]
    axes.set_xticks(ticks, [show(tick).replace("$", r"\$") for tick in ticks])
    axes.set_xlim(0.0, end)
    axes.set_xlabel(name)


# ---- the metric ----------------------------------------------------------------------------------


def _draw_metric(
    axes: Axes,
    benchmark: Benchmark,
    cells: Sequence[Cell],
    limit: float | None,
    place: Callable[[Point], float],
) -> None:
    """Draw the median over the seeds, from where half of them have a result."""
    last = [place(one.path[-1]) for cell in cells for one in cell.results if one.path]
    end = max([*last, limit or 0.0])
    for cell in cells:
        at, values = medians(benchmark, cell.results, place, end)
        axes.step(at, values, where="post", label=cell.name)
    axes.axhline(benchmark.curves.best, color=_LIMIT, ls=":")
    if limit is not None:
        axes.axvline(limit, color=_LIMIT, ls="--")
    axes.set(title=f"Best {benchmark.curves.metric} so far (median; dotted: the best there is)")


def medians(
    benchmark: Benchmark, results: Sequence[Result], place: Callable[[Point], float], end: float
) -> tuple[list[float], list[float]]:
    """Return places until `end`, and the median best by then, from where half have a result."""
    worst = -math.inf if benchmark.curves.mode == "max" else math.inf
    found: tuple[list[float], list[float]] = ([], [])
    for at in _grid(end):
        value = median(_held(one.path, place, at, worst) for one in results)
        if math.isfinite(value):
            found[0].append(at)
            found[1].append(value)
    return found


def _grid(end: float) -> list[float]:
    return [end * step / _POINTS for step in range(_POINTS + 1)]


def _held(path: Sequence[Point], place: Callable[[Point], float], at: float, worst: float) -> float:
    number = bisect.bisect_right(path, at, key=place)
    return path[number - 1].metric if number else worst


# ---- GPUs ----------------------------------------------------------------------------------------


def _draw_gpus(axes: Axes, cells: Sequence[Cell]) -> None:
    end = _ends(cells, lambda o: o.seconds)
    for cell in cells:
        axes.step(*mean_sizes(cell.results, end), where="post", label=cell.name)
    axes.set_ylim(bottom=0.0)
    axes.set(title="GPUs that bill (mean)")


def mean_sizes(results: Sequence[Result], end: float) -> tuple[list[float], list[float]]:
    """Return times until `end`, and how many GPUs bill then, on average."""
    times = _grid(end)
    return times, [fmean(_size(one.fleet, at) for one in results) for at in times]


def _size(fleet: Sequence[tuple[float, int]], at: float) -> int:
    number = bisect.bisect_right(fleet, at, key=lambda change: change[0])
    return fleet[number - 1][1] if number else 0


# ---- one run -------------------------------------------------------------------------------------


def _draw_gantt(axes: Axes, cell: Cell, audit: Audit) -> None:
    """Draw a line for each trial, in the order of their starts; the wider it is, the darker."""
    from matplotlib import colormaps  # noqa: PLC0415  see the module's docstring

    lines = {trial: number for number, trial in enumerate(audit.epochs)}
    widths = sorted({span.width for span in audit.spans})
    for number, width in enumerate(widths):
        spans = [span for span in audit.spans if span.width == width]
        axes.barh(
            [lines[span.trial] for span in spans],
            [span.end - span.begin for span in spans],
            left=[span.begin for span in spans],
            height=0.9,
            color=colormaps["viridis_r"]((number + 1) / (len(widths) + 1)),
            label=f"{width:.2g} GPU{'' if width == 1 else 's'}",
        )
    if widths:
        axes.legend(fontsize="small", loc="lower right")
    axes.invert_yaxis()
    _scale(axes, audit.seconds or 1.0, "time", format_seconds, TIME_STEPS)
    axes.set(title=f"One run: {cell.name}, seed {cell.case.seed}", ylabel="trial")
