"""A trial that goes on from a rung, and is wider than what is free: what is free is kept for it."""

from collections.abc import Sequence

import pytest

from cloudtune.model.commands import ExtendTrial, StartTrial
from cloudtune.model.events import EpochDone, TrialStopped
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Width
from cloudtune.policy.registry import ALLOCATORS
from cloudtune.strategies.base import ByWidth, Task, View
from tests.builders import Played, Setting, by_name, offer, play, profile

LINEAR = {0.5: 16.0, 1.0: 8.0, 2.0: 4.0, 4.0: 2.0, 8.0: 1.0}
ASHA = by_name("asha", eta=2, max_epochs=8)


class WideAfterwards(ByWidth):
    """`new` GPUs, in turn, for what is new, and `width` for what goes on from a rung."""

    name = "wide-afterwards"

    def __init__(self, width: Width, new: Sequence[Width] = (1.0,)) -> None:
        self.width = width
        self.new = new

    def min_width(self, view: View) -> Width:
        return 1.0

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        numbers = [int(task.trial.id[1:]) for task in tasks]
        return [
            self.width if task.trial.id in view.trials else self.new[number % len(self.new)]
            for task, number in zip(tasks, numbers, strict=True)
        ]

    def resized(self, view: View, trial: TrialProgress) -> Width:
        return trial.width


def game(**changes: object) -> Setting:
    """Return 24 trials, no two equally fast, on one instance of four GPUs."""
    made = Setting(
        24,
        metric=lambda number, epoch: (7 * number) % 24 + epoch / 100,
        pace=lambda config, _epoch: 1 + int(str(config["x"])) % 5 / 7,
        offer=offer(4),
        max_instances=1,
        profile=profile(LINEAR, start=1.0, resize=2.0, boot=0.0),
    )
    return made.but(**changes)


class Algorithm2:
    """ASHA's `get_job` (Li et al., MLSys 2020, algorithm 2), fed with what happened in a run."""

    def __init__(self, eta: int, epochs: Sequence[int]) -> None:
        self.eta, self.epochs = eta, list(epochs)
        self.rungs: list[dict[str, float]] = [{} for _ in epochs]
        self.promoted: list[set[str]] = [set() for _ in epochs]
        self.paused: set[str] = set()

    def job(self) -> tuple[int, set[str]]:
        """Return the rung that is left, and who may leave it; -1 and none for a new trial."""
        for level in range(len(self.epochs) - 2, -1, -1):
            rung = self.rungs[level]
            ranked = sorted(rung, key=lambda name: -rung[name])[: len(rung) // self.eta]
            candidates = {n for n in ranked if n not in self.promoted[level] and n in self.paused}
            if candidates:
                return level, candidates
        return -1, set()


def decisions(played: Played, epochs: Sequence[int], eta: int) -> tuple[int, int]:
    """Return how often a trial was given GPUs, and how often by algorithm 2 it was not its turn."""
    asha, count, differing = Algorithm2(eta, epochs), 0, 0
    reached: dict[str, int] = {}
    for entry in played.entries:
        event = entry.event
        if isinstance(event, TrialStopped):
            asha.paused.add(trial_of(event.session))
        if isinstance(event, EpochDone):
            name = trial_of(event.session)
            reached[name] = event.epoch
            if event.epoch in epochs:
                asha.rungs[epochs.index(event.epoch)][name] = event.metrics["score"]
        for command in entry.commands:
            if not isinstance(command, StartTrial | ExtendTrial):
                continue
            name = trial_of(command.session)
            epoch, here = reached.get(name, 0), isinstance(command, ExtendTrial)
            left = epochs.index(epoch) if epoch in epochs else -1
            if epoch and (left < 0 or name in asha.promoted[left]):
                continue  # moved on its way, or lost
            asha.paused |= {name} if here else set()
            level, candidates = asha.job()
            count += 1
            differing += left != level or (left >= 0 and name not in candidates)
            if left >= 0:
                asha.promoted[left].add(name)
            asha.paused.discard(name)
    return count, differing


def trial_of(session: str) -> str:
    return session.partition(".")[0]


FROM_A_QUARTER = {0.25: 28.0, 0.5: 15.0, 1.0: 8.0, 2.0: 4.4, 3.0: 3.2, 4.0: 2.6, 6.0: 2.1, 8.0: 1.8}
NAMES = sorted(name for name in ALLOCATORS if not name.startswith("hypersched"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("gpus", "instances", "trials"), [(4, 1, 24), (8, 1, 60), (8, 2, 60)])
def test_f15_asha_is_algorithm_2(name: str, gpus: int, instances: int, trials: int) -> None:
    made = game(
        trials=trials,
        offer=offer(gpus),
        max_instances=instances,
        profile=profile(FROM_A_QUARTER, start=1.0, resize=2.0, boot=0.0),
    )
    played = play(made.but(allocator=lambda: ALLOCATORS[name].build(made.context())), ASHA)
    count, differing = decisions(played, [1, 2, 4, 8], 2)
    assert count > trials
    assert differing == 0


@pytest.mark.parametrize("width", [2.0, 4.0])
def test_f15_free_gpus_are_kept_for_a_returning_wide_trial(width: float) -> None:
    played = play(game(allocator=lambda: WideAfterwards(width)), ASHA)
    count, differing = decisions(played, [1, 2, 4, 8], 2)
    assert count > 24
    assert differing == 0
    assert width in played.widths


def test_f15_kept_gpus_stay_kept_behind_a_new_one() -> None:
    """Of new trials every other wants 2 GPUs: the next, of 1 GPU, would fit into what is kept."""
    played = play(game(allocator=lambda: WideAfterwards(4.0, (2.0, 1.0))), ASHA)
    count, differing = decisions(played, [1, 2, 4, 8], 2)
    assert count > 24
    assert differing == 0
