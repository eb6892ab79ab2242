"""The trials of a run as charts: their metric against time and dollars, and their configurations.

Each trial is a line. Trials with the same last epoch share a trace, so that a run of hundreds of
trials is quick to draw and has a short legend.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cloudtune.display.pages import figures
from cloudtune.display.pages.figures import Figure, TimeUnit, Trace
from cloudtune.engine.record.timeline import EpochSpan
from cloudtune.model.progress import TrialProgress
from cloudtune.model.text import cost_format, count_noun, gpus_text
from cloudtune.model.trial import better, flat
from cloudtune.model.units import format_seconds
from cloudtune.runs.report import Report

FAILED = "failed or diverged"
# Positive numbers that span more than this factor are shown on a log scale.
_LOG = 50.0
# The place on an axis of configurations without that parameter.
_MISSING = -0.08
# Of more trials than this, the best and those that went furthest are drawn strong, others faint.
_MANY = 60
_STRONG = 10
# The width of a parameter in pixels.
_ROOMY = 110

# A point of a line: its place on both axes, and its data, the trial first; None in a gap.
_Point: TypeAlias = tuple[float | None, float | None, list[Any] | None]


def groups(report: Report) -> dict[str, list[TrialProgress]]:
    """Return the trials by their last epoch, ascending."""
    rungs = [rung.epoch for rung in report.rungs]
    by_rung: dict[int, list[TrialProgress]] = {}
    failed = []
    for trial in report.policy.trials.values():
        if trial.error:
            failed.append(trial)
            continue
        last = max((epoch.number for epoch in report.epochs_by_trial.get(trial.id, ())), default=0)
        reached = max((rung for rung in rungs if rung <= last), default=0)
        by_rung.setdefault(reached, []).append(trial)
    result = {
        f"came to epoch {rung}" if rung else "no rung reached": by_rung[rung]
        for rung in sorted(by_rung)
    }
    return {**result, FAILED: failed} if failed else result


def _draw(report: Report) -> Iterator[tuple[str, Sequence[TrialProgress], dict[str, Any]]]:
    """Yield each group of trials, and its line style; the last ones lie above the others."""
    grouped = groups(report)
    many = len(report.policy.trials) > _MANY
    best = report.best_first()[:_STRONG] if many else []
    strong = {trial.id for trial in best}
    deepest = len(grouped) - (FAILED in grouped) - 1
    for number, (name, trials) in enumerate(grouped.items()):
        others = [trial for trial in trials if trial.id not in strong]
        if not others:
            continue
        place = number * (len(figures.DEPTHS) - 1) / deepest if deepest > 0 else 2
        colour = figures.LIMIT if name == FAILED else figures.DEPTHS[round(place)]
        went_furthest = deepest > 0 and number == deepest
        yield name, others, _look(colour, faint=many and not went_furthest)
    if best:
        yield f"the best {len(best)}", best, _look(figures.STRONG, faint=False, width=2.0)


def _look(colour: str, *, faint: bool, width: float = 1.4) -> dict[str, Any]:
    if faint:
        return {"line": {"color": colour, "width": 1.0}, "marker": {"size": 2.5}, "opacity": 0.35}
    return {"line": {"color": colour, "width": width}, "marker": {"size": 4}, "opacity": 1.0}


def metric_by_time(report: Report) -> Figure:
    """Return each trial's metric, and the best so far, against the seconds of the run."""
    limits = report.job.limits
    clock = TimeUnit.until(report.timeline.over_at)
    end = max((epoch.report.at for epoch in _epochs(report)), default=report.timeline.over_at)
    drawn = figures.limit_lines(limits, clock, dollars="", ends=(end, 0.0))
    figure = figures.layout(
        xaxis=figures.time_axis(clock, end, limits.deadline),
        yaxis=figures.axis(report.metric),
        **drawn,
    )
    return Figure(
        _curves(report, clock.of, f" {clock.name}"), figure, _best_text(report), linked=True
    )


