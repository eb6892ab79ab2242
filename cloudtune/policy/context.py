"""The arguments of strategies, allocators and fleet rules."""

from dataclasses import dataclass

from cloudtune.errors import UsageError
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.text import width_text
from cloudtune.model.trial import Mode, Width
from cloudtune.strategies.hypersched_rules import AS_PUBLISHED, Switches


@dataclass(frozen=True)
class BuildContext:
    """The facts of a job from which strategies, allocators and fleet rules are built.

    `trials` caps the trials that are started, `max_concurrent` those that train at once. Trials are
    first compared at `min_epochs` and train to `max_epochs` at most. `switches` are HyperSched's.
    With `inherit` a clone may have another network than its parent. For a forecast, the run is
    played in place of one `stands_for` times as large.
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
    switches: Switches = AS_PUBLISHED
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

    @property
    def atom(self) -> Width:
        """The GPUs of HyperSched's atom.

        Raises:
            UsageError: trials of that width weren't measured.
        """
        asked = self.switches.atom
        widths = self.cheapest.profile.widths
        if asked is None:
            return self.one_gpu
        if asked not in widths:
            measured = ", ".join(map(width_text, widths))
            raise UsageError(f"strategy.rules.atom: {asked} GPUs weren't measured; {measured} were")
        return float(asked)
