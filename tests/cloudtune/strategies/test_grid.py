from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.plan import Limits
from cloudtune.strategies.grid import Sequential
from cloudtune.trial import EndReason
from tests.contracts.strategy import OrderedContract
from tests.strategy_builders import Game, by_name, numbered, play

if TYPE_CHECKING:
    from cloudtune.strategies.base import Sampler


class TestGridSearch(OrderedContract):
    name = "grid"


class TestSequential(OrderedContract):
    name = "sequential"
    wide = 1


class TestSequentialByFours(OrderedContract):
    name = "sequential"

    def build(self, sampler: Sampler, game: Game) -> Sequential:
        return Sequential(sampler, max_epochs=9, size=4)


def test_a_grid_is_one_group() -> None:
    played = play(by_name("grid"), Game(numbered(5)))
    assert played.parts("") == {"grid": 5}
    assert set(played.epochs.values()) == {9}


def test_a_grid_that_is_cut_short_is_not_done_but_a_random_search_is() -> None:
    game = Game(limits=Limits(deadline=110.0))
    assert play(by_name("grid"), game).policy.ending is EndReason.DEADLINE
    assert play(by_name("random"), game).policy.ending is EndReason.DONE


def test_a_group_begins_when_the_one_before_is_over() -> None:
    game = Game(numbered(10))
    played = play(lambda sampler, _: Sequential(sampler, max_epochs=3, size=4), game)
    assert played.parts("") == {"group 1": 4, "group 2": 4, "group 3": 2}
    ends = {}
    begins: dict[str, float] = {}
    for entry in played.entries:
        for start in (c for c in entry.commands if c in played.starts):
            begins.setdefault(start.trial, entry.event.at)
        if (session := getattr(entry.event, "session", None)) is not None:
            ends[session.partition(".")[0]] = entry.event.at
    assert max(ends[f"t{n:03d}"] for n in range(4)) <= min(begins[f"t{n:03d}"] for n in range(4, 8))
    assert max(ends[f"t{n:03d}"] for n in range(4, 8)) <= min(begins["t008"], begins["t009"])


def test_a_sampler_is_asked_for_a_group_when_it_knows_all_of_the_one_before() -> None:
    class Curious:
        def __init__(self) -> None:
            self.told: list[str] = []
            self.knew: list[int] = []
            self.trials = iter(numbered(6))

        def ask(self) -> object:
            self.knew.append(len(set(self.told)))
            return next(self.trials, None)

        def tell(self, trial: object, epoch: int, value: float | None) -> None:
            self.told.append(trial.id)  # type: ignore[attr-defined]

    curious = Curious()
    play(lambda _, game: Sequential(curious, max_epochs=2, size=2), Game(()))  # type: ignore[arg-type]
    assert curious.knew[:6] == [0, 0, 2, 2, 4, 4]
