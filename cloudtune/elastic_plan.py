"""What is known beforehand of a run that decides as it goes: what it may rent, and a forecast."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloudtune.plan import Charges, Estimate, Spread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.catalog import Offer


@dataclass(frozen=True)
class Figures:
    """What a run came to: the same figures of a simulated and of a real one.

    `epochs` are those of the trial that did best; `gpu_hours` are paid for, whether trials train
    in them or not; `instances` is the most at once.
    """

    seconds: float
    dollars: float
    trials: float
    epochs: float
    gpu_hours: float
    instances: float


@dataclass(frozen=True)
class Forecast:
    """What the very policy came to in simulated runs, whose metrics are made up.

    `results` is the share of them in which any trial finished an epoch.
    """

    seconds: Spread
    dollars: Spread
    trials: Spread
    epochs: Spread
    gpu_hours: Spread
    instances: Spread
    results: float
    samples: int


@dataclass(frozen=True)
class Machines:
    """So many instances of one offer."""

    offer: Offer
    instances: int


@dataclass(frozen=True)
class ElasticPlan:
    """The stand-in for a plan where there are no stages beforehand.

    `fleet` is what its fleet rule rents at most, as far as it knows before the run; `offers` are
    all that it may rent. What is alive never exceeds `max_instances` or `vcpu_quotas` (vCPUs by
    `Offer.quota`).
    """

    strategy: str
    allocator: str
    fleet_rule: str
    offers: tuple[Offer, ...]
    fleet: tuple[Machines, ...]
    max_instances: int
    forecast: Forecast
    charges: Charges = field(default_factory=Charges)
    vcpu_quotas: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def estimate(self) -> Estimate:
        """The medians of the forecast."""
        return Estimate(self.forecast.seconds.p50, self.forecast.dollars.p50)

    @property
    def most_instances(self) -> int:
        """The largest fleet that the fleet rule is known to want."""
        return sum(each.instances for each in self.fleet)

    @property
    def usd_per_second(self) -> float:
        """What that fleet costs, and what the run costs besides."""
        rented = sum(each.offer.usd_per_second * each.instances for each in self.fleet)
        return rented + self.charges.usd_per_second
