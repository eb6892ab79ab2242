"""What a ledger tells, read once: instances, sessions, epochs, and what is still to come."""

import ast
from pathlib import Path

import pytest

from cloudtune.engine.ledger import Entry
from cloudtune.engine.record.timeline import prices, read
from cloudtune.model import events
from cloudtune.model.commands import EndRun, ExtendTrial, Launch, Release, SetTimer, StopTrial
from cloudtune.model.trial import EndReason
from tests.builders import epoch, offer
from tests.builders.events import start

ROOT = Path(__file__).parents[3]
QUERIES = (
    "cloudtune/engine/resume.py",
    *(f"cloudtune/engine/record/{name}.py" for name in ("accounting", "summary")),
    *(f"cloudtune/runs/{name}.py" for name in ("report", "figures", "history")),
)


def launch(intent: str, zone: str = "", dollars: float = 36.0) -> Launch:
    return Launch(intent, "g.4x", "spot", zone, dollars)


FIRST = (
    Entry(events.RunStarted(0.0), (launch("i0"), launch("i1"), SetTimer("tick", 1.0))),
    Entry(events.LaunchFailed(1.0, "i1", "dry", "none left"), ()),
    Entry(events.InstanceLaunched(2.0, "i0", "i-0", 1.5), ()),
    Entry(events.NodeJoined(20.0, "i0"), (start("a.1"), start("b.1", 2.0))),
    Entry(events.TrialStarted(24.0, "a.1"), ()),
    Entry(epoch(30.0, "a.1", 1), ()),
    Entry(epoch(40.0, "a.1", 2, saved=False), (ExtendTrial("a.1", 4),)),
)


def test_an_instance_from_its_request_to_its_end() -> None:
    result = read(FIRST)
    one, refused = result.instances.values()
    assert (one.requested_at, one.launched_at, one.joined_at) == (0.0, 1.5, 20.0)
    assert (one.instance, one.left_at, one.gone_at, one.end(50.0)) == ("i-0", None, None, 50.0)
    assert (refused.launched, refused.refusal) == (False, FIRST[1].event)
    assert result.launched_instances() == [one]
    left = read([*FIRST, Entry(events.NodeLost(50.0, "i0", "dead"), (Release("i0"),))]).instances[
        "i0"
    ]
    assert (left.left_at, left.joined, left.released) == (50.0, False, True)
    gone = read([*FIRST, Entry(events.InstanceGone(51.0, "i0", 50.5, "reclaimed"), ())])
    assert (gone.instances["i0"].end(99.0), gone.over_at) == (50.5, 50.5)
    assert gone.fleet_sizes() == ((1.5, 1), (50.5, 0))


def test_how_a_session_ended() -> None:
    stopped = [*FIRST, Entry(events.TimerFired(45.0, "tick"), (StopTrial("a.1"),))]
    ended = [*stopped, Entry(events.TrialStopped(47.0, "a.1"), (start("a.2", 4.0, 2),))]
    result = read(ended)
    session = result.sessions["a.1"]
    assert (session.stopping, session.end) == (45.0, 47.0)
    assert session.ending == events.TrialStopped(47.0, "a.1")
    [restart] = result.restarts()
    assert (restart.before, restart.after.start.session) == (session, "a.2")
    assert restart.resized


def test_what_stood_on_a_vanished_instance_holds_nothing() -> None:
    gone = [
        *FIRST,
        Entry(events.NodeLost(50.0, "i0", "dead"), (StopTrial("a.1"), StopTrial("b.1"))),
    ]
    session = read(gone).sessions["a.1"]
    assert (session.end, session.ending) == (50.0, None)
    lost = events.TrialLost(60.0, "a.1", "vanished")
    result = read([*gone, Entry(lost, ())]).sessions["a.1"]
    assert (result.end, result.ending) == (50.0, lost)


def test_a_repeated_or_unexpected_epoch() -> None:
    stop = Entry(events.TimerFired(45.0, "tick"), (StopTrial("a.1"),))
    again = Entry(epoch(44.0, "a.1", 2), ())
    late = Entry(epoch(46.0, "a.1", 3), ())
    result = read([*FIRST, Entry(events.RunResumed(43.0), ()), again, stop, late])
    waited = [(item.number, item.waited) for item in result.epochs]
    assert waited == [(1, True), (2, True), (3, False)]
    assert [item.number for item in result.sessions["a.1"].epochs] == [1, 2]
    assert result.takeovers == [43.0]


def test_timers_notices_and_the_end() -> None:
    notice = events.InterruptionNotice(41.0, "i0", 161.0)
    middle = [Entry(notice, (SetTimer("cleanup", 60.0),)), Entry(events.Interrupted(42.0), ())]
    result = read([*FIRST, *middle])
    assert result.timers == {"tick": 1.0, "cleanup": 60.0}
    assert (result.notices, result.interrupted, result.ended) == ([notice], 42.0, None)
    end = Entry(events.TimerFired(60.0, "cleanup"), (EndRun(EndReason.DEADLINE),))
    beyond = Entry(epoch(70.0, "a.1", 3), ())
    over = read([*FIRST, *middle, end, beyond])
    assert (over.timers, over.ended, over.at) == ({"tick": 1.0}, EndReason.DEADLINE, 60.0)
    assert len(over.epochs) == 2


def test_the_price_is_the_zones_or_the_expected_one() -> None:
    anywhere = offer(market="spot")
    here = offer(market="spot", zone="a", usd_per_hour=72.0)
    asked = (launch("i0", "a", 72.0), launch("i1", "a", 36.0), launch("i2", "b", 1.0))
    result = prices(read([Entry(events.RunStarted(0.0), asked)]), [anywhere, here])
    assert result == {"i0": here, "i1": anywhere, "i2": anywhere}
    with pytest.raises(KeyError):
        prices(read(FIRST), [offer(market="on-demand")])


@pytest.mark.parametrize("name", QUERIES)
def test_none_else_reads_a_ledger(name: str) -> None:
    """What a ledger adds up to is asked of the timeline: no other scan knows an event."""
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    known = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {
        alias.name
        for node in known
        if node.module == "cloudtune.model.events"
        for alias in node.names
    }
    assert names <= {"Event", "first_event"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Match)]
