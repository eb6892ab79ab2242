from cloudtune.model.commands import StartTrial
from cloudtune.model.events import TrialStopped
from tests.builders import Setting, by_name, play
from tests.contracts.strategy import StrategyContract


class TestBohb(StrategyContract):
    name = "bohb"


class TestSyncBohb(StrategyContract):
    name = "sync-bohb"


def test_one_bracket_at_a_time() -> None:
    """On 12 GPUs the first rung of bracket 0 takes nine; no other bracket has the rest."""
    played = play(Setting(30, max_instances=3), by_name("sync-bohb"))
    assert [group.name for group in played.groups()[:3]] == ["bracket 0, rung 0"] * 3
    assert played.parts("") == play(Setting(30, max_instances=1), by_name("hyperband")).parts("")
    alive: set[str] = set()
    for number, entry in enumerate(played.entries):
        if isinstance(entry.event, TrialStopped):
            alive.discard(entry.event.session)
        fresh = {c.session for c in entry.commands if isinstance(c, StartTrial)}
        if any(name.endswith(".1") and int(name[1:-2]) in {9, 14, 17, 26} for name in fresh):
            assert not alive, f"a bracket begins at entry {number} while {alive} run"
        alive |= fresh
