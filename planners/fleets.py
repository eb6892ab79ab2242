"""How many instances there should be while a run decides as it goes: rules without a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.strategies.base import View


@dataclass(frozen=True)
class ConstantFleet:
    """The same instances from the begin of a run to its end.

    Where the cloud refuses them, the first of `standins` that it doesn't takes their place.
    """

    offer: Offer
    instances: int
    standins: tuple[Offer, ...] = ()
    name: str = "constant"
    repacks: bool = False

    def most_gpus(self, view: View) -> int:
        """Return all GPUs of the fleet."""
        return self.instances * self.offer.gpus

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the whole fleet, whatever is needed."""
        return stood_in_for(view, (self.offer, *self.standins), self.most_gpus(view))


@dataclass(frozen=True)
class NaiveFleet:
    """A constant fleet whose idle instances are given back, and rented again when needed.

    Where the cloud refuses them, the first of `standins` that it doesn't takes their place.
    """

    offer: Offer
    instances: int
    standins: tuple[Offer, ...] = ()
    name: str = "naive"
    repacks: bool = False

    def most_gpus(self, view: View) -> int:
        """Return all GPUs that the fleet may grow to."""
        return self.instances * self.offer.gpus

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return as many instances as are needed, up to the fleet's size."""
        wanted = min(needed, self.most_gpus(view))
        return stood_in_for(view, (self.offer, *self.standins), wanted)


def stood_in_for(view: View, offers: Sequence[Offer], gpus: float) -> Mapping[Offer, int]:
    """Return instances with so many GPUs in all: what is held, and more of what isn't refused now.

    The first offers come first. Where all are refused, more of the first are wanted.
    """
    target: dict[Offer, int] = {}
    for offer in offers:
        target[offer] = min(view.held.get(offer, 0), _instances(offer, gpus))
        gpus -= target[offer] * offer.gpus
    willing = next((offer for offer in offers if not view.avoided(offer)), offers[0])
    target[willing] += _instances(willing, gpus)
    return {offer: count for offer, count in target.items() if count > 0}


def _instances(offer: Offer, gpus: float) -> int:
    return max(0, math.ceil(gpus / offer.gpus - 1e-6))
