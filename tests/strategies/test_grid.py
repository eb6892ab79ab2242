from cloudtune.model.plans import Limits
from cloudtune.model.trial import EndReason
from cloudtune.strategies.base import Sampler
from cloudtune.strategies.grid import Sequential
from tests.builders import Setting, by_name, play
from tests.contracts.strategy import OrderedContract


class TestGridSearch(OrderedContract):
    name = "grid"


class TestSequential(OrderedContract):
    name = "sequential"
    wide = 1


class TestSequentialByFours(OrderedContract):
    name = "sequential"

    def build(self, sampler: Sampler, game: Setting) -> Sequential:
        return Sequential(sampler, max_epochs=9, size=4)


def test_cut_grid_is_incomplete() -> None:
    game = Setting(12, limits=Limits(deadline=110.0))
    assert play(game, by_name("grid")).policy.ending is EndReason.DEADLINE
    assert play(game, by_name("random")).policy.ending is EndReason.DONE


def test_a_group_begins_when_the_one_before_is_over() -> None:
    game = Setting(10)
    played = play(game, lambda sampler, _: Sequential(sampler, max_epochs=3, size=4))
    assert played.parts("") == {"group 1": 4, "group 2": 4, "group 3": 2}
    ends = {}
    begins: dict[str, float] = {}
    for entry in played.entries:
        for start in (c for c in entry.commands if c in played.starts):
            begins.setdefault(start.trial, entry.event.at)
        if (session := getattr(entry.event, "session", None)) is not None:
            ends[session.partition(".")[0]] = entry.event.at
    assert max(ends[f"t{n:02d}"] for n in range(4)) <= min(begins[f"t{n:02d}"] for n in range(4, 8))
    assert max(ends[f"t{n:02d}"] for n in range(4, 8)) <= min(begins["t08"], begins["t09"])