def metric_by_dollars(report: Report) -> Figure:
    """Return each trial's metric, and the best so far, against the dollars spent by then."""
    limits = report.job.limits
    end = report.spent(max((epoch.report.at for epoch in _epochs(report)), default=0.0))
    offers = report.job.plan.offers
    cost = cost_format(offers)
    money, _ = figures.money(offers)
    clock = TimeUnit.until(report.timeline.over_at)
    drawn = figures.limit_lines(limits, clock, time="", dollars="x", ends=(0.0, end), cost=cost)
    figure = figures.layout(
        xaxis=figures.cost_axis(offers, end, limits.budget),
        yaxis=figures.axis(report.metric),
        **drawn,
    )
    spent = cost(report.dollars)
    ended = report.policy.ended
    says = f"{_best_text(report)} The run cost {spent}{'' if ended else ' so far'}."
    return Figure(_curves(report, report.spent, f" {money}"), figure, says, linked=True)


def _epochs(report: Report) -> Iterator[EpochSpan]:
    for epochs in report.epochs_by_trial.values():
        yield from epochs


def _curves(report: Report, place: Callable[[float], float], unit: str) -> list[Trace]:
    cache: dict[float, float] = {}

    def at(seconds: float) -> float:
        if seconds not in cache:
            cache[seconds] = place(seconds)
        return cache[seconds]

    traces = [
        {**_curve(report, name, trials, at, unit), **look} for name, trials, look in _draw(report)
    ]
    best = report.improvements
    so_far = figures.marks(
        "best so far",
        [at(epoch.report.at) for epoch in best],
        [epoch.report.metrics[report.metric] for epoch in best],
        "best so far %{y:.5g}: %{customdata[0]}, epoch %{customdata[1]}",
        customdata=[[epoch.trial, epoch.named] for epoch in best],
        line={"shape": "hv", "color": figures.BEST, "width": 3},
    )
    return [*traces, so_far, figures.chosen_line()]


def _curve(
    report: Report,
    name: str,
    trials: Sequence[TrialProgress],
    at: Callable[[float], float],
    unit: str,
) -> Trace:

    def points(trial: TrialProgress) -> Iterator[_Point]:
        for epoch in report.epochs_by_trial.get(trial.id, ()):
            own = [trial.id, epoch.number, gpus_text(epoch.width)]
            yield at(epoch.report.at), epoch.report.metrics.get(report.metric), own

    hover = "%{customdata[0]}, epoch %{customdata[1]}: %{y:.5g}"
    return _lines(name, trials, points, f"{hover}<br>%{{x:.4g}}{unit}, %{{customdata[2]}}")


def _lines(
    name: str,
    trials: Sequence[TrialProgress],
    points: Callable[[TrialProgress], Iterable[_Point]],
    hover: str,
) -> Trace:
    """Return the lines of trials with the same last epoch, with gaps between them."""
    gap = (None, None, None)
    path = [point for trial in trials for point in (*points(trial), gap)]
    x, y, data = zip(*path, strict=True)
    title = f"{name} ({len(trials)})"
    return figures.marks(
        title, x, y, hover, mode="lines+markers", customdata=data, connectgaps=False
    )


def _best_text(report: Report) -> str:
    best = report.policy.best
    if best is None:
        return f"No trial reported {report.metric}."
    value = report.policy.trials[best.trial].history.get(best.epoch, best.metric)
    at = next(
        (e.report.at for e in report.epochs_by_trial.get(best.trial, ()) if e.number == best.epoch),
        None,
    )
    when = ""
    if at is not None:
        spent = cost_format(report.job.plan.offers)(report.spent(at))
        when = f", at {format_seconds(at)} of the run and {spent}"
    count = count_noun(len(report.policy.trials), "trial")
    return (
        f"{count}; the best: {report.metric} {value:.5g} of {best.trial}, epoch {best.epoch}{when}."
    )


@dataclass(frozen=True)
class _Scale:
    """One axis of the configurations: the place of each value, from 0 to 1, and its label."""

    name: str
    values: Mapping[str, object]
    ticks: tuple[tuple[float, str], ...]
    places: Mapping[str, float]

    def at(self, trial: str) -> float:
        """Return the place of a trial on the axis."""
        return self.places.get(trial, _MISSING)

    def text(self, trial: str) -> str:
        if trial not in self.places:
            return f"{self.name}: none"
        return f"{self.name}: {value_text(self.values[trial])}"


