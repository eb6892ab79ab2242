"""BOHB: Hyperband whose configurations come from a model of the results so far."""

from collections.abc import Iterator

from cloudtune.strategies.base import View
from cloudtune.strategies.hyperband import Hyperband
from cloudtune.strategies.rungs import at_rest
from cloudtune.strategies.successive_halving import Bracket


class Bohb(Hyperband):
    """Hyperband with a sampler that learns: brackets begin as there is room.

    Source: Falkner et al., "BOHB" (ICML 2018). The sampler should be model-based, with a share of
    its asks left to chance; it decides itself which epochs it learns from
    (`cloudtune.strategies.samplers.learner`).
    """

    name = "bohb"


class SyncBohb(Bohb):
    """BOHB one bracket at a time, so that the model knows a whole bracket before the next one."""

    name = "sync-bohb"
    _quiet = True

    def _in_turn(self, view: View) -> Iterator[Bracket]:
        self._quiet = not view.running
        yield from super()._in_turn(view)

    def _next(self) -> Bracket | None:
        return super()._next() if self._quiet and not self._playing else None

    def done(self, view: View) -> bool:
        """Whether every bracket is over and there are no trials for another."""
        return not self._playing and at_rest(view) and self._new.dry(view)
