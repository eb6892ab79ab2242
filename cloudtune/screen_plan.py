"""What a person sees of a plan: tables, a chart, and what a run of it would create."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from cloudtune import plan_tables
from cloudtune.chart import chart
from cloudtune.screen_sheets import print_facts, print_sheet, print_title

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from cloudtune.plan import Plan
    from cloudtune.proposal import Comparison, Proposal

# Columns of the chart's field, and of what stands to the left of it.
_NARROW, _WIDE, _LABELS = 30, 78, 16


def show_plan(out: Console, proposal: Proposal) -> None:
    """Print a plan, how sure it is, what else could be done and what it would create."""
    out.print(Text(f"Plan of {proposal.name}", style="bold"))
    print_facts(out, plan_tables.header(proposal))
    print_sheet(out, plan_tables.stages(proposal.plan))
    print_sheet(out, plan_tables.totals(proposal))
    out.print()
    print_facts(out, plan_tables.certainty(proposal))
    if proposal.alternatives:
        print_sheet(out, plan_tables.alternatives(proposal))
    _print_chart(out, proposal)
    print_title(out, "What a run creates")
    print_facts(out, plan_tables.creation(proposal))
    if proposal.comparison:
        show_compare(out, proposal.comparison, proposal.objective)


def show_compare(out: Console, rows: Sequence[Comparison], objective: str = "cost") -> None:
    """Print what every planner came to, in one table."""
    print_sheet(out, plan_tables.comparison(rows, objective))


def show_stages(out: Console, plan: Plan) -> None:
    """Print a plan's stages alone."""
    print_sheet(out, plan_tables.stages(plan))


def show_nearest(
    out: Console,
    fastest: Plan | None,
    cheapest: Plan | None,
    nearest: Plan | None = None,
) -> None:
    """Print the plans that come nearest to limits that none meets."""
    plans = {"fastest": fastest, "cheapest": cheapest, "nearest to both": nearest}
    if any(plans.values()):
        print_sheet(out, plan_tables.nearest(plans))


def _print_chart(out: Console, proposal: Proposal) -> None:
    front = [plan.estimate for plan in proposal.front]
    width = max(_NARROW, min(_WIDE, out.width - _LABELS))
    lines = chart(front, proposal.plan.estimate, proposal.limits, width=width)
    print_title(out, lines[0])
    for line in lines[1:]:
        out.print(Text(f"  {line}"))
