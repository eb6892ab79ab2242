"""What else there is to choose from, as tables: the front's points, and other numbers of trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.display.plan_tables import difference
from cloudtune.display.terminal import Sheet
from cloudtune.text import fleet_text
from cloudtune.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from cloudtune.jobs.proposal import Proposal
    from cloudtune.plan import Plan


def front(proposal: Proposal) -> Sheet:
    """Return the points of the front, from the fastest to the cheapest, by their numbers."""
    chosen = proposal.plan.estimate
    rows = tuple(
        (
            f"{number}",
            fleet_text(plan),
            format_seconds(plan.estimate.seconds),
            format_dollars(plan.estimate.dollars),
            difference(plan.estimate, chosen),
            _over(proposal, plan),
        )
        for number, plan in enumerate(proposal.front, start=1)
    )
    return Sheet(
        title="The front: the cheapest for its time (--point N takes one, --save FILE keeps it)",
        columns=("point", "machines", "time", "cost", "against this plan", "limits"),
        rows=rows,
        left=frozenset({"machines", "against this plan", "limits"}),
        wraps=frozenset({"machines"}),
    )


def by_trials(proposal: Proposal) -> Sheet:
    """Return what fewer and more trials cost, and how many more each dollar more buys."""
    plans = proposal.by_trials
    rows = tuple(
        (
            f"{plan.stages[0].stage.trials}",
            fleet_text(plan),
            format_seconds(plan.estimate.seconds),
            format_dollars(plan.estimate.dollars),
            f"{plan.stages[0].stage.trials / plan.estimate.dollars:,.3g}",
            "" if before is None else _more_trials(before, plan),
            _over(proposal, plan),
        )
        for before, plan in zip((None, *plans), plans, strict=False)
    )
    return Sheet(
        title="Trials: the cheapest for each number within the deadline",
        columns=("trials", "machines", "time", "cost", "a dollar", "each $ more", "limits"),
        rows=rows,
        left=frozenset({"machines", "limits"}),
        wraps=frozenset({"machines"}),
    )


def _more_trials(before: Plan, plan: Plan) -> str:
    trials = plan.stages[0].stage.trials - before.stages[0].stage.trials
    dollars = plan.estimate.dollars - before.estimate.dollars
    return f"+{trials / dollars:,.3g}" if dollars > 0 else "free"


def _over(proposal: Proposal, plan: Plan) -> str:
    broken = proposal.exceeded(plan)
    return f"over {' and '.join(broken)}" if broken else ""
