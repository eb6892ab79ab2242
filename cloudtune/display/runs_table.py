"""The runs of this machine, as a table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from cloudtune.units import format_dollars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from cloudtune.jobs.history import Listed

_RIGHT = frozenset({"trials"})
_WHOLE = frozenset({"run", "began"})


def show_runs(out: Console, found: Sequence[Listed]) -> None:
    """Print what runs there are, the latest first, and why some have nothing to tell."""
    if not found:
        out.print("No run on this machine yet.")
        return
    table = Table()
    for name in ("run", "began", "script", "best", "trials", "cost", "ended", "history"):
        whole, right = name in _WHOLE, name in _RIGHT
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=whole)
    for each in found:
        table.add_row(*map(escape, _row(each)))
    out.print(table)
    for each in found:
        what, why = _history(each), each.why or each.why_no_times
        if why:
            told = "is no history" if what == "no" else f"tells {what} alone"
            out.print(f"{each.run} {told}: {why}", markup=False)


def _history(each: Listed) -> str:
    """Return what a later run can learn from a run."""
    if each.why:
        return "no" if each.why_no_times else "times"
    return "configurations" if each.why_no_times else "yes"


def _row(each: Listed) -> tuple[str, ...]:
    it, history = each.record, _history(each)
    if it is None:
        return (each.run, "", "", "", "", "", each.state, history)
    return (
        it.run,
        time.strftime("%m-%d %H:%M", time.localtime(it.began)),
        f"{Path(it.script).name}:{it.function}",
        "none" if it.best is None else f"{it.best:.4g} {it.metric}",
        str(len(it.trials)),
        format_dollars(it.dollars) + " emulated" * it.emulated,
        each.state,
        history,
    )
