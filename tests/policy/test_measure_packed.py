"""Measuring shares of a GPU: several trials on each, from wide to narrow, with their memory."""

from collections import Counter
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.model.commands import EndRun, Release, StartTrial, StopTrial
from cloudtune.model.events import (
    EpochDone,
    Event,
    InstanceGone,
    InstanceLaunched,
    Interrupted,
    NodeJoined,
    RunStarted,
    TrialFailed,
    TrialStopped,
)
from cloudtune.model.plans import Limits
from cloudtune.model.trial import EndReason
from cloudtune.policy.measure import MeasurePolicy
from tests.builders import NO_LIMITS, offer, profile, trials
from tests.policy.test_measure import measure as measure_in

CURVE = {0.25: 26.0, 0.5: 14.0, 1.0: 8.0, 2.0: 5.0, 4.0: 4.0}
TRUTH = profile(CURVE, start=4.25, resize=6.5)


def measuring(
    *, gpus: int = 4, pack: int = 4, count: int = 16, limits: Limits = NO_LIMITS
) -> MeasurePolicy:
    return MeasurePolicy(trials=trials(count), offer=offer(gpus), limits=limits, pack=pack)


measure = partial(measure_in, truth=TRUTH)


@pytest.mark.parametrize("count", [16, 3])
def test_all_gpus_are_filled_at_every_share(count: int) -> None:
    policy = measuring(count=count)
    entries = measure(policy)
    policy.raise_if_failed()
    starts = [c for e in entries for c in e.commands if isinstance(c, StartTrial)]
    assert policy.phases == (1.0, 2.0, 4.0, 0.5, 0.25)
    counts = Counter(start.width for start in starts)
    assert (counts[0.5], counts[0.25]) == (8, 16), "however few configurations there are"
    assert len({(start.width, start.trial) for start in starts}) == len(starts)


def test_the_shares_figures_are_the_world_s() -> None:
    policy = measuring()
    measure(policy)
    found = policy.figures.profile("g.4x", "abc", "2026-01-01", "made up")
    assert found.widths == tuple(CURVE)
    assert [found.epoch_seconds(width) for width in CURVE] == pytest.approx(list(CURVE.values()))
    assert found.epoch[0.25].n == 16 * 3
    assert found.memory == {}, "no GPU, no figures of its memory"
    assert policy.left_out == ""


def test_whole_gpus_alone_say_how_long_a_start_takes() -> None:
    packed, whole = measuring(), measuring(pack=1)
    measure(packed)
    measure(whole)
    assert packed.figures.start == whole.figures.start
    assert packed.figures.resize == whole.figures.resize


def told(at: float, start: StartTrial, number: int, mib: float | None = None) -> EpochDone:
    session = start.session
    return EpochDone(at, session, number, {}, f"{session}/{number}", 5.0, memory_mib=mib)


class Bench:
    """One GPU, two epochs at each width: once whole, once more, then shared by two and four."""

    def __init__(self) -> None:
        self.policy = MeasurePolicy(
            trials=trials(1), offer=offer(1), limits=NO_LIMITS, epochs=2, pack=4
        )
        self.policy.handle(RunStarted(0.0))
        self.policy.handle(InstanceLaunched(5.0, "i000", "i-1", 4.0))
        self.starts = self.only(self.policy.handle(NodeJoined(30.0, "i000")))
        self.at = 30.0

    @staticmethod
    def only(commands: tuple[object, ...]) -> list[StartTrial]:
        return [each for each in commands if isinstance(each, StartTrial)]

    def train(self, *memory: float | None) -> None:
        """Train the two epochs of all that has begun, with the memory of each epoch."""
        for number, mib in enumerate(memory, start=1):
            self.at += 5.0
            for start in self.starts:
                self.policy.handle(told(self.at, start, start.start_epoch + number, mib))

    def stop(self) -> None:
        """Have all that has begun stopped, and take what begins then."""
        said = [self.policy.handle(TrialStopped(self.at, each.session)) for each in self.starts]
        self.starts = self.only(said[-1])


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
        assert bench.policy.handle(told(60.0, first, number)) == ()
    bench.policy.handle(told(61.0, second, 1))
    assert bench.policy.handle(told(62.0, second, 2)) == (
        StopTrial(first.session),
        StopTrial(second.session),
    )
    assert bench.policy.figures.epoch[0.5] == [5.0, 5.0], "the spare one is in no figure"
    bench.stop()
    assert [start.width for start in bench.starts] == [0.25] * 4
    assert bench.starts[0].start_epoch == 7, "from its last checkpoint"


