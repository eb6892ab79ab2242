"""F15: what a strategy decides doesn't depend on how wide its trials are trained."""

from collections.abc import Sequence

import pytest

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import TrialId, Width
from cloudtune.strategies.base import ByWidth, Task, View
from tests.builders import LINEAR, Given, Setting, by_name, final, offer, profile

GAME = Setting(
    27,
    metric=final([(7 * n) % 27 / 27 for n in range(27)]),
    offer=offer(4),
    max_instances=2,
    profile=profile(LINEAR, resize=0.0),
)


class Restless(ByWidth):
    """Wider after each odd epoch, narrower after each even one: nothing stays where it is."""

    name = "restless"

    def min_width(self, view: View) -> Width:
        return 1.0

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        return [1.0] * len(tasks)

    def resized(self, view: View, trial: TrialProgress) -> Width:
        return 2.0 if trial.epoch % 2 else 1.0


def count_epochs(name: str, *, restless: bool) -> tuple[dict[TrialId, int], int]:
    """Return how far each trial was trained, and how often one was resized."""
    game = GAME.but(allocator=Restless) if restless else GAME
    policy = game.policy(by_name(name, eta=3, max_epochs=9), Given(GAME.given))
    run(policy, GAME.world(), MemoryLedger())
    assert policy.ended
    return {t.id: max(t.history, default=0) for t in policy.trials.values()}, policy.resizes


@pytest.mark.parametrize("name", ["grid", "random", "sequential", "sha", "hyperband", "sync-bohb"])
def test_f15_widths_dont_change_epochs(name: str) -> None:
    steady, none = count_epochs(name, restless=False)
    moved, resizes = count_epochs(name, restless=True)
    assert moved == steady
    assert none == 0
    assert resizes > 5
