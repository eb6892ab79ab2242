"""The runs of this machine, as a table."""

import textwrap
from collections.abc import Sequence

from rich.console import Console

from cloudtune.display.terminal import Sheet, print_sheet
from cloudtune.model.units import format_dollars, format_gpu_hours
from cloudtune.runs.history import Listed

_COLUMNS = ("run", "best", "cost", "ended", "times")
_NAME = 28  # leaves room for the rest in 80 columns


def show_runs(out: Console, runs: Sequence[Listed]) -> None:
    """Print the runs, latest first, and why some of them can't be used."""
    if not runs:
        out.print("No run on this machine yet.")
        return
    rows = tuple(_row(run) for run in runs)
    left = frozenset(_COLUMNS)
    wraps = frozenset({"best", "cost"})
    print_sheet(out, Sheet("Runs", _COLUMNS, rows, left, wraps))
    reasons: dict[str, list[str]] = {}
    for run in runs:
        if run.why:
            reasons.setdefault(f"no times: {run.why}", []).append(run.run)
    for reason, names in reasons.items():
        out.print(f"{reason}: {', '.join(names)}", markup=False)


def _row(run: Listed) -> tuple[str, ...]:
    it = run.record
    times = "no" if run.why else "yes"
    name = textwrap.fill(run.run, _NAME)
    if it is None:
        return (name, "", "", run.state, times)
    cost = format_gpu_hours if it.in_gpu_hours else format_dollars
    return (
        name,
        "none" if it.best is None else f"{it.best:.4g} {it.metric}",
        cost(it.dollars) + " emulated" * it.emulated,
        run.state,
        times,
    )
