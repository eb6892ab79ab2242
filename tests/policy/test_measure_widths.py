"""Which widths and shares are measured, and what is known of those that weren't."""

import itertools
from collections.abc import Sequence

import pytest

from cloudtune.engine.ledger import Entry
from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.lifecycle.measuring import widths_to_measure
from cloudtune.model.commands import (
    EndRun,
    Launch,
    Release,
    SetTimer,
    StartTrial,
    StopTrial,
)
from cloudtune.model.events import (
    InstanceGone,
    LaunchFailed,
    TrialFailed,
    TrialStopped,
)
from cloudtune.model.plans import Limits
from cloudtune.model.trial import EndReason
from cloudtune.policy.measure import MeasurePolicy
from tests.builders import NO_LIMITS, offer, trials
from tests.policy.measuring import (
    BOOM,
    SHARED,
    SHARES,
    WIDE,
    begun,
    crews,
    epoch_done,
    failing,
    measure,
    measuring,
    profile_of,
    starts_in,
)


@pytest.mark.parametrize("count", [16, 3])
def test_all_gpus_are_filled_at_every_share(count: int) -> None:
    policy = measuring(count=count, pack=4)
    entries = measure(policy, truth=SHARED)
    policy.raise_failure()
    assert [width for width, _ in crews(entries)] == [1.0, 2.0, 4.0, 0.5, 0.25]
    assert crews(entries)[3:] == [(0.5, 8), (0.25, 16)], "however few configurations there are"
    starts = list(itertools.chain(*starts_in(entries)))
    assert len({(start.width, start.trial) for start in starts}) == len(starts)


def test_the_shares_figures_are_the_world_s() -> None:
    policy = measuring(count=16, pack=4)
    measure(policy, truth=SHARED)
    result = profile_of(policy)
    assert result.widths == tuple(SHARES)
    assert [result.epoch_seconds(width) for width in SHARES] == pytest.approx([*SHARES.values()])
    assert result.epoch[0.25].n == 16 * 3
    assert result.memory == {}, "no GPU, no figures of its memory"
    assert policy.left_out == ""
    whole = measuring(count=16)
    measure(whole, truth=SHARED)
    assert policy.figures.start == whole.figures.start, "whole GPUs alone say how long it takes"
    assert policy.figures.resize == whole.figures.resize


class Bench:
    """One GPU, two epochs at each width: once whole, once more, then shared by two and four."""

    def __init__(self) -> None:
        self.policy = measuring(count=1, gpus=1, epochs=2, pack=4)
        self.starts = list(begun(self.policy).values())
        self.at = 30.0

    def train(self, *memory: float | None) -> None:
        """Train the two epochs of all that has begun, with the memory of each epoch."""
        for number, mib in enumerate(memory, start=1):
            self.at += 5.0
            for start in self.starts:
                done = epoch_done(self.at, start.session, start.start_epoch + number, 5.0, mib)
                self.policy.handle(done)

    def stop(self) -> None:
        """Have all that has begun stopped, and take what begins then."""
        said = [self.policy.handle(TrialStopped(self.at, start.session)) for start in self.starts]
        self.starts = [c for c in said[-1] if isinstance(c, StartTrial)]


def test_the_highest_memory_of_each_width_is_kept() -> None:
    bench = Bench()
    bench.train(900.0, 1000.0)
    bench.stop()
    bench.train(1100.0, 1050.0)
    bench.stop()
    assert [start.width for start in bench.starts] == [0.5, 0.5]
    bench.train(None, 1200.0)
    assert bench.policy.figures.memory == {1.0: 1100.0, 0.5: 1200.0}


def test_a_shared_gpu_trains_on_until_the_last_is_measured() -> None:
    bench = Bench()
    for _ in range(2):
        bench.train(None, None)
        bench.stop()
    first, second = bench.starts
    assert (first.start_epoch, first.until_epoch) == (4, 7), "an epoch to spare"
    assert (second.trial, second.start_epoch, second.until_epoch) == ("t00-2", 0, 3)
    for number in (5, 6, 7):
        assert bench.policy.handle(epoch_done(60.0, first.session, number, 5.0)) == ()
    bench.policy.handle(epoch_done(61.0, second.session, 1, 5.0))
    said = bench.policy.handle(epoch_done(62.0, second.session, 2, 5.0))
    assert said == (StopTrial(first.session), StopTrial(second.session))
    assert bench.policy.figures.epoch[0.5] == [5.0, 5.0], "the spare one is in no figure"
    bench.stop()
    assert [start.width for start in bench.starts] == [0.25] * 4
    assert bench.starts[0].start_epoch == 7, "from its last checkpoint"


