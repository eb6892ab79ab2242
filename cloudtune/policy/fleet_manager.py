"""The fleet of a run: rents what a fleet rule wants and returns what it doesn't."""

import math
from collections import Counter
from collections.abc import Iterable

from cloudtune.model.catalog import Offer
from cloudtune.model.commands import Command, Launch, Release, SetTimer
from cloudtune.model.fleet import Rented
from cloudtune.model.scaling import Delay
from cloudtune.model.trial import EndReason
from cloudtune.policy.limits import LimitKeeper, Spender
from cloudtune.policy.state import RunState
from cloudtune.strategies.base import FleetRule

CLEANUP = "cleanup"  # the timer by which returns are repeated


class Hysteresis:
    """Keeps a fleet from flapping, whatever its rule wants.

    A requested instance isn't returned before it has joined. After an instance is returned, its
    offer isn't requested again for the time of a boot plus a minimum charge. A new plan, or a new
    stage of it, suspends both rules; so does an instance or a request that was lost or refused,
    but for one request each. A failed trial is a cause to return, but not to request.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._plans = 0
        self._asked: dict[str, tuple[int, int]] = {}
        self._returned: dict[Offer, tuple[int, float]] = {}

    @property
    def _causes(self) -> int:
        return self._state.mishaps + self._plans

    def note_plan(self) -> None:
        """Record another plan, or another stage of it."""
        self._plans += 1
        self._returned.clear()

    def note_request(self, rented: Rented) -> None:
        """Record a request."""
        self._asked[rented.intent] = self._causes, self._state.failures
        if rented.offer in self._returned:
            causes, until = self._returned[rented.offer]
            self._returned[rented.offer] = causes + 1, until

    def note_return(self, rented: Rented) -> None:
        """Record a returned instance; one that was lost may be replaced at once."""
        if not rented.being_lost:
            until = self._state.now + self._pause(rented.offer)
            self._returned[rented.offer] = self._causes, until

    def _pause(self, offer: Offer) -> float:
        """Return the seconds of a boot plus a minimum charge; at least a tick."""
        boot = self._state.profiled(offer).profile.boot.mean
        return max(boot + offer.minimum_seconds, self._state.brakes.tick)

    def may_go(self, rented: Rented) -> bool:
        """Whether an instance that isn't needed may be returned now."""
        now = self._causes, self._state.failures
        return rented.joined or rented.being_lost or self._asked.get(rented.intent) != now

    def next_request(self, offer: Offer) -> float:
        """Return the run second from which an offer may be requested; 0: at once."""
        causes, until = self._returned.get(offer, (self._causes, 0.0))
        return until if causes >= self._causes and until > self._state.now else 0.0


class Returns:
    """Returns every instance at a run's end, and repeats it until the cloud has confirmed it."""

    def __init__(self, run: Spender) -> None:
        self._run = run
        self._rounds = 0
        self.began_at: float | None = None

    @property
    def over(self) -> bool:
        """Whether everything was returned: it is gone, or the retries are used up."""
        given_up = self._rounds > 1 + self._run.brakes.patience
        return self.began_at is not None and (given_up or not self._run.fleet.alive())

    def give_back(self, *, again: bool = False) -> list[Command]:
        """Release what wasn't released yet; with `again` all that is alive (at `CLEANUP`).

        An instance that is kept for a person stays until it no longer is.
        """
        run = self._run
        going = [rented for rented in run.fleet.alive() if not rented.kept_until]
        commands = [
            _mark_release(rented, run.now) for rented in going if again or not rented.released
        ]
        if self.began_at is None:
            self.began_at = run.now
        elif not again and not commands:
            return []
        self._rounds += 1
        return [*commands, SetTimer(CLEANUP, run.now + run.brakes.cleanup)] if going else commands


def _mark_release(rented: Rented, at: float) -> Command:
    rented.released = True
    rented.released_at = at
    rented.kept_until = 0.0
    return Release(rented.intent)


