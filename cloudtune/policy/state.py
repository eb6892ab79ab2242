"""The state of a run: each event is recorded here, before anything is decided about it.

Every event passes through `RunState.note`, which decides nothing; it returns what the policy must
act upon (`Noted`). Strategies, allocators and fleet rules read the state as a `View`
(strategies/base.py).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from cloudtune.model.catalog import Offer
from cloudtune.model.events import (
    EpochDone,
    Event,
    InstanceBooting,
    InstanceGone,
    InstanceLaunched,
    Interrupted,
    InterruptionNotice,
    LaunchFailed,
    NodeJoined,
    NodeLost,
    RebalanceRecommended,
    RunContinued,
    RunResumed,
    RunStarted,
    TimerFired,
    TrialFailed,
    TrialLost,
    TrialStarted,
    TrialStopped,
)
from cloudtune.model.fleet import FleetBook, LaunchBackoff, Rented
from cloudtune.model.plans import Charges, Limits, Rentable, admits
from cloudtune.model.progress import (
    OVER,
    BestResult,
    LiveTrials,
    Record,
    Status,
    TrialProgress,
    trial_of,
)
from cloudtune.model.scaling import Delay
from cloudtune.model.trial import Mode, Slice, TrialId, Width, has_diverged
from cloudtune.model.units import format_seconds
from cloudtune.policy.base import Brakes, Metric, Move, Noted
from cloudtune.policy.free_gpus import FreeGpus
from cloudtune.policy.gpu_estimates import GpuEstimates
from cloudtune.policy.gpu_sharing import GpuSharing
from cloudtune.policy.speed_estimates import DelayEstimates, SpeedEstimates
from cloudtune.policy.widths import limit_to_one_gpu, wider
from cloudtune.strategies.base import Moment

# The events by which an instance goes, or won't come.
_TROUBLES = (NodeLost, InterruptionNotice, InstanceGone, LaunchFailed)


@dataclass(frozen=True)
class _Average:
    """A rentable with the expected speeds and delays, and what these follow from."""

    rentable: Rentable
    factor: float
    setup: float
    delays: Mapping[str, Any]
    average: Rentable

    def holds(
        self, rentable: Rentable, factor: float, setup: float, delays: Mapping[str, Any]
    ) -> bool:
        """Whether these are the same; most events change none of them."""
        same = self.rentable is rentable and self.delays is delays
        return same and self.factor == factor and self.setup == setup


class RunState:
    """The trials, instances, free GPUs and speeds of a run, kept up to date event by event.

    `zones` are where to request an offer that names no zone, if the cloud's own choice fails.
    """

    def __init__(
        self,
        *,
        rentables: Sequence[Rentable],
        max_instances: int,
        metric: Metric,
        limits: Limits,
        brakes: Brakes | None = None,
        charges: Charges | None = None,
        vcpu_quotas: Mapping[str, int] | None = None,
        zones: Sequence[str] = (),
        shares_gpus: bool = False,
        last_epoch: int = 1,
    ) -> None:
        self.rentables = tuple(rentables)
        machines = [rentable.offer.instance_type for rentable in rentables]
        self.sharing = GpuSharing(tried=shares_gpus)
        self.widest = math.inf
        self.narrowest: dict[str, Width] = {}  # by instance type, where memory was too small
        self.why_narrow = ""
        self.refits = 0  # how many trials failed for their width, and go on at another
        self.max_instances = max_instances
        self.vcpu_quotas = dict(vcpu_quotas or {})
        self.metric = metric
        self.limits = limits
        self.brakes = brakes or Brakes()
        self.charges = charges or Charges()
        self.zones = tuple(zones)
        self.lookahead = 0
        self.now = self.paused = 0.0  # `paused`: seconds between an end and going on
        self.began: float | None = None
        self.ended = False
        self.interrupted = False
        self.record = Record(metric.mode)
        self.trials: dict[TrialId, TrialProgress] = {}
        self.live = LiveTrials()
        self.granted: dict[TrialId, int] = {}  # the epoch that each may train to
        self.again: dict[TrialId, TrialProgress] = {}  # to go on, whatever else is wanted
        self.moves: dict[TrialId, Move] = {}
        self.setups: list[float] = []
        self._setups_shared_at: tuple[float, int, int] | None = None
        self._setup_share = 0.0
        self._epochs_a_trial = sum(1 / epoch for epoch in range(1, last_epoch + 1))
        self._averages: dict[Offer, _Average] = {}
        self.speeds = SpeedEstimates({kind.name: kind.gpu_model for kind in machines})
        self.gpu_speeds = GpuEstimates(rentables)
        self.delays = DelayEstimates()
        self.fleet = FleetBook()
        self.backoffs: dict[Offer, LaunchBackoff] = {}
        self.crowded = False  # whether the cap or a quota keeps out what the fleet lacks
        self.trouble = ""
        # Counters: compare with an earlier value to see whether something has happened since. The
        # first two belong to the `View`. Mishaps (something unexpectedly lost or refused) and
        # failures of trials are what lets the fleet change course (`Hysteresis`).
        self.disturbances = self.shocks = self.mishaps = self.failures = 0
        self._notes = 0
        self._by_offer = {rentable.offer: rentable for rentable in reversed(self.rentables)}
        self._timed = dict(self._by_offer)  # also at widths that no trial may begin at any more
        self.free = FreeGpus({o: rentable.profile.epoch for o, rentable in self._by_offer.items()})
        self._followed: list[Rented] = []

    # ---- what strategies, allocators and fleet rules read: documented in `View` --------------

    @property
    def mode(self) -> Mode:
        return self.metric.mode

    @property
    def moment(self) -> Moment:
        return self.now, self._notes, self.fleet.changes

    @property
    def best(self) -> BestResult | None:
        return self.record.best

    @property
    def running(self) -> LiveTrials:
        return self.live

    @property
    def held(self) -> Counter[Offer]:
        return self.fleet.held()

    @property
    def gpus(self) -> int:
        return self.free.gpus

    @property
    def free_gpus(self) -> float:
        return self.free.free_gpus

    @property
    def ahead(self) -> float:
        return self.brakes.ahead(self.now)

    @property
    def seconds_left(self) -> float:
        deadline = self.limits.deadline
        return math.inf if deadline is None else max(0.0, deadline - self.ahead)

    @property
    def dollars_left(self) -> float:
        budget = self.limits.budget
        return math.inf if budget is None else max(0.0, budget - self.spent(self.ahead))

    def until(self, trial: TrialId) -> int:
        return self.granted.get(trial, 0)

    def width_for(self, trial: TrialProgress | None, width: Width, offer: Offer) -> Width:
        least = self.narrowest.get(offer.instance_type.name, 0.0)
        if trial is not None:
            stays = trial.live and trial.width == width and self.free.stays(trial.placement)
            least = 0.0 if stays else max(least, trial.min_width)
        return min(max(width, least), self.widest)

    def fits(self, width: Width, offer: Offer) -> bool:
        return self.free.find(width, only=offer) is not None

    def refused(self, offer: Offer) -> bool:
        backoff = self.backoffs.get(offer)
        return backoff is not None and backoff.used_up(self.brakes.refusals)

    def avoided(self, offer: Offer) -> bool:
        """Whether an offer is left alone for now: it was refused everywhere a short while ago."""
        backoff = self.backoffs.get(offer)
        return backoff is not None and (backoff.for_good or self.now < backoff.relaunch_at)

    def barred(self, offer: Offer) -> bool:
        """Whether an offer is refused for good: the account may not have it."""
        backoff = self.backoffs.get(offer)
        return backoff is not None and backoff.for_good

    def admits(self, alive: Mapping[Offer, int]) -> bool:
        return admits(self.max_instances, self.vcpu_quotas, alive)

    def epoch_seconds(self, trial: TrialId | None, offer: Offer, width: Width) -> float:
        """Return the seconds of an epoch: the profile's, corrected by what this run measured."""
        return self.speeds.epoch_seconds(trial, self._timed[offer], width)

    def slowest_epoch(self, trials: tuple[TrialId, ...], offer: Offer, width: Width) -> float:
        return self.speeds.slowest_epoch(trials, self._by_offer[offer].profile, width)

    @property
    def news(self) -> int:
        return self.gpu_speeds.news

    def epochs_on(self, offer: Offer) -> int:
        return self.gpu_speeds.epochs[offer.gpu_model]

    def on_average(self, rentable: Rentable) -> Rentable:
        factor = self.gpu_speeds.factor(rentable.offer.gpu_model)
        setup = self.setup_share
        delays = self.delays.expected_delays(rentable.profile)
        before = self._averages.get(rentable.offer)
        if before is not None and before.holds(rentable, factor, setup, delays):
            return before.average
        epoch = {
            width: seconds.scale(factor, added=setup)
            for width, seconds in rentable.profile.epoch.items()
        }
        profile = replace(rentable.profile, epoch=epoch, **delays)
        average = replace(rentable, profile=profile)
        self._averages[rentable.offer] = _Average(rentable, factor, setup, delays, average)
        return average

    @property
    def setup_share(self) -> float:
        """The seconds of an epoch that are its share of the set-ups of sessions.

        The epochs that running trials are still to train count too, and at least as many as trials
        train on average where one in e reaches epoch e, as by halving. The first trials are short:
        by these alone, set-ups would seem to take so long that a slow GPU is as good as a fast one.
        """
        key = self.now, len(self.setups), self.gpu_speeds.epochs.total()
        if key != self._setups_shared_at:
            self._setups_shared_at = key
            coming = sum(max(0, self.granted[trial.id] - trial.epoch) for trial in self.live)
            epochs = max(1, key[2] + coming, len(self.setups) * self._epochs_a_trial)
            self._setup_share = sum(self.setups) / epochs
        return self._setup_share

    def spread(self, offer: Offer, other: Offer) -> float:
        return self.gpu_speeds.spread(offer.gpu_model, other.gpu_model)

    def delay(self, offer: Offer, kind: Delay) -> float:
        """Return the mean seconds of a delay on an offer, as seen in this run."""
        return self.delays.mean(self._by_offer[offer].profile, kind)

    def corrected(self, rentable: Rentable, trials: Sequence[TrialId]) -> Rentable:
        """Return a rentable with the speeds expected of these trials."""
        return self.delays.corrected(self.speeds.corrected(rentable, trials))

    def profiled(self, offer: Offer) -> Rentable:
        """Return an offer's rentable as it was before the run, without the run's timings."""
        return self._by_offer[offer]

    # ---- money -------------------------------------------------------------------------------

    def spent(self, at: float) -> float:
        until = min(at, self.over_at) if self.ended else at
        running = 0.0 if self.began is None else max(0.0, until - self.began - self.paused)
        charged = self.charges.dollars(self.fleet.launches, running)
        return self.fleet.dollars(at) + self.live.dollars(at) + charged

    @property
    def over_at(self) -> float:
        """When the last instance stopped billing; now if one still bills or none was rented."""
        gone = [rented.gone_at for rented in self.fleet if rented.launched]
        return max((self.now if at is None else at for at in gone), default=self.now)

    @property
    def committed(self) -> float:
        """Dollars that are spent, or will be whatever is decided.

        Held instances count with their price until now. A plan for the rest of the job adds what
        they cost from now on, and what is still owed of their minimum charge.
        """
        running = 0.0 if self.began is None else self.now - self.began - self.paused
        held = {rented.intent for rented in self.fleet.staying()}
        return self.live.dollars(self.now) + (
            self.fleet.settled_dollars()
            + sum(
                (self.now - rented.began_at) * rented.offer.held_usd_per_second
                if rented.intent in held
                else rented.dollars(self.ahead)
                for rented in self.fleet.alive()
            )
            + self.charges.dollars(self.fleet.launches, running)
        )

    def session_slices(self) -> Sequence[Slice]:
        """Return the slices that sessions hold."""
        return [piece for trial in self.live for piece in trial.placement]

    def occupied_slices(self) -> Sequence[Slice]:
        """Return the slices that sessions hold, and those reserved for trials that move."""
        reserved = (piece for move in self.moves.values() for piece in move.reserved)
        return [*self.session_slices(), *reserved]

    # ---- events ------------------------------------------------------------------------------

    def note(self, event: Event) -> Noted:  # noqa: C901, PLR0912  one flat match
        """Record an event; return the part of it that the policy must act upon."""
        self.now = event.at
        self.live.now = event.at
        self._notes += 1
        noted = Noted()
        self.mishaps += self._is_mishap(event)
        match event:  # the most frequent one first
            case EpochDone():
                self._note_epoch(event, noted)
            case RunStarted():
                self.began = event.at
            case InstanceLaunched():
                rented = self.fleet[event.intent]
                rented.instance = event.instance
                rented.launched_at = event.launched_at
                self.backoff(rented.offer).note_launch()
            case NodeJoined():
                self.delays.note_join(self.fleet[event.intent], event.at)
                self.fleet[event.intent].joined = True
                self.backoff(self.fleet[event.intent].offer).no_shows = 0
            case NodeLost():
                self._give_up(self.fleet[event.intent], event.reason)
                self._drop_sessions_on(event.intent, event.reason, noted)
            case InterruptionNotice():
                self._note_notice(event)
            case RebalanceRecommended():
                # It may never be interrupted: no reason to replan or to move its trials.
                self.fleet[event.intent].at_risk = True
            case InstanceGone():
                self._note_gone(event)
                self._drop_sessions_on(event.intent, event.reason, noted)
            case LaunchFailed():
                self._note_refusal(event)
            case TrialStarted():
                self._note_start(event.session)
            case TrialStopped():
                self._note_stop(event, noted)
            case TrialFailed():
                self._note_failure(event, noted)
            case TrialLost():
                self._note_lost(event.session, event.reason, noted, blameless=event.blameless)
            case TimerFired():
                if event.name == "tick":
                    self._note_no_shows()
            case Interrupted():
                self.interrupted = True
            case InstanceBooting() | RunResumed() | RunContinued():
                pass  # nothing changes: whatever a controller missed arrives as other events
            case _:
                assert_never(event)
        self.follow_fleet()
        return noted

    def _is_mishap(self, event: Event) -> bool:
        """Whether an instance was unexpectedly lost or refused, and this is the first of it."""
        if not isinstance(event, _TROUBLES):
            return False
        rented = self.fleet[event.intent]
        return not (rented.released or rented.being_lost)

    def follow_fleet(self) -> None:
        """Count the GPUs of the instances that take trials now."""
        instances = self.fleet.usable()
        if instances is self._followed:  # the book keeps its list until an instance changes
            return
        self._followed = instances
        usable = {r.instance: r.offer for r in instances if r.instance is not None}
        self.free.follow(usable, self.session_slices())
        self.free.at_risk = [r.instance for r in instances if r.at_risk and r.instance]

    def backoff(self, offer: Offer) -> LaunchBackoff:
        """Return the failed launches of an offer, and when it may be requested again."""
        return self.backoffs.setdefault(offer, LaunchBackoff())

    def forget_refusals(self) -> None:
        """Forget failed launches, except for offers that are refused for good."""
        self._notes += 1
        self.backoffs = {
            offer: LaunchBackoff(for_good=True) for offer, b in self.backoffs.items() if b.for_good
        }

    def candidate_zones(self, offer: Offer) -> tuple[str, ...]:
        """Return the zones to request an offer in; "" leaves the zone to the cloud.

        Where a trial may span instances, they are requested in one zone: between zones its workers
        are slower, and each gigabyte costs. Another zone comes after it, if that one refuses.
        """
        if offer.zone:
            return (offer.zone,)
        if not self.zones or max(self._by_offer[offer].profile.epoch) <= offer.gpus:
            return ("", *self.zones)
        held = Counter(rented.zone for rented in self.fleet.alive() if rented.offer == offer)
        return tuple(sorted(self.zones, key=lambda zone: -held[zone]))

    def _drop_sessions_on(self, intent: str, reason: str, noted: Noted) -> None:
        """Drop the sessions on a vanished instance.

        Each is an orphan: its workers on other instances wait for peers that never answer, so the
        policy stops them.
        """
        instance = self.fleet[intent].instance
        for trial in list(self.live):
            if any(piece.instance == instance for piece in trial.placement):
                if trial.status != "stopping":
                    noted.orphans.append(trial.session)
                self._note_lost(trial.session, reason, noted, by_cloud=True)

    def _note_refusal(self, event: LaunchFailed) -> None:
        rented = self.fleet[event.intent]
        rented.gone_at = event.at
        if rented.released:
            return
        self.disturbances += 1
        before = self.avoided(rented.offer)
        offer = rented.offer
        backoff = self.backoff(offer)
        among = self.candidate_zones(offer)
        if event.kind in {"capacity", "quota"}:
            refusing = among if event.kind == "quota" else (rented.zone,)
            backoff.refuse(refusing, among, event.at, self.brakes.avoid)
        else:
            backoff.refuse(among, among, event.at, self.brakes.relaunch)
        if event.kind == "capacity":
            backoff.note_empty(event.at)
        if event.permanent:
            backoff.for_good = True
            self.trouble = f"{event.code}: {event.message}"
        # Not if the pool was avoided already: each shock may cost a search for a plan.
        self.shocks += self.avoided(offer) and not before

    def _note_notice(self, event: InterruptionNotice) -> None:
        """Start nothing more on the instance, so that another one may replace it.

        Its trials keep training, and move after their next saved epoch if there is room elsewhere.
        """
        rented = self.fleet[event.intent]
        rented.surplus = rented.being_lost = True
        rented.kept_until = 0.0
        self.disturbances += 1
        self.shocks += 1

    def _note_gone(self, event: InstanceGone) -> None:
        """Record that an instance is gone; one that never joined may be requested again."""
        rented = self.fleet[event.intent]
        self.shocks += rented.usable  # no surprise if it was about to go anyway
        rented.gone_at = event.gone_at
        rented.last_words = event.console
        if rented.released:
            return
        self.disturbances += 1
        if not rented.joined:
            self.backoff(rented.offer).note_end(event.at, self.brakes.relaunch)
            self.trouble = f"{rented.instance} ended before it joined: {event.reason}"

    def join_seconds(self, rented: Rented) -> float:
        """Return how long an instance may take from its request until it joins.

        One that waits in a queue hasn't begun to boot.
        """
        profile = self._by_offer[rented.offer].profile
        seen = self.delays.longest_join.get(rented.offer.instance_type.name, 0.0)
        is_known = seen > 0 or profile.knows_boots
        if not is_known or rented.launched_at is None:
            return self.brakes.join
        usual = max(seen, profile.launch.mean + profile.boot.mean)
        slow = max(self.brakes.slow_boot * usual, profile.launch.high + profile.boot.high)
        return min(self.brakes.join, max(self.brakes.least_join, slow))

    def _note_no_shows(self) -> None:
        """Give up on instances that should have joined by now."""
        for rented in self.fleet.staying():
            limit = self.join_seconds(rented)
            if not rented.joined and self.now > rented.requested_at + limit:
                rented.late = True
                self.mishaps += 1
                self._give_up(
                    rented, f"{rented.instance} has not joined in {format_seconds(limit)}"
                )

    def _give_up(self, rented: Rented, why: str) -> None:
        """Mark an instance that is of no use for return: it may still bill."""
        rented.surplus = rented.being_lost = True
        rented.kept_until = 0.0
        if not rented.joined:
            self.disturbances += 1
            self.backoff(rented.offer).note_no_show(
                rented.zone, self.candidate_zones(rented.offer), self.now, self.brakes.avoid
            )
            self.trouble = why

    def current(self, session: str) -> TrialProgress | None:
        """Return the trial whose current session this is; None for an earlier session."""
        trial = self.trials[trial_of(session)]
        return trial if trial.live and trial.session == session else None

    def _note_start(self, session: str) -> None:
        trial = self.current(session)
        if trial is not None and trial.status == "starting":
            setup = self.delays.note_start(trial, self.now)
            self.setups.append(setup)
            trial.seconds += setup
            trial.epoch_since = self.now
            self.live.become(trial, "training")

    def _note_epoch(self, event: EpochDone, noted: Noted) -> None:
        trial = self.current(event.session)
        if trial is None or event.epoch <= trial.epoch:
            return  # from an earlier session, or reported twice
        metric = event.metrics.get(self.metric.name, math.nan)
        named = event.of_epoch or event.epoch
        result = BestResult(trial.id, named, metric, event.checkpoint, event.unsaved)
        if trial.status == "stopping":
            # No decision depends on it any more, but a saved result still counts.
            if event.checkpoint is not None and not has_diverged(metric):
                self.record.offer(result)
                noted.late = trial
            return
        assert trial.offer is not None
        profile = self._timed[trial.offer].profile
        # Before the metric is checked: an epoch that diverged is as good a timing as any other.
        self.speeds.note(trial.id, profile, trial.width, event.seconds, event.saving)
        self.gpu_speeds.note(trial.id, trial.offer, trial.width, event.seconds - event.saving)
        self._learn_to_share(trial, event.memory_mib)
        trial.record(event, metric)
        trial.epoch_since = self.now
        if has_diverged(metric):
            trial.error = f"{self.metric.name} was {metric:g} at epoch {named}"
            self.record.drop(trial.id)
            noted.diverged = trial
            return
        self.record.offer(result)
        # "training" even before `TrialStarted`, which may arrive after the first epoch.
        at_rung = event.epoch >= self.granted[trial.id]
        self.live.become(trial, "at rung" if at_rung else "training")
        noted.reported = trial

    def _learn_to_share(self, trial: TrialProgress, memory_mib: float | None) -> None:
        """Let trials have other shares of a GPU, if an epoch has shown that they fit or pay."""
        assert trial.offer is not None
        revised = self.sharing.note(
            self.rentables,
            trial.offer.instance_type.name,
            trial.width,
            memory_mib,
            lambda rentable: self.corrected(rentable, ()),
        )
        if revised is not None:
            self.rentables = tuple(revised)
            self._by_offer |= {rentable.offer: rentable for rentable in reversed(revised)}
            for offer, rentable in self._by_offer.items():
                before = self._timed[offer].profile.epoch
                profile = replace(rentable.profile, epoch={**before, **rentable.profile.epoch})
                self._timed[offer] = replace(rentable, profile=profile)
            self._limit_widths()

    def _note_stop(self, event: TrialStopped, noted: Noted) -> None:
        trial = self.current(event.session)
        if trial is None:
            return
        if event.by_itself and trial.status != "stopping":
            self._leave(trial, "finished", noted)
            noted.finished = trial
            return
        self.delays.note_stop(trial.id, self.now)
        self._leave(trial, trial.after, noted)

    def _note_failure(self, event: TrialFailed, noted: Noted) -> None:
        trial = self.current(event.session)
        if trial is None:
            return
        if trial.status == "stopping" and trial.after in OVER:
            self._leave(trial, trial.after, noted)  # it was being ended: the failure is moot
            return
        if self._refit(trial, event):
            self.refits += 1
            self._leave(trial, "waiting", noted)
            return
        self._leave(trial, "failed", noted)
        trial.error = event.error
        trial.traceback = event.traceback

    def _refit(self, trial: TrialProgress, event: TrialFailed) -> bool:
        """Whether a failed trial continues at another width, because the script isn't at fault.

        A trial that ran out of memory on a share of a GPU gets a larger share, and no trial uses
        that share again on this instance type. If the workers of a trial don't train one model, no
        trial gets more than one GPU from then on.
        """
        if not event.out_of_memory or trial.width >= 1:
            return event.unsynced and self._keep_to_one_gpu(
                f"{trial_of(event.session)}: {event.error}"
            )
        assert trial.offer is not None
        name = trial.offer.instance_type.name
        trial.min_width = wider(trial.width, self._by_offer[trial.offer].profile.widths)
        if trial.min_width > self.narrowest.get(name, 0.0):
            self.narrowest[name] = trial.min_width
            self._limit_widths()
        return True

    def _limit_widths(self) -> None:
        """Let trials start only at the remaining widths, and trigger a new plan."""
        widths = {}
        for rentable in self.rentables:
            offer = rentable.offer
            measured = rentable.profile.epoch
            widths[offer] = {w for w in measured if self.width_for(None, w, offer) == w}
        self.free.limit(widths)
        self.disturbances += 1
        self.shocks += 1

    def _keep_to_one_gpu(self, why: str) -> bool:
        """Keep all trials to one GPU from now on; return False if that was never measured."""
        narrow = limit_to_one_gpu(self.rentables)
        if not narrow:
            return False
        if self.widest > 1:
            self.widest = 1.0
            self.why_narrow = why
            self.rentables = narrow
            self._limit_widths()
        return True

    def _note_lost(
        self,
        session: str,
        reason: str,
        noted: Noted,
        *,
        by_cloud: bool = False,
        blameless: bool = False,
    ) -> None:
        trial = self.current(session)
        if trial is None:
            return
        if trial.status == "stopping":
            self._leave(trial, trial.after, noted)
            return
        # An interruption says little about the script, but there must be an end to them too.
        trial.losses += not (by_cloud or blameless)
        trial.taken += by_cloud
        if trial.losses > self.brakes.losses or trial.taken > 10 * self.brakes.losses:
            self._leave(trial, "failed", noted)
            trial.error = f"lost {trial.losses + trial.taken} times: {reason}"
        else:
            self._leave(trial, "waiting", noted)

    def _leave(self, trial: TrialProgress, status: Status, noted: Noted) -> None:
        """Take a trial off its GPUs; an interrupted one restarts before any new trial starts."""
        if status == "failed":
            noted.failed_on = trial.placement[0].instance
        self.free.give(trial.placement)
        self.live.remove(trial)
        trial.status = status
        trial.placement = ()
        if status == "waiting":
            trial.rewind()  # to its last checkpoint, where the next session starts
            if trial.epoch >= self.granted[trial.id]:
                trial.status = "parked"  # nothing is left to train before the rung
            else:
                trial.offer = None
        if trial.status == "waiting":
            self.again[trial.id] = trial
            return
        self.drop_move(trial)
        if trial.status in {"failed", "diverged"}:
            self.failures += 1
            noted.failed.append(trial)

    def drop_move(self, trial: TrialProgress) -> None:
        """Free the GPUs reserved for a trial's move."""
        move = self.moves.pop(trial.id, None)
        if move is not None:
            self.free.give(move.reserved)
