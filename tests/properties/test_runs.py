"""Whatever the job and whatever goes wrong: what holds of every simulated run."""

import json
import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cloudtune.engine.resume import replay
from cloudtune.model.catalog import Offer
from cloudtune.model.commands import EndRun, ExtendTrial, Launch, StartTrial
from cloudtune.model.events import EpochDone, Event, InstanceGone, LaunchFailed
from cloudtune.model.plans import Limits, Plan, Rentable
from cloudtune.model.scaling import Measurement
from cloudtune.model.trial import EndReason
from cloudtune.planners.base import InfeasibleError
from cloudtune.planners.cost_model import price
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.static import StaticPlanner
from cloudtune.policy.run import RunPolicy
from cloudtune.runs.report import build, to_json
from tests.builders import (
    Played,
    Setting,
    choices,
    itinerary_of,
    jobs,
    plan_of,
    play,
    profile,
    troubles,
)

thorough = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Case:
    """A job, the plan for it, and the trouble that it will meet."""

    setting: Setting
    plan: Plan
    trouble: tuple[Event, ...]
    saves_every: int

    def play(self, by: RunPolicy | None = None) -> Played:
        setting = self.setting.but(trouble=self.trouble, saves_every=self.saves_every)
        return play(setting, by or self.plan)


seconds = st.floats(0.0, 30.0)
JOBS = jobs(
    max_epochs=9,
    epoch=st.floats(0.5, 20.0),
    release=st.floats(0.0, 5.0),
    spread=st.sampled_from([0.0, 0.0, 0.1, 0.3]),
)


def on_spot(setting: Setting, per_hour: float) -> Setting:
    """Return the job on instances that the cloud takes back now and then."""

    def shy(offer: Offer) -> Offer:
        return replace(offer, market="spot", interruptions_per_hour=per_hour)

    others = tuple(replace(other, offer=shy(other.offer)) for other in setting.others)
    return setting.but(offer=shy(setting.offer), others=others)


@st.composite
def plans(draw: st.DrawFn, setting: Setting) -> Plan:
    planner = draw(st.sampled_from([ExactPlanner(), StaticPlanner(), None, None]))
    if planner is not None:
        return planner.plan(setting.request())
    return price(setting.request(), draw(choices(setting)), "drawn")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    setting = on_spot(draw(JOBS), draw(st.sampled_from([0.0, 0.0, 30.0, 60.0])))
    try:
        StaticPlanner().plan(setting.request())
    except InfeasibleError:
        setting = setting.but(profile=profile({1.0: 5.0}))
    plan = draw(plans(setting))
    share = st.none() | st.floats(0.0, 1.5)
    of_time, of_money = draw(share), draw(share)
    limits = Limits(
        None if of_time is None else of_time * plan.estimate.seconds,
        None if of_money is None else of_money * plan.estimate.dollars,
    )
    at = st.floats(0.0, 1.2 * plan.estimate.seconds)
    trouble = draw(st.lists(troubles(at, trials=setting.trials), max_size=8))
    saves_every = draw(st.sampled_from([1, 1, 2, 5]))
    return Case(setting.but(limits=limits), plan, tuple(trouble), saves_every)


@thorough
@given(case=cases())
def test_a_run_ends_within_its_limits_and_leaves_nothing(case: Case) -> None:
    played = case.play()
    assert played.policy.ended
    assert played.policy.fleet.alive() == []
    assert played.entries[-1].commands[-1] == EndRun(played.policy.ending or EndReason.FAILED)
    limits = case.setting.limits
    assert limits.deadline is None or played.policy.now <= limits.deadline or not has_rented(played)
    assert limits.budget is None or played.dollars <= limits.budget + 1e-9
    never_too_many(played, case.plan)
    epochs_follow_each_other(played)
    endings_fit(played)


def has_rented(played: Played) -> bool:
    return any(isinstance(c, Launch) for entry in played.entries for c in entry.commands)


def never_too_many(played: Played, plan: Plan) -> None:
    """Never more at once than allowed: asked for, and not gone yet."""
    alive: set[str] = set()
    for entry in played.entries:
        if isinstance(entry.event, InstanceGone | LaunchFailed):
            alive.discard(entry.event.intent)
        alive.update(c.intent for c in entry.commands if isinstance(c, Launch))
        assert len(alive) <= plan.max_instances