class FleetKeeper:
    """Matches the fleet to what its rule wants, as far as the limits and the cloud allow."""

    def __init__(self, state: RunState, limits: LimitKeeper, rule: FleetRule) -> None:
        self._state = state
        self._limits = limits
        self.rule = rule
        self._stage = rule.stage
        self._target: dict[Offer, int] = {}
        self._beyond_limits = False  # the wanted instances are available, but not in the limits
        self._hysteresis = Hysteresis(state)
        self._asks_at = math.inf  # when what is missing may be asked for

    def begin_round(self) -> None:
        """Close instances that are about to go, before anything is started.

        A new stage forgets refusals: earlier ones say little about now.
        """
        state = self._state
        if self.rule.stage != self._stage:
            self._stage = self.rule.stage
            state.forget_refusals()
            self.note_plan()
        self._vacate(math.inf)

    def note_plan(self) -> None:
        """Record another plan, or another stage of it: it may need another fleet."""
        self._hysteresis.note_plan()

    def _vacate(self, needed: float) -> None:
        """Start nothing more on the instances that the rule wants to return, busy or not."""
        state = self._state
        for instance in self.rule.leaving(state, needed):
            rented = state.fleet.of(instance)
            rented.surplus = rented.surplus or self._hysteresis.may_go(rented)
        state.follow_fleet()

    def fit(self, needed: float) -> list[Command]:
        """Return empty instances that aren't wanted; request what is missing.

        `needed` are the GPUs of all trials that train or wait to start.
        """
        state = self._state
        wanted = self.rule.target(state, needed)
        self._target = {offer: count for offer, count in wanted.items() if count > 0}
        self._beyond_limits = state.crowded = False
        self._asks_at = self.rule.grows_at(state)
        if self._target.items() == state.held.items() and not state.fleet.returning():
            return []
        target = Counter(self._target)
        extra = state.held - target
        commands: list[Command] = []
        if extra or state.fleet.returning():
            commands += self._shrink(extra)
        self._vacate(needed)
        # Only now: what was just released, or is about to be, no longer counts as held.
        missing = target - state.held
        if self._given_up():
            return commands
        asked_at = {offer: self._hysteresis.next_request(offer) for offer in missing}
        self._asks_at = min([self._asks_at, *filter(None, asked_at.values())])
        askable = Counter(
            {o: n for o, n in missing.items() if not asked_at[o] and self._may_ask(o)}
        )
        affordable = self._limits.affordable(askable.elements()) if askable else []
        if not self.rule.can_train(state, state.held + Counter(affordable)):
            waits = any(asked_at[o] or state.avoided(o) for o in missing)
            self._beyond_limits = bool(missing) and not waits
            return commands  # new instances could only idle
        # Released instances still count here: quotas and the cap apply to all that are alive.
        alive = Counter(rented.offer for rented in state.fleet.alive())
        for offer in affordable:
            asks_at = self._hysteresis.next_request(offer)
            if asks_at:
                self._asks_at = min(self._asks_at, asks_at)
            elif state.admits(alive + Counter([offer])):
                alive[offer] += 1
                commands.append(self._launch(offer))
            else:
                state.crowded = True
        return commands

    def hopeless(self) -> EndReason | None:
        """Return why the run ends if nothing trains and nothing it needs can be rented."""
        state = self._state
        target = self._target
        if not self._idle():
            return None
        if self._given_up():
            # Instances that came and failed are a failure; instances that never came, capacity.
            failed = all(map(self._never_trained, target))
            return EndReason.FAILED if failed else EndReason.NO_CAPACITY
        if self._beyond_limits:
            if any(map(state.refused, target)):
                return EndReason.NO_CAPACITY  # it was requested as long as there was time
            late = not any(self._would_join(offer) for offer in target)
            return EndReason.DEADLINE if late else EndReason.BUDGET  # nothing was requested
        return None

    def refused(self) -> bool:
        """Whether the cloud refused every request, so that nothing ever trained."""
        state = self._state
        tried = any(backoff.refusals or backoff.round for backoff in state.backoffs.values())
        return tried and not any(rented.launched_at is not None for rented in state.fleet)

    def _never_trained(self, offer: Offer) -> bool:
        """Whether instances of an offer came, but never took a trial."""
        backoff = self._state.backoff(offer)
        most = self._state.brakes.refusals
        return backoff.for_good or (backoff.no_shows >= most and offer.market == "on-demand")

    def _idle(self) -> bool:
        """Whether nothing trains, and the held instances can't train anything."""
        state = self._state
        if not self._target or state.live:
            return False
        return not self.rule.can_train(state, state.held)

    def _given_up(self) -> bool:
        """Whether nothing trains, and requesting any offer that might be wanted is pointless.

        Checked before each launch: if a round of requests takes longer than the pause after it, the
        next round would begin at once, forever.
        """
        if not self._idle():
            return False
        return all(map(self._pointless, {*self._target, *self.rule.could_ask(self._state)}))

    def _pointless(self, offer: Offer) -> bool:
        """Whether an offer was refused repeatedly, and waiting for it makes no sense.

        A dry pool may fill again, and waiting costs next to nothing. So with a deadline the offer
        is requested as long as there is time; without one that would never end.
        """
        state = self._state
        backoff = state.backoff(offer)
        if not state.refused(offer):
            return False
        final = backoff.for_good or backoff.no_shows >= state.brakes.refusals
        return final or state.limits.deadline is None

    def is_quiet(self) -> bool:
        """Whether no instance is coming or going, or will be requested again."""
        state = self._state
        paused = [o for o, backoff in state.backoffs.items() if state.now < backoff.relaunch_at]
        if self._asks_at < math.inf:
            return False
        return not state.fleet.has_pending() and all(map(self._pointless, paused))

    def next_request(self) -> float:
        """Return the run second at which missing instances may be requested; inf: none waits."""
        return self._asks_at

    def restless(self) -> bool:
        """Whether something is due that no event reports: a node, a return, another request."""
        now = self._state.now
        pauses = [backoff.relaunch_at for backoff in self._state.backoffs.values()]
        return (bool(pauses) and now < max(pauses)) or self._state.fleet.has_pending()

    def quiet_until(self) -> float:
        """Return the run second until which none of these (`restless`) is due."""
        state = self._state
        brakes = state.brakes
        ends = [b.relaunch_at for b in state.backoffs.values() if state.now < b.relaunch_at]
        for rented in state.fleet.alive():
            if rented.released:
                ends.append(rented.released_at + brakes.cleanup)
            elif not rented.joined:
                limit = state.join_seconds(rented)
                ends.append(rented.requested_at + limit + brakes.tick)
        return min(ends, default=state.now)

    def release_late(self) -> list[Command]:
        """Repeat each release that the cloud hasn't confirmed after `brakes.cleanup` seconds."""
        state = self._state
        return [
            self._release(rented)
            for rented in state.fleet.alive()
            if rented.released and state.now >= rented.released_at + state.brakes.cleanup
        ]

    # ---- giving back -------------------------------------------------------------------------

    def _shrink(self, extra: Counter[Offer]) -> Iterable[Command]:
        """Return empty instances: lost ones first, then those at risk, then those booting."""
        state = self._state
        busy = {piece.instance for piece in state.occupied_slices()}
        empty = [r for r in state.fleet.alive() if not r.released and r.instance not in busy]
        for rented in sorted(empty, key=lambda r: (not r.at_risk, r.joined)):
            if not rented.surplus and extra[rented.offer] > 0:
                extra[rented.offer] -= 1
                rented.surplus = self._hysteresis.may_go(rented)
            if rented.surplus and not self._is_kept(rented):
                yield self._release(rented)
        state.follow_fleet()

    def _is_kept(self, rented: Rented) -> bool:
        """Whether a person may look at an instance, and it takes no other's place."""
        with_both = Counter([rented.offer, rented.offer])  # itself, and one that may be missing
        return rented.kept_until > 0 and self._state.admits(self._state.held + with_both)

    def _release(self, rented: Rented) -> Command:
        if not rented.released:
            self._hysteresis.note_return(rented)
        return _mark_release(rented, self._state.now)

    # ---- requesting --------------------------------------------------------------------------

    def _may_ask(self, offer: Offer) -> bool:
        """Whether to request an instance of an offer now.

        Not while the cloud refuses the offer, or if its instances repeatedly failed to join; and
        not if the instance would use up the budget or the time before it takes a trial.
        """
        state = self._state
        backoff = state.backoff(offer)
        if state.avoided(offer) or backoff.no_shows >= state.brakes.refusals:
            return False
        boot = offer.charge(self._delay(offer, "boot"))
        paid = boot + state.charges.usd_per_launch <= state.dollars_left
        return paid and self._would_join(offer)

    def _would_join(self, offer: Offer) -> bool:
        """Whether an instance requested now would join before the run must wind down."""
        delay = self._delay(offer, "launch") + self._delay(offer, "boot")
        return delay < self._state.seconds_left

    def _delay(self, offer: Offer, delay: Delay) -> float:
        """Return the seconds of a delay: as profiled or as seen in this run, the longer one."""
        measured: float = getattr(self._state.profiled(offer).profile, delay).mean
        return max(measured, self._state.delay(offer, delay))

    def _launch(self, offer: Offer) -> Command:
        state = self._state
        zone = state.backoff(offer).zone(state.candidate_zones(offer))
        rented = state.fleet.request(offer, state.now, zone)
        self._hysteresis.note_request(rented)
        self._limits.note_launch()
        return Launch(
            rented.intent, offer.instance_type.name, offer.market, zone, offer.usd_per_hour
        )
