"""Plots of the comparison: regret ratios over the grid, and metric against time in one cell."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.compare.case import play
from benchmarks.strategies_cells import Cell
from benchmarks.strategies_methods import HEEDING, Variant
from benchmarks.strategies_runs import Job, place, wanted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.strategies_runs import Contest
    from benchmarks.strategies_verdict import Verdict

_WIDEST = 2.0
"""Ratios beyond it, or below its inverse, have one colour."""
_SHOWN = ("asha", "hyperband", "hypersched", "seer", "seer-constant", "seer-barrier")


def draw(contest: Contest, verdicts: Sequence[Verdict], out: Path) -> None:
    """Write both plots into a folder, as SVG."""
    import matplotlib  # noqa: ICN001, PLC0415  loads slowly

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "cloudtune"
    _ratios(verdicts, out / "strategies-ratios.svg")
    _paths(contest, out / "strategies-paths.svg")


def _ratios(verdicts: Sequence[Verdict], path: Path) -> None:
    """Draw a heat map of each method and profile: geometric means over the tables of curves."""
    import matplotlib.pyplot as plt  # noqa: PLC0415

    methods = list(dict.fromkeys(each.method for each in verdicts))
    profiles = list(dict.fromkeys(each.profile for each in verdicts))
    size = (3.2 * len(profiles), 2.6 * len(methods))
    figure, axes = plt.subplots(len(methods), len(profiles), figsize=size, squeeze=False)
    for row, method in enumerate(methods):
        for column, profile in enumerate(profiles):
            own = [v for v in verdicts if (v.method, v.profile) == (method, profile)]
            _heat(axes[row][column], own)
            axes[row][column].set_title(f"{method}, {profile}", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _heat(axes: Axes, verdicts: Sequence[Verdict]) -> None:
    deadlines = sorted({each.cell.deadline for each in verdicts})
    budgets = sorted({each.cell.budget for each in verdicts})
    logs = [[_log_ratio(verdicts, Cell(d, b)) for b in budgets] for d in deadlines]
    most = math.log(_WIDEST)
    axes.imshow(logs, cmap="RdYlGn_r", vmin=-most, vmax=most, aspect="auto", origin="lower")
    for row, values in enumerate(logs):
        for column, value in enumerate(values):
            axes.text(column, row, f"{math.exp(value):.2f}", ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(budgets)), [f"{each:g}" for each in budgets], fontsize=7)
    axes.set_yticks(range(len(deadlines)), [f"{each:g}" for each in deadlines], fontsize=7)
    axes.set_xlabel("budget (full trainings)", fontsize=7)
    axes.set_ylabel("deadline (full trainings)", fontsize=7)


def _log_ratio(verdicts: Sequence[Verdict], cell: Cell) -> float:
    return fmean(math.log(each.ratio) for each in verdicts if each.cell == cell)


def _paths(contest: Contest, path: Path) -> None:
    """Draw the best metric against time for one cell in the middle, with the first seed."""
    import matplotlib.pyplot as plt  # noqa: PLC0415

    ground, profile = contest.grounds[0], contest.profiles[len(contest.profiles) // 2]
    cell = contest.cells[len(contest.cells) // 2]
    where = place(ground, profile)
    figure, axes = plt.subplots(figsize=(7, 4))
    for method in (name for name in _SHOWN if name in contest.methods):
        variant = Variant(method, fleet="" if method in HEEDING else "naive")
        job = Job(0, ground.name, profile, variant, (cell,))
        found = play(where.benchmark, wanted(job, ground.limits(cell)))
        times = [point.at / 3600 for point in found.path]
        values = [point.metric for point in found.path]
        axes.step(times, values, where="post", label=method)
    axes.set_xlabel("hours")
    axes.set_ylabel(ground.curves.metric)
    limits = f"deadline {cell.deadline:g}, budget {cell.budget:g} full trainings"
    axes.set_title(f"{ground.name}, {profile}: {limits}", fontsize=9)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
