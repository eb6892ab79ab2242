"""The fleet of a run: what a fleet rule wants is rented, what it doesn't is given back."""

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

    An instance that was asked for isn't taken back before it has joined; and where one was given
    back, none of its offer is asked for until the time of a boot and of a minimum charge is over.
    Unless something happens that explains it: an instance, a request or a trial's workers are lost
    or refused, or another stage of a plan begins, or another plan. A trial that failed explains
    that an instance is taken back, and not that one is asked for.
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

    def note_asked(self, rented: Rented) -> None:
        """Record a request."""
        self._asked[rented.intent] = self._causes, self._state.failures

    def note_returned(self, rented: Rented) -> None:
        """Record an instance that is given back; one that was lost may be replaced."""
        if not rented.lost:
            until = self._state.now + self._pause(rented.offer)
            self._returned[rented.offer] = self._causes, until

    def _pause(self, offer: Offer) -> float:
        """Return the seconds of a boot and a minimum charge; a tick at least."""
        boot = self._state.profiled(offer).profile.boot.mean
        return max(boot + offer.minimum_seconds, self._state.brakes.tick)

    def may_go(self, rented: Rented) -> bool:
        """Whether an instance that isn't needed may be given back now."""
        now = self._causes, self._state.failures
        return rented.joined or rented.lost or self._asked.get(rented.intent) != now

    def asks_at(self, offer: Offer) -> float:
        """Return the run second from which on an offer may be asked for; 0 for at once."""
        causes, until = self._returned.get(offer, (self._causes, 0.0))
        return until if causes == self._causes and until > self._state.now else 0.0


class Returns:
    """Gives every instance back at a run's end, and again until the cloud has confirmed it."""

    def __init__(self, run: Spender) -> None:
        self._run = run
        self._rounds = 0
        self.began_at: float | None = None

    @property
    def over(self) -> bool:
        """Whether all was given back: it is gone, or was asked to go often enough."""
        given_up = self._rounds > 1 + self._run.brakes.patience
        return self.began_at is not None and (given_up or not self._run.fleet.alive())

    def give_back(self, *, again: bool = False) -> list[Command]:
        """Give back what wasn't yet; `again`: all, whenever the timer fires that this sets."""
        run = self._run
        alive = run.fleet.alive()
        commands = [_released(rented, run.now) for rented in alive if again or not rented.released]
        if self.began_at is None:
            self.began_at = run.now
        elif not again:
            return commands
        self._rounds += 1
        return [*commands, SetTimer(CLEANUP, run.now + run.brakes.cleanup)] if alive else commands


def _released(rented: Rented, at: float) -> Command:
    rented.released = True
    rented.released_at = at
    return Release(rented.intent)


