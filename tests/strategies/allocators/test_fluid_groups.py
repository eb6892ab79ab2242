"""Which GPUs a group of Fluid shares out: its own and those that are idle, no others'."""

from types import SimpleNamespace
from typing import Any, cast

from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Trial, Width
from cloudtune.strategies.allocators.fluid import StaticFluid
from tests.builders import Setting, offer, profile

LINEAR = {1.0: 8.0, 2.0: 4.0, 4.0: 2.0, 8.0: 1.0}
EIGHT = offer(8)


def trial(name: str, status: Any, width: Width) -> TrialProgress:
    return TrialProgress(Trial(name, {}), status=status, width=width, epoch=1, offer=EIGHT)


def test_f02_a_group_at_a_rung_leaves_others_their_gpus() -> None:
    setting = Setting(offer=EIGHT, profile=profile(LINEAR, start=1.0, resize=1.0))
    rentable = setting.rentables[0]
    group = [trial("t0", "at rung", 1.0), trial("t1", "at rung", 1.0)]
    other = trial("t2", "training", 4.0)
    view = SimpleNamespace(
        now=10.0,
        gpus=8,
        held={EIGHT: 1},
        rentables=(rentable,),
        running=[*group, other],
        trials={member.id: member for member in [*group, other]},
        until=lambda _: 5,
        epoch_seconds=lambda _trial, _offer, width: rentable.epoch_seconds(width),
    )
    fluid = StaticFluid()
    widths = [fluid.resized(cast("Any", view), member) for member in group]
    assert widths == [2.0, 2.0], "half of the four GPUs that the other doesn't have"
    other.status = "stopping"
    view.now = 11.0
    assert [fluid.resized(cast("Any", view), member) for member in group] == [4.0, 4.0]
