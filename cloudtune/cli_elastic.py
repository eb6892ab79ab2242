"""`plan`, `run` and `simulate` of an experiment whose strategy decides as results come in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudtune.elastic import ElasticPolicy
from cloudtune.elastic_planning import propose_elastic
from cloudtune.errors import UsageError
from cloudtune.strategies.rungs import rung_epochs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.experiment import Experiment
    from cloudtune.job import Job, JobPolicy
    from cloudtune.planning import Problem
    from cloudtune.screen import Screen

_OF_PLANS = ("objective", "planner", "confidence", "compare", "plot", "save")
"""Options that say how stages are planned, or what becomes of the plan."""


def refuse_plan_options(wanted: Experiment, given: Mapping[str, Any]) -> None:
    """Pass if no option was given that is for plans of stages alone.

    Raises:
        UsageError: one was.
    """
    found = [f"--{name}" for name in _OF_PLANS if given.get(name)]
    if found:
        raise UsageError(
            f"{', '.join(found)}: {wanted.strategy.name} decides as results come in, so there are "
            "no stages to plan; leave it out (or take strategy: sha)"
        )


def told_elastic(problem: Problem, job: Job) -> dict[str, Any]:
    """Return what `plan` tells a program of such a job."""
    from cloudtune.proposal import elastic_to_json  # noqa: PLC0415

    return elastic_to_json(propose_elastic(problem, job))


def show_elastic(problem: Problem, job: Job) -> None:
    """Print what a job may rent and cost, and its forecast."""
    from cloudtune import elastic_tables  # noqa: PLC0415
    from cloudtune.screen import console  # noqa: PLC0415
    from cloudtune.screen_sheets import print_facts, print_sheet, print_title  # noqa: PLC0415

    out, proposal = console(), propose_elastic(problem, job)
    out.print(f"Plan of {proposal.name}", style="bold")
    print_facts(out, elastic_tables.header(proposal))
    print_sheet(out, elastic_tables.forecast(proposal.plan.forecast))
    print_title(out, "What a run creates")
    print_facts(out, elastic_tables.renting(proposal))


def screen_of(job: Job, policy: JobPolicy) -> Screen:
    """Return the screen on which a run of the job is told."""
    from cloudtune.screen import RunScreen, console  # noqa: PLC0415
    from cloudtune.screen_elastic import ElasticScreen  # noqa: PLC0415

    if not isinstance(policy, ElasticPolicy):
        return RunScreen(console(), policy)
    epochs = job.experiment.epochs
    return ElasticScreen(console(), policy, rung_epochs(epochs.min, epochs.max, job.experiment.eta))
