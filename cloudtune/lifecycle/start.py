"""The one way of a run: from an experiment, a saved plan or an earlier run to its report.

This machine controls it (`flow`), or a head does, which is sent the same (`remote`).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cloudtune.clock import unix_time
from cloudtune.engine.ledger import read_entries
from cloudtune.errors import CleanupError, CloudtuneError, NoCapacityError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast.plan_file import make_job, plan_bytes
from cloudtune.forecast.staged_plans import PlanOptions
from cloudtune.infra.heads.head_runner import ERRORS
from cloudtune.infra.heads.remote_runs import is_remote
from cloudtune.infra.provider import HeadOffer, find_provider
from cloudtune.lifecycle import flow, heads, remote
from cloudtune.lifecycle.data import with_data
from cloudtune.lifecycle.outcomes import HeadRun, Swept
from cloudtune.lifecycle.regions import after, rank_regions
from cloudtune.lifecycle.reporter import Reporter
from cloudtune.lifecycle.resume import Further
from cloudtune.lifecycle.variables import own_values
from cloudtune.model.trial import EndReason
from cloudtune.planners.base import InfeasibleError
from cloudtune.profiles.measurements import MeasureError
from cloudtune.runs import home
from cloudtune.runs.job import Job, job_of_ledger
from cloudtune.runs.report import Report, load


@dataclass(frozen=True)
class RunSettings:
    """How to run: which profile to plan by, at which pace, and on which machine.

    With `pace`, training without real GPUs takes the time in the profile. With `force`, the run
    starts even if no plan meets the limits (still enforced), or if the profile isn't the script's.
    `here` is whether this machine controls the run; None: if it can.
    """

    options: PlanOptions
    profile: str | None
    pace: bool
    force: bool
    here: bool | None

    def choose_head(self, experiment: Experiment) -> HeadOffer | None:
        """Return the head that is to control a run; None if this machine is.

        Raises:
            UsageError: the price of that instance is unknown.
        """
        if self.here:
            return None
        return heads.offer_head(experiment, force=self.here is False)

    def words(self) -> list[str]:
        """Return the same settings as options of `cloudtune run`, for a head."""
        words = option_words({**vars(self.options), "profile": self.profile})
        if self.force:
            words.append("--force")
        if not self.pace:
            words.append("--no-pace")
        return words


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Return the options that aren't None as words of a command line: "--deadline=2h"."""
    return [f"--{name}={value}" for name, value in options.items() if value is not None]


def run_experiment(experiment: Experiment, settings: RunSettings, reporter: Reporter) -> Report:
    """Run an experiment in the best of its regions; return its report once it has ended.

    A run on a head that finds no room at all goes to the next region.

    Raises:
        InfeasibleError: no plan meets the limits.
        DetachedError: an interrupt; the run continues on its head.
        CleanupError: instances may be left; the result has been reported.
        CloudtuneError: the run couldn't start, or failed; all its instances are returned.
    """
    _refuse_if_taken(experiment)
    own_values(experiment)
    first, *others = rank_regions(experiment, settings.profile, settings.options)
    offer = settings.choose_head(first)
    if offer is None:
        reporter.on_local_start(first)
        ended = flow.tune(
            first,
            settings.options,
            reporter,
            profile=settings.profile,
            pace=settings.pace,
            force=settings.force,
        )
        return flow.conclude(ended, reporter)
    if reporter.needs_confirmation(first):
        _confirm(heads.with_head(first, offer), settings, reporter)
    report = _run_on_head(first, offer, settings.words(), reporter)
    while others and (following := after(report, others.pop(0))):
        offer = heads.offer_head(following, force=True)
        assert offer is not None
        report = _run_on_head(following, offer, settings.words(), reporter)
    return report


def _confirm(experiment: Experiment, settings: RunSettings, reporter: Reporter) -> None:
    """Show the plan that a head is expected to make, and ask before the head is rented.

    A strategy of stages has none before its script is measured.

    Raises:
        InfeasibleError: no plan meets the limits.
        UsageError: renting isn't allowed, or a limit is missing without which nobody knows a price.
    """
    planned = flow.plan_for_head(
        experiment, settings.profile, settings.options, reporter, force=settings.force
    )
    job = None
    if planned is not None:
        reporter.on_planned(planned)
        job = make_job(planned, unix_time(), paced=False)
    reporter.on_confirm(experiment, job)


