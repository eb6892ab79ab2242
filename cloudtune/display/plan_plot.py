"""A proposal as a picture: PNG, or a page of HTML that needs nothing else.

matplotlib is imported when a plot is asked for: it takes longer than planning does. Figures are
made without pyplot, so no display is looked for and no state is left behind.
"""

from __future__ import annotations

import io
from html import escape
from typing import TYPE_CHECKING

from cloudtune.display import alternatives_tables, plan_tables
from cloudtune.display.chart import DOLLAR_STEPS, TIME_STEPS, axis
from cloudtune.display.pages.document import facts
from cloudtune.display.terminal import beside
from cloudtune.errors import UsageError, need
from cloudtune.private_files import for_others
from cloudtune.text import offer_text
from cloudtune.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cloudtune.display.chart import Axis
    from cloudtune.display.terminal import Sheet
    from cloudtune.jobs.proposal import Proposal
    from cloudtune.plans import Estimate, Limits, Plan

_CHOICE, _FRONT, _LIMIT = "#c44e52", "#4c72b0", "#8c8c8c"
_MARKERS = "sD^vP*Xh"
# Without its date and its hashed ids by chance, equal proposals give equal files.
_NO_METADATA: dict[str, str | None] = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def save(path: Path, proposal: Proposal) -> None:
    """Draw a proposal into a file, a .png or a .html by its name.

    Raises:
        UsageError: another ending, the file can't be written, or matplotlib isn't installed.
    """
    suffix = path.suffix.lower()
    if suffix not in {".png", ".html"}:
        raise UsageError(f"--plot {path}: name a file that ends in .png or .html")
    need("plots", "--plot", "matplotlib")
    content = _png(proposal) if suffix == ".png" else _page(proposal).encode()
    try:
        with for_others():
            path.write_bytes(content)
    except OSError as error:
        raise UsageError(
            f"--plot {path}: can't be written ({error.strerror}); name a file in a folder that "
            "exists and is yours"
        ) from None


def _png(proposal: Proposal) -> bytes:
    file = io.BytesIO()
    _figure(proposal).savefig(file, format="png", dpi=150)
    return file.getvalue()


def _svg(proposal: Proposal) -> str:
    """Return the figure as an <svg> element, without the prologue that a page must not hold."""
    from matplotlib import rc_context  # noqa: PLC0415  see the module's docstring

    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "cloudtune"}):
        _figure(proposal).savefig(file, format="svg", metadata=_NO_METADATA)
    text = file.getvalue()
    return text[text.index("<svg") :]


def _figure(proposal: Proposal) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415  see the module's docstring

    panels = 3 if proposal.by_trials else 2
    figure = Figure(figsize=(6 * panels, 5), layout="constrained")
    axes = figure.subplots(1, panels)
    _draw_front(axes[0], proposal)
    if proposal.plan.staged is not None:
        _draw_fleet(axes[1], proposal.plan.staged, proposal.basis.text)
    if proposal.by_trials:
        _draw_trials(axes[2], proposal)
    return figure


# ---- cost against time -------------------------------------------------------------------------


def _draw_front(axes: Axes, proposal: Proposal) -> None:
    chosen, limits = proposal.plan.estimate, proposal.limits
    front = [plan.estimate for plan in proposal.front]
    points = [*front, chosen, *(other.plan.estimate for other in proposal.alternatives)]
    times = axis([p.seconds for p in points], limits.deadline, TIME_STEPS, 6)
    costs = axis([p.dollars for p in points], limits.budget, DOLLAR_STEPS, 6)
    _scale(axes, times, costs)
    _draw_limits(axes, limits, times, costs)
    axes.step(*_columns(front), where="post", color=_FRONT, alpha=0.4, zorder=2)
    axes.plot(*_columns(front), "o", color=_FRONT, label="front", zorder=3)
    for marker, other in zip(_MARKERS, proposal.alternatives, strict=False):
        spot = _columns([other.plan.estimate])
        axes.plot(*spot, marker, mfc="none", mec="black", label=_plain(other.name), zorder=4)
    axes.plot(*_columns([chosen]), "*", color=_CHOICE, ms=16, label="this plan", zorder=5)
    axes.set(title=beside("Cost against time", proposal.basis.text), xlabel="time", ylabel="cost")
    axes.legend(fontsize="small")


def _draw_trials(axes: Axes, proposal: Proposal) -> None:
    """Draw how many trials the dollars buy, within the deadline."""
    plans, budget = proposal.by_trials, proposal.limits.budget
    dollars = [plan.estimate.dollars for plan in plans]
    trials = [plan.stages[0].stage.trials for plan in plans]
    axes.plot(dollars, trials, "o-", color=_FRONT, label="cheapest within the deadline")
    axes.set(xscale="log", yscale="log", title="Trials by cost", xlabel="cost", ylabel="trials")
    shown = axis(dollars, budget, DOLLAR_STEPS, 6)
    axes.xaxis.set_ticks(shown.ticks, [_plain(format_dollars(tick)) for tick in shown.ticks])
    axes.xaxis.set_ticks([], minor=True)
    axes.yaxis.set_ticks(trials, [f"{count}" for count in trials])
    axes.yaxis.set_ticks([], minor=True)
    if budget is not None and shown.holds(budget):
        name = f"budget {_plain(format_dollars(budget))}"
        axes.axvline(budget, color=_LIMIT, ls=":", label=name)
    axes.legend(fontsize="small")


