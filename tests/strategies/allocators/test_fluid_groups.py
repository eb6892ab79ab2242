"""Which GPUs a group of Fluid shares out: its own and those that are idle, no others'."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Trial, Width
from cloudtune.strategies.allocators.fluid import DynamicFluid, StaticFluid
from tests.builders import Setting, offer, profile

LINEAR = {1.0: 8.0, 2.0: 4.0, 4.0: 2.0, 8.0: 1.0}
EIGHT = offer(8)


def trial(name: str, status: Any, width: Width) -> TrialProgress:
    return TrialProgress(Trial(name, {}), status=status, width=width, epoch=1, offer=EIGHT)


def view_of(*running: TrialProgress) -> SimpleNamespace:
    """Return a view of eight GPUs; `pace` is how many times as slow all trials are."""
    setting = Setting(offer=EIGHT, profile=profile(LINEAR, start=1.0, resize=1.0))
    rentable = setting.rentables[0]
    view = SimpleNamespace(
        now=10.0,
        gpus=8,
        free_gpus=0.0,
        held={EIGHT: 1},
        rentables=(rentable,),
        running=running,
        trials={member.id: member for member in running},
        until=lambda _: 5,
        pace=1.0,
        corrected=lambda result, _: result,
    )
    view.epoch_seconds = lambda _trial, _offer, width: view.pace * rentable.epoch_seconds(width)
    return view


def test_f02_a_group_at_a_rung_leaves_others_their_gpus() -> None:
    group = [trial("t0", "at rung", 1.0), trial("t1", "at rung", 1.0)]
    other = trial("t2", "training", 4.0)
    view = view_of(*group, other)
    fluid = StaticFluid()
    widths = [fluid.resized(cast("Any", view), member) for member in group]
    assert widths == [2.0, 2.0], "half of the four GPUs that the other doesn't have"
    other.status = "stopping"
    view.now = 11.0
    assert [fluid.resized(cast("Any", view), member) for member in group] == [4.0, 4.0]


@pytest.mark.parametrize(("pace", "plannings"), [(1.0, 1), (1.19, 1), (0.81, 1), (1.21, 2)])
def test_epochs_a_fifth_off_the_plan_are_replanned(pace: float, plannings: int) -> None:
    training = trial("t0", "training", 8.0)
    view = view_of(training)
    fluid = DynamicFluid()
    fluid.resized(cast("Any", view), training)
    view.pace = pace
    fluid.resized(cast("Any", view), training)
    assert fluid.plannings == plannings


def test_a_trial_takes_a_width_of_its_machine() -> None:
    lone = trial("t0", "training", 1.0)
    view = view_of(lone)
    four = replace(offer(4), zone="b")
    curve = {width: seconds for width, seconds in LINEAR.items() if width <= 4}
    narrow = Setting(offer=four, profile=profile(curve, start=1.0, resize=1.0)).rentables[0]
    view.rentables = (*view.rentables, narrow)
    assert DynamicFluid().resized(cast("Any", view), lone) == 8.0
    lone.offer = four
    assert DynamicFluid().resized(cast("Any", view), lone) == 4.0


def test_f20_the_longest_keeps_its_width_without_enough_gpus() -> None:
    group = [trial("t0", "training", 4.0), trial("t1", "training", 4.0)]
    view = view_of(*group)
    view.free_gpus = 1.0
    fluid = DynamicFluid(published=True, idle=True)
    assert fluid.resized(cast("Any", view), group[0]) == 4.0
    view.free_gpus = 4.0
    assert fluid.resized(cast("Any", view), group[0]) == 8.0