def run_saved_plan(job: Job, settings: RunSettings, reporter: Reporter) -> Report:
    """Execute a saved plan; the run's clock begins now.

    Raises:
        CloudtuneError: as `run_experiment`.
    """
    _refuse_if_taken(job.experiment)
    own_values(job.experiment)
    offer = settings.choose_head(job.experiment)
    if offer is None:
        reporter.on_local_start(job.experiment)
        ended = flow.carry_out(job, reporter, pace=settings.pace, force=settings.force)
        return flow.conclude(ended, reporter)
    reporter.on_confirm(job.experiment, job)
    # The machine that follows the run logs it.
    experiment = with_data(job.experiment).model_copy(update={"log_to": ()})
    plan = plan_bytes(replace(job, experiment=experiment))
    return _run_on_head(job.experiment, offer, settings.words(), reporter, plan)


def _refuse_if_taken(experiment: Experiment) -> None:
    """Pass if a run can begin now: found at once, not after its plan.

    Raises:
        UsageError: it can't.
    """
    if taken := find_provider(experiment.cloud.provider).taken(home.home()):
        raise UsageError(taken)


def resume_run(
    folder: Path,
    further: Further,
    reporter: Reporter,
    *,
    changed_script: bool = False,
    here: bool | None = None,
) -> Report:
    """Resume a run where it was controlled: here, even if a head did (`here`), or on a head.

    Raises:
        UsageError: it can't continue within these limits, is already running, or its script has
            changed (which `changed_script` allows).
        CloudtuneError: as `run_experiment`; or its ledger can't be resumed.
    """
    if folder.parent.resolve() != home.runs().resolve():  # `gc` must find what it rents
        raise UsageError(f"{folder} isn't in {home.runs()}: move it there to resume it")
    ledger = folder / home.LEDGER
    job = job_of_ledger(ledger)
    own_values(job.experiment)
    if here or not is_remote(folder):
        reporter.on_local_start(job.experiment)
        ended = flow.resume_here(folder, reporter, further, changed_script=changed_script)
        return flow.conclude(ended, reporter)
    offer = heads.offer_head(job.experiment, force=True)
    assert offer is not None
    reporter.on_confirm(job.experiment, job)
    words = option_words(vars(further))
    if changed_script:
        words.append("--changed-script")
    seen = sum(1 for _ in read_entries(ledger))
    run = remote.resend(folder, job.experiment, offer, [*words, *reporter.head_options])
    return _follow(run, offer, reporter, seen)


def _run_on_head(
    experiment: Experiment,
    offer: HeadOffer,
    words: Sequence[str],
    reporter: Reporter,
    plan: bytes | None = None,
) -> Report:
    with home.with_module(experiment):
        run = remote.send(experiment, offer, [*words, *reporter.head_options], plan)
    return _follow(run, offer, reporter)


def _follow(run: HeadRun, offer: HeadOffer, reporter: Reporter, seen: int = 0) -> Report:
    """Follow a run on a head until that has terminated; return the report.

    Raises:
        CloudtuneError: the head's command has failed, and so raised it; the message is its own.
    """
    reporter.on_head_start(run, offer)
    code = remote.follow(run, reporter, seen=seen)
    report = load(run.folder) if (run.folder / home.LEDGER).exists() else None
    error = None if report is not None and report.exit_code == code else _head_error(run, code)
    unconfirmed = error if isinstance(error, CleanupError) else None
    if report is not None and (error is None or unconfirmed is not None):
        reporter.on_result(report, Swept(time.time(), unconfirmed))
    if error is not None:
        raise error
    assert report is not None
    return report


def _head_error(run: HeadRun, code: int) -> CloudtuneError:
    """Return the error with which the head's command has ended."""
    errors = (run.folder / ERRORS).read_text(errors="replace").strip()
    message = errors.rpartition("error: ")[2] or f"the head's command ended with exit code {code}"
    if code == CleanupError.exit_code:
        return CleanupError(message, [])
    if code == InfeasibleError.exit_code:
        return InfeasibleError(message.removeprefix("infeasible: "), None, None)
    for kind in (UsageError, NoCapacityError):
        if code == kind.exit_code:
            return kind(message)
    for reason in (EndReason.BUDGET, EndReason.DEADLINE, EndReason.INTERRUPTED):
        if code == reason.exit_code:
            return MeasureError(message, reason)
    return CloudtuneError(message)
