"""A plan on the terminal: on one screen, or in full."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from cloudtune.display import alternatives_tables, plan_brief, plan_tables
from cloudtune.display.terminal import print_facts, print_sheet, print_title
from cloudtune.forecast.proposal import Proposal
from cloudtune.model.plans import RunPlan


def show_plan(out: Console, proposal: Proposal, command: Sequence[str] = ()) -> None:
    """Print the plan on one screen; `command` are the words of `cloudtune run` for it."""
    show_head(out, proposal)
    staged = proposal.plan.staged
    if staged is not None:
        print_sheet(out, plan_brief.stages(proposal, staged))
    other = plan_brief.instead(proposal)
    if other is not None:
        print_sheet(out, other)
    out.print()
    print_facts(out, plan_brief.rests_on(proposal))
    if command:
        out.print()
        print_facts(out, plan_brief.next_step(proposal, command))


def show_head(out: Console, proposal: Proposal) -> None:
    """Print the expected result in about ten lines, as a run does before it begins."""
    title = plan_brief.title(proposal)
    if proposal.basis.emulated:
        title += "   EMULATED: nothing is paid"
    out.print(Text(title, style="bold"))
    print_facts(out, plan_brief.reason(proposal))
    print_sheet(out, plan_brief.expected_sheet(proposal))
    print_facts(out, plan_brief.facts(proposal))


def show_all(out: Console, proposal: Proposal) -> None:
    """Print a plan in full: `--verbose`."""
    out.print(Text(f"Plan of {proposal.experiment.name}", style="bold"))
    print_facts(out, [*plan_brief.reason(proposal), *plan_tables.header(proposal)])
    if proposal.plan.staged is not None:
        print_sheet(out, plan_tables.stages_sheet(proposal))
    print_sheet(out, plan_tables.forecast(proposal))
    out.print()
    print_facts(out, plan_tables.certainty(proposal))
    if proposal.alternatives:
        print_sheet(out, alternatives_tables.alternatives(proposal))
    if proposal.front and not proposal.plan.free:
        print_sheet(out, alternatives_tables.front(proposal))
    print_title(out, "What a run creates")
    print_facts(out, plan_tables.creation(proposal))


def show_plan_file(out: Console, plan: RunPlan, basis: str = "") -> None:
    """Print a saved plan: its strategy, and its stages if it has any.

    `basis` is the origin of its figures.
    """
    print_facts(out, plan_tables.deciders(plan))
    if plan.staged is not None:
        print_sheet(out, plan_tables.stages(plan.staged, basis, free=plan.free))
