"""The page of strategies compared on recorded curves: each pair of limits, by its cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.display import comparison_tables
from cloudtune.display.comparison_plot import best_first, mean_sizes, medians
from cloudtune.display.pages.document import Section, document, facts, table
from cloudtune.display.pages.figures import (
    COLOURS,
    Clock,
    Figure,
    axis,
    dollar_axis,
    layout,
    limit_lines,
    plain,
    time_axis,
)
from cloudtune.display.terminal import Fact
from cloudtune.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cloudtune.display.comparison_tables import Cell
    from cloudtune.display.pages.figures import Trace
    from cloudtune.plans import Limits
    from cloudtune.simulation.benchmark import Benchmark

_MOST = 16
"""More ways than that are left to the table."""
_WIDE = 1000


def comparison_page(benchmark: Benchmark, cells: Sequence[Cell]) -> str:
    """Return the page of a comparison.

    Raises:
        UsageError: plotly isn't installed.
    """
    curves = benchmark.curves
    head = facts(
        [
            Fact(
                "curves", f"{len(curves.curves)} configurations of up to {curves.max_epochs} epochs"
            ),
            Fact("best there is", f"{curves.metric} {curves.best:.4g} ({curves.mode})"),
            Fact("an epoch", f"counts as {format_seconds(benchmark.epoch_seconds)} on one GPU"),
            Fact("figures", "simulated: other widths and types follow the profile"),
            Fact("limits kept", comparison_tables.kept(cells)),
        ]
    )
    sheets = [table(sheet) for sheet in comparison_tables.sheets(benchmark, cells, _WIDE)]
    tables = Section("All ways", None, "".join(sheets))
    drawn = comparison_tables.by_limits(cells).items()
    sections = [part for limits, own in drawn for part in _sections(benchmark, limits, own)]
    return document(f"Strategies compared on {curves.metric}", head, [*sections, tables])


def _sections(benchmark: Benchmark, limits: Limits, cells: Sequence[Cell]) -> Iterator[Section]:
    name, metric = comparison_tables.limits_text(limits), benchmark.curves.metric
    shown = best_first(benchmark, cells)[:_MOST]
    end = max((each.seconds for cell in shown for each in cell.results), default=0.0) or 1.0
    most = max((each.dollars for cell in shown for each in cell.results), default=0.0)
    clock = Clock.until(end)
    rest = f" {len(cells) - _MOST} more in the table." if len(cells) > _MOST else ""
    says = f"The best so far, median over the seeds.{rest}"
    yield Section(
        f"{metric} against time, {name}",
        Figure(
            _by_time(benchmark, shown, clock, limits, end),
            layout(
                440,
                xaxis=time_axis(clock, end, limits.deadline),
                yaxis=axis(metric),
                **limit_lines(limits, clock, dollars="", ends=(end, most)),
            ),
            says,
        ),
        wide=False,
    )
    yield Section(
        f"{metric} against dollars, {name}",
        Figure(
            _by_dollars(benchmark, shown, limits, most),
            layout(
                440,
                xaxis=dollar_axis(most, limits.budget),
                yaxis=axis(metric),
                **limit_lines(limits, clock, time="", dollars="x", ends=(end, most)),
            ),
            says,
        ),
        wide=False,
    )
    yield Section(f"What they found and cost, {name}", _ends(shown, metric), wide=False)
    yield Section(f"GPUs that bill, {name}", _fleets(shown, clock, end), wide=False)


def _by_time(
    benchmark: Benchmark, cells: Sequence[Cell], clock: Clock, limits: Limits, end: float
) -> list[Trace]:
    found = []
    for number, cell in enumerate(cells):
        x, y = medians(benchmark, cell.results, lambda p: p.at, max(end, limits.deadline or 0.0))
        found.append(_line(cell.name, number, clock.all(x), y))
    return found


def _by_dollars(
    benchmark: Benchmark, cells: Sequence[Cell], limits: Limits, end: float
) -> list[Trace]:
    found = []
    for number, cell in enumerate(cells):
        x, y = medians(benchmark, cell.results, lambda p: p.dollars, max(end, limits.budget or 0.0))
        found.append(_line(cell.name, number, x, y))
    return found


def _line(name: str, number: int, x: Sequence[float], y: Sequence[float]) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(name),
        "x": list(x),
        "y": list(y),
        "line": {"shape": "hv", "color": COLOURS[number % len(COLOURS)], "dash": _dash(number)},
        "hovertemplate": f"{plain(name)}: %{{y:.5g}}<extra></extra>",
    }


def _dash(number: int) -> str:
    return "solid" if number < len(COLOURS) else "dash"


def _ends(cells: Sequence[Cell], metric: str) -> Figure:
    traces = []
    for number, cell in enumerate(cells):
        value, cost = cell.mean(lambda o: o.metric), cell.mean(lambda o: o.dollars)
        if value is None or cost is None:
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(cell.name),
                "x": [cost],
                "y": [value],
                "error_x": {"type": "data", "array": [cell.error(lambda o: o.dollars) or 0.0]},
                "error_y": {"type": "data", "array": [cell.error(lambda o: o.metric) or 0.0]},
                "marker": {"size": 11, "color": COLOURS[number % len(COLOURS)]},
                "hovertemplate": f"{plain(cell.name)}: %{{y:.5g}} for $%{{x:.4g}}<extra></extra>",
            }
        )
    shown = layout(440, xaxis=axis("dollars", tickprefix="$"), yaxis=axis(metric))
    return Figure(traces, shown, "Means over the seeds, with their standard errors.")


def _fleets(cells: Sequence[Cell], clock: Clock, end: float) -> Figure:
    traces = []
    for number, cell in enumerate(cells):
        x, y = mean_sizes(cell.results, end)
        traces.append(_line(cell.name, number, clock.all(x), y))
    shown = layout(440, xaxis=time_axis(clock, end), yaxis=axis("GPUs", rangemode="tozero"))
    return Figure(traces, shown, "Means over the seeds.")
