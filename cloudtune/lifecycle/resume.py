"""Resuming a run: its new limits, whether it can be resumed, and doing so."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from cloudtune.engine.resume import InFlight, replay
from cloudtune.errors import UsageError, quote
from cloudtune.forecast.make import longest
from cloudtune.lifecycle import dry_run, runner
from cloudtune.lifecycle.reporter import Reporter
from cloudtune.lifecycle.variables import take
from cloudtune.model.events import RunContinued
from cloudtune.model.plans import Limits
from cloudtune.model.text import cost_format
from cloudtune.model.trial import EndReason
from cloudtune.model.units import format_seconds, parse_dollars, parse_seconds
from cloudtune.policy.registry import replans
from cloudtune.policy.run import RunPolicy
from cloudtune.runs import control, home
from cloudtune.runs.identity import refuse_changed_files
from cloudtune.runs.job import Job, job_of_ledger
from cloudtune.runs.moved import read_moved_entries


@dataclass(frozen=True)
class Further:
    """The new limits of a resumed run, as written; None keeps a limit.

    "+1h" is an hour from now, "+$10" ten dollars more than spent so far. Without the sign they are
    totals: since the run's first start, and including what it has spent and measuring. `trials`,
    such as "+16", are added to those that the run was to try.
    """

    deadline: str | None = None
    budget: str | float | None = None
    trials: str | int | None = None

    @property
    def more(self) -> int:
        """The number of added trials.

        Raises:
            UsageError: it has another form, or is 0.
        """
        if self.trials is None:
            return 0
        text = str(self.trials).strip()
        number = text.removeprefix("+")
        signed = isinstance(self.trials, int) or text != number
        if not (signed and number.isdecimal() and number.isascii() and int(number) > 0):
            raise UsageError(
                f"--trials {quote(self.trials)}: write how many there are to be besides those that "
                "the run has, as in --trials +16"
            )
        return int(number)

    def limits(self, job: Job, policy: RunPolicy, now: float) -> Limits:
        """Return the limits from the run's start; `now` is in seconds from there.

        Raises:
            UsageError: it isn't a duration or an amount, or nothing is left within the limits.
        """
        limits = Limits(self._deadline(job, policy, now), self._budget(job, policy, now))
        name = job.run
        if limits.deadline is not None and policy.state.brakes.ahead(now) >= limits.deadline:
            ago = (
                f"{format_seconds(limits.deadline)} after the run began, {format_seconds(now)} ago"
            )
            raise UsageError(
                f"run {name}: its deadline leaves no time: {ago}. Give it more, as in "
                f"`cloudtune resume {name} --deadline +1h`; nothing was launched"
            )
        spent = policy.spent(now)
        if limits.budget is not None and spent >= limits.budget:
            cost = cost_format(job.plan.offers)
            raise UsageError(
                f"run {name}: its budget of {cost(limits.budget)} leaves nothing: "
                f"{cost(spent)} are spent. Give it more, as in "
                f"`cloudtune resume {name} --budget '+$10'`; nothing was launched"
            )
        return limits

    def _deadline(self, job: Job, policy: RunPolicy, now: float) -> float | None:
        if self.deadline is None:
            asked = job.experiment.limits.deadline is not None or policy.state.paused > 0
            deadline = policy.limits.deadline
            # The user didn't set the deadline that ends endless runs: it counts from now.
            return deadline if asked or deadline is None else now + longest(job.plan)
        text = self.deadline.strip()
        seconds = parse_seconds(text.removeprefix("+"))
        return now + seconds if text.startswith("+") else seconds

    def _budget(self, job: Job, policy: RunPolicy, now: float) -> float | None:
        if self.budget is None:
            return policy.limits.budget
        text = str(self.budget).strip()
        dollars = parse_dollars(text.removeprefix("+"))
        return dollars + (policy.spent(now) if text.startswith("+") else -job.measuring)


def further_limits(
    job: Job, policy: RunPolicy, left: InFlight, further: Further, now: float
) -> Limits | None:
    """Return the new limits of a resumed run; None if it keeps its limits.

    `policy` is at the end of the run's ledger; `now` is in seconds from its start.

    Raises:
        UsageError: it can't be resumed, or nothing is left to do.
    """
    name = job.run
    more = further.more
    if not left.ended:
        if further == Further():
            return None
        if more and policy.itinerary is not None:
            raise UsageError(
                f"run {name} is in the midst of its plan: `cloudtune resume {name}` first, and "
                "give it more trials once it has ended, or was interrupted (Ctrl-C)"
            )
        if policy.winding_down:
            raise UsageError(
                f"run {name} is about to end: `cloudtune resume {name}` first, which gives back "
                "what it has left; then give it new limits"
            )
        return further.limits(job, policy, now)
    if why := policy.why_over(more=more > 0):
        trained = "" if policy.why_over(more=True) else ", --trials +8 tries more"
        raise UsageError(
            f"run {name} has ended, and {why}; `cloudtune report {name}` shows how{trained}. If it "
            "left an instance, `cloudtune gc` gives it back"
        )
    return further.limits(job, policy, now)


def try_more(job: Job, tried: RunPolicy, event: RunContinued) -> None:
    """Check that a run can be resumed with more trials; `tried`, at its end, can't be reused.

    Raises:
        UsageError: its strategy takes no more, or no plan for them keeps the limits.
    """
    tried.handle(event)
    what = f"run {job.run}: {event.trials} more trials"
    if tried.ending is EndReason.FAILED:
        raise UsageError(f"{what}: {tried.state.trouble}; nothing was launched")
    itinerary = tried.itinerary
    if itinerary is None:
        return
    end = itinerary.end
    deadline = event.deadline
    budget = event.budget
    late = deadline is not None and end.at > deadline
    costly = budget is not None and end.dollars > budget
    if late or (costly and replans(tried.strategy.name)):
        left = format_seconds(end.at - event.at)
        dollars = cost_format(itinerary.plan.offers)(end.dollars - tried.spent(event.at))
        raise UsageError(
            f"{what}: no plan for them and for what is left keeps the limits. The fastest takes "
            f"{left} from now, and {dollars} more: give it as much with --deadline and --budget, "
            "or fewer trials; nothing was launched"
        )


def resume_job(
    folder: Path,
    reporter: Reporter,
    further: Further | None = None,
    *,
    changed_script: bool = False,
) -> runner.Ended:
    """Resume a run whose controller died, or that has ended, from its checkpoints.

    A run whose controller died still has its instances. One that has ended rents again, if the
    reporter confirms it.

    Raises:
        UsageError: it can't continue within these limits, is already running, or its script has
            changed (which `changed_script` allows).
        CloudtuneError: its ledger can't be continued.
    """
    ledger = folder / home.LEDGER
    job = job_of_ledger(ledger)
    with control.driving(folder, runner.record_place(job.experiment)):
        policy = job.policy()
        left = replay(policy, read_moved_entries(ledger, job))
        now = max(left.at, time.time() - job.began)
        within = further_limits(job, policy, left, further or Further(), now)
        more = 0 if further is None else further.more
        if within is not None and more:
            probe = job.policy()
            replay(probe, read_moved_entries(ledger, job))
            try_more(job, probe, RunContinued(now, within.deadline, within.budget, more))
        job = replace(job, limits=within or policy.limits)
        if not changed_script:
            refuse_changed_files(job.run, job.identity, job.experiment)
        variables = take(job.experiment)
        dry_run.check_script(job.experiment)
        runner.preflight(job.experiment, offers=job.offers)
        if left.ended:
            reporter.on_confirm(job.experiment, job)
        adopt = not left.ended
        cloud = runner.open_cloud(
            job.experiment, pace=job.paced, profiles=job.profiles, adopt=adopt
        )
        driver = runner.make_runner(job, folder, cloud, variables)
        left.within = within
        left.more = more
        with runner.outliving_reporters(folder):
            reporter.on_run_start(job, policy)
        swept = driver.go(policy, ledger, None, reporter.on_event, left)
    return runner.Ended(folder, policy, swept)
