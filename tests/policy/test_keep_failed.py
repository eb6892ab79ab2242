"""An instance whose trial failed is kept for a person, within the run's limits."""

import pytest

from cloudtune.engine.record.accounting import account
from cloudtune.model import events
from cloudtune.model.commands import ExtendTrial, KeepInstance, Launch, Release
from cloudtune.model.plans import Limits
from cloudtune.model.trial import EndReason
from cloudtune.policy.base import TrialRules
from tests.builders import (
    Setting,
    begun,
    by_hand,
    epoch,
    group,
    grouped,
    offer,
    play,
    scripted,
    staged,
)
from tests.builders.events import returned
from tests.builders.runs import Played

SECONDS = 1000.0
KEEPING = Setting(
    rules=TrialRules(keep_failed=SECONDS),
    mishap=lambda trial, _session, epoch: "failed" if (trial, epoch) == ("t02", 3) else "",
)


def kept(played: Played) -> list[tuple[float, KeepInstance]]:
    """Return when instances were to be kept, in the order of the run."""
    return [
        (entry.event.at, command)
        for entry in played.entries
        for command in entry.commands
        if isinstance(command, KeepInstance)
    ]


def returned_at(played: Played, intent: str) -> float:
    """Return when an instance was first given back."""
    return next(e.event.at for e in played.entries if Release(intent) in e.commands)


def test_the_run_ends_as_ever_and_the_instance_is_kept_beyond_it() -> None:
    plain = play(KEEPING.but(rules=TrialRules()))
    played = play(KEEPING)
    [(failed_at, keep)] = kept(played)
    assert keep.until == failed_at + SECONDS
    assert returned_at(played, keep.intent) == keep.until
    assert played.seconds == pytest.approx(keep.until, abs=10.0)
    assert played.policy.ending is plain.policy.ending
    assert played.policy.best == plain.policy.best
    others = [r for r in played.policy.fleet if r.intent != keep.intent]
    assert [r.gone_at for r in others] == [plain.policy.fleet[r.intent].gone_at for r in others]


def test_the_bill_says_what_it_was_kept_for() -> None:
    played = play(KEEPING)
    bill = account(played.entries, [KEEPING.offer], KEEPING.charges)
    plain = play(KEEPING.but(rules=TrialRules()))
    assert 0.0 < bill.amounts["kept"].dollars < bill.whole.dollars
    assert bill.whole.dollars == pytest.approx(played.policy.spent(played.seconds))
    before = account(plain.entries, [KEEPING.offer], KEEPING.charges)
    assert before.amounts["kept"].dollars == 0.0
    for name in ("training", "lost", "launches"):
        assert bill.amounts[name].dollars == pytest.approx(before.amounts[name].dollars)


@pytest.mark.parametrize("limits", [Limits(deadline=300.0), Limits(budget=2.0)])
def test_limits_go_first(limits: Limits) -> None:
    played = play(KEEPING.but(limits=limits))
    [(_, keep)] = kept(played)
    assert returned_at(played, keep.intent) < keep.until
    assert played.seconds <= (limits.deadline or keep.until)
    assert played.policy.spent(played.seconds) <= (limits.budget or 1e9)
    assert played.policy.ending is play(KEEPING).policy.ending, "it had ended before the limit"


def test_one_is_kept_at_a_time() -> None:
    all_fail = KEEPING.but(mishap=lambda _trial, _session, epoch: "failed" if epoch else "")
    played = play(all_fail)
    assert len(kept(played)) == 1
    assert len(played.policy.fleet.alive()) == 0
    assert played.policy.ending is EndReason.FAILED


def test_a_person_who_stops_the_run_returns_it() -> None:
    played = play(KEEPING.but(trouble=[events.Interrupted(500.0)]))
    [(_, keep)] = kept(played)
    assert returned_at(played, keep.intent) == 500.0


def test_a_lost_instance_is_not_kept() -> None:
    [(_, keep)] = kept(play(KEEPING))
    lost = events.NodeLost(400.0, keep.intent, "it left the cluster")
    played = play(KEEPING.but(trouble=[lost]))
    assert returned_at(played, keep.intent) == 400.0


FAILURE = events.TrialFailed(11.0, "t01.1", "ValueError: lr", "")


def test_an_empty_instance_stays_until_its_time() -> None:
    plan = staged((2, 0, 1, 2, 4.0), (1, 1, 9, 1, 4.0))
    policy = scripted(plan, rules=TrialRules(keep_failed=SECONDS))
    begun(policy, "i000", "i001")
    assert KeepInstance("i001", 1011.0) in policy.handle(FAILURE)
    said = policy.handle(epoch(12.0, "t00.1", 1))
    assert said == (ExtendTrial("t00.1", 9),), "it is kept, though the next stage has no use for it"
    assert policy.handle(events.TimerFired(1011.0, "kept")) == (Release("i001"),)


def test_a_kept_instance_leaves_its_place_to_another() -> None:
    first = group(offer(name="a.4x"), 1, 2.0, 2)
    second = group(offer(name="b.4x"), 1, 2.0, 1)
    plan = by_hand(grouped(0, 1, first), grouped(1, 2, second), max_instances=1)
    policy = scripted(plan, rules=TrialRules(keep_failed=SECONDS))
    begun(policy, "i000")
    assert KeepInstance("i000", 1011.0) in policy.handle(FAILURE)
    policy.handle(epoch(12.0, "t00.1", 1))
    assert Release("i000") in policy.handle(events.TrialStopped(12.5, "t00.1"))
    assert Launch("i001", "b.4x", "on-demand") in policy.handle(returned(14.0))
