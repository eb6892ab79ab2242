"""Measuring a script at shares of a GPU, on whole ones, on several instances; in virtual time."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.engine.ledger import Entry, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.resume import replayed
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.errors import CloudtuneError, NoCapacityError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.model.commands import (
    Command,
    EndRun,
    Launch,
    Release,
    SetTimer,
    StartTrial,
    StopTrial,
)
from cloudtune.model.events import (
    EpochDone,
    Event,
    InstanceGone,
    InstanceLaunched,
    Interrupted,
    InterruptionNotice,
    LaunchFailed,
    NodeJoined,
    NodeLost,
    RunStarted,
    TimerFired,
    TrialFailed,
    TrialLost,
    TrialStopped,
)
from cloudtune.model.plans import Charges, Limits, Rentable
from cloudtune.model.scaling import ScalingProfile
from cloudtune.model.trial import EndReason, Slice
from cloudtune.policy.base import TrialRules
from cloudtune.policy.measure import MeasurePolicy
from cloudtune.profiles.measurements import MeasureError, widths_of
from cloudtune.running.measuring import widths_to_measure
from tests.builders import NO_LIMITS, SUBLINEAR, offer, profile, trials

TRUTH = profile(SUBLINEAR, launch=1.5, boot=20.0, start=4.25, resize=6.5, release=2.5)
SHARES = {0.25: 26.0, 0.5: 14.0, 1.0: 8.0, 2.0: 5.0, 4.0: 4.0}
SHARED = profile(SHARES, start=4.25, resize=6.5)
WIDE = profile(
    {1.0: 24.0, 2.0: 13.0, 3.0: 9.0, 4.0: 7.0, 6.0: 5.5, 8.0: 6.0, 12.0: 5.0},
    launch=1.5,
    boot=20.0,
    start=4.0,
    resize=6.5,
    release=2.5,
)


def measuring(
    limits: Limits = NO_LIMITS, *, gpus: int = 4, count: int = 8, **more: Any
) -> MeasurePolicy:
    return MeasurePolicy(trials=trials(count), offer=offer(gpus), limits=limits, **more)


def measure(
    policy: MeasurePolicy, *trouble: Event, truth: ScalingProfile = TRUTH, pace: Any = None
) -> tuple[Entry, ...]:
    """Run a measurement in the simulated world, and check that it leaves nothing there."""
    rentables, ledger = (Rentable(policy.offer, truth, 4),), MemoryLedger()
    world = SimWorld(rentables, "score", synthetic_metric("max", 0), pace_of=pace)
    for event in trouble:
        world.schedule(event)
    run(policy, world, ledger)
    *_, last = ledger.entries[-1].commands
    assert isinstance(last, EndRun)
    assert last.reason is policy.ending
    assert policy.fleet.alive() == []
    return tuple(ledger.entries)


def profile_of(policy: MeasurePolicy) -> ScalingProfile:
    return policy.figures.profile("g.4x", "abc", "2026-01-01", "made up")


def starts_in(entries: Sequence[Entry]) -> list[list[StartTrial]]:
    """Return the sessions of each phase, which begin together."""
    found = [[c for c in e.commands if isinstance(c, StartTrial)] for e in entries]
    return [phase for phase in found if phase]


def crews(entries: Sequence[Entry]) -> list[tuple[float, int]]:
    """Return the width and the number of the trials of each phase."""
    return [(phase[0].width, len(phase)) for phase in starts_in(entries)]


@pytest.mark.parametrize("epochs", [2, 4])
def test_the_figures_are_the_world_s(epochs: int) -> None:
    policy = measuring(epochs=epochs)
    measure(policy)
    policy.raise_if_failed()
    found = profile_of(policy)
    assert found.widths == TRUTH.widths
    for width in TRUTH.widths:
        assert found.epoch[width].mean == pytest.approx(TRUTH.epoch[width].mean, abs=1e-6)
        assert found.epoch[width].sd == pytest.approx(0.0, abs=1e-6)
    for what in ("launch", "boot", "start", "resize", "release"):
        measured = getattr(found, what).mean
        assert measured == pytest.approx(getattr(TRUTH, what).mean, abs=1e-6), what
    assert found.epoch[1.0].n == 4 * (epochs - 1), "four trials fill the instance"
    assert found.epoch[4.0].n == epochs - 1


def test_a_resize_is_measured_even_where_there_is_one_width() -> None:
    policy = measuring(gpus=1)
    assert policy.last_epoch == 8
    assert crews(measure(policy)) == [(1.0, 1)] * 2
    found = profile_of(policy)
    assert (found.resize.mean, found.start.mean) == pytest.approx((6.5, 4.25))


@pytest.mark.parametrize(("gpus", "max_epochs"), [(1, 3), (1, 4), (1, 5), (4, 4), (4, 100)])
def test_no_trial_is_trained_beyond_the_last_epoch(gpus: int, max_epochs: int) -> None:
    policy = measuring(gpus=gpus, max_epochs=max_epochs)
    assert policy.last_epoch <= max_epochs
    starts = itertools.chain(*starts_in(measure(policy)))
    assert max(start.until_epoch for start in starts) <= max_epochs
    found = profile_of(policy)
    assert found.widths == TRUTH.only(widths_of(gpus)).widths
    assert found.resize.mean > 0


def test_a_trial_by_itself_comes_first_where_that_is_wanted() -> None:
    policy = measuring(alone=True)
    assert crews(measure(policy)) == [(1.0, 1), (1.0, 4), (2.0, 2), (4.0, 1)]
    assert policy.figures.alone == pytest.approx([8.0] * 4)
    assert policy.figures.core_seconds == pytest.approx(8.0)
    assert policy.figures.epoch[1.0] == pytest.approx([8.0] * 12), "none of them is of that one"
    found = profile_of(policy)
    assert (found.resize.mean, found.start.mean) == pytest.approx((6.5, 4.25))


def test_a_busy_machine_does_not_make_a_script_dearer() -> None:
    """What counts is the epoch as it would be if the thread never waited for a core."""
    policy = measuring(alone=True)
    ((session, start),) = begun(policy).items()
    for number, (seconds, waited) in enumerate([(3.0, 1.5), (4.0, 3.0), (2.5, 1.3)], start=1):
        done = EpochDone(40.0 + 5 * number, session, number, {}, None, seconds, waited=waited)
        policy.handle(done)
    policy.handle(EpochDone(60.0, session, 4, {}, None, 5.0))
    assert policy.figures.core_seconds == pytest.approx(1.0)
    assert start.width == 1.0


def test_if_a_trial_alone_fails_others_are_tried() -> None:
    policy = measuring(alone=True)
    now = begun(policy)
    tried = []
    for at in (40.0, 41.0, 42.0):
        (session,) = now
        tried.append(now[session].trial)
        commands = policy.handle(TrialFailed(at, session, "diverged", ""))
        now = {c.session: c for c in commands if isinstance(c, StartTrial)}
    assert len(set(tried)) == 3
    assert len(now) == 4, "the instance is full"
    assert not {start.trial for start in now.values()} & set(tried)


def test_a_measurement_is_replayed_with_equal_commands() -> None:
    entries = measure(measuring())
    replayed(measuring(), entries)


def begun(policy: MeasurePolicy) -> dict[str, StartTrial]:
    """Start a measurement, let its instance join at 30 s; returns the sessions started."""
    said = policy.handle(RunStarted(0.0))
    assert said == (SetTimer("tick", 1.0), Launch("i000", "g.4x", "on-demand"))
    assert policy.handle(InstanceLaunched(5.0, "i000", "i-1", 4.0)) == ()
    said = policy.handle(NodeJoined(30.0, "i000"))
    return {c.session: c for c in said if isinstance(c, StartTrial)}


def told(
    at: float, session: str, number: int, seconds: float, mib: float | None = None
) -> EpochDone:
    return EpochDone(at, session, number, {}, f"{session}/{number}", seconds, memory_mib=mib)


def test_phases_go_from_narrow_to_wide_and_resume_from_checkpoints() -> None:
    policy = measuring(gpus=2, epochs=2)
    first = begun(policy)
    assert [start.placement for start in first.values()] == [(Slice("i-1", 1.0),)] * 2
    for session in first:
        policy.handle(told(40.0, session, 1, 6.0))
    assert policy.handle(told(45.0, "t00.1", 2, 5.0)) == (), "t01 still trains beside it"
    assert policy.handle(told(46.0, "t01.1", 2, 5.0)) == (StopTrial("t00.1"), StopTrial("t01.1"))
    assert policy.handle(TrialStopped(47.0, "t00.1")) == (), "nothing is stopped twice"
    assert policy.handle(TimerFired(48.0, "tick")) == (SetTimer("tick", 49.0),)
    assert policy.handle(TrialStopped(48.0, "t01.1")) == (
        StartTrial("t00.2", "t00", {"x": 0}, 2.0, (Slice("i-1", 2.0),), "t00.1/2", 2, 4),
    )
    policy.handle(told(56.0, "t00.2", 3, 3.0))
    assert policy.handle(told(59.0, "t00.2", 4, 3.0)) == (StopTrial("t00.2"),)
    returned = (Release("i000"), SetTimer("cleanup", 90.0))
    assert policy.handle(TrialStopped(60.0, "t00.2")) == returned
    assert policy.handle(InstanceGone(64.0, "i000", 63.0, "released")) == (EndRun(EndReason.DONE),)
    figures = policy.figures
    assert (figures.launch, figures.boot, figures.release) == ([4.0], [26.0], [3.0])
    assert figures.epoch == {1.0: [5.0, 5.0], 2.0: [3.0]}
    assert figures.start == [5.0, 5.0], "a slow first epoch is reckoned to the start"
    assert figures.resize == [7.0], "from the stop at 46 until training began at 53"


TROUBLE: list[tuple[Event, EndReason, str]] = [
    (NodeLost(40.0, "i000", "heartbeat"), EndReason.FAILED, "the node left.*\nheartbeat"),
    (InstanceGone(40.0, "i000", 40.0, "spot"), EndReason.FAILED, "went away\nspot"),
    (LaunchFailed(1.0, "i000", "Full", "none left"), EndReason.NO_CAPACITY, "Full: none left"),
    *((Interrupted(at), EndReason.INTERRUPTED, "stopped: inter") for at in (0.0, 0.5, 15.0, 40.0)),
]


@pytest.mark.parametrize(("event", "reason", "message"), TROUBLE, ids=lambda it: str(it)[:24])
def test_trouble_ends_it_with_the_instance_returned(
    event: Event, reason: EndReason, message: str
) -> None:
    policy = measuring()
    measure(policy, event)
    assert policy.ending is reason
    with pytest.raises(CloudtuneError, match=f"could not measure the script: .*{message}") as error:
        policy.raise_if_failed()
    assert error.value.exit_code == reason.exit_code
    assert isinstance(error.value, NoCapacityError | MeasureError)


moments = st.floats(0.0, 400.0)
intents = st.sampled_from(["i000", "i001"])
sessions = st.sampled_from(["t00.1", "t03.1", "t01.2", "t00.3", "t01.4", "t07.4", "t15.5"])
anything = st.one_of(
    st.builds(lambda at, intent: InstanceGone(at, intent, at, "gone"), moments, intents),
    st.builds(NodeLost, moments, intents, st.just("lost")),
    st.builds(InterruptionNotice, moments, intents, moments),
    st.builds(LaunchFailed, moments, intents, st.just("Full"), st.just("none left")),
    st.builds(TrialFailed, moments, sessions, st.just("boom"), st.just(""), st.booleans()),
    st.builds(TrialLost, moments, sessions, st.just("died")),
    st.builds(Interrupted, moments),
)


@settings(deadline=None, max_examples=70)
@given(
    trouble=st.lists(anything, max_size=4),
    budget=st.none() | st.floats(0.0, 4.0),
    pack=st.sampled_from([1, 4]),
    gpus=st.sampled_from([2, 4]),
)
def test_whatever_happens_it_ends_within_its_budget(
    trouble: list[Event], budget: float | None, pack: int, gpus: int
) -> None:
    """With two GPUs each it takes two instances."""
    limits = Limits(budget=budget)
    policy = measuring(limits, gpus=gpus, widths=[1.0, 2.0, 4.0], count=16, pack=pack)
    entries = measure(policy, *trouble, truth=SHARED)
    assert budget is None or policy.fleet.dollars(entries[-1].event.at) <= budget + 1e-9
    if not trouble and budget is None:
        policy.raise_if_failed()
    if policy.ending is EndReason.DONE and "GPUs left out: the limits" not in policy.left_out:
        assert pack == 1 or {1.0, 2.0, 4.0} <= set(policy.figures.epoch)


def test_what_is_charged_besides_the_instance_counts_as_well() -> None:
    charges = Charges(usd_per_launch=0.05, usd_per_second=0.001)
    alone, charged = measuring(Limits(budget=0.9)), measuring(Limits(budget=0.9), charges=charges)
    slow = profile({1.0: 35.0, 2.0: 20.0, 4.0: 15.0})
    over = [measure(policy, truth=slow)[-1].event.at for policy in (alone, charged)]
    assert charged.ending is EndReason.BUDGET
    assert over[1] < over[0]
    bill = charged.fleet.dollars(over[1]) + 0.05 + 0.001 * over[1]
    assert charged.spent(over[1]) == pytest.approx(bill)
    assert bill <= 0.9


def test_what_nobody_drives_any_more_ends_within_both_limits() -> None:
    policy = measuring(Limits(deadline=5000.0, budget=0.9))
    policy.handle(RunStarted(0.0))
    policy.handle(InstanceLaunched(5.0, "i000", "i-1", 4.0))
    until = policy.safe_until()
    assert until < 5000.0
    assert policy.spent(until) <= 0.9
    assert policy.spent(until + 2.0) > 0.9


@pytest.mark.parametrize("limits", [Limits(budget=0.59), Limits(deadline=5.0)])
def test_limits_that_are_too_small_rent_nothing(limits: Limits) -> None:
    reason = EndReason.BUDGET if limits.budget else EndReason.DEADLINE
    assert measuring(limits).handle(RunStarted(0.0)) == (EndRun(reason),)


def test_a_failing_configuration_is_reported_the_others_measured() -> None:
    policy = measuring()
    entries = measure(policy, TrialFailed(40.0, "t00.1", "ValueError: lr", "Tb"))
    policy.raise_if_failed()
    assert list(map(str, policy.failed)) == ["t00 (x=0) failed on 1 GPU: ValueError: lr"]
    counts = {width: len(found) for width, found in policy.figures.epoch.items()}
    assert counts == {1.0: 3 * 3, 2.0: 2 * 3, 4.0: 3}
    later = itertools.chain(*starts_in(entries)[1:])
    assert "t00" not in {start.trial for start in later}, "it isn't tried again"


def failing(
    policy: MeasurePolicy,
    fails: Callable[[StartTrial], TrialFailed | None],
    truth: ScalingProfile = TRUTH,
) -> tuple[Entry, ...]:
    """Run a measurement in which each session that `fails` says so does, as soon as it began."""
    ledger = MemoryLedger()
    world = SimWorld((Rentable(policy.offer, truth, 1),), "score", synthetic_metric("max", 0))

    class Failing:
        def handle(self, event: Event) -> tuple[Command, ...]:
            commands = policy.handle(event)
            for command in commands:
                if isinstance(command, StartTrial) and (failed := fails(command)):
                    world.schedule(replace(failed, at=event.at + 1.0, session=command.session))
            return commands

    run(Failing(), world, ledger)
    assert policy.fleet.alive() == []
    return tuple(ledger.entries)


BOOM = TrialFailed(0.0, "", "boom", "Tb")


def test_others_are_tried_where_all_of_a_width_fail() -> None:
    policy = measuring()
    failing(policy, lambda start: BOOM if start.trial < "t04" else None)
    policy.raise_if_failed()
    assert [each.trial.id for each in policy.failed] == ["t00", "t01", "t02", "t03"]
    assert set(policy.figures.epoch) == {1.0, 2.0, 4.0}
    assert policy.figures.start == pytest.approx([4.25] * 4)
    assert policy.left_out == ""


def test_a_script_that_always_fails_says_which_configuration_first() -> None:
    policy = measuring()
    failing(policy, lambda _: BOOM)
    assert policy.ending is EndReason.FAILED
    first = r"every configuration that was tried failed: t00 \(x=0\) failed on 1 GPU: boom"
    with pytest.raises(MeasureError, match=first + r" \(and 7 more\)\nTb"):
        policy.raise_if_failed()


@pytest.mark.parametrize("width", [1.0, 2.0, 4.0])
def test_a_width_with_too_little_memory_is_not_used(width: float) -> None:
    policy = measuring()
    crowded = replace(BOOM, out_of_memory=True)
    failing(policy, lambda start: crowded if start.width == width else None)
    policy.raise_if_failed()
    assert set(policy.figures.epoch) == {1.0, 2.0, 4.0} - {width}
    assert "left out: t0" in policy.left_out
    profile_of(policy)


def test_workers_of_several_models_are_measured_on_one_gpu() -> None:
    def fails(start: StartTrial) -> TrialFailed | None:
        return replace(BOOM, unsynced=True) if start.width > 1 else None

    policy = measuring()
    assert crews(failing(policy, fails)) == [(1.0, 4), (2.0, 2)]
    policy.raise_if_failed()
    assert set(policy.figures.epoch) == {1.0}
    assert policy.left_out == (
        "more than one GPU left out: the workers of t00 don't train one model: boom"
    )
    strict = measuring(count=4, rules=TrialRules(sync_required=True))
    failing(strict, fails)
    with pytest.raises(MeasureError, match=r"don't train one model: boom\. Give the model to"):
        strict.raise_if_failed()


def test_a_trial_that_hangs_is_ended_with_its_stacks() -> None:
    rules = TrialRules(stall_factor=10.0, stall_least=60.0)
    policy = measuring(count=4, gpus=1, rules=rules)
    entries = measure(
        policy, pace=lambda config, epoch: 1e6 if (config["x"], epoch) == (0, 2) else 1.0
    )
    policy.raise_if_failed()
    stops = [c for e in entries for c in e.commands if isinstance(c, StopTrial)]
    assert stops[0] == StopTrial("t00.1", stacks=True)
    assert not any(each.stacks for each in stops[1:])
    assert "stalled: it reported nothing for 1m 2" in str(policy.failed[0])
    assert entries[-1].event.at < 300.0


@pytest.mark.parametrize(("deadline", "epochs"), [(400.0, 4), (75.0, 2), (62.0, 1)])
def test_the_first_epoch_says_how_many_there_is_time_for(deadline: float, epochs: int) -> None:
    policy = measuring(Limits(deadline=deadline), gpus=1)
    entries = measure(policy)
    policy.raise_if_failed()
    assert policy.ending is EndReason.DONE
    assert entries[-1].event.at <= deadline
    assert len(policy.figures.epoch[1.0]) == 2 * max(1, epochs - 1)


def test_without_a_deadline_the_first_epoch_sets_one() -> None:
    slow = profile({1.0: 3000.0, 2.0: 2000.0, 4.0: 1500.0})
    policy = measuring(count=4, patience=3600.0)
    measure(policy, truth=slow)
    policy.raise_if_failed()
    assert policy.figures.epoch[4.0] == pytest.approx([1500.0] * 3)
    never = measuring(count=4, patience=3600.0)
    entries = measure(never, truth=profile({1.0: 3700.0, 2.0: 1.0, 4.0: 1.0}))
    assert never.ending is EndReason.DEADLINE
    assert 3600.0 < entries[-1].event.at < 3630.0
    with pytest.raises(MeasureError, match=r"deadline: no epoch in 1h.* as in --deadline 6h"):
        never.raise_if_failed()


@pytest.mark.parametrize("at", [50.0, 60.0, 75.0, 90.0])
def test_what_was_measured_is_kept_where_it_is_cut_short(at: float) -> None:
    policy = measuring()
    measure(policy, Interrupted(at))
    assert policy.ending is EndReason.INTERRUPTED
    assert policy.cut_short == "stopped: interrupted"
    policy.raise_if_failed()
    found = profile_of(policy)
    for width in found.widths:
        assert found.epoch[width].mean == pytest.approx(TRUTH.epoch[width].mean)
    assert found.start.mean == pytest.approx(4.25)


def test_an_unconfirmed_release_is_repeated_and_at_last_given_up() -> None:
    policy = measuring(gpus=1)
    begun(policy)
    returned = (Release("i000"), SetTimer("cleanup", 70.0))
    assert policy.handle(Interrupted(40.0)) == (StopTrial("t00.1"), *returned)
    for at in range(70, 370, 30):
        again = (Release("i000"), SetTimer("cleanup", at + 30))
        assert policy.handle(TimerFired(at, "cleanup")) == again
    assert policy.handle(TimerFired(370.0, "cleanup"))[-1] == EndRun(EndReason.INTERRUPTED)


@pytest.mark.parametrize("count", [16, 3])
def test_all_gpus_are_filled_at_every_share(count: int) -> None:
    policy = measuring(count=count, pack=4)
    entries = measure(policy, truth=SHARED)
    policy.raise_if_failed()
    assert [width for width, _ in crews(entries)] == [1.0, 2.0, 4.0, 0.5, 0.25]
    assert crews(entries)[3:] == [(0.5, 8), (0.25, 16)], "however few configurations there are"
    starts = list(itertools.chain(*starts_in(entries)))
    assert len({(start.width, start.trial) for start in starts}) == len(starts)


def test_the_shares_figures_are_the_world_s() -> None:
    policy = measuring(count=16, pack=4)
    measure(policy, truth=SHARED)
    found = profile_of(policy)
    assert found.widths == tuple(SHARES)
    assert [found.epoch_seconds(width) for width in SHARES] == pytest.approx([*SHARES.values()])
    assert found.epoch[0.25].n == 16 * 3
    assert found.memory == {}, "no GPU, no figures of its memory"
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
                done = told(self.at, start.session, start.start_epoch + number, 5.0, mib)
                self.policy.handle(done)

    def stop(self) -> None:
        """Have all that has begun stopped, and take what begins then."""
        said = [self.policy.handle(TrialStopped(self.at, each.session)) for each in self.starts]
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
        assert bench.policy.handle(told(60.0, first.session, number, 5.0)) == ()
    bench.policy.handle(told(61.0, second.session, 1, 5.0))
    said = bench.policy.handle(told(62.0, second.session, 2, 5.0))
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
    bench.policy.raise_if_failed()
    assert bench.policy.left_out == (
        "2 or more trials on a GPU left out: a trial ran out of memory"
    )
    assert bench.policy.figures.profile("g", "abc", "2026-01-01", "").widths == (1.0,)


def test_another_error_of_a_packed_trial_leaves_its_share_out() -> None:
    policy = measuring(count=16, pack=4)
    failing(policy, lambda start: BOOM if start.session == "t00.4" else None, SHARED)
    policy.raise_if_failed()
    assert set(policy.figures.epoch) == {1.0, 2.0, 4.0}
    assert policy.left_out == "2 or more trials on a GPU left out: t00 failed: boom"


@pytest.mark.parametrize("limits", [Limits(deadline=190.0), Limits(budget=1.9)])
def test_limits_that_end_among_the_shares_keep_what_was_measured(limits: Limits) -> None:
    policy = measuring(limits, count=16, pack=4)
    entries = measure(policy, truth=SHARED)
    policy.raise_if_failed()
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
    found = profile_of(policy)
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