def epochs_follow_each_other(played: Played) -> None:
    """Every session trains from its checkpoint on, epoch by epoch, and no further than granted."""
    reached: dict[str, int] = {}
    until: dict[str, int] = {}
    saved: dict[str, tuple[str | None, int]] = {}
    for entry in played.entries:
        event = entry.event
        if isinstance(event, EpochDone):
            trial = event.session.partition(".")[0]
            assert event.epoch == reached[event.session] + 1 <= until[event.session]
            reached[event.session] = event.epoch
            if event.checkpoint is not None:
                saved[trial] = (event.checkpoint, event.epoch)
        for command in entry.commands:
            if isinstance(command, StartTrial):
                known = saved.get(command.trial, (None, 0))
                assert (command.checkpoint, command.start_epoch) == known
                assert command.start_epoch < command.until_epoch
                reached[command.session] = command.start_epoch
                until[command.session] = command.until_epoch
            if isinstance(command, ExtendTrial):
                assert reached[command.session] == until[command.session], "it waits at the rung"
                until[command.session] = command.until_epoch


def endings_fit(played: Played) -> None:
    policy = played.policy
    finished = [trial for trial in policy.trials.values() if trial.status == "finished"]
    assert bool(finished) == (policy.ending is EndReason.DONE)
    if finished:
        assert itinerary_of(policy).stage == len(plan_of(policy).stages) - 1
        assert policy.best is not None
        assert all(t.epoch == itinerary_of(policy).stage_plan.stage.end_epoch for t in finished)


@thorough
@given(case=cases())
def test_replay_decides_the_same(case: Case) -> None:
    played = case.play()
    policy = case.setting.policy(case.plan)
    replay(policy, played.entries)
    assert policy.best == played.policy.best
    assert policy.spent(played.policy.now) == played.dollars


@thorough
@given(case=cases())
def test_a_report_accounts_for_every_cent_and_second(case: Case) -> None:
    job = case.setting.job(case.plan)
    played = case.play(job.policy())
    report = build(job, played.entries)
    assert report.dollars == pytest.approx(played.dollars)
    begun = [stage for stage in report.stages if stage.seconds is not None]
    assert sum(stage.seconds or 0.0 for stage in begun) == pytest.approx(report.seconds)
    assert sum(stage.dollars or 0.0 for stage in begun) == pytest.approx(report.dollars)
    assert not report.fleet or report.fleet[-1][1] == 0
    json.dumps(to_json(report), allow_nan=False)


@settings(deadline=None, max_examples=25)
@given(data=st.data(), setting=JOBS)
def test_without_trouble_every_run_finishes(data: st.DataObject, setting: Setting) -> None:
    try:
        plan = data.draw(plans(setting))
    except InfeasibleError:
        assume(False)  # no width fits on so few instances
    played = play(setting, plan)
    stages = setting.strategy.stages()
    assert played.policy.ending is EndReason.DONE
    assert played.policy.best is not None
    epochs = sum(isinstance(entry.event, EpochDone) for entry in played.entries)
    assert epochs == sum(stage.trials * stage.epochs for stage in stages), "none is trained twice"
    done = [trial.epoch for trial in played.policy.ranking()]
    assert done == sorted(done, reverse=True)
    assert done[0] == setting.max_epochs
    assert math.isfinite(played.dollars)


@st.composite
def surprising_jobs(draw: st.DrawFn) -> Setting:
    """Give jobs of `sha` whose world is slower or faster than their profile, and has trouble."""
    setting = on_spot(draw(JOBS), draw(st.sampled_from([0.0, 30.0])))
    pace, wide = draw(st.floats(0.7, 1.5)), draw(st.floats(0.9, 1.3))
    epoch = {
        width: m.mean * pace * wide ** max(0.0, math.log2(width))
        for width, m in setting.profile.epoch.items()
    }
    real = replace(setting.profile, epoch={w: Measurement(s, 0.0, 3) for w, s in epoch.items()})
    try:
        plan = ExactPlanner().plan(setting.request())
    except InfeasibleError:
        assume(False)
    time, money = draw(st.floats(1.5, 4.0)), draw(st.none() | st.floats(1.2, 4.0))
    limits = Limits(
        60.0 + time * plan.estimate.seconds,
        None if money is None else money * plan.estimate.dollars,
    )
    at = st.floats(0.0, 1.2 * plan.estimate.seconds)
    trouble = draw(st.lists(troubles(at, trials=setting.trials), max_size=4))
    rented = (Rentable(setting.offer, real, setting.max_instances), *setting.others)
    return setting.but(limits=limits, real=rented, trouble=tuple(trouble), by="sha", mix=1)


@settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
@given(setting=surprising_jobs())
def test_a_surprised_run_keeps_its_limits(setting: Setting) -> None:
    try:
        played = play(setting)
    except InfeasibleError:
        assume(False)  # the run leaves some of its limits for surprises
    policy, limits = played.policy, setting.limits
    assert policy.ended
    assert policy.fleet.alive() == []
    assert limits.deadline is not None
    assert policy.now <= limits.deadline
    assert limits.budget is None or played.dollars <= limits.budget + 1e-9
    never_too_many(played, plan_of(policy))
    epochs_follow_each_other(played)
    replay(setting.policy(), played.entries)
