"""A run on this machine: prepared, planned, carried out, resumed and concluded."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudtune.clock import unix_time
from cloudtune.errors import NoCapacityError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast import make
from cloudtune.forecast.make import Planned
from cloudtune.forecast.plan_file import make_job
from cloudtune.forecast.problem import build_problem, instance_types, stored_profiles
from cloudtune.forecast.staged_plans import PlanOptions, Problem
from cloudtune.infra.provider import find_provider
from cloudtune.lifecycle import dry_run, measuring, runner
from cloudtune.lifecycle.data import with_data
from cloudtune.lifecycle.outcomes import Measured
from cloudtune.lifecycle.planning import load_problem, plan_run, read_limits
from cloudtune.lifecycle.reporter import Reporter
from cloudtune.lifecycle.resume import Further, resume_job
from cloudtune.lifecycle.runner import Ended
from cloudtune.model.catalog import InstanceType
from cloudtune.model.plans import Limits, multiply
from cloudtune.model.scaling import ASSUMED, EMULATED, ScalingProfile
from cloudtune.model.trial import EndReason
from cloudtune.planners.base import InfeasibleError
from cloudtune.profiles.measurements import MeasureError
from cloudtune.runs import history, home
from cloudtune.runs.control import to_stderr
from cloudtune.runs.job import Job, job_of_ledger, read_choice
from cloudtune.runs.report import Report, load, with_delivery
from cloudtune.strategies.worth import by_worth, means_within
from cloudtune.train.storage import StorageError, tell

# Maximum share of the deadline for measuring before a run.
_PROFILE_SHARE = 0.25
# Maximum share of the budget for measuring, once the first epoch has been timed.
_PROFILE_DOLLARS = 0.1
# Reasons for which a measurement ends that say nothing against the script.
_NO_FAULT_OF_THE_SCRIPT = frozenset({EndReason.DEADLINE, EndReason.BUDGET, EndReason.NO_CAPACITY})


@dataclass(frozen=True)
class Prepared:
    """What a run is planned with; `dollars` were spent on measuring its script first."""

    problem: Problem
    dollars: float = 0.0


def prepare(
    experiment: Experiment, profile: str | None, began: float, reporter: Reporter, *, pace: bool
) -> Prepared:
    """Try a script before anything is rented, and return the problem of its run.

    A strategy that decides as results come in learns the script's speed in the run itself. One that
    plans stages needs it before, so a script that has never run is measured first; if that fails
    for want of time, money or machines, the run is planned by what is assumed. `began` is when the
    run's clock began, in Unix time.

    Raises:
        CloudtuneError: the script has an error, or can't be measured because of one.
    """
    profiles = stored_profiles(experiment, profile)
    has_run = any(profile.script_hash for profile in profiles)
    plans_stages = read_choice(experiment).planned
    provider = find_provider(experiment.cloud.provider)
    times = pace and provider.paced and not profiles and not plans_stages
    tried = dry_run.check_script(experiment, has_run=has_run, times=times)
    if times and tried.epoch_seconds is not None:
        timed = measuring.timed_profile(experiment, tried.epoch_seconds)
        measuring.keep_profile(timed)
        profiles = [timed]
    problem = build_problem(experiment, profiles)
    dollars = 0.0
    if has_no_times(problem):
        if plans_stages:
            reporter.on_confirm(experiment, None)
            problem, dollars = _measure(experiment, problem, began, reporter, pace=pace)
        else:
            require_limits(experiment)
    if tried.unsaved:
        problem = dataclasses.replace(problem, unsaved=tried.unsaved)
    return Prepared(problem, dollars)


def plan_for_head(
    experiment: Experiment,
    profile: str | None,
    options: PlanOptions,
    reporter: Reporter,
    *,
    force: bool,
) -> Planned | None:
    """Return the plan that a head is expected to make; None if it measures the script before.

    Raises:
        InfeasibleError: no plan meets the limits.
        UsageError: a limit is missing without which nobody knows a price.
    """
    _check_options(experiment, options)
    with home.with_module(experiment):
        problem = load_problem(experiment, profile)
        if has_no_times(problem):
            if read_choice(experiment).planned:
                return None
            require_limits(experiment)
        limits = read_limits(experiment)
        start = experiment.charges.head_start
        return _make_plan(problem, limits, options, start, reporter, force=force)


def _check_options(experiment: Experiment, options: PlanOptions) -> None:
    """Check that options can be combined with an experiment, and that its run ends.

    Raises:
        UsageError: they can't, or it doesn't.
    """
    options.over(experiment).check(read_choice(experiment))
    make.refuse_endless(experiment, read_limits(experiment))


def _make_plan(
    problem: Problem,
    limits: Limits,
    options: PlanOptions,
    elapsed: float,
    reporter: Reporter,
    *,
    force: bool,
) -> Planned:
    """Return the plan of a run; the reporter hears why there is none.

    Raises:
        InfeasibleError: no plan meets the limits, without `force`.
    """
    try:
        return plan_run(problem, limits, options, elapsed, force=force, insists=reporter.on_forced)
    except InfeasibleError as error:
        reporter.on_infeasible(error, problem)
        raise


def has_no_times(problem: Problem) -> bool:
    """Whether nothing is known of a script's speed."""
    origins = {rentable.profile.provenance.origin for rentable in problem.rentables}
    return ASSUMED in origins