def test_a_share_without_room_and_narrower_ones_are_left_out() -> None:
    bench = Bench()
    for _ in range(2):
        bench.train(1000.0, 1000.0)
        bench.stop()
    first, second = bench.starts
    failed = TrialFailed(60.0, second.session, "CUDA out of memory", "Tb", out_of_memory=True)
    returned = (Release("i000"), SetTimer("cleanup", 90.0))
    assert bench.policy.handle(failed) == (StopTrial(first.session), *returned)
    assert bench.policy.handle(TrialStopped(61.0, first.session)) == ()
    gone = bench.policy.handle(InstanceGone(64.0, "i000", 63.0, "released"))
    assert gone == (EndRun(EndReason.DONE),)
    bench.policy.raise_failure()
    assert bench.policy.left_out == (
        "2 or more trials on a GPU left out: a trial ran out of memory"
    )
    assert bench.policy.figures.profile("g", "abc", "2026-01-01", "").widths == (1.0,)


def test_another_error_of_a_packed_trial_leaves_its_share_out() -> None:
    policy = measuring(count=16, pack=4)
    failing(policy, lambda start: BOOM if start.session == "t00.4" else None, SHARED)
    policy.raise_failure()
    assert set(policy.figures.epoch) == {1.0, 2.0, 4.0}
    assert policy.left_out == "2 or more trials on a GPU left out: t00 failed: boom"


@pytest.mark.parametrize("limits", [Limits(deadline=190.0), Limits(budget=1.9)])
def test_limits_that_end_among_the_shares_keep_what_was_measured(limits: Limits) -> None:
    policy = measuring(limits, count=16, pack=4)
    entries = measure(policy, truth=SHARED)
    policy.raise_failure()
    assert set(policy.figures.epoch) == {0.5, 1.0, 2.0, 4.0}
    assert policy.left_out.startswith("4 or more trials on a GPU left out: the ")
    at = entries[-1].event.at
    assert at <= (limits.deadline or at)
    assert policy.fleet.dollars(at) <= (limits.budget or 99.0)


def measured(
    widths: Sequence[float], gpus: int, *refused: str, limits: Limits = NO_LIMITS
) -> tuple[MeasurePolicy, tuple[Entry, ...]]:
    """Return a measurement that has ended; the launches of some intents are refused."""
    policy = MeasurePolicy(trials=trials(48), offer=offer(gpus, 3.6), limits=limits, widths=widths)
    dry = [LaunchFailed(1.0, intent, "InsufficientCapacity", "none left") for intent in refused]
    return policy, measure(policy, *dry, truth=WIDE)


def test_odd_widths_are_measured_on_full_instances() -> None:
    policy, entries = measured([1.0, 2.0, 3.0, 4.0, 6.0, 8.0], 8)
    assert crews(entries) == [(1.0, 8), (2.0, 4), (3.0, 2), (4.0, 2), (6.0, 1), (8.0, 1)]
    for width, seconds in policy.figures.epoch.items():
        assert seconds == pytest.approx([WIDE.epoch[width].mean] * len(seconds))
    assert policy.figures.epoch.keys() == {1.0, 2.0, 3.0, 4.0, 6.0, 8.0}


def test_a_width_beyond_an_instance_is_measured_on_two() -> None:
    policy, entries = measured([1.0, 4.0, 8.0], 4)
    launches = [c for e in entries for c in e.commands if isinstance(c, Launch)]
    assert len(launches) == 2
    assert crews(entries) == [(1.0, 8), (4.0, 2), (8.0, 1)]
    ((wide,),) = starts_in(entries)[2:]
    assert [piece.gpus for piece in wide.placement] == [4, 4]
    assert len({piece.instance for piece in wide.placement}) == 2
    result = profile_of(policy)
    assert (result.launch.n, result.boot.n, result.release.n) == (2, 2, 2)
    assert result.epoch[8.0].mean == pytest.approx(6.0)


def test_where_the_second_instance_is_refused_the_rest_is_measured() -> None:
    policy, entries = measured([1.0, 4.0, 8.0, 12.0], 4, "i001", "i002")
    policy.raise_failure()
    assert crews(entries) == [(1.0, 4), (4.0, 1)]
    assert policy.left_out == (
        "12 GPUs left out: InsufficientCapacity: none left; "
        "8 GPUs left out: InsufficientCapacity: none left"
    )
    policy, entries = measured([1.0, 4.0, 8.0, 12.0], 4, "i002")
    assert crews(entries) == [(1.0, 8), (4.0, 2), (8.0, 1)]
    assert "12 GPUs left out" in policy.left_out


@pytest.mark.parametrize("refused", [("i000",), ("i000", "i001")])
def test_it_says_so_where_nothing_can_be_had(refused: tuple[str, ...]) -> None:
    policy, entries = measured([8.0], 4, *refused)
    assert policy.ending is EndReason.NO_CAPACITY
    assert crews(entries) == []


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
    ("widths", "fields", "message"),
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
    widths: tuple[int, ...], fields: dict[str, object], message: tuple[float, ...] | str
) -> None:
    if isinstance(message, str):
        with pytest.raises(UsageError, match=message):
            widths_to_measure(experiment(**fields), offer(4), widths)
    else:
        assert widths_to_measure(experiment(**fields), offer(4), widths) == message
