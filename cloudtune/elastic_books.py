"""What a run with a strategy of its own knows: trials, seats and speeds, event by event."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtune.events import EpochDone
from cloudtune.placement import Room
from cloudtune.plan import admits
from cloudtune.renting import Renter
from cloudtune.seats import Seats

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping, Sequence

    from cloudtune.bookkeeping import Brakes, Metric
    from cloudtune.catalog import Offer
    from cloudtune.commands import Command
    from cloudtune.events import Event
    from cloudtune.fleet import Rented
    from cloudtune.plan import Charges, Limits, Rentable
    from cloudtune.progress import Status, TrialProgress
    from cloudtune.strategies.base import Allocator, FleetRule, Strategy
    from cloudtune.trial import Mode, Slice, TrialId, Width


@dataclass(frozen=True)
class Move:
    """Where a trial is to go on, how wide, and the GPUs that are kept for it till then."""

    offer: Offer
    width: Width
    reserved: tuple[Slice, ...]


@dataclass
class _Pace:
    """Seconds that epochs took, and that the profile says that they take."""

    seconds: float = 0.0
    expected: float = 0.0

    def note(self, seconds: float, expected: float) -> None:
        """Take note of an epoch, if anybody knows what it took."""
        if seconds <= 0:
            return
        self.seconds += seconds
        self.expected += expected

    @property
    def factor(self) -> float:
        """How many times as long as expected they take; 1 while nothing is known."""
        return self.seconds / self.expected if self.expected > 0 else 1.0


class ElasticBooks(Renter):
    """The `View` of a run that its strategy, allocator and fleet rule look at."""

    def __init__(
        self,
        *,
        strategy: Strategy,
        allocator: Allocator,
        fleet_rule: FleetRule,
        rentables: Sequence[Rentable],
        max_instances: int,
        metric: Metric,
        limits: Limits,
        brakes: Brakes | None = None,
        charges: Charges | None = None,
        vcpu_quotas: Mapping[str, int] | None = None,
        most_concurrent: int | None = None,
        target: float | None = None,
        zones: Sequence[str] = (),
        heartbeat: bool = True,
        checked: bool = True,
    ) -> None:
        super().__init__(
            trials=(), metric=metric, limits=limits, brakes=brakes, charges=charges, zones=zones
        )
        self.strategy = strategy
        self.allocator = allocator
        self.fleet_rule = fleet_rule
        self.rentables = tuple(rentables)
        self.max_instances = max_instances
        self.vcpu_quotas = dict(vcpu_quotas or {})
        self.most_concurrent = most_concurrent
        self.target = target
        self.resizes = 0
        self._heartbeat, self._checked = heartbeat, checked
        self._by_offer = {each.offer: each for each in reversed(self.rentables)}
        self._seats = Seats({o: each.profile.epoch for o, each in self._by_offer.items()})
        self._followed: list[Rented] = []
        self._live: dict[TrialId, TrialProgress] = {}
        self._until: dict[TrialId, int] = {}
        self._again: dict[TrialId, TrialProgress] = {}  # to go on, whatever else is wanted
        self._moves: dict[TrialId, Move] = {}
        self.setups: list[float] = []
        self._asked: dict[TrialId, float] = {}
        self._reported: TrialProgress | None = None
        self._changed = True
        self._brake_at = 0.0
        self._timers: dict[str, float] = {}
        self._paces: dict[TrialId | None, _Pace] = {None: _Pace()}

    # ---- the view ------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        """Whether more or less of the metric is better."""
        return self.metric.mode

    @property
    def seconds_left(self) -> float:
        """Seconds until the run must begin to give back; inf without a deadline."""
        deadline = self.limits.deadline
        return math.inf if deadline is None else max(0.0, deadline - self._ahead)

    @property
    def dollars_left(self) -> float:
        """What is left if everything were given back now; inf without a budget."""
        budget = self.limits.budget
        return math.inf if budget is None else max(0.0, budget - self.spent(self._ahead))

    @property
    def running(self) -> Sequence[TrialProgress]:
        """The trials that have sessions, those that wait at a rung or are stopping included."""
        return tuple(self._live.values())

    @property
    def held(self) -> Counter[Offer]:
        """Instances that are to stay, those that still boot included."""
        return self.fleet.held()

    @property
    def gpus(self) -> int:
        """GPUs of the instances that take trials now."""
        return self._seats.gpus

    @property
    def free_gpus(self) -> float:
        """GPUs of these on which nothing runs."""
        return self._seats.free_gpus

    def until(self, trial: TrialId) -> int:
        """Return the epoch that a trial may train to for now; 0 for one that never began."""
        return self._until.get(trial, 0)

    def refused(self, offer: Offer) -> bool:
        """Whether asking for such an instance is pointless: it was refused again and again."""
        trouble = self.troubles.get(offer)
        return trouble is not None and trouble.used_up(self.brakes.refusals)

    def epoch_seconds(self, trial: TrialId | None, offer: Offer, width: Width) -> float:
        """Return the seconds of an epoch: the profile's, corrected by what this run measured."""
        pace = self._paces.get(trial, self._paces[None])
        return self._by_offer[offer].epoch_seconds(width) * pace.factor

    def forecast(self, at: float) -> float:
        """Return what the run will have cost, if it goes on to its limits: the budget, if any."""
        if self.ending is not None or self.limits.budget is None:
            return self.spent(at)
        return max(self.spent(at), min(self.limits.budget, self._spent_at_deadline(at)))

    def _spent_at_deadline(self, at: float) -> float:
        return self.spent(at if self.limits.deadline is None else self.limits.deadline)

    # ---- what the books ask --------------------------------------------------------------

    def _admits(self, alive: Mapping[Offer, int]) -> bool:
        return admits(self.max_instances, self.vcpu_quotas, alive)

    def _rung_of(self, trial: TrialProgress) -> int:
        return self._until[trial.id]

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself; large simulations leave it out."""
        if not self._checked:
            return
        super().check_invariants()
        assert set(self._live) == {t.id for t in self.trials.values() if t.live}
        assert all(t.status == "waiting" for t in self._again.values())

    def _check_rooms(self) -> dict[str, Room]:
        found = super()._check_rooms()
        for offer, free in self._seats.free.items():
            empty = Room(offer.gpus)
            for instance, room in free.items():
                expected = found.get(instance, empty)
                assert room.matches(expected), f"{instance}: {room.free} GPUs are free"
        return found

    # ---- events --------------------------------------------------------------------------

    def _taken(self) -> Sequence[Slice]:
        return [piece for trial in self._live.values() for piece in trial.placement]

    def _kept(self) -> Sequence[Slice]:
        reserved = (piece for move in self._moves.values() for piece in move.reserved)
        return [*self._taken(), *reserved]

    def _note(self, event: Event) -> Iterable[Command]:
        self._reported = None
        commands = list(super()._note(event))
        if not isinstance(event, EpochDone):
            self._changed = True
            self._follow_fleet()
        return commands

    def _note_started(self, session: str) -> None:
        trial = self._session(session)
        if trial is not None and trial.status == "starting":
            setup = self.now - self._asked[trial.id]
            self.setups.append(setup)
            trial.seconds += setup
        super()._note_started(session)

    def _note_epoch(self, event: EpochDone) -> Iterable[Command]:
        trial = self._session(event.session)
        if trial is None or trial.status == "stopping" or event.epoch <= trial.epoch:
            return super()._note_epoch(event)
        assert trial.offer is not None
        expected = self._by_offer[trial.offer].epoch_seconds(trial.width)
        if trial.id not in self._paces:
            self._paces[trial.id] = _Pace()
        for pace in (self._paces[None], self._paces[trial.id]):
            pace.note(event.seconds, expected)
        commands = list(super()._note_epoch(event))
        if not trial.error:
            self._reported = trial
        return commands

    def _follow_fleet(self) -> None:
        found = self.fleet.usable()
        if found is self._followed:
            return
        self._followed = found
        usable = {r.instance: r.offer for r in found if r.instance is not None}
        self._seats.follow(usable, self._taken())

    def _leave(self, trial: TrialProgress, status: Status) -> None:
        """Take a trial off its GPUs; one that was to train on comes back before anything new."""
        self._seats.give(trial.placement)
        self._live.pop(trial.id, None)
        super()._leave(trial, status)
        self._changed = True
        if trial.status == "waiting":
            self._again[trial.id] = trial
            return
        self._drop_move(trial)
        if trial.status == "failed":
            self.strategy.ended(self, trial)

    def _drop_move(self, trial: TrialProgress) -> None:
        move = self._moves.pop(trial.id, None)
        if move is not None:
            self._seats.give(move.reserved)
