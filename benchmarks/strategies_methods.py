"""What is compared: methods, and the variants of each of which the best counts, in hindsight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.strategies_cells import SIZES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PEERS = (
    "random",
    "median",
    "halving",
    "hyperband",
    "asha",
    "asha-stopping",
    "bohb",
    "hypersched",
    "rubberband",
)
OURS = ("seer", "seer-constant", "seer-random", "seer-barrier")
"""seer-random is seer with the peers' sampler: what of its gain isn't the model's."""
SPOT, PACKS = "@spot", "@spot+packed"
"""Behind a method's name: it may have spot, which comes and goes; and pack two trials on a GPU."""
PLAIN = ("random", "halving", "hyperband", "asha", "asha-stopping")
"""The peers that have spot in the plain way: the cheapest first, on-demand where that is refused,
a trial that was lost goes on from its checkpoint."""
WITHOUT_ETA = frozenset({"random", "median"})
HEEDING = frozenset({"hypersched", "rubberband", *OURS})
"""They look at their limits, or at how training scales: they are played in each cell."""
TRIALS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Of which RubberBand, whose schedule is given, gets the best number in hindsight."""
_SLOW = frozenset({"bohb"})


@dataclass(frozen=True)
class Variant:
    """A strategy with the choices that someone has to make for it; an empty one is its own."""

    strategy: str
    eta: int = 3
    fleet: str = ""
    trials: int | None = None
    sampler: str = ""
    market: str = ""

    @property
    def method(self) -> str:
        """The method that it is a variant of."""
        named = f"{self.strategy}-{self.sampler}" if self.sampler else self.strategy
        return named + self.market

    @property
    def read(self) -> bool:
        """Whether one long run tells what it comes to within any limits."""
        return self.strategy not in HEEDING and not self.market

    @property
    def label(self) -> str:
        """Its name in tables."""
        trials = "" if self.trials is None else f" of {self.trials}"
        return f"{self.method}{trials} eta {self.eta} {self.fleet}".rstrip()


@dataclass(frozen=True)
class Choices:
    """Which variants there are of the peers."""

    etas: Sequence[int] = (2, 3, 4)
    fleets: Sequence[str] = ("constant", "naive")
    sizes: Sequence[int] = SIZES
    trials: Sequence[int] = TRIALS

    def of(self, method: str, configurations: int) -> Iterator[Variant]:
        """Yield the variants of a method on a table of so many configurations."""
        method, at, market = method.partition("@")
        for variant in self._of(method, configurations):
            yield replace(variant, market=at + market)

    def _of(self, method: str, configurations: int) -> Iterator[Variant]:
        if method in OURS:
            alike = method.endswith("-random")
            yield Variant(method.removesuffix("-random"), sampler="random" if alike else "")
        elif method == "rubberband":
            for eta in self.etas:
                for trials in self.trials:
                    if trials <= configurations:
                        yield Variant(method, eta, trials=trials)
        else:
            for eta in self._etas(method):
                for fleet in self.fleets if method not in _SLOW else ("constant",):
                    for size in self.sizes:
                        yield Variant(method, eta, f"{fleet}:{size}")

    def _etas(self, method: str) -> Sequence[int]:
        if method in WITHOUT_ETA:
            return (3,)
        return (3,) if method in _SLOW else self.etas
