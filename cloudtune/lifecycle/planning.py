"""The planning problem of an experiment, its limits, and the plan of a run within them."""

from collections.abc import Callable

from cloudtune.experiment import Experiment
from cloudtune.forecast import make
from cloudtune.forecast.make import Planned
from cloudtune.forecast.problem import build_problem, stored_profiles
from cloudtune.forecast.staged_plans import PlanOptions, Problem
from cloudtune.model.plans import Limits
from cloudtune.planners.base import InfeasibleError


def read_limits(experiment: Experiment) -> Limits:
    """Return the limits of an experiment."""
    return Limits(experiment.limits.deadline, experiment.limits.budget)


def load_problem(experiment: Experiment, profile: str | None) -> Problem:
    """Return the planning problem of an experiment.

    `profile` is a file or the name of a published profile; None uses measured or observed timings,
    or else those that are assumed of a script that never ran.
    """
    return build_problem(experiment, stored_profiles(experiment, profile))


def plan_run(
    problem: Problem,
    limits: Limits,
    options: PlanOptions,
    elapsed: float = 0.0,
    *,
    force: bool,
    insists: Callable[[], None],
) -> Planned:
    """Return the plan of a run; with `force` also one beyond the limits, after calling `insists`.

    Raises:
        InfeasibleError: no plan meets the limits, without `force`.
    """
    try:
        return make.make_plan(problem, limits, options, elapsed)
    except InfeasibleError:
        if not force:
            raise
    planned = make.make_plan(problem, limits, options, elapsed, force=True)
    insists()
    return planned
