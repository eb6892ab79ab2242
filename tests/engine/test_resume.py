"""A run taken over from a controller that died: from its ledger alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fault_world import Kill, survive
from cloudtune.engine.ledger import Entry, FileLedger, read_entries, read_header
from cloudtune.engine.resume import InFlight, replay
from cloudtune.errors import CloudtuneError
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import (
    Event,
    InstanceGone,
    InstanceLaunched,
    NodeJoined,
    RunResumed,
    RunStarted,
    TimerFired,
    TrialStopped,
)
from cloudtune.model.plans import Limits
from tests.builders import Setting, epoch, scripted, staged

PLAN = staged((2, 0, 1, 1, 2.0), (1, 1, 2, 1, 4.0))
JOINED = (RunStarted(0.0), InstanceLaunched(2.0, "i000", "i-000", 2.0), NodeJoined(20.0, "i000"))


def left_by(*events: Event) -> InFlight:
    policy = scripted(PLAN)
    entries = [Entry(event, policy.handle(event)) for event in events]
    return replay(scripted(PLAN), entries)


def test_a_launch_is_outstanding_until_its_instance_is_gone() -> None:
    assert list(left_by(RunStarted(0.0)).instances) == ["i000"], "it may never have been asked for"
    assert list(left_by(*JOINED).instances) == ["i000"]
    gone = InstanceGone(30.0, "i000", 30.0, "taken back")
    assert "i000" not in left_by(*JOINED, gone).instances


def test_sessions_are_outstanding_with_the_epoch_they_may_train_to() -> None:
    left = left_by(*JOINED)
    goals = {name: it.until for name, it in left.sessions.items()}
    assert goals == {"t00.1": 1, "t01.1": 1}
    result = (epoch(25.0, "t00.1", 1, 0.9), epoch(26.0, "t01.1", 1, 0.1))
    sessions = left_by(*JOINED, *result).sessions
    assert {name for name, it in sessions.items() if it.stopping is not None} == {"t00.1", "t01.1"}
    over = left_by(*JOINED, *result, TrialStopped(26.1, "t01.1"))
    assert list(over.sessions) == ["t00.1"]


def test_timers_are_outstanding_until_they_fire() -> None:
    assert left_by(RunStarted(0.0)).timers == {"tick": 1.0}
    assert left_by(RunStarted(0.0), TimerFired(1.0, "tick")).timers == {"tick": 2.0}


def test_a_controller_that_died_before_it_began_leaves_nothing() -> None:
    left = replay(scripted(PLAN), [])
    assert (left.begun, left.instances, left.sessions, left.timers) == (False, {}, {}, {})


def test_a_ledger_this_policy_would_not_write_is_refused() -> None:
    policy = scripted(PLAN)
    entry = Entry(RunStarted(0.0), policy.handle(RunStarted(0.0))[:1])
    with pytest.raises(CloudtuneError, match=r"ledger line 2: .* decides otherwise"):
        replay(scripted(PLAN), [entry])


def test_a_ledger_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = FileLedger(path, {"run": "r"})
    first.append(RunStarted(0.0), ())
    first.close()
    torn = path.read_text(encoding="utf-8") + '{"event": {"type": "Tim'
    path.write_text(torn, encoding="utf-8")
    second = FileLedger(path, None)
    second.append(RunResumed(9.0), ())
    second.close()
    assert read_header(path)["run"] == "r"
    assert [entry.event for entry in read_entries(path)] == [RunStarted(0.0), RunResumed(9.0)]


SETTING = Setting(trials=8, max_epochs=8, eta=2)


@pytest.mark.parametrize("workers", [False, True])
@pytest.mark.parametrize("boundary", range(1, 400, 13))
def test_wherever_it_dies_the_winner_is_the_same(boundary: int, workers: bool) -> None:
    alone = survive(SETTING.policy, SETTING.world(), ())
    deaths = [Kill(boundary, 7.0, workers=workers), Kill(boundary + 5, 60.0)]
    result = survive(SETTING.policy, SETTING.world(), deaths)
    assert result.deaths == (2 if boundary + 5 <= result.cloud.fuse.passed else 0)
    assert fates(result.policy) == fates(alone.policy)
    assert result.policy.best == alone.policy.best
    assert result.cloud.world.alive() == []


def fates(policy: object) -> dict[str, tuple[str, int]]:
    return {name: (t.status, t.epoch) for name, t in policy.trials.items()}  # type: ignore[attr-defined]


def test_nothing_is_started_twice_that_goes_on() -> None:
    result = survive(SETTING.policy, SETTING.world(), [Kill(60, 3.0)])
    starts = [c.session for e in result.entries for c in e.commands if isinstance(c, StartTrial)]
    assert len(starts) == len(set(starts)), "its workers outlived the controller"
    assert any(isinstance(entry.event, RunResumed) for entry in result.entries)


def test_leases_keep_the_limits_while_none_is_there() -> None:
    """An hour away: on the money that is left, the instances end by themselves in time."""
    dear = replace(SETTING, limits=Limits(deadline=300.0, budget=4.0))
    result = survive(dear.policy, dear.world(), [Kill(300, 3600.0)])
    gone = [e.event for e in result.entries if isinstance(e.event, InstanceGone)]
    assert gone
    assert max(event.gone_at for event in gone) <= 300.0
    assert result.policy.spent(result.policy.now) <= 4.0
    assert result.policy.best is not None, "what was reported is found"
