"""Drawings of the planners' benchmarks, small enough for the documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pandas as pd
    from matplotlib.figure import Figure

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cloudtune",  # the same drawing is the same file
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
_WIDTH = 4.2


def ratios(table: pd.DataFrame, names: Sequence[str], path: Path) -> None:
    """Draw the share of jobs in which each planner costs at most so many times the exact plan."""
    groups = list(table.groupby("set", sort=False))
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(
            1, len(groups), figsize=(_WIDTH * len(groups), 3.2), sharey=True
        )
        for axis, (title, rows) in zip(np.atleast_1d(axes), groups, strict=True):
            for name in names:
                ratio = np.sort(rows[name].fillna(np.inf).to_numpy())
                share = np.arange(1, len(ratio) + 1) / len(ratio)
                axis.step(ratio, share, where="post", label=name, linewidth=1.3)
            axis.set(title=f"{title}: {len(rows)} jobs", xscale="log", xlim=(0.99, 4), ylim=(0, 1))
            axis.set_xlabel("cost, as a multiple of the exact plan's")
            axis.set_xticks([1, 1.25, 1.5, 2, 3, 4])
            axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axis.xaxis.set_minor_formatter(NullFormatter())
        np.atleast_1d(axes)[0].set_ylabel("share of jobs")
        np.atleast_1d(axes)[-1].legend(frameon=False, loc="lower right")
        _write(figure, path)


def growth(series: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], path: Path) -> None:
    """Draw seconds against sizes: `series[what grows][which plan]` holds pairs of both."""
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(1, len(series), figsize=(2.6 * len(series), 2.9), sharey=True)
        for axis, (title, lines) in zip(np.atleast_1d(axes), series.items(), strict=True):
            for label, points in lines.items():
                size, seconds = zip(*points, strict=True)
                axis.plot(size, seconds, "o-", label=label, markersize=3, linewidth=1.2)
            axis.axhline(1.0, color="grey", linewidth=0.8, linestyle=":")
            axis.set(xlabel=title, yscale="log")
            if max(size) > 20 * min(size):
                axis.set_xscale("log", base=2)
            else:
                axis.set_xticks(size)
            for each in (axis.xaxis, axis.yaxis):
                each.set_major_formatter(FuncFormatter(lambda at, _: f"{at:g}"))
        np.atleast_1d(axes)[0].set_ylabel("processor seconds")
        np.atleast_1d(axes)[0].legend(frameon=False)
        _write(figure, path)


def _write(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