class FleetKeeper:
    """Fits the fleet to what its rule wants, as far as the limits and the cloud allow."""

    def __init__(self, state: RunState, limits: LimitKeeper, rule: FleetRule) -> None:
        self._state = state
        self._limits = limits
        self.rule = rule
        self._stage = rule.stage
        self._target: dict[Offer, int] = {}
        self._beyond_limits = False  # what is wanted could be asked for, but not paid or used
        self._hysteresis = Hysteresis(state)
        self._asks_at = math.inf  # when what is missing may be asked for

    def begin_round(self) -> None:
        """Have instances that are to go take nothing more, before anything is started.

        In a new stage the cloud is asked again: its earlier refusals say little about now.
        """
        state = self._state
        if self.rule.stage != self._stage:
            self._stage = self.rule.stage
            state.forget_refusals()
            self.note_plan()
        self._vacate(math.inf)

    def note_plan(self) -> None:
        """Record another plan, or another stage of it: it may ask for another fleet."""
        self._hysteresis.note_plan()

    def _vacate(self, needed: float) -> None:
        """Have nothing more start on the instances that the rule wants to go, busy or not."""
        state = self._state
        for instance in self.rule.leaving(state, needed):
            rented = state.fleet.of(instance)
            rented.surplus = rented.surplus or self._hysteresis.may_go(rented)
        state.follow_fleet()

    def fit(self, needed: float) -> list[Command]:
        """Give back what is empty and too much; request what is missing.

        `needed` are the GPUs of what trains and of what waits to start.
        """
        state = self._state
        wanted = self.rule.target(state, needed)
        self._target = {offer: count for offer, count in wanted.items() if count > 0}
        self._beyond_limits = False
        self._asks_at = math.inf
        if self._target.items() == state.held.items() and not state.fleet.returning():
            return []
        target = Counter(self._target)
        extra = state.held - target
        commands: list[Command] = []
        if extra or state.fleet.returning():
            commands += self._shrink(extra)
        self._vacate(needed)
        # Only now: what has just been given back, or is to go, doesn't count as held any more.
        missing = target - state.held
        if self._given_up():
            return commands
        asked_at = {offer: self._hysteresis.asks_at(offer) for offer in missing}
        self._asks_at = min(filter(None, asked_at.values()), default=math.inf)
        askable = Counter(
            {o: n for o, n in missing.items() if not asked_at[o] and self._may_ask(o)}
        )
        affordable = self._limits.affordable(askable.elements()) if askable else []
        if not self.rule.can_train(state, state.held + Counter(affordable)):
            waits = any(asked_at[o] or state.avoided(o) for o in missing)
            self._beyond_limits = bool(missing) and not waits
            return commands  # new instances could only idle
        # Instances that are going still count here: quotas and the cap are on what is alive.
        alive = Counter(rented.offer for rented in state.fleet.alive())
        for offer in affordable:
            if state.admits(alive + Counter([offer])):
                alive[offer] += 1
                commands.append(self._launch(offer))
        return commands

    def hopeless(self) -> EndReason | None:
        """Return why the run ends, where nothing trains and nothing it needs can be rented."""
        state = self._state
        target = self._target
        if not self._idle():
            return None
        if self._given_up():
            # The cloud was willing where instances came and failed, but not where it takes them.
            failed = all(map(self._failed, target))
            return EndReason.FAILED if failed else EndReason.NO_CAPACITY
        if self._beyond_limits:
            if any(map(state.refused, target)):
                return EndReason.NO_CAPACITY  # asked for as long as there was time
            late = not any(self._would_join(offer) for offer in target)
            return EndReason.DEADLINE if late else EndReason.BUDGET  # none was asked for
        return None

    def refused(self) -> bool:
        """Whether the cloud has refused all that it was asked for, so that nothing ever trained."""
        state = self._state
        tried = any(backoff.refusals or backoff.round for backoff in state.backoffs.values())
        return tried and not any(rented.launched_at is not None for rented in state.fleet)

    def _failed(self, offer: Offer) -> bool:
        """Whether instances of an offer came, but never to take a trial."""
        backoff = self._state.backoff(offer)
        most = self._state.brakes.refusals
        return backoff.for_good or (backoff.no_shows >= most and offer.market == "on-demand")

    def _idle(self) -> bool:
        """Whether nothing trains, and what is held is not enough for it."""
        state = self._state
        if not self._target or state.live:
            return False
        return not self.rule.can_train(state, state.held)

    def _given_up(self) -> bool:
        """Whether nothing trains, and each offer that might be wanted is pointless to ask for.

        Asked before anything is launched: where a round of requests takes longer than the pause
        after it, the next one would begin at once, for ever.
        """
        if not self._idle():
            return False
        return all(map(self._pointless, {*self._target, *self.rule.could_ask(self._state)}))

    def _pointless(self, offer: Offer) -> bool:
        """Whether an offer was refused again and again, and there is nothing to wait for.

        A pool that is dry may fill again. Waiting costs next to nothing, so with a deadline it is
        asked for as long as there is time; without one there would be no end to that.
        """
        state = self._state
        backoff = state.backoff(offer)
        if not state.refused(offer):
            return False
        final = backoff.for_good or backoff.no_shows >= state.brakes.refusals
        return final or state.limits.deadline is None

    def settled(self) -> bool:
        """Whether no instance comes or goes, nor will: what is pointless to ask for won't."""
        state = self._state
        paused = [o for o, backoff in state.backoffs.items() if state.now < backoff.relaunch_at]
        if self._asks_at < math.inf:
            return False
        return not state.fleet.unsettled() and all(map(self._pointless, paused))

    def asks_at(self) -> float:
        """Return the run second at which to ask for what is missing and can't be asked for yet."""
        return self._asks_at

    def restless(self) -> bool:
        """Whether something is due that no event reports: a node, a return, another request."""
        now = self._state.now
        pauses = [backoff.relaunch_at for backoff in self._state.backoffs.values()]
        return (bool(pauses) and now < max(pauses)) or self._state.fleet.unsettled()

    def quiet_until(self) -> float:
        """Return the run second until which none of these is due, if nothing happens."""
        state = self._state
        brakes = state.brakes
        ends = [b.relaunch_at for b in state.backoffs.values() if state.now < b.relaunch_at]
        for rented in state.fleet.alive():
            if rented.released:
                ends.append(rented.released_at + brakes.cleanup)
            elif not rented.joined:
                ends.append(rented.requested_at + brakes.join + brakes.tick)
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
        """Give back empty instances: lost ones; then those at risk, and what boots still."""
        state = self._state
        busy = {piece.instance for piece in state.kept()}
        empty = [r for r in state.fleet.alive() if not r.released and r.instance not in busy]
        for rented in sorted(empty, key=lambda r: (not r.at_risk, r.joined)):
            if not rented.surplus and extra[rented.offer] > 0:
                extra[rented.offer] -= 1
                rented.surplus = self._hysteresis.may_go(rented)
            if rented.surplus:
                yield self._release(rented)
        state.follow_fleet()

    def _release(self, rented: Rented) -> Command:
        if not rented.released:
            self._hysteresis.note_returned(rented)
        return _released(rented, self._state.now)

    # ---- requesting --------------------------------------------------------------------------

    def _may_ask(self, offer: Offer) -> bool:
        """Whether to ask for an instance of an offer now.

        Not while the cloud refuses the offer, nor where instance after instance never joined; and
        not for an instance that would eat the budget, or the time, before it takes a trial.
        """
        state = self._state
        backoff = state.backoff(offer)
        if state.avoided(offer) or backoff.no_shows >= state.brakes.refusals:
            return False
        boot = offer.charge(self._delay(offer, "boot"))
        paid = boot + state.charges.usd_per_launch <= state.dollars_left
        return paid and self._would_join(offer)

    def _would_join(self, offer: Offer) -> bool:
        """Whether an instance asked for now would join before the run must begin to give back."""
        delay = self._delay(offer, "launch") + self._delay(offer, "boot")
        return delay < self._state.seconds_left

    def _delay(self, offer: Offer, delay: Delay) -> float:
        """Return the seconds of a delay: as measured or as this run has seen, if that is longer."""
        measured: float = getattr(self._state.profiled(offer).profile, delay).mean
        return max(measured, self._state.delay(offer, delay))

    def _launch(self, offer: Offer) -> Command:
        state = self._state
        zone = state.backoff(offer).zone(state.zones_of(offer))
        rented = state.fleet.request(offer, state.now, zone)
        self._hysteresis.note_asked(rented)
        self._limits.note_launch()
        return Launch(
            rented.intent, offer.instance_type.name, offer.market, zone, offer.usd_per_hour
        )