def _columns(points: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    return [p.seconds for p in points], [p.dollars for p in points]


def _scale(axes: Axes, times: Axis, costs: Axis) -> None:
    for side, one, show in (
        (axes.xaxis, times, format_seconds),
        (axes.yaxis, costs, format_dollars),
    ):
        if one.log:
            axes.set(**{f"{side.axis_name}scale": "log"})
        side.set_ticks(one.ticks, [_plain(show(tick)) for tick in one.ticks])
        side.set_ticks([], minor=True)
    axes.set_xlim(times.low, times.high)
    axes.set_ylim(costs.low, costs.high)


def _draw_limits(axes: Axes, limits: Limits, times: Axis, costs: Axis) -> None:
    """Draw the limits and shade what breaks one; a limit beyond the axes stays out of sight."""
    if limits.deadline is not None:
        begin = max(limits.deadline, times.low)
        axes.axvspan(begin, max(begin, times.high), color=_LIMIT, alpha=0.15, lw=0)
        if times.holds(limits.deadline):
            name = f"deadline {format_seconds(limits.deadline)}"
            axes.axvline(limits.deadline, color=_LIMIT, ls="--", label=name)
    if limits.budget is not None:
        begin = max(limits.budget, costs.low)
        axes.axhspan(begin, max(begin, costs.high), color=_LIMIT, alpha=0.15, lw=0)
        if costs.holds(limits.budget):
            name = f"budget {_plain(format_dollars(limits.budget))}"
            axes.axhline(limits.budget, color=_LIMIT, ls=":", label=name)


def _plain(text: str) -> str:
    """Return text that matplotlib takes for no formula and the legend for no hidden name."""
    return text.replace("$", r"\$").lstrip("_")


# ---- the fleet over time -----------------------------------------------------------------------


def _draw_fleet(axes: Axes, plan: Plan, basis: str) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  see the module's docstring

    ends = [stage.begin + stage.seconds for stage in plan.stages]
    times = [*(stage.begin for stage in plan.stages), ends[-1]]
    sizes = [
        [group.instances if (group := stage.group(offer)) else 0 for stage in plan.stages]
        for offer in plan.offers
    ]
    axes.stackplot(
        times,
        [[*counts, counts[-1]] for counts in sizes],
        labels=[_plain(offer_text(offer)) for offer in plan.offers],
        step="post",
        alpha=0.75,
    )
    shown = axis([0.0, times[-1]], None, TIME_STEPS, 7)
    axes.set_xticks(shown.ticks, [format_seconds(tick) for tick in shown.ticks])
    axes.set_xlim(0.0, times[-1])
    axes.set_ylim(0.0, plan.peak_instances * 1.3)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    for number, stage in enumerate(plan.stages, start=1):
        top = (stage.begin + stage.seconds / 2, stage.instances)
        axes.annotate(f"{number}", top, (0, 3), textcoords="offset points", ha="center")
    axes.set(title=beside("Instances in each stage", basis), xlabel="time", ylabel="instances")
    axes.legend(fontsize="small", loc="upper right")


# ---- the page ----------------------------------------------------------------------------------

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.1em; margin-top: 1.8em; }
table { border-collapse: collapse; } svg { height: auto; max-width: 100%; }
th, td { padding: .2em .8em; text-align: right; vertical-align: top; }
th { border-bottom: 1px solid #888; } .left { text-align: left; }
.total td { border-top: 1px solid #888; } .warning { color: #a05a00; }
dl { display: grid; gap: .1em 1.2em; grid-template-columns: max-content auto; } dd { margin: 0; }
"""


def _page(proposal: Proposal) -> str:
    title, staged = f"Plan of {escape(proposal.name)}", proposal.plan.staged
    parts = [
        f"<h1>{title}</h1>",
        facts(plan_tables.header(proposal)),
        *([_table(plan_tables.stages_of(proposal))] if staged else []),
        _table(plan_tables.forecast(proposal)),
        facts(plan_tables.certainty(proposal)),
        _svg(proposal),
        *([_table(alternatives_tables.alternatives(proposal))] if proposal.alternatives else []),
        *([_table(alternatives_tables.front(proposal))] if proposal.front else []),
        *([_table(alternatives_tables.by_trials(proposal))] if proposal.by_trials else []),
        "<h2>What a run creates</h2>",
        facts(plan_tables.creation(proposal)),
    ]
    if proposal.comparison:
        parts.append(_table(alternatives_tables.comparison(proposal)))
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _table(sheet: Sheet) -> str:
    last = len(sheet.rows) - 1
    rows = [
        f"<tr{' class=total' if sheet.total and n == last else ''}>{_cells('td', sheet, row)}</tr>"
        for n, row in enumerate(sheet.rows)
    ]
    head = f"<tr>{_cells('th', sheet, sheet.columns)}</tr>"
    return f"<h2>{escape(sheet.title)}</h2>\n<table>{head}{''.join(rows)}</table>"


def _cells(tag: str, sheet: Sheet, cells: Sequence[str]) -> str:
    return "".join(
        f"<{tag}{' class=left' if name in sheet.left else ''}>{escape(cell)}</{tag}>"
        for name, cell in zip(sheet.columns, cells, strict=True)
    )
