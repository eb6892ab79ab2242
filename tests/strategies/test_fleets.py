"""Fleet rules and widths that know no plan."""

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import cast

import pytest

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Rentable
from cloudtune.model.trial import Slice
from cloudtune.strategies.base import View
from cloudtune.strategies.fleets import BackToSpot, ConstantFleet, NaiveFleet, emptied
from tests.builders import offer, profile

FOUR, OTHER = offer(4), offer(8, name="g.8x")


def viewed(
    held: Mapping[Offer, int] = MappingProxyType({}), avoided: Container[Offer] = ()
) -> View:
    return cast("View", SimpleNamespace(held=held, avoided=lambda item: item in avoided))


VIEW = viewed()


@pytest.mark.parametrize(
    ("needed", "instances"),
    [(0.0, 0), (0.5, 1), (4.0, 1), (4.0 + 1e-9, 1), (12 * (1 / 3), 1), (4.5, 2), (99.0, 3)],
)
def test_a_naive_fleet_is_as_large_as_is_needed(needed: float, instances: int) -> None:
    """Sums of fractions don't rent an instance by their last bit."""
    fleet = NaiveFleet(FOUR, 3)
    assert fleet.target(VIEW, needed) == ({FOUR: instances} if instances else {})
    assert fleet.max_gpus(VIEW) == 12


def test_another_offer_stands_in_for_a_refused_one() -> None:
    fleet = ConstantFleet(FOUR, 4, (OTHER,))
    assert fleet.target(viewed(avoided=[FOUR]), 1.0) == {OTHER: 2}
    assert fleet.target(viewed({FOUR: 1}, [FOUR]), 1.0) == {FOUR: 1, OTHER: 2}, "12 more GPUs"
    assert fleet.target(viewed({OTHER: 2}), 1.0) == {OTHER: 2}, "it stays when the first is back"
    assert fleet.target(viewed({OTHER: 1}), 1.0) == {OTHER: 1, FOUR: 2}
    assert fleet.target(viewed(avoided=[FOUR, OTHER]), 1.0) == {FOUR: 4}, "once it may be asked"


def test_spot_takes_over_only_where_some_on_demand_is_dearer() -> None:
    """Offers come the cheapest first: what is dearer than all on demand saves nothing."""
    spot = [replace(offer(4, name=name), market="spot") for name in ("s.1x", "s.2x")]
    view = SimpleNamespace(
        held={FOUR: 1},
        avoided=lambda _offer: False,
        fleet=SimpleNamespace(usable=list, wanted=list),
        rentables=[Rentable(it, profile({1.0: 10.0}), 4) for it in (FOUR, *spot)],
        corrected=lambda rentable, _trials: rentable,
        running=[],
        seconds_left=math.inf,
        dollars_left=math.inf,
    )

    def target(*offers: Offer) -> Mapping[Offer, int]:
        return BackToSpot(NaiveFleet(FOUR, 3), offers).target(cast("View", view), 4.0)

    assert target(spot[0], FOUR, spot[1]) == {FOUR: 1, spot[0]: 1}
    assert target(FOUR, *spot) == {FOUR: 1}


@pytest.mark.parametrize(
    ("loads", "at_risk", "target", "going"),
    [
        ((3.0, 1.0), "", {FOUR: 1}, ["b"]),
        ((3.0, 1.0), "a", {FOUR: 1}, ["a"]),
        ((3.0, 2.0), "", {FOUR: 1}, []),
        ((0.0, 4.0), "", {FOUR: 1}, ["a"]),
        ((0.0, 0.0), "", {OTHER: 1}, ["a", "b"]),
    ],
)
def test_a_surplus_instance_goes_if_its_trials_fit_elsewhere(
    loads: tuple[float, float], at_risk: str, target: Mapping[Offer, int], going: list[str]
) -> None:
    """Two of four GPUs are held where one is to be, or none: one at risk goes, or the emptier."""
    usable = [SimpleNamespace(instance=name, offer=FOUR, at_risk=name == at_risk) for name in "ab"]
    trials = [
        SimpleNamespace(placement=(Slice(name, load),))
        for name, load in zip("ab", loads, strict=True)
        if load
    ]
    fleet = SimpleNamespace(usable=lambda: usable)
    view = SimpleNamespace(fleet=fleet, running=trials, held={FOUR: 2})
    assert list(emptied(cast("View", view), target)) == going
