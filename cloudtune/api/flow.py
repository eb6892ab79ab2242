"""From an experiment, or a saved plan, to a run that is over: the one way, whoever looks on."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import TYPE_CHECKING, Protocol

from cloudtune.api.experiments import limits_of, plan_or_forced
from cloudtune.clock import unix_time
from cloudtune.errors import UsageError
from cloudtune.infra.provider import provider_named
from cloudtune.model.plans import Limits
from cloudtune.model.scaling import EMULATED
from cloudtune.model.trial import EndReason
from cloudtune.model.units import format_seconds
from cloudtune.planners.base import InfeasibleError
from cloudtune.planning import make
from cloudtune.planning.plan_file import job_of
from cloudtune.planning.problem import instance_types, problem_of, stored_profiles
from cloudtune.profiles.measurements import MeasureError
from cloudtune.running import measuring, runner
from cloudtune.running.resume import resume_job
from cloudtune.runs import history, home
from cloudtune.runs.job import choice_of
from cloudtune.runs.report import keep_best, load
from cloudtune.train.storage import CheckpointError, tell

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cloudtune.experiment import Experiment
    from cloudtune.model.scaling import ScalingProfile
    from cloudtune.planning.make import Planned
    from cloudtune.planning.stages import PlanOptions, Problem
    from cloudtune.policy.run import RunPolicy
    from cloudtune.running.measuring import Measured
    from cloudtune.running.resume import Further
    from cloudtune.running.runner import Ended, Watch
    from cloudtune.runs.job import Job
    from cloudtune.runs.report import Report

_PROFILE_SHARE = 0.25
"""Of the deadline, what measuring may take at most before a run."""
_PROFILE_DOLLARS = 0.1
"""Of the budget, what measuring costs at most once an epoch is known: before that nothing is."""


class Onlooker(Protocol):
    """Who is told how a run comes about, and is asked before money is spent."""

    def confirm(self, experiment: Experiment, job: Job | None) -> None:
        """Pass if renting is allowed: for a job, or for measuring where there is none yet.

        Raises:
            UsageError: nobody is there to be asked.
        """
        ...

    def measures(self) -> Watch:
        """Hear that the script is measured first; returns what is told of it as it goes."""
        ...

    def measured(self, found: Measured, kept: Path) -> None:
        """Hear what was measured, and where it is kept."""
        ...

    def has_measured(self, experiment: Experiment, dollars: float) -> None:
        """Hear that all is measured, and for how much."""
        ...

    def insists(self) -> None:
        """Hear that no plan meets the limits, and that the run begins all the same."""
        ...

    def infeasible(self, error: InfeasibleError, problem: Problem) -> None:
        """Hear that no plan meets the limits, which is raised next."""
        ...

    def planned(self, planned: Planned) -> None:
        """Hear what the plan is."""
        ...

    def taken_over(self, saved: Job) -> None:
        """Hear that a saved plan is carried out."""
        ...

    def begins(self, job: Job) -> None:
        """Hear that a job is about to be carried out."""
        ...

    def watching(self, job: Job, policy: RunPolicy) -> AbstractContextManager[Watch]:
        """Return what is told of each event and its commands for as long as a run goes."""
        ...


def measured_first(
    wanted: Experiment, profile: str | None, began: float, onlooker: Onlooker, *, pace: bool
) -> tuple[Problem, float]:
    """Return what there is to choose from, and the dollars that measuring it first took.

    `began` is when the run's clock began, Unix time. Nothing is measured where a profile is there.

    Raises:
        CloudtuneError: the script can't be imported, or can't be measured within the limits.
    """
    profiles = stored_profiles(wanted, profile)
    runner.check_script(wanted)
    spent = 0.0
    if not profiles:
        onlooker.confirm(wanted, None)
        profiles, spent = _profile_first(wanted, began, onlooker, pace=pace)
    return problem_of(wanted, profiles), spent


def _profile_first(
    wanted: Experiment, began: float, onlooker: Onlooker, *, pace: bool
) -> tuple[list[ScalingProfile], float]:
    profiles: list[ScalingProfile] = []
    spent = 0.0
    watch = onlooker.measures()
    whole, now = limits_of(wanted), unix_time()
    deadline = None
    if whole.deadline is not None:
        deadline = _PROFILE_SHARE * (whole.deadline - (now - began))
    cap = Limits(deadline, whole.budget)
    enough = math.inf if whole.budget is None else _PROFILE_DOLLARS * whole.budget
    names = [machine.name for machine in instance_types(wanted)]
    for number, name in enumerate(names):
        part = 1 / (len(names) - number)
        try:
            found = measuring.measure(
                wanted,
                name,
                watch,
                pace=pace,
                limits=_part_of_time(limits_left(cap, spent, unix_time() - now), part),
                core_seconds=profiles[0].provenance.core_seconds if profiles else None,
                enough_usd=part * (enough - spent),
            )
        except MeasureError as error:
            if error.reason is not EndReason.DEADLINE or deadline is None:
                raise
            raise MeasureError(
                f"{error}: before a run, measuring takes a quarter of the deadline at most, "
                f"{format_seconds(deadline)}, and no epoch ended within that. Give the run more, "
                "or measure the script beforehand: `cloudtune profile`",
                error.reason,
            ) from error
        profiles.append(found.profile)
        spent += found.dollars
        onlooker.measured(found, measuring.keep_profile(found.profile))
        refuse_interrupted(found)
    onlooker.has_measured(wanted, spent)
    return profiles, spent


def _part_of_time(limits: Limits, part: float) -> Limits:
    deadline = limits.deadline
    return dataclasses.replace(limits, deadline=None if deadline is None else part * deadline)


def refuse_interrupted(found: Measured) -> None:
    """Pass if nobody stopped a measurement; what was measured by then is kept before this.

    Raises:
        MeasureError: a person has stopped it.
    """
    if found.ending is EndReason.INTERRUPTED:
        raise MeasureError("interrupted; what was measured is kept", found.ending)


def limits_left(limits: Limits, spent: float, elapsed: float = 0.0) -> Limits:
    """Return what limits leave once so many dollars and seconds are gone."""
    deadline, budget = limits.deadline, limits.budget
    return Limits(
        None if deadline is None else deadline - elapsed, None if budget is None else budget - spent
    )


def tune(
    wanted: Experiment,
    options: PlanOptions,
    onlooker: Onlooker,
    *,
    profile: str | None = None,
    pace: bool = True,
    force: bool = False,
) -> Ended:
    """Measure an experiment's script if need be, plan its run and carry it out.

    With `pace` training takes what profiles say, where there are no real GPUs; with `force` a run
    begins though no plan meets its limits (which hold), or by figures that aren't the script's.

    Raises:
        InfeasibleError: no plan meets the limits.
        CloudtuneError: the run could not be begun, or broke; nothing of it is left rented.
    """
    began = home.began()
    options.over(wanted).check(choice_of(wanted))
    make.refuse_endless(wanted, limits_of(wanted))
    with home.with_module(wanted):
        problem, spent = measured_first(wanted, profile, began, onlooker, pace=pace)
        refuse_made_up(wanted, [each.profile for each in problem.rentables], force=force)
        limits = limits_left(limits_of(wanted), spent)
        elapsed = unix_time() - began
        insists = onlooker.insists
        try:
            planned = plan_or_forced(
                problem, limits, options, elapsed, force=force, insists=insists
            )
        except InfeasibleError as error:
            onlooker.infeasible(error, problem)
            raise
        onlooker.planned(planned)
        paced = pace and provider_named(wanted.cloud.provider).paced
        job = dataclasses.replace(job_of(planned, began, paced=paced), measuring=spent)
        return _carry_out(job, onlooker)


def carry_out(saved: Job, onlooker: Onlooker, *, pace: bool = True, force: bool = False) -> Ended:
    """Carry a saved plan out as it is; the run's clock begins now.

    Raises:
        CloudtuneError: the run could not be begun, or broke; nothing of it is left rented.
    """
    began = home.began()
    refuse_made_up(saved.experiment, [each.profile for each in saved.rentables], force=force)
    with home.with_module(saved.experiment):
        runner.check_script(saved.experiment)
        paced = pace and provider_named(saved.experiment.cloud.provider).paced
        onlooker.taken_over(saved)
        return _carry_out(dataclasses.replace(saved, began=began, paced=paced), onlooker)


def _carry_out(job: Job, onlooker: Onlooker) -> Ended:
    asked_at = unix_time()
    onlooker.confirm(job.experiment, job)
    # What a person took to answer is not the run's.
    job = dataclasses.replace(job, began=job.began + unix_time() - asked_at)
    onlooker.begins(job)
    with contextlib.ExitStack() as shown:

        def watching(run: str, policy: RunPolicy) -> Watch:
            return shown.enter_context(onlooker.watching(dataclasses.replace(job, run=run), policy))

        return runner.run_job(job, watching)


def go_on(
    folder: Path,
    onlooker: Onlooker,
    further: Further | None = None,
    *,
    changed_script: bool = False,
) -> Ended:
    """Go on with a run whose process died, or that has ended, within these limits or its own.

    Raises:
        UsageError: it can't go on within these, or somebody drives it, or its script has changed
            (which `changed_script` allows).
        CloudtuneError: its ledger can't be gone on with.
    """
    job = runner.job_of_run(folder)
    with home.with_module(job.experiment), contextlib.ExitStack() as shown:

        def watching(run: str, policy: RunPolicy) -> Watch:
            return shown.enter_context(onlooker.watching(dataclasses.replace(job, run=run), policy))

        def confirm(job: Job) -> None:
            onlooker.confirm(job.experiment, job)

        return resume_job(folder, watching, further, confirm, changed_script=changed_script)


def concluded(ended: Ended) -> Report:
    """Return the report of a run that is over, once its best model is kept as plain files.

    The runs to come will know of it. A storage that fails now costs that folder, and no result.
    """
    found = load(ended.folder)
    history.remember(ended.folder, found)
    try:
        return keep_best(ended.folder, found)
    except (CheckpointError, OSError, ValueError) as error:  # pyarrow's own are of the last two
        tell(f"the best model is not in a folder of its own: {error}")
        return found


def refuse_made_up(wanted: Experiment, profiles: Sequence[ScalingProfile], *, force: bool) -> None:
    """Pass if the plan goes by measurements of the user's own script, on machines of its kind.

    Raises:
        UsageError: it goes by published figures of another, or by emulated seconds on real GPUs.
    """
    if force:
        return
    if any(not profile.script_hash for profile in profiles):
        raise UsageError(
            "published figures are for planning; a run needs your script's own: measure it with "
            "`cloudtune profile`, or leave --profile out (or insist with --force)"
        )
    emulated = any(profile.provenance.origin == EMULATED for profile in profiles)
    if emulated and not provider_named(wanted.cloud.provider).paced:
        raise UsageError(
            "this profile's seconds are emulated, and say nothing of real GPUs: measure the script "
            "with `cloudtune profile`, or leave --profile out (or insist with --force)"
        )
