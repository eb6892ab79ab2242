"""How many instances there should be while a run decides as it goes: rules without a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.catalog import Offer
    from cloudtune.strategies.base import View


@dataclass(frozen=True)
class ConstantFleet:
    """The same instances from the begin of a run to its end."""

    offer: Offer
    instances: int
    name: str = "constant"
    repacks: bool = False

    def most_gpus(self, view: View) -> int:
        """Return all GPUs of the fleet."""
        return self.instances * self.offer.gpus

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the whole fleet, whatever is needed."""
        return {self.offer: self.instances}


@dataclass(frozen=True)
class NaiveFleet:
    """A constant fleet whose idle instances are given back, and rented again when needed."""

    offer: Offer
    instances: int
    name: str = "naive"
    repacks: bool = False

    def most_gpus(self, view: View) -> int:
        """Return all GPUs that the fleet may grow to."""
        return self.instances * self.offer.gpus

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return as many instances as are needed, up to the fleet's size."""
        return {self.offer: min(self.instances, math.ceil(needed / self.offer.gpus - 1e-6))}
