"""Measuring a script at shares of a GPU, on whole ones, on several instances; in virtual time."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.engine.resume import replay
from cloudtune.errors import CloudtuneError, NoCapacityError
from cloudtune.model.commands import (
    EndRun,
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
    NodeLost,
    RebalanceRecommended,
    RunStarted,
    TimerFired,
    TrialFailed,
    TrialLost,
    TrialStopped,
)
from cloudtune.model.plans import Charges, Limits
from cloudtune.model.trial import EndReason, Slice
from cloudtune.policy.base import TrialRules
from cloudtune.profiles.measurements import MeasureError, widths_to_measure
from tests.builders import profile
from tests.policy.measuring import (
    BOOM,
    SHARED,
    TRUTH,
    begun,
    crews,
    epoch_done,
    failing,
    measure,
    measuring,
    profile_of,
    starts_in,
)


@pytest.mark.parametrize("epochs", [2, 4])
def test_the_figures_are_the_world_s(epochs: int) -> None:
    policy = measuring(epochs=epochs)
    measure(policy)
    policy.raise_failure()
    result = profile_of(policy)
    assert result.widths == TRUTH.widths
    for width in TRUTH.widths:
        assert result.epoch[width].mean == pytest.approx(TRUTH.epoch[width].mean, abs=1e-6)
        assert result.epoch[width].sd == pytest.approx(0.0, abs=1e-6)
    for what in ("launch", "boot", "start", "resize", "release"):
        measured = getattr(result, what).mean
        assert measured == pytest.approx(getattr(TRUTH, what).mean, abs=1e-6), what
    assert result.epoch[1.0].n == 4 * (epochs - 1), "four trials fill the instance"
    assert result.epoch[4.0].n == epochs - 1


def test_a_resize_is_measured_even_where_there_is_one_width() -> None:
    policy = measuring(gpus=1)
    assert policy.last_epoch == 8
    assert crews(measure(policy)) == [(1.0, 1)] * 2
    result = profile_of(policy)
    assert (result.resize.mean, result.start.mean) == pytest.approx((6.5, 4.25))


@pytest.mark.parametrize(("gpus", "max_epochs"), [(1, 3), (1, 4), (1, 5), (4, 4), (4, 100)])
def test_no_trial_is_trained_beyond_the_last_epoch(gpus: int, max_epochs: int) -> None:
    policy = measuring(gpus=gpus, max_epochs=max_epochs)
    assert policy.last_epoch <= max_epochs
    starts = itertools.chain(*starts_in(measure(policy)))
    assert max(start.until_epoch for start in starts) <= max_epochs
    result = profile_of(policy)
    assert result.widths == TRUTH.only(widths_to_measure(gpus)).widths
    assert result.resize.mean > 0


def test_a_trial_by_itself_comes_first_where_that_is_wanted() -> None:
    policy = measuring(alone=True)
    assert crews(measure(policy)) == [(1.0, 1), (1.0, 4), (2.0, 2), (4.0, 1)]
    assert policy.figures.alone == pytest.approx([8.0] * 4)
    assert policy.figures.core_seconds == pytest.approx(8.0)
    assert policy.figures.epoch[1.0] == pytest.approx([8.0] * 12), "none of them is of that one"
    result = profile_of(policy)
    assert (result.resize.mean, result.start.mean) == pytest.approx((6.5, 4.25))


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
    replay(measuring(), entries)


def test_phases_go_from_narrow_to_wide_and_resume_from_checkpoints() -> None:
    policy = measuring(gpus=2, epochs=2)
    first = begun(policy)
    assert [start.placement for start in first.values()] == [(Slice("i-1", 1.0),)] * 2
    for session in first:
        policy.handle(epoch_done(40.0, session, 1, 6.0))
    assert policy.handle(epoch_done(45.0, "t00.1", 2, 5.0)) == (), "t01 still trains beside it"
    assert policy.handle(epoch_done(46.0, "t01.1", 2, 5.0)) == (
        StopTrial("t00.1"),
        StopTrial("t01.1"),
    )
    assert policy.handle(TrialStopped(47.0, "t00.1")) == (), "nothing is stopped twice"
    assert policy.handle(TimerFired(48.0, "tick")) == (SetTimer("tick", 49.0),)
    assert policy.handle(TrialStopped(48.0, "t01.1")) == (
        StartTrial("t00.2", "t00", {"x": 0}, 2.0, (Slice("i-1", 2.0),), "t00.1/2", 2, 4),
    )
    policy.handle(epoch_done(56.0, "t00.2", 3, 3.0))
    assert policy.handle(epoch_done(59.0, "t00.2", 4, 3.0)) == (StopTrial("t00.2"),)
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
        policy.raise_failure()
    assert error.value.exit_code == reason.exit_code
    assert isinstance(error.value, NoCapacityError | MeasureError)


moments = st.floats(0.0, 400.0)
intents = st.sampled_from(["i000", "i001"])
sessions = st.sampled_from(["t00.1", "t03.1", "t01.2", "t00.3", "t01.4", "t07.4", "t15.5"])
anything = st.one_of(
    st.builds(lambda at, intent: InstanceGone(at, intent, at, "gone"), moments, intents),
    st.builds(NodeLost, moments, intents, st.just("lost")),
    st.builds(InterruptionNotice, moments, intents, moments),
    st.builds(RebalanceRecommended, moments, intents),
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
        policy.raise_failure()
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


def test_what_none_drives_any_more_ends_within_both_limits() -> None:
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
    policy.raise_failure()
    assert list(map(str, policy.failed)) == ["t00 (x=0) failed on 1 GPU: ValueError: lr"]
    counts = {width: len(result) for width, result in policy.figures.epoch.items()}
    assert counts == {1.0: 3 * 3, 2.0: 2 * 3, 4.0: 3}
    later = itertools.chain(*starts_in(entries)[1:])
    assert "t00" not in {start.trial for start in later}, "it isn't tried again"


def test_others_are_tried_where_all_of_a_width_fail() -> None:
    policy = measuring()
    failing(policy, lambda start: BOOM if start.trial < "t04" else None)
    policy.raise_failure()
    assert [item.trial.id for item in policy.failed] == ["t00", "t01", "t02", "t03"]
    assert set(policy.figures.epoch) == {1.0, 2.0, 4.0}
    assert policy.figures.start == pytest.approx([4.25] * 4)
    assert policy.left_out == ""


def test_a_script_that_always_fails_says_which_configuration_first() -> None:
    policy = measuring()
    failing(policy, lambda _: BOOM)
    assert policy.ending is EndReason.FAILED
    first = r"every configuration that was tried failed: t00 \(x=0\) failed on 1 GPU: boom"
    with pytest.raises(MeasureError, match=first + r" \(and 7 more\)\nTb"):
        policy.raise_failure()


@pytest.mark.parametrize("width", [1.0, 2.0, 4.0])
def test_a_width_with_too_little_memory_is_not_used(width: float) -> None:
    policy = measuring()
    crowded = replace(BOOM, out_of_memory=True)
    failing(policy, lambda start: crowded if start.width == width else None)
    policy.raise_failure()
    assert set(policy.figures.epoch) == {1.0, 2.0, 4.0} - {width}
    assert "left out: t0" in policy.left_out
    profile_of(policy)


def test_workers_of_several_models_are_measured_on_one_gpu() -> None:
    def fails(start: StartTrial) -> TrialFailed | None:
        return replace(BOOM, unsynced=True) if start.width > 1 else None

    policy = measuring()
    assert crews(failing(policy, fails)) == [(1.0, 4), (2.0, 2)]
    policy.raise_failure()
    assert set(policy.figures.epoch) == {1.0}
    assert policy.left_out == (
        "more than one GPU left out: the workers of t00 don't train one model: boom"
    )
    strict = measuring(count=4, rules=TrialRules(sync_required=True))
    failing(strict, fails)
    with pytest.raises(MeasureError, match=r"don't train one model: boom\. Give the model to"):
        strict.raise_failure()


def test_a_trial_that_hangs_is_ended_with_its_stacks() -> None:
    rules = TrialRules(stall_factor=10.0, stall_least=60.0)
    policy = measuring(count=4, gpus=1, rules=rules)
    entries = measure(
        policy, pace=lambda config, epoch: 1e6 if (config["x"], epoch) == (0, 2) else 1.0
    )
    policy.raise_failure()
    stops = [c for e in entries for c in e.commands if isinstance(c, StopTrial)]
    assert stops[0] == StopTrial("t00.1", stacks=True)
    assert not any(stop.stacks for stop in stops[1:])
    assert "stalled: it reported nothing for 1m 2" in str(policy.failed[0])
    assert entries[-1].event.at < 300.0


@pytest.mark.parametrize(("deadline", "epochs"), [(400.0, 4), (75.0, 2), (62.0, 1)])
def test_the_first_epoch_says_how_many_there_is_time_for(deadline: float, epochs: int) -> None:
    policy = measuring(Limits(deadline=deadline), gpus=1)
    entries = measure(policy)
    policy.raise_failure()
    assert policy.ending is EndReason.DONE
    assert entries[-1].event.at <= deadline
    assert len(policy.figures.epoch[1.0]) == 2 * max(1, epochs - 1)


def test_without_a_deadline_the_first_epoch_sets_one() -> None:
    slow = profile({1.0: 3000.0, 2.0: 2000.0, 4.0: 1500.0})
    policy = measuring(count=4, patience=3600.0)
    measure(policy, truth=slow)
    policy.raise_failure()
    assert policy.figures.epoch[4.0] == pytest.approx([1500.0] * 3)
    never = measuring(count=4, patience=3600.0)
    entries = measure(never, truth=profile({1.0: 3700.0, 2.0: 1.0, 4.0: 1.0}))
    assert never.ending is EndReason.DEADLINE
    assert 3600.0 < entries[-1].event.at < 3630.0
    with pytest.raises(MeasureError, match=r"deadline: no epoch in 1h.* as in --deadline 6h"):
        never.raise_failure()


@pytest.mark.parametrize("at", [50.0, 60.0, 75.0, 90.0])
def test_what_was_measured_is_kept_where_it_is_cut_short(at: float) -> None:
    policy = measuring()
    measure(policy, Interrupted(at))
    assert policy.ending is EndReason.INTERRUPTED
    assert policy.cut_short == "stopped: interrupted"
    policy.raise_failure()
    result = profile_of(policy)
    for width in result.widths:
        assert result.epoch[width].mean == pytest.approx(TRUTH.epoch[width].mean)
    assert result.start.mean == pytest.approx(4.25)


def test_an_unconfirmed_release_is_repeated_and_at_last_given_up() -> None:
    policy = measuring(gpus=1)
    begun(policy)
    returned = (Release("i000"), SetTimer("cleanup", 70.0))
    assert policy.handle(Interrupted(40.0)) == (StopTrial("t00.1"), *returned)
    for at in range(70, 370, 30):
        again = (Release("i000"), SetTimer("cleanup", at + 30))
        assert policy.handle(TimerFired(at, "cleanup")) == again
    assert policy.handle(TimerFired(370.0, "cleanup"))[-1] == EndRun(EndReason.INTERRUPTED)
