"""What was asked for isn't taken back, what was given back isn't replaced, but for a cause."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from cloudtune.engine.ledger import Entry, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld
from cloudtune.model.catalog import Offer
from cloudtune.model.commands import Launch, Release
from cloudtune.model.events import (
    Event,
    InstanceGone,
    InterruptionNotice,
    LaunchFailed,
    NodeLost,
    RebalanceRecommended,
    TrialFailed,
    TrialLost,
)
from cloudtune.model.plans import Rentable
from cloudtune.model.progress import OVER, TrialProgress
from cloudtune.model.trial import EndReason
from cloudtune.policy.base import Brakes
from cloudtune.strategies.allocators.same import SameWidth
from cloudtune.strategies.base import Decision, FleetRule, Go, Task, TrialGroup, Verdict, View
from cloudtune.strategies.fleets import NaiveFleet, Unplanned
from tests.builders import flapped, offer, policy_with, profile, trials

OFFER = offer(1)  # 60 s at least
PLACE = Rentable(OFFER, profile({1: 10.0}, launch=1.0, boot=20.0, start=0.0, release=2.0), 4)
PAUSE = 20.0 + 60.0


@dataclass(frozen=True)
class Wavering(Unplanned):
    """A fleet that wants n instances from these seconds on, whatever is needed."""

    wants: Mapping[float, int]
    name: str = "wavering"

    def could_ask(self, view: View) -> tuple[Offer, ...]:
        return (OFFER,)

    def max_gpus(self, view: View) -> int:
        return 4

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        return {OFFER: [count for since, count in self.wants.items() if since <= view.now][-1]}


class Breaks:
    """A strategy of one trial; after each of these epochs it rests until a second of the run."""

    name, anytime = "breaks", False
    reason: EndReason | None = None

    def __init__(
        self, last: int, breaks: Mapping[int, float] | None = None, count: int = 1
    ) -> None:
        self._last, self._breaks, self._trials = last, breaks or {}, trials(count)
        self._until = 0.0

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        if view.now < self._until:
            return []
        known = view.trials
        ready = [t for t in self._trials if t.id not in known or known[t.id].status == "parked"]
        tasks = tuple(Task(trial, self._last) for trial in ready[:room])
        return [TrialGroup("all", tasks)] if tasks else []

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        if trial.epoch >= self._last:
            return Verdict.FINISH
        if trial.epoch in self._breaks:
            self._until = self._breaks[trial.epoch]
            return Verdict.PAUSE
        return Go(self._last)

    def on_failure(self, view: View, trial: TrialProgress) -> None:
        pass

    def on_finish(self, view: View, trial: TrialProgress) -> None:
        pass

    def preempt(self, view: View) -> Mapping[str, Verdict]:
        return {}

    def wake_at(self, view: View) -> float | None:
        return self._until

    def more(self, view: View, trials: int) -> str:
        return "it takes no more"

    def done(self, view: View) -> bool:
        known = view.trials
        return all(t.id in known and known[t.id].status in OVER for t in self._trials)


def play(
    fleet: FleetRule, strategy: Breaks | None = None, trouble: Sequence[Event] = ()
) -> tuple[Entry, ...]:
    """Play a run to its end; none of it may flap."""
    policy = policy_with(
        strategy or Breaks(40),
        SameWidth(1.0),
        fleet,
        rentables=(PLACE,),
        max_instances=4,
        brakes=Brakes(drain=7.0, relaunch=1.0, avoid=1.0),
    )
    world = SimWorld((PLACE,), "score", lambda _config, epoch: epoch / 100)
    for event in trouble:
        world.schedule(event)
    ledger = MemoryLedger()
    run(policy, world, ledger)
    assert policy.ending is EndReason.DONE
    assert flapped(policy, (PLACE,), ledger.entries) == ()
    return tuple(ledger.entries)


def times(entries: Sequence[Entry], kind: type) -> list[float]:
    """Return when the commands of a kind were given, without those of the end."""
    return [e.event.at for e in entries[:-3] for c in e.commands if isinstance(c, kind)]


def test_a_released_instance_is_replaced_after_boot_and_minimum_charge() -> None:
    entries = play(Wavering({0.0: 2, 100.0: 1, 110.0: 2}))
    assert times(entries, Release)[0] == 100.0
    assert times(entries, Launch) == [0.0, 0.0, 100.0 + PAUSE]


def test_a_fleet_that_wavers_on_rents_little() -> None:
    """Every second another wish: one launch at most in the time of a boot and a minimum."""
    wants = {0.0: 2, **{float(at): 1 + at % 2 for at in range(100, 400)}}
    entries = play(Wavering(wants))
    assert len(times(entries, Launch)) <= 2 + 300 / PAUSE + 1


@pytest.mark.parametrize(
    "cause", [NodeLost(105.0, "i002", "gone"), InterruptionNotice(105.0, "i002", 225.0)]
)
def test_a_lost_instance_is_replaced_at_once_and_explains_no_other_launch(cause: Event) -> None:
    entries = play(Wavering({0.0: 3, 100.0: 2, 110.0: 3}), trouble=[cause])
    assert times(entries, Launch) == [0.0, 0.0, 0.0, 105.0, 100.0 + PAUSE]


def test_an_instance_is_lost_once_though_a_notice_came_first() -> None:
    notice = InterruptionNotice(105.0, "i000", 108.0)
    gone = InstanceGone(108.0, "i000", 108.0, "taken back")
    entries = play(Wavering({0.0: 3, 100.0: 2, 120.0: 3}), trouble=[notice, gone])
    assert times(entries, Launch) == [0.0, 0.0, 0.0, 105.0, 100.0 + PAUSE]


def test_a_lost_trial_explains_no_launch() -> None:
    lost = TrialLost(105.0, "t00.1", "its worker was killed")
    entries = play(Wavering({0.0: 2, 100.0: 1, 110.0: 2}), trouble=[lost])
    assert times(entries, Launch) == [0.0, 0.0, 100.0 + PAUSE]


@pytest.mark.parametrize("risky", ["i001", "i002", "i003"])
def test_of_idle_instances_one_at_risk_is_returned_first(risky: str) -> None:
    entries = play(Wavering({0.0: 4, 100.0: 3}), trouble=[RebalanceRecommended(60.0, risky)])
    returned = next(c for entry in entries for c in entry.commands if isinstance(c, Release))
    assert returned.intent == risky


def test_a_refusal_explains_that_another_is_taken_back() -> None:
    refused = LaunchFailed(100.5, "i002", "NoCapacity", "none left")
    wants = Wavering({0.0: 2, 100.0: 4, 102.0: 2})
    assert times(play(wants, trouble=[refused]), Release)[0] == 102.0
    assert times(play(wants), Release)[0] == 121.0, "when both have joined"


def test_what_boots_is_kept_though_no_longer_wanted() -> None:
    entries = play(Wavering({0.0: 2, 5.0: 1}))
    assert times(entries, Release)[0] == 21.0, "once it has joined"


def test_what_boots_goes_back_for_a_trial_that_failed() -> None:
    failed = TrialFailed(30.0, "t01.1", "boom", "")
    wants = Wavering({0.0: 2, 25.0: 3, 30.0: 2})
    assert times(play(wants, Breaks(40, count=2), [failed]), Release)[0] == 30.0
    assert times(play(wants, Breaks(40, count=2)), Release)[0] == 46.0


def test_a_run_that_waits_to_ask_again_has_not_failed() -> None:
    """Nothing trains, nothing is held, nothing comes: only the time until it may ask."""
    entries = play(NaiveFleet(OFFER, 1), Breaks(6, {3: 60.0}))
    returned = times(entries, Release)[0]
    assert returned == 51.0
    assert times(entries, Launch) == [0.0, returned + PAUSE]


def test_the_audit_finds_what_flaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudtune.policy.fleet_manager.Hysteresis.next_request", lambda *_: 0.0)
    monkeypatch.setattr("cloudtune.policy.fleet_manager.Hysteresis.may_go", lambda *_: True)
    with pytest.raises(AssertionError, match="i002 was asked for 10s after i001 of the same"):
        play(Wavering({0.0: 2, 100.0: 1, 110.0: 2}))
    with pytest.raises(AssertionError, match="i000 was given back 5s after it was asked for"):
        play(Wavering({0.0: 2, 5.0: 1}))
