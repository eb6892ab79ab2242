"""Fleet rules and widths that know no plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from cloudtune.planners.fleets import ConstantFleet, NaiveFleet
from cloudtune.planners.widths import SameWidth
from cloudtune.progress import TrialProgress
from cloudtune.strategies.base import Task
from cloudtune.trial import Trial
from tests.builders import offer

if TYPE_CHECKING:
    from cloudtune.strategies.base import View

FOUR = offer(4)
VIEW = cast("View", SimpleNamespace())  # neither looks at the run


@pytest.mark.parametrize("needed", [0.0, 1.0, 99.0])
def test_a_constant_fleet_is_always_whole(needed: float) -> None:
    fleet = ConstantFleet(FOUR, 3)
    assert fleet.target(VIEW, needed) == {FOUR: 3}
    assert (fleet.most_gpus(VIEW), fleet.repacks) == (12, False)


@pytest.mark.parametrize(
    ("needed", "instances"),
    [(0.0, 0), (0.5, 1), (4.0, 1), (4.0 + 1e-9, 1), (12 * (1 / 3), 1), (4.5, 2), (99.0, 3)],
)
def test_a_naive_fleet_is_as_large_as_is_needed(needed: float, instances: int) -> None:
    """Sums of fractions don't rent an instance by their last bit."""
    fleet = NaiveFleet(FOUR, 3)
    assert fleet.target(VIEW, needed) == {FOUR: instances}
    assert fleet.most_gpus(VIEW) == 12


def test_every_trial_gets_the_same_width() -> None:
    widths, trial = SameWidth(0.5), Trial("t0", {})
    assert widths.least(VIEW) == 0.5
    assert widths.widths(VIEW, [Task(trial, 1)] * 3) == [0.5, 0.5, 0.5]
    assert widths.resized(VIEW, TrialProgress(trial, width=2.0)) == 0.5