def require_limits(experiment: Experiment) -> None:
    """Refuse a run of unknown price on somebody's account unless it has both limits.

    Raises:
        UsageError: the deadline or the budget is missing.
    """
    limits = read_limits(experiment)
    missing = [name for name, value in vars(limits).items() if value is None]
    if missing and find_provider(experiment.cloud.provider).asks_first:
        raise UsageError(
            f"{experiment.train_file.name} has never run, so nobody knows what this will cost: add "
            f"a {' and a '.join(missing)}, as in --deadline 2h --budget '$40', or measure it first "
            "with `cloudtune profile`"
        )


def _measure(
    experiment: Experiment, assumed: Problem, began: float, reporter: Reporter, *, pace: bool
) -> tuple[Problem, float]:
    """Measure a script within a part of the limits.

    Returns:
        The problem by what was measured, and the dollars that measuring cost.
    """
    profiles: list[ScalingProfile] = []
    spent = 0.0
    reporter.on_measuring_start(experiment)
    whole = read_limits(experiment)
    now = unix_time()
    deadline = None
    if whole.deadline is not None:
        deadline = _PROFILE_SHARE * (whole.deadline - (now - began))
    cap = Limits(deadline, whole.budget)
    enough = math.inf if whole.budget is None else _PROFILE_DOLLARS * whole.budget
    machines = _machines_to_measure(experiment, assumed)
    for number, machine in enumerate(machines):
        part = 1 / (len(machines) - number)
        limits = cap.less(unix_time() - now, spent)
        limits = dataclasses.replace(limits, deadline=multiply(limits.deadline, part))
        try:
            measured = measuring.measure(
                experiment,
                machine.name,
                reporter.on_measuring_event,
                pace=pace,
                pack="auto" if _may_pack(experiment, machine) else 1,
                only_known=True,
                limits=limits,
                core_seconds=profiles[0].provenance.core_seconds if profiles else None,
                enough_usd=part * (enough - spent),
            )
        except (MeasureError, NoCapacityError) as error:
            if isinstance(error, MeasureError):
                if error.reason not in _NO_FAULT_OF_THE_SCRIPT:
                    raise
                spent += error.dollars
            to_stderr(f"note: {machine.name}: {error}; the run goes on by what is known")
            continue
        profiles.append(measured.profile)
        spent += measured.dollars
        reporter.on_measured(measured, measuring.keep_profile(measured.profile))
        refuse_partial_profiles(measured)
    reporter.on_measuring_end(experiment, spent)
    return build_problem(experiment, profiles), spent


def _machines_to_measure(experiment: Experiment, assumed: Problem) -> list[InstanceType]:
    """Return the types that the experiment names, or the best one of those that it may choose."""
    if not experiment.cloud.is_open:
        return instance_types(experiment)
    means = means_within(read_limits(experiment), last_epoch=experiment.span.max)
    best = by_worth(assumed.rentables, means)[0]
    return [best.offer.instance_type]


def _may_pack(wanted: Experiment, machine: InstanceType) -> bool:
    """Whether two trials are measured on a GPU before a run, if it has memory for them.

    Only real GPUs tell something of that, and only some allocators give a trial part of one.
    """
    real = machine.gpu_memory_mib > 0 and not find_provider(wanted.cloud.provider).paced
    return real and not read_choice(wanted).whole_gpus


def refuse_partial_profiles(measured: Measured) -> None:
    """Refuse to continue after an interrupted measurement, whose profile has been saved.

    Raises:
        MeasureError: the measurement was interrupted.
    """
    if measured.ending is EndReason.INTERRUPTED:
        raise MeasureError("interrupted; the measurements so far are saved", measured.ending)


