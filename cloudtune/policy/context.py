"""What strategies, allocators and fleet rules are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtune.plans import Limits, Rentable
    from cloudtune.trial import Mode, Width


@dataclass(frozen=True)
class BuildContext:
    """The facts of a job that strategies, allocators and fleet rules are made from.

    `trials` caps how many trials are started. Trials train from `min_epochs`, where they are first
    compared, to `max_epochs` at most. With `inherit` a clone may have another network than its
    parent.
    """

    rentables: tuple[Rentable, ...]
    max_instances: int
    limits: Limits
    mode: Mode
    min_epochs: int
    max_epochs: int
    eta: int = 3
    trials: int | None = None
    seed: int = 0
    inherit: bool = False

    @property
    def cheapest(self) -> Rentable:
        """The rentable on which an epoch at the narrowest width of 1 or more costs least."""
        return min(self.rentables, key=epoch_dollars)

    @property
    def one_gpu(self) -> Width:
        """A width of one GPU, or the narrowest that was measured."""
        widths = self.cheapest.profile.widths
        return 1.0 if 1.0 in widths else widths[0]


def epoch_dollars(rentable: Rentable) -> float:
    """Return the dollars that an epoch costs at the narrowest width of 1 or more."""
    widths = [width for width in rentable.profile.widths if width >= 1] or rentable.profile.widths
    seconds = rentable.epoch_seconds(widths[0])
    return seconds * widths[0] / rentable.gpus * rentable.offer.usd_per_second
