"""Fleet rules and widths that know no plan."""

from collections.abc import Container, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import cast

import pytest

from cloudtune.model.catalog import Offer
from cloudtune.strategies.base import View
from cloudtune.strategies.fleets import NaiveFleet
from tests.builders import offer

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