def tune(
    wanted: Experiment,
    options: PlanOptions,
    reporter: Reporter,
    *,
    profile: str | None = None,
    pace: bool = True,
    force: bool = False,
) -> Ended:
    """Plan an experiment's run and execute it; its script is measured first if the plan needs it.

    With `pace`, training without real GPUs takes the time in the profile. With `force`, the run
    starts even if no plan meets the limits (still enforced), or if the profile isn't the script's.

    Raises:
        InfeasibleError: no plan meets the limits.
        CloudtuneError: the run couldn't start, or failed; all its instances are returned.
    """
    began = home.began()
    _check_options(wanted, options)
    with home.with_module(wanted), find_provider(wanted.cloud.provider).early(home.home()):
        prepared = prepare(wanted, profile, began, reporter, pace=pace)
        problem = prepared.problem
        refuse_made_up(wanted, [rentable.profile for rentable in problem.rentables], force=force)
        limits = read_limits(wanted).less(dollars=prepared.dollars)
        elapsed = unix_time() - began
        planned = _make_plan(problem, limits, options, elapsed, reporter, force=force)
        reporter.on_planned(planned)
        paced = pace and find_provider(wanted.cloud.provider).paced
        job = dataclasses.replace(make_job(planned, began, paced=paced), measuring=prepared.dollars)
        return _carry_out(job, reporter)


def carry_out(saved: Job, reporter: Reporter, *, pace: bool = True, force: bool = False) -> Ended:
    """Execute a saved plan; the run's clock begins now.

    Raises:
        CloudtuneError: the run couldn't start, or failed; all its instances are returned.
    """
    began = home.began()
    refuse_made_up(
        saved.experiment, [rentable.profile for rentable in saved.rentables], force=force
    )
    provider = find_provider(saved.experiment.cloud.provider)
    with home.with_module(saved.experiment), provider.early(home.home()):
        dry_run.check_script(saved.experiment)
        paced = pace and provider.paced
        reporter.on_saved_plan(saved)
        return _carry_out(dataclasses.replace(saved, began=began, paced=paced), reporter)


def _carry_out(job: Job, reporter: Reporter) -> Ended:
    asked_at = unix_time()
    reporter.on_confirm(job.experiment, job)
    # The time that a person took to answer doesn't count.
    experiment = with_data(job.experiment)
    job = dataclasses.replace(job, began=job.began + unix_time() - asked_at, experiment=experiment)
    reporter.on_start(job)
    with _ending(reporter):
        return runner.run_job(job, reporter)


@contextlib.contextmanager
def _ending(reporter: Reporter) -> Iterator[None]:
    """Report the end of a run's events, however it comes."""
    try:
        yield
    finally:
        reporter.on_run_end()


def resume_here(
    folder: Path,
    reporter: Reporter,
    further: Further | None = None,
    *,
    changed_script: bool = False,
) -> Ended:
    """Resume a run whose process died or that has ended, within new limits or its own.

    Raises:
        UsageError: it can't continue within these limits, is already running, or its script has
            changed (which `changed_script` allows).
        CloudtuneError: its ledger can't be resumed.
    """
    job = job_of_ledger(folder / home.LEDGER)
    with home.with_module(job.experiment), _ending(reporter):
        return resume_job(folder, reporter, further, changed_script=changed_script)


def conclude(ended: Ended, reporter: Reporter) -> Report:
    """Save the best model of a completed run as plain files; return the run's report.

    Also adds the run to the history. A best model that can't be read gives way to the next best
    (`delivery`). If the storage fails now, only that folder is missing.

    Raises:
        CleanupError: instances may be left; the result has been reported.
    """
    report = load(ended.folder)
    history.remember(ended.folder, report)
    try:
        report = with_delivery(ended.folder, report)
    except (StorageError, OSError, ValueError) as error:  # pyarrow raises the last two
        tell(f"couldn't copy the best model to its own folder: {error}")
    reporter.on_result(report, ended.swept)
    if ended.swept.unconfirmed is not None:
        raise ended.swept.unconfirmed
    return report


def refuse_made_up(wanted: Experiment, profiles: Sequence[ScalingProfile], *, force: bool) -> None:
    """Refuse profiles that aren't measurements of the user's script on such machines.

    Raises:
        UsageError: a profile is a published one, or its seconds are emulated, for real GPUs.
    """
    if force:
        return
    assumed = [profile.provenance.origin == ASSUMED for profile in profiles]
    if not all(profile.script_hash for profile in profiles) and not any(assumed):
        raise UsageError(
            "published profiles are only for planning; a run needs your script's own: measure it "
            "with `cloudtune profile`, or leave out --profile (--force runs anyway)"
        )
    emulated = any(profile.provenance.origin == EMULATED for profile in profiles)
    if emulated and not find_provider(wanted.cloud.provider).paced:
        raise UsageError(
            "this profile's seconds are emulated, not those of real GPUs: measure the script with "
            "`cloudtune profile`, or leave out --profile (--force runs anyway)"
        )
