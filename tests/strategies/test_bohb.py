from dataclasses import dataclass, field

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.experiment.search_space import RandInt
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import EpochDone, TrialStopped
from cloudtune.model.trial import Trial
from cloudtune.strategies.base import Sampler
from cloudtune.strategies.samplers.sampler import SpaceSampler
from tests.builders import Setting, by_name, play
from tests.contracts.strategy import StrategyContract


class TestBohb(StrategyContract):
    name = "bohb"


class TestSyncBohb(StrategyContract):
    name = "sync-bohb"


def space_sampler(most: int, seed: int = 0) -> SpaceSampler:
    return SpaceSampler(
        {"x": RandInt(0, 1000)}, "tpe", mode="max", seed=seed, most=most, random_fraction=1 / 3
    )


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


@dataclass
class Late:
    """A sampler that notes how many results it knew at each ask."""

    inner: Sampler
    results: int = 0
    known: list[int] = field(default_factory=list)

    def more(self, trials: int) -> int:
        return 0

    def ask(self) -> Trial | None:
        self.known.append(self.results)
        return self.inner.ask()

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        self.results += 1
        self.inner.tell(trial, epoch, value)


def test_the_next_bracket_of_the_synchronous_one_knows_all_of_the_last() -> None:
    game, sampler = Setting(12, max_instances=1), Late(space_sampler(14))
    ledger = MemoryLedger()
    run(game.policy(by_name("sync-bohb"), sampler), game.world(), ledger)
    epochs = sum(isinstance(entry.event, EpochDone) for entry in ledger.entries)
    first_bracket = 9 * 1 + 3 * 2 + 1 * 6
    assert sampler.known[10] == first_bracket
    assert epochs == sampler.results
