"""Hyperband: brackets of successive halving that trade many short trials for few long ones."""

from cloudtune.model.trial import Mode
from cloudtune.strategies.base import Sampler
from cloudtune.strategies.successive_halving import Bracket, Brackets


def bracket_shapes(
    min_epochs: int, max_epochs: int, eta: int
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the trials and the epochs of the rungs of each bracket, from s_max down to 0.

    Source: Li et al., "Hyperband" (JMLR 2018), Algorithm 1: with R = max_epochs and s_max the
    largest s for which R * eta**-s is min_epochs or more, bracket s begins with
    n = ceil((s_max + 1) / (s + 1) * eta**s) trials, and its rungs stand at R * eta**-k for k from s
    down to 0; here they are rounded to whole epochs.
    """
    s_max = 0
    while min_epochs * eta ** (s_max + 1) <= max_epochs:
        s_max += 1
    shapes = []
    for s in range(s_max, -1, -1):
        trials = -(-(s_max + 1) * eta**s // (s + 1))
        shapes.append((trials, tuple(round(max_epochs / eta**k) for k in range(s, -1, -1))))
    return tuple(shapes)


class Hyperband(Brackets):
    """The brackets of Hyperband, repeated while the sampler has trials.

    Each bracket is synchronous. The next one begins when there is room and the brackets under way
    have nothing to start.
    """

    name = "hyperband"

    def __init__(
        self, sampler: Sampler, *, min_epochs: int, max_epochs: int, eta: int, mode: Mode
    ) -> None:
        super().__init__(sampler)
        self._shapes = bracket_shapes(min_epochs, max_epochs, eta)
        self._eta = eta
        self._mode = mode

    def _next(self) -> Bracket | None:
        trials, epochs = self._shapes[self._begun % len(self._shapes)]
        name = f"bracket {self._begun}"
        return Bracket(name, trials=trials, epochs=epochs, eta=self._eta, mode=self._mode)
