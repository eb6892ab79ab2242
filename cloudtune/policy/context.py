"""The arguments of strategies, allocators and fleet rules."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.trial import Mode, Width


@dataclass(frozen=True)
class BuildContext:
    """The facts of a job from which strategies, allocators and fleet rules are built.

    `trials` caps the trials that are started, `max_concurrent` those that train at once. Trials are
    first compared at `min_epochs` and train to `max_epochs` at most. `rules` are those of
    `strategy.rules` that are set. With `inherit` a clone may have another network than its parent.
    For a forecast, the run is played in place of one `stands_for` times as large.
    """

    rentables: tuple[Rentable, ...]
    max_instances: int
    limits: Limits
    mode: Mode
    min_epochs: int
    max_epochs: int
    eta: int = 3
    trials: int | None = None
    max_concurrent: int | None = None
    seed: int = 0
    rules: Mapping[str, Any] = field(default_factory=dict)
    inherit: bool = False
    stands_for: int = 1

    @property
    def cheapest(self) -> Rentable:
        """The rentable on which an epoch costs least."""
        return min(self.rentables, key=lambda rentable: rentable.epoch_dollars)

    @property
    def one_gpu(self) -> Width:
        """A width of one GPU, or the narrowest that was measured."""
        widths = self.cheapest.profile.widths
        return 1.0 if 1.0 in widths else widths[0]
