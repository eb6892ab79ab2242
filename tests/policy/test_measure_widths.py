"""Measuring widths that aren't powers of two, and widths beyond one instance, in virtual time."""

from collections.abc import Sequence

import pytest

from cloudtune.engine.ledger import Entry, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.model.commands import EndRun, Launch, StartTrial
from cloudtune.model.events import LaunchFailed
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.trial import EndReason
from cloudtune.policy.measure import MeasurePolicy
from cloudtune.running.measuring import widths_to_measure
from tests.builders import NO_LIMITS, offer, profile, trials

PRICE = 3.6
TRUTH = profile(
    {1.0: 24.0, 2.0: 13.0, 3.0: 9.0, 4.0: 7.0, 6.0: 5.5, 8.0: 6.0, 12.0: 5.0},
    launch=1.5,
    boot=20.0,
    start=4.0,
    resize=6.5,
    release=2.5,
)


def measured(
    widths: Sequence[float],
    gpus: int,
    *refused: str,
    limits: Limits = NO_LIMITS,
    price: float = 0.0,
) -> tuple[MeasurePolicy, list[Entry]]:
    """Return a measurement that has ended; the launches of some intents are refused."""
    policy = MeasurePolicy(
        trials=trials(48), offer=offer(gpus, PRICE), limits=limits, widths=widths
    )
    world = SimWorld((Rentable(policy.offer, TRUTH, 4),), "score", synthetic_metric("max", 0))
    for intent in refused:
        world.schedule(LaunchFailed(1.0, intent, "InsufficientCapacity", "none left"))
    ledger = MemoryLedger()
    run(policy, world, ledger)
    assert policy.fleet.alive() == []
    return policy, ledger.entries


def crews(entries: Sequence[Entry]) -> list[tuple[float, int]]:
    """Return the width and the number of the trials of each phase."""
    found = [[c for c in e.commands if isinstance(c, StartTrial)] for e in entries]
    return [(each[0].width, len(each)) for each in found if each]


def test_widths_that_are_no_powers_of_two_are_measured_on_full_instances() -> None:
    policy, entries = measured([1.0, 2.0, 3.0, 4.0, 6.0, 8.0], 8)
    assert crews(entries) == [(1.0, 8), (2.0, 4), (3.0, 2), (4.0, 2), (6.0, 1), (8.0, 1)]
    for width, seconds in policy.figures.epoch.items():
        assert seconds == pytest.approx([TRUTH.epoch[width].mean] * len(seconds))
    assert policy.figures.epoch.keys() == {1.0, 2.0, 3.0, 4.0, 6.0, 8.0}


def test_a_width_beyond_an_instance_is_measured_on_two_and_each_boot_counts() -> None:
    policy, entries = measured([1.0, 4.0, 8.0], 4)
    launches = [c for e in entries for c in e.commands if isinstance(c, Launch)]
    assert len(launches) == 2
    assert crews(entries) == [(1.0, 8), (4.0, 2), (8.0, 1)]
    (wide,) = (c for e in entries for c in e.commands if isinstance(c, StartTrial) and c.width == 8)
    assert [piece.gpus for piece in wide.placement] == [4, 4]
    assert len({piece.instance for piece in wide.placement}) == 2
    found = policy.figures.profile("g.4x", "abc", "2026-01-01", "made up")
    assert (found.launch.n, found.boot.n, found.release.n) == (2, 2, 2)
    assert found.epoch[8.0].mean == pytest.approx(6.0)


def test_where_the_second_instance_is_refused_the_rest_is_measured() -> None:
    policy, entries = measured([1.0, 4.0, 8.0, 12.0], 4, "i001", "i002")
    policy.raise_if_failed()
    assert crews(entries) == [(1.0, 4), (4.0, 1)]
    assert policy.left_out == (
        "12 GPUs left out: InsufficientCapacity: none left; "
        "8 GPUs left out: InsufficientCapacity: none left"
    )
    policy, entries = measured([1.0, 4.0, 8.0, 12.0], 4, "i002")
    assert crews(entries) == [(1.0, 8), (4.0, 2), (8.0, 1)]
    assert "12 GPUs left out" in policy.left_out


@pytest.mark.parametrize("refused", [("i000",), ("i000", "i001")])
def test_where_nothing_that_was_asked_for_can_be_had_it_says_so(refused: tuple[str, ...]) -> None:
    policy, entries = measured([8.0], 4, *refused)
    assert policy.ending is EndReason.NO_CAPACITY
    assert crews(entries) == []
    assert isinstance(entries[-1].commands[-1], EndRun)


def test_what_two_instances_cost_has_to_be_in_the_budget() -> None:
    """A dollar pays for one at $3.6 an hour with its minimum of a minute, and not for a hundred."""
    policy, entries = measured([1.0, 400.0], 4, limits=Limits(None, 1.0))
    assert policy.ending is EndReason.BUDGET
    assert not [c for e in entries for c in e.commands if isinstance(c, Launch)]
    policy, entries = measured([1.0], 4, limits=Limits(None, 1.0))
    assert policy.ending is EndReason.DONE


def experiment(**fields: object) -> Experiment:
    return Experiment(
        name="made-up",
        train="train.py:train",
        metric={"name": "score", "mode": "max"},
        search={"x": {"uniform": [0, 1]}},
        trials=2,
        epochs={"min": 1, "max": 2},
        **{"cloud": {"instances": ["g7.12xlarge"], "max_instances": 2}, **fields},
    )


@pytest.mark.parametrize(
    ("widths", "fields", "told"),
    [
        ((8, 3, 3), {}, (3.0, 8.0)),
        ((), {}, (1.0, 2.0, 4.0)),
        ((6,), {}, "--widths 6: g.4x has 4 GPUs, and a trial on several instances has all of "),
        ((12,), {}, "--widths 12: that takes 3 g.4x, and cloud.max_instances is 2"),
        ((2,), {"trial": {"gpus": {"min": 4}}}, "--widths 2: trial.gpus of the experiment doesn't"),
        ((), {"trial": {"gpus": {"min": 8}}}, "g.4x has 4 GPUs, and trial.gpus.min is 8"),
    ],
)
def test_which_widths_are_measured(
    widths: tuple[int, ...], fields: dict[str, object], told: tuple[float, ...] | str
) -> None:
    if isinstance(told, str):
        with pytest.raises(UsageError, match=told):
            widths_to_measure(experiment(**fields), offer(4), widths)
    else:
        assert widths_to_measure(experiment(**fields), offer(4), widths) == told
