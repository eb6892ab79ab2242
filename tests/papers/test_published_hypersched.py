"""`hypersched` plays its published code's games as that code does (ucbrise/hypersched @8b5435e)."""

from types import SimpleNamespace
from typing import Any

from cloudtune.model.plans import Limits
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Trial, TrialId
from cloudtune.papers.hypersched import HyperSched
from cloudtune.strategies.base import Go, Verdict
from tests.papers.published_hypersched import COUNT, GAMES, Took, names, play, rules


class Ours:
    """Our strategy as a player, fed as a run feeds it."""

    def __init__(self, seed: int) -> None:
        game = rules(seed)
        new = [Trial(name, {}) for name in names(game["count"])]
        self._deadline = game["deadline"]
        self._trials: dict[TrialId, TrialProgress] = {}
        self._setups: dict[tuple[TrialId, int], float] = {}
        self._strategy: Any = HyperSched(
            Listed(new),
            min_epochs=game["first"],
            max_epochs=game["last"],
            eta=game["eta"],
            mode="max",
        )

    def _view(self, now: float) -> Any:
        running = [trial for trial in self._trials.values() if trial.status == "training"]
        return SimpleNamespace(
            now=now,
            trials=self._trials,
            running=running,
            free_gpus=1.0,
            seconds_left=self._deadline - now,
            setups=list(self._setups.values()),
            limits=Limits(self._deadline, None),
        )

    def next(self, now: float) -> str:
        groups = self._strategy.requests(self._view(now), 1)
        if not groups:
            return ""
        trial = groups[0].tasks[0].trial
        progress = self._trials.setdefault(trial.id, TrialProgress(trial))
        progress.status = "training"
        progress.sessions += 1
        progress.width = 1.0
        return str(trial.id)

    def result(self, name: str, epoch: int, score: float, took: Took, now: float) -> bool:
        trial = self._trials[name]
        trial.epoch = epoch
        trial.metric = score
        trial.epoch_seconds = took.epoch
        self._setups[name, trial.sessions] = took.setup
        decision = self._strategy.on_result(self._view(now), trial)
        if isinstance(decision, Go):
            return True
        trial.status = "parked" if decision is Verdict.PAUSE else "finished"
        return False


class Listed:
    def __init__(self, trials: list[Trial]) -> None:
        self._left = trials

    def ask(self) -> Trial | None:
        return self._left.pop(0) if self._left else None

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        pass

    def more(self, trials: int) -> int:
        raise NotImplementedError(trials)


def test_h2_h3_h4_h5_h6_equal_published_code() -> None:
    recorded = GAMES.read_text(encoding="utf-8").splitlines()
    assert len(recorded) == COUNT
    others = {
        seed: (game, ours)
        for seed, game in enumerate(recorded)
        if (ours := play(Ours(seed), seed)) != game
    }
    assert not others
