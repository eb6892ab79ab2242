"""What the charts of all pages share: axes, colours, limits and text.

A figure is plotly's own JSON: traces and a layout. Nothing here imports plotly.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

from cloudtune.errors import need
from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Limits, Plan
from cloudtune.model.units import format_dollars, format_seconds

Trace: TypeAlias = "dict[str, Any]"

# Colours that differ clearly, on white and on a dark background.
COLOURS = ("#3f8fd6", "#e4572e", "#2ca58d", "#b074d6", "#e09f1f", "#8a93a6", "#d6598b", "#6f9e3c")
# From the trials that were stopped first to those that went furthest.
DEPTHS = ("#8a93a6", "#5f8fc4", "#3f8fd6", "#2ca58d", "#6bab34", "#e09f1f", "#e4572e")
BEST = "#e09f1f"
# Of the best trials among many.
STRONG = "#b03a9a"
LIMIT = "#d0453e"
PLAN = "#8a93a6"
CHOSEN = "#d61f8c"
# The style of words in a bar.
WRITTEN = {
    "textposition": "inside",
    "insidetextanchor": "middle",
    "textangle": 0,
    "insidetextfont": {"color": "#ffffff"},
}
# A limit this many times beyond everything else isn't drawn: it would flatten the rest.
_FAR = 3.0


@dataclass(frozen=True)
class Figure:
    """A chart: plotly's traces and layout, and its description `says`.

    If it is `linked`, the first of a mark's custom data is its trial, and the last trace is for the
    marks of the selected trial.
    """

    data: list[Trace]
    layout: dict[str, Any]
    says: str
    linked: bool = False

    def to_plotly(self) -> Any:
        """Return the chart as a `plotly.graph_objects.Figure`.

        Raises:
            UsageError: plotly isn't installed.
        """
        need("plots", "a chart", "plotly")
        from plotly.graph_objects import Figure as Drawn  # noqa: PLC0415  an extra

        traces = self.data[:-1] if self.linked else self.data
        kept = {name: part for name, part in self.layout.items() if not name.endswith("bgcolor")}
        return Drawn(data=traces, layout={**kept, "title": {"text": plain(self.says)}})


@dataclass(frozen=True)
class TimeUnit:
    """The unit of time of a chart: its `seconds` and its `name`."""

    seconds: float
    name: str

    @staticmethod
    def until(end: float) -> "TimeUnit":
        units = ((7200.0, 3600.0, "hours"), (180.0, 60.0, "minutes"))
        return next(
            (TimeUnit(s, name) for least, s, name in units if end >= least), TimeUnit(1, "seconds")
        )

    def of(self, seconds: float) -> float:
        return seconds / self.seconds

    def all(self, seconds: Iterable[float]) -> list[float]:
        return [second / self.seconds for second in seconds]


def plain(text: object) -> str:
    """Return text escaped for plotly."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def layout(height: int = 380, **more: Any) -> dict[str, Any]:
    """Return the layout of all charts; `more` is plotly's."""
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "margin": {"l": 70, "r": 20, "t": 40, "b": 50},
        "height": height,
        "autosize": True,
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        **more,
    }


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis; `more` is plotly's."""
    return {"title": {"text": plain(title)}, "automargin": True, "zeroline": False, **more}


def reach(end: float, limit: float | None) -> float:
    """Return the end of an axis: slightly beyond the data, or the limit if it isn't too far."""
    seen = limit if limit is not None and limit <= _FAR * end else 0.0
    return max(end, seen) * 1.03 or 1.0


def time_axis(
    clock: TimeUnit, end: float, limit: float | None = None, **more: Any
) -> dict[str, Any]:
    """Return the axis of the run's time."""
    return axis(clock.name, range=[0, clock.of(reach(end, limit))], **more)


def money(offers: Iterable[Offer]) -> tuple[str, str]:
    """Return what the dollars of these offers are called, and what stands before a number."""
    in_gpu_hours = any(offer.in_gpu_hours for offer in offers)
    return ("GPU-hours", "") if in_gpu_hours else ("dollars", "$")


def cost_axis(
    offers: Iterable[Offer], end: float, limit: float | None = None, **more: Any
) -> dict[str, Any]:
    """Return an axis of dollars, or of the GPU-hours that they stand for."""
    name, prefix = money(offers)
    return axis(name, range=[0, reach(end, limit)], tickprefix=prefix, **more)


def limit_lines(
    limits: Limits,
    clock: TimeUnit,
    *,
    time: str = "x",
    dollars: str = "y",
    ends: tuple[float, float],
    cost: Callable[[float], str] = format_dollars,
) -> dict[str, Any]:
    """Return the visible limits as lines across a chart; `ends` of seconds and dollars.

    `time` and `dollars` name their axes; "" if the chart doesn't have one. `cost` formats dollars.
    """
    in_sight = []
    if limits.deadline is not None and time and limits.deadline <= reach(ends[0], limits.deadline):
        text = f"deadline {format_seconds(limits.deadline)}"
        in_sight.append(line(time, clock.of(limits.deadline), text))
    if limits.budget is not None and dollars and limits.budget <= reach(ends[1], limits.budget):
        text = f"budget {cost(limits.budget)}"
        in_sight.append(line(dollars, limits.budget, text))
    return {"shapes": in_sight}


def line(name: str, at: float, text: str) -> dict[str, Any]:
    """Return a line across the chart at a value of an axis, with words along it."""
    along, across = ("x", "y") if name.startswith("x") else ("y", "x")
    return {
        "type": "line",
        f"{along}ref": name,
        f"{along}0": at,
        f"{along}1": at,
        f"{across}ref": "paper" if along == "x" else f"{across} domain",
        f"{across}0": 0,
        f"{across}1": 1,
        "line": {"color": LIMIT, "width": 1.5, "dash": "dash"},
        # At the ends of the line it would be cut by the edge of the chart.
        "label": {"text": plain(text), "textposition": "middle", "yanchor": "bottom"},
    }


def marks(name: str, x: Sequence[object], y: Sequence[object], hover: str, **more: Any) -> Trace:
    """Return a trace of lines, unless `mode` says otherwise; `hover` is the text of a mark.

    `more` is plotly's.
    """
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(name),
        "x": x,
        "y": y,
        "hovertemplate": f"{hover}<extra></extra>",
        **more,
    }


def chosen_line() -> Trace:
    """Return the empty trace for the line of the selected trial."""
    look = {"line": {"color": CHOSEN, "width": 3}, "marker": {"size": 6}, "hoverinfo": "skip"}
    return marks("", [], [], "", mode="lines+markers", customdata=[], showlegend=False, **look)


def spent_by_stage(plan: Plan) -> tuple[list[float], list[float]]:
    """Return the end times of a plan's stages, from its start, and the dollars by then."""
    times = [plan.stages[0].begin, *(stage.begin + stage.seconds for stage in plan.stages)]
    return times, [0.0, *accumulate(stage.dollars for stage in plan.stages)]


def steps(changes: Sequence[tuple[float, float]], end: float) -> tuple[list[float], list[float]]:
    """Return times and values to draw as steps: 0 at time 0, the last one held until `end`."""
    points = [(0.0, 0.0), *changes]
    last = (max(end, points[-1][0]), points[-1][1])
    return [at for at, _ in (*points, last)], [float(value) for _, value in (*points, last)]
