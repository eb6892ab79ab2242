"""What training costs on the instances that SEER rents: GPU-seconds by width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtune.plan import Rentable
    from cloudtune.trial import Width

_FASTER = 1.02
"""A wider width counts only if it is that much faster: the curve may fall, at a node's edge."""


@dataclass(frozen=True)
class Costs:
    """The speeds of one rentable; `epoch` is the seconds of an epoch on one GPU, as measured.

    `widths` are those worth using, the narrowest first: that is the one whose GPU-seconds are
    fewest, among those that share a GPU or fill one.
    """

    rentable: Rentable
    epoch: float
    widths: tuple[Width, ...]

    @classmethod
    def of(cls, rentable: Rentable, epoch: float) -> Costs:
        """Return the costs where an epoch at the narrowest width takes so many seconds."""
        return cls(rentable, epoch, useful_widths(rentable))

    @property
    def gpus(self) -> int:
        """GPUs of one instance."""
        return self.rentable.gpus

    @property
    def narrow(self) -> Width:
        """The width at which an epoch costs least."""
        return self.widths[0]

    def seconds(self, epochs: int, width: Width) -> float:
        """Return the seconds of so many epochs at a width, without a start."""
        profile = self.rentable.profile
        ratio = profile.epoch_seconds(width) / profile.epoch_seconds(self.narrow)
        return epochs * self.epoch * ratio

    @property
    def resize(self) -> float:
        """Seconds from one session of a trial to the next."""
        return self.rentable.profile.resize.mean

    @property
    def start(self) -> float:
        """Seconds that a new trial takes to be set up."""
        return self.rentable.profile.start.mean

    @property
    def boot(self) -> float:
        """Seconds for which a new instance is paid before it takes trials."""
        return self.rentable.profile.boot.mean

    def gpu_seconds(self, dollars: float) -> float:
        """Return what dollars pay for."""
        price = self.rentable.offer.usd_per_second / self.gpus
        return dollars / price if price > 0 else float("inf")


def useful_widths(rentable: Rentable) -> tuple[Width, ...]:
    """Return the widths that are worth their GPUs: from the cheapest, each faster than the last."""
    profile = rentable.profile
    shared = [width for width in profile.widths if width <= 1] or [profile.widths[0]]
    found = [min(shared, key=lambda width: (width * profile.epoch_seconds(width), -width))]
    for width in profile.widths:
        if width > found[-1] and _FASTER * profile.epoch_seconds(width) < profile.epoch_seconds(
            found[-1]
        ):
            found.append(width)
    return tuple(found)
