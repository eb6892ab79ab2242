"""What a person sees of a plan: tables, a chart, and what a run of it would create."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cloudtune import plan_tables
from cloudtune.chart import chart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from cloudtune.plan import Plan
    from cloudtune.plan_tables import Fact, Sheet
    from cloudtune.proposal import Comparison, Proposal

# Columns of the chart's field, and of what stands to the left of it.
_NARROW, _WIDE, _LABELS = 30, 78, 16
# In fewer columns than these every cell may wrap, so that no figure loses a digit.
_ROOMY = 80


def show_plan(out: Console, proposal: Proposal) -> None:
    """Print a plan, how sure it is, what else could be done and what it would create."""
    out.print(Text(f"Plan of {proposal.name}", style="bold"))
    _print_facts(out, plan_tables.header(proposal))
    _print_sheet(out, plan_tables.stages(proposal.plan))
    _print_sheet(out, plan_tables.totals(proposal))
    out.print()
    _print_facts(out, plan_tables.certainty(proposal))
    if proposal.alternatives:
        _print_sheet(out, plan_tables.alternatives(proposal))
    _print_chart(out, proposal)
    _print_title(out, "What a run creates")
    _print_facts(out, plan_tables.creation(proposal))
    if proposal.comparison:
        show_compare(out, proposal.comparison, proposal.objective)


def show_compare(out: Console, rows: Sequence[Comparison], objective: str = "cost") -> None:
    """Print what every planner came to, in one table."""
    _print_sheet(out, plan_tables.comparison(rows, objective))


def show_stages(out: Console, plan: Plan) -> None:
    """Print a plan's stages alone."""
    _print_sheet(out, plan_tables.stages(plan))


def show_nearest(
    out: Console,
    fastest: Plan | None,
    cheapest: Plan | None,
    nearest: Plan | None = None,
) -> None:
    """Print the plans that come nearest to limits that none meets."""
    plans = {"fastest": fastest, "cheapest": cheapest, "nearest to both": nearest}
    if any(plans.values()):
        _print_sheet(out, plan_tables.nearest(plans))


def _print_chart(out: Console, proposal: Proposal) -> None:
    front = [plan.estimate for plan in proposal.front]
    width = max(_NARROW, min(_WIDE, out.width - _LABELS))
    lines = chart(front, proposal.plan.estimate, proposal.limits, width=width)
    _print_title(out, lines[0])
    for line in lines[1:]:
        out.print(Text(f"  {line}"))


def _print_title(out: Console, text: str) -> None:
    out.print()
    out.print(Text(text, style="italic"))


def _print_facts(out: Console, facts: Sequence[Fact]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for fact in facts:
        style = "yellow" if fact.warning else ""
        grid.add_row(Text(f"  {fact.label}"), Text(fact.text, style=style))
    out.print(grid)


def _print_sheet(out: Console, sheet: Sheet) -> None:
    _print_title(out, sheet.title)
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1))
    roomy = out.width >= _ROOMY
    for name in sheet.columns:
        table.add_column(
            Text(name),
            justify="left" if name in sheet.left else "right",
            no_wrap=roomy and name not in sheet.wraps,
            overflow="fold",
        )
    for number, row in enumerate(sheet.rows, start=1):
        if sheet.total and number == len(sheet.rows):
            table.add_section()
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)
