from collections.abc import Sequence

import pytest

from cloudtune.model.events import EpochDone
from tests.builders import Played, Setting, by_name, final, offer, play
from tests.contracts.strategy import OrderedContract


class TestAsha(OrderedContract):
    name = "asha"


class TestStoppingAsha(OrderedContract):
    name = "asha-stopping"


def in_turn(name: str, scores: Sequence[float], **options: int) -> Played:
    """Play trials of such final scores on one GPU."""
    game = Setting(len(scores), metric=final(scores), offer=offer(1), max_instances=1)
    return play(game, by_name(name, **options))


def path(played: Played) -> list[tuple[str, int]]:
    """Return the results in order: which trial, after which epoch."""
    events = [entry.event for entry in played.entries if isinstance(entry.event, EpochDone)]
    return [(event.session.partition(".")[0], event.epoch) for event in events]


def test_promotions_by_hand() -> None:
    """eta 2, rungs at 1, 2 and 4. After an even number of results at a rung half are promoted."""
    played = in_turn("asha", [0.5, 0.4, 0.6, 0.3, 0.9, 0.8], max_epochs=4, eta=2)
    assert path(played) == [
        ("t00", 1),  # of 1 result 0 are promoted
        ("t01", 1),  # of 2 it is t00, that is paused
        ("t00", 2),  # alone at rung 1
        ("t02", 1),  # of 3 still 1, and that is t02 itself: it goes on
        ("t02", 2),  # of 2 at rung 1 the better: it goes on
        ("t02", 3),
        ("t02", 4),
        ("t03", 1),  # of 4 it is t02 and t00: both have gone on
        ("t04", 1),  # of 5 the best 2: it goes on
        ("t04", 2),  # of 3 the best 1: it goes on
        ("t04", 3),
        ("t04", 4),
        ("t05", 1),  # of 6 the best 3: it goes on
        ("t05", 2),  # of 4 the best 2: it goes on
        ("t05", 3),
        ("t05", 4),
    ]


def test_the_stopping_type_by_hand() -> None:
    """eta 2: one result alone goes on; then who isn't among the best half is cut."""
    played = in_turn("asha-stopping", [0.5, 0.4, 0.6, 0.55, 0.7, 0.58], max_epochs=4, eta=2)
    assert played.epochs == {
        "t00": 4,  # alone at each rung
        "t01": 1,  # second of 2
        "t02": 4,  # first of 3; at rung 1 first of 2
        "t03": 2,  # second of 4; at rung 1 second of 3
        "t04": 4,  # first of 5; at rung 1 first of 4
        "t05": 2,  # third of 6; at rung 1 third of 5
    }
    assert all(start.start_epoch == 0 for start in played.starts)
    statuses = {name: trial.status for name, trial in played.policy.trials.items()}
    assert statuses["t01"] == statuses["t03"] == statuses["t05"] == "cut"


@pytest.mark.parametrize("name", ["asha", "asha-stopping"])
@pytest.mark.parametrize("saves_every", [2, 4, 10])
def test_a_trial_behind_its_rung_is_not_judged_again(name: str, saves_every: int) -> None:
    """On one GPU, so that losses change nothing but time."""
    calm = Setting(12, offer=offer(1), max_instances=1, saves_every=saves_every)
    lost = calm.but(mishap=lambda _t, session, epoch: "lost" if session < 3 < epoch else "")
    played = play(lost, by_name(name, eta=2))
    assert played.epochs == play(calm, by_name(name, eta=2)).epochs
    assert len(played.starts) > len(played.epochs)
    assert list(played.sampler.reported) == list(dict.fromkeys(path(played)))
