"""What can be rented, at what price, as of when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from cloudtune.errors import UsageError

Market: TypeAlias = Literal["on-demand", "spot"]


@dataclass(frozen=True)
class InstanceType:
    """A kind of machine: GPUs per instance, memory in MiB."""

    name: str
    gpus: int
    gpu: str
    gpu_memory_mib: int
    vcpus: int
    memory_mib: int


@dataclass(frozen=True)
class Offer:
    """An instance type at a price, in one market of one region.

    Billed by the second from launch to terminate, and never for less than `minimum_seconds`
    (EC2's rule for Linux on-demand and spot instances).
    """

    instance_type: InstanceType
    market: Market
    region: str
    usd_per_hour: float
    minimum_seconds: float = 60.0

    @property
    def gpus(self) -> int:
        """GPUs of one instance."""
        return self.instance_type.gpus

    def charge(self, seconds: float) -> float:
        """Return the dollars that one instance costs when it lives so many seconds."""
        return max(seconds, self.minimum_seconds) * self.usd_per_hour / 3600.0

    def __str__(self) -> str:
        return f"{self.instance_type.name} {self.market} ${self.usd_per_hour:g}/h"


@dataclass(frozen=True)
class Catalog:
    """An immutable snapshot of offers: where the prices come from, and of which date."""

    offers: tuple[Offer, ...]
    source: str
    as_of: str

    def offer(self, instance_type: str) -> Offer:
        """Return the offer of that instance type.

        Raises:
            UsageError: the snapshot has no such type.
        """
        for offer in self.offers:
            if offer.instance_type.name == instance_type:
                return offer
        known = ", ".join(o.instance_type.name for o in self.offers)
        raise UsageError(f"no price is known for instance type {instance_type!r}; known: {known}")