def configurations(report: Report) -> Figure:
    """Return the configurations as lines across an axis for each parameter, and the metric."""
    policy = report.policy
    best = {trial.id: value for trial in policy.trials.values() if (value := _best(report, trial))}
    configs = {trial.id: flat(trial.trial.config) for trial in policy.trials.values()}
    names = dict.fromkeys(name for config in configs.values() for name in config)
    scales = []
    for name in names:
        values = {t: config[name] for t, config in configs.items() if name in config}
        scales.append(_scale(name, values))
    scales.append(_scale(report.metric, {t: value for t, (value,) in best.items()}))
    traces = [{**_paths(name, trials, scales), **look} for name, trials, look in _draw(report)]
    roomy = {"width": _ROOMY * len(scales), "autosize": False} if len(scales) > 10 else {}
    figure = figures.layout(
        440,
        xaxis={
            "tickvals": list(range(len(scales))),
            "ticktext": [figures.plain(_short(scale.name)) for scale in scales],
            "range": [-0.35, len(scales) - 0.45],
            "side": "top",
            "showgrid": True,
            "zeroline": False,
        },
        yaxis={"visible": False, "range": [-0.14, 1.05]},
        margin={"l": 50, "r": 70, "t": 90, "b": 20},
        legend={"orientation": "h", "x": 0, "y": 0, "yanchor": "top"},
        **roomy,
    )
    parameters = count_noun(len(names), "parameter")
    says = (
        f"{count_noun(len(policy.trials), 'configuration')} of {parameters}, "
        f"and the best {report.metric} of each; a log scale where values span decades."
    )
    return Figure([*traces, _ticks(scales), figures.chosen_line()], figure, says, linked=True)


def _best(report: Report, trial: TrialProgress) -> tuple[float] | None:
    best: float | None = None
    for value in () if trial.status == "diverged" else trial.history.values():
        if better(report.policy.state.mode, value, best):
            best = value
    return None if best is None else (best,)


def _scale(name: str, values: Mapping[str, object]) -> _Scale:
    numbers = {
        trial: float(value)
        for trial, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    if not values or len(numbers) < len(values):
        return _categories(name, values)
    low = min(numbers.values())
    high = max(numbers.values())
    log = low > 0 and high / low > _LOG
    turn: Callable[[float], float] = math.log if log else float
    back: Callable[[float], float] = math.exp if log else float
    begin = turn(low)
    length = turn(high) - turn(low)
    places = {t: (turn(v) - begin) / length if length > 0 else 0.5 for t, v in numbers.items()}
    marked = [0.0, 0.25, 0.5, 0.75, 1.0] if length > 0 else [0.5]
    ticks = tuple(
        (at, f"{back(begin + at * length):.3g}" if length else f"{low:.4g}") for at in marked
    )
    return _Scale(name, values, ticks, places)


def _categories(name: str, values: Mapping[str, object]) -> _Scale:
    texts = sorted({value_text(value) for value in values.values()})
    at = {
        text: number / (len(texts) - 1) if len(texts) > 1 else 0.5
        for number, text in enumerate(texts)
    }
    shown = texts if len(texts) <= 12 else [texts[0], texts[-1]]
    ticks = tuple((at[text], _short(text)) for text in shown)
    return _Scale(name, values, ticks, {t: at[value_text(value)] for t, value in values.items()})


def value_text(value: object) -> str:
    """Return a value of a configuration, short."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= 18 else f"{text[:17]}…"


def _paths(name: str, trials: Sequence[TrialProgress], scales: Sequence[_Scale]) -> Trace:
    def points(trial: TrialProgress) -> Iterator[_Point]:
        for number, scale in enumerate(scales):
            yield number, scale.at(trial.id), [trial.id, figures.plain(scale.text(trial.id))]

    return _lines(name, trials, points, "%{customdata[0]}<br>%{customdata[1]}")


def _ticks(scales: Sequence[_Scale]) -> Trace:
    marked = [(number, at, text) for number, scale in enumerate(scales) for at, text in scale.ticks]
    return figures.marks(
        "",
        [number for number, _, _ in marked],
        [at for _, at, _ in marked],
        "",
        mode="text",
        text=[f" {figures.plain(text)}" for _, _, text in marked],
        textposition="middle right",
        textfont={"size": 11},
        showlegend=False,
        hoverinfo="skip",
    )
