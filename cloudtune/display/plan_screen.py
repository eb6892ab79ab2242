"""A plan on the terminal: tables, a chart, and the things that a run would create."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from cloudtune.display import alternatives_tables, plan_tables
from cloudtune.display.chart import chart
from cloudtune.display.terminal import beside, print_facts, print_sheet, print_title

if TYPE_CHECKING:
    from rich.console import Console

    from cloudtune.jobs.proposal import Proposal
    from cloudtune.plans import Plan, RunPlan

# Columns of the chart's field, and of what stands to the left of it.
_NARROW, _WIDE, _LABELS = 30, 78, 16


def show_plan(out: Console, proposal: Proposal) -> None:
    """Print what a run would do, how sure it is, what else could be done, what it would create."""
    out.print(Text(f"Plan of {proposal.name}", style="bold"))
    print_facts(out, plan_tables.header(proposal))
    if proposal.plan.staged is not None:
        print_sheet(out, plan_tables.stages_of(proposal))
    print_sheet(out, plan_tables.forecast(proposal))
    out.print()
    print_facts(out, plan_tables.certainty(proposal))
    if proposal.alternatives:
        print_sheet(out, alternatives_tables.alternatives(proposal))
    if proposal.front and not proposal.plan.free:
        _print_chart(out, proposal)
        print_sheet(out, alternatives_tables.front(proposal))
    if proposal.by_trials:
        print_sheet(out, alternatives_tables.by_trials(proposal))
    print_title(out, "What a run creates")
    print_facts(out, plan_tables.creation(proposal))
    if proposal.comparison:
        print_sheet(out, alternatives_tables.comparison(proposal))


def show_saved(out: Console, plan: RunPlan, basis: str = "") -> None:
    """Print what a saved plan does: who decides, and its stages if it has any.

    `basis` is what its figures rest on.
    """
    print_facts(out, plan_tables.deciders(plan))
    if plan.staged is not None:
        print_sheet(out, plan_tables.stages(plan.staged, basis, free=plan.free))


def show_nearest(
    out: Console,
    fastest: Plan | None,
    cheapest: Plan | None,
    nearest: Plan | None = None,
    basis: str = "",
) -> None:
    """Print the plans that come nearest to limits that none meets; `basis` as above."""
    plans = {"fastest": fastest, "cheapest": cheapest, "nearest to both": nearest}
    if any(plans.values()):
        print_sheet(out, alternatives_tables.nearest(plans, basis))


def _print_chart(out: Console, proposal: Proposal) -> None:
    front = [plan.estimate for plan in proposal.front]
    width = max(_NARROW, min(_WIDE, out.width - _LABELS))
    lines = chart(front, proposal.plan.estimate, proposal.limits, width=width)
    print_title(out, beside(lines[0], proposal.basis.text))
    for line in lines[1:]:
        out.print(Text(f"  {line}"))