def test_a_share_without_room_is_left_out_with_all_narrower_ones() -> None:
    bench = Bench()
    for _ in range(2):
        bench.train(1000.0, 1000.0)
        bench.stop()
    first, second = bench.starts
    failed = TrialFailed(60.0, second.session, "CUDA out of memory", "Tb", out_of_memory=True)
    assert bench.policy.handle(failed) == (StopTrial(first.session), Release("i000"))
    assert bench.policy.handle(TrialStopped(61.0, first.session)) == ()
    gone = bench.policy.handle(InstanceGone(64.0, "i000", 63.0, "released"))
    assert gone == (EndRun(EndReason.DONE),)
    bench.policy.raise_if_failed()
    assert bench.policy.left_out == (
        "2 or more trials on a GPU left out: a trial ran out of memory"
    )
    assert bench.policy.figures.profile("g", "abc", "2026-01-01", "").widths == (1.0,)


def test_another_error_of_a_packed_trial_leaves_its_share_out() -> None:
    policy = measuring()
    entries = measure(policy)
    begun = next(e.event.at for e in entries if any(_is_start(c, 0.5) for c in e.commands))
    again = measuring()
    measure(again, TrialFailed(begun + 5.0, "t00.4", "ValueError: lr", ""))
    again.raise_if_failed()
    assert set(again.figures.epoch) == {1.0, 2.0, 4.0}
    assert again.left_out == "2 or more trials on a GPU left out: t00 failed: ValueError: lr"


def _is_start(command: object, width: float) -> bool:
    return isinstance(command, StartTrial) and command.width == width


@pytest.mark.parametrize("limits", [Limits(deadline=190.0), Limits(budget=1.9)])
def test_limits_that_end_among_the_shares_keep_what_was_measured(limits: Limits) -> None:
    policy = measuring(limits=limits)
    entries = measure(policy)
    policy.raise_if_failed()
    assert set(policy.figures.epoch) == {0.5, 1.0, 2.0, 4.0}
    assert policy.left_out.startswith("4 or more trials on a GPU left out: the ")
    at = entries[-1].event.at
    assert at <= (limits.deadline or at)
    assert policy.fleet.dollars(at) <= (limits.budget or 99.0)


moments = st.floats(0.0, 400.0)
sessions = st.sampled_from(["t00.1", "t01.4", "t07.4", "t15.5", "t00.3"])
anything = st.one_of(
    st.builds(lambda at: InstanceGone(at, "i000", at, "gone"), moments),
    st.builds(TrialFailed, moments, sessions, st.just("boom"), st.just(""), st.booleans()),
    st.builds(Interrupted, moments),
)


@settings(deadline=None, max_examples=40)
@given(trouble=st.lists(anything, max_size=3), budget=st.none() | st.floats(0.0, 4.0))
def test_whatever_happens_it_ends_within_its_budget(
    trouble: list[Event], budget: float | None
) -> None:
    policy = measuring(limits=Limits(budget=budget))
    entries = measure(policy, *trouble)
    assert budget is None or policy.fleet.dollars(entries[-1].event.at) <= budget + 1e-9
    if policy.ending is EndReason.DONE and "GPUs left out: the limits" not in policy.left_out:
        assert {1.0, 2.0, 4.0} <= set(policy.figures.epoch)
