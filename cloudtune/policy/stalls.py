"""Trials that hang: noticed in time and ended, so that the run goes on.

Only time tells a script that hangs from a slow one: a trial is ended if it has reported nothing for
`factor` times the expected seconds of its epoch, and at least `least` seconds. The expectation is
the profile's, corrected by what the run has seen; if neither knows the script, there is none.
"""

import math
from collections.abc import Iterable

from cloudtune.model.commands import Command, ExtendTrial, SetTimer, StartTrial
from cloudtune.model.events import (
    EpochDone,
    Event,
    RunContinued,
    RunResumed,
    TimerFired,
    TrialStarted,
)
from cloudtune.model.progress import TrialProgress
from cloudtune.model.scaling import ASSUMED
from cloudtune.model.units import format_seconds
from cloudtune.policy.base import TrialRules
from cloudtune.policy.sessions import SessionKeeper
from cloudtune.policy.state import RunState

TIMER = "stall"
_BEGINS = (StartTrial, ExtendTrial)
# The commands after which a trial must report, and the events by which it does.
_REPORTS = (EpochDone, TrialStarted)


class StallWatch:
    """Tracks when each session last reported; wakes the policy when that is too long ago."""

    def __init__(self, state: RunState, rules: TrialRules) -> None:
        self._state = state
        self._rules = rules
        self._since: dict[str, float] = {}  # by session
        self._due = math.inf  # what the timer is set to
        # Whether trials other than the one that just reported may be due with no timer set.
        self._is_open = True
        self._seen: set[str] = set()  # instance types on which this run has seen an epoch

    def follow(self, event: Event, commands: Iterable[Command]) -> list[Command]:
        """Record reports and commands; return the command that sets the timer, if necessary."""
        if math.isinf(self._rules.stall_factor):
            return []
        fresh = [c.session for c in commands if isinstance(c, _BEGINS)]
        if isinstance(event, _REPORTS):
            self._note(event.session, event.at)
            fresh.append(event.session)
        elif isinstance(event, RunResumed | RunContinued):  # reports in between are lost
            self._since = dict.fromkeys(self._since, event.at)
            self._is_open = True
        elif isinstance(event, TimerFired) and event.name == TIMER:
            self._due = math.inf
            self._is_open = True
        self._since.update(dict.fromkeys(fresh, event.at))
        if math.isinf(self._due) and self._is_open:
            self._is_open = False
            return self._timer(self._state.live)
        if event.at + self._rules.stall_least >= self._due:
            return []  # a trial that just reported isn't due before that
        reporting = map(self._state.current, fresh)
        return self._timer(trial for trial in reporting if trial is not None)

    def end(self, sessions: SessionKeeper) -> list[Command]:
        """Return the commands that end the trials which have been silent for too long."""
        now = self._state.now
        commands = []
        for trial in list(self._state.live):
            if self._silence_limit(trial) <= now:
                silent = format_seconds(now - self._since[trial.session])
                expected = format_seconds(self._expected_seconds(trial))
                trial.error = (
                    f"stalled: it reported nothing for {silent}, where {expected} were expected; "
                    "its logs say where its workers were (trial.stall: how long one may take)"
                )
                commands.append(sessions.stop(trial, "failed", stacks=True))
        return commands

    def _note(self, session: str, at: float) -> None:
        trial = self._state.current(session)
        if trial is not None:
            self._since[session] = at
            if trial.epoch > 0 and trial.offer is not None:
                kind = trial.offer.instance_type.name
                self._is_open |= kind not in self._seen
                self._seen.add(kind)

    def _timer(self, trials: Iterable[TrialProgress]) -> list[Command]:
        """Return the command that wakes the policy for the first of these trials."""
        first = min(map(self._silence_limit, trials), default=math.inf)
        if first >= self._due or self._state.ended:
            return []
        self._due = first
        return [SetTimer(TIMER, first)]

    def _silence_limit(self, trial: TrialProgress) -> float:
        """Return when a trial will have been silent for too long; inf if it needn't report."""
        since = self._since.get(trial.session)
        if since is None or trial.status not in {"starting", "training"}:
            return math.inf
        rules = self._rules
        return since + max(rules.stall_least, rules.stall_factor * self._expected_seconds(trial))

    def _expected_seconds(self, trial: TrialProgress) -> float:
        """Return the seconds in which a trial should report; inf if unknown."""
        state = self._state
        offer = trial.offer
        width = trial.width
        assert offer is not None
        profile = state.profiled(offer).profile
        timed = profile.script_hash and profile.provenance.origin != ASSUMED
        has_profile = timed or offer.instance_type.name in self._seen
        if not has_profile or width not in profile.epoch:
            return math.inf
        measured = profile.epoch[width]
        # A trial without an epoch so far may be as slow as the slowest measured one.
        spread = 1 + 2 * profile.speed_error
        if not trial.epoch_seconds and measured.mean:
            spread *= measured.high / measured.mean
        setting_up = max(profile.start.high, profile.resize.high)
        epoch = state.epoch_seconds(trial.id, offer, width) * spread
        return epoch + setting_up * (trial.status == "starting")
