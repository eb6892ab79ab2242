"""What SEER may do with the time and the money that are left: programs, their prices and worth.

A program is a ladder. From each level the best go on to the next, as many as its quota; new trials
enter below, or none do any more. Programs differ in how far the ladder goes, where it starts, how
steep it is and how many reach its top. The price is that of the fluid model (GPU-seconds by level,
one level after the other); the worth is the expected best value, by Monte Carlo over what this
run's own trials have gained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from cloudtune.strategies.seer_growth import FAILED, better_half, deviation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cloudtune.strategies.seer_costs import Costs
    from cloudtune.strategies.seer_growth import Floats, Growth
    from cloudtune.trial import Width

KEPT = (0.3, 0.4, 0.5, 0.62, 0.75)
"""The share of a level that goes on."""
FINALISTS = (1, 2, 4, 8, 16)
"""How many reach the top."""
SAMPLES = 16
MOST = 600
"""As many trials of a level are looked at, at most."""
_EXPLORING = 1.5
"""The least time for new trials: so many times one of them at the first level, and a boot."""


@dataclass(frozen=True, order=True)
class Shape:
    """A ladder up to level `top` from level `start` (-1: from new trials), as indices.

    `kept` is an index into KEPT, `finalists` one into FINALISTS.
    """

    top: int
    start: int
    kept: int
    finalists: int

    def near(self) -> Iterable[Shape]:
        """Yield the shapes that differ in one step."""
        top, start, kept, finalists = self.top, self.start, self.kept, self.finalists
        for step in (1, -1):
            yield Shape(top + step, start, kept, finalists)
            yield Shape(top, start + step, kept, finalists)
            yield Shape(top, start, kept + step, finalists)
            yield Shape(top, start, kept, finalists + step)


@dataclass(frozen=True)
class Program:
    """A shape with its numbers: by level how many go on from it, and how wide it is reached.

    `new` trials are to be started on a fleet of `instances`.
    """

    shape: Shape
    quotas: tuple[int, ...]
    widths: tuple[Width, ...]
    new: int
    instances: int
    worth: float = -math.inf

    @property
    def explores(self) -> bool:
        """Whether new trials are started."""
        return self.shape.start < 0

    @property
    def kept(self) -> float:
        """The share of a level that goes on."""
        return KEPT[self.shape.kept]

    @property
    def lowest(self) -> int:
        """The lowest level from which trials go on."""
        return max(self.shape.start, 0)


@dataclass(frozen=True)
class Prospects:
    """What there is to make a program from.

    `resting` are the values that may go on, by level, the best first; `coming` those expected soon
    at each level. `seconds` and `gpu_seconds` are what is left; `live` instances are there.
    """

    levels: tuple[int, ...]
    costs: Costs
    seconds: float
    gpu_seconds: float
    live: int
    most_instances: int
    resting: Sequence[Floats]
    coming: Sequence[Floats]
    more_trials: bool
    best: float
    growth: Growth
    table: Floats
    draws: Floats = field(repr=False)

    def there(self, level: int) -> int:
        """Return how many are at a level, or soon will be."""
        return len(self.resting[level]) + len(self.coming[level])

    def stage_seconds(self, level: int, width: Width) -> float:
        """Return the seconds from the level below to this one, with a restart."""
        epochs = self.levels[level] - self.levels[level - 1]
        return self.costs.seconds(epochs, width) + self.costs.resize

    def best_program(self, first: Shape | None) -> Program | None:
        """Return a program that is worth more than all its neighbours; None if nothing fits.

        The search begins at the best of a few shapes, of which `first` is one.
        """
        known: dict[Shape, Program | None] = {}

        def program(shape: Shape) -> Program | None:
            if shape not in known:
                known[shape] = self._program(shape)
            return known[shape]

        seeds = self._seeds() if first is None else [first, *self._seeds()]
        found = [p for shape in seeds if (p := program(shape)) is not None]
        if not found:
            found = [p for shape in self._all() if (p := program(shape)) is not None]
        best = max(found, key=lambda p: p.worth, default=None)
        while best is not None:
            near = [p for shape in best.shape.near() if (p := program(shape)) is not None]
            better = max(near, key=lambda p: p.worth, default=None)
            if better is None or better.worth <= best.worth:
                break
            best = better
        return best

    def _seeds(self) -> list[Shape]:
        tops = range(len(self.levels) - 1, 0, -1)
        return [Shape(top, start, 2, 1) for top in tops for start in (-1, max(0, top - 2))]

    def _all(self) -> list[Shape]:
        """Return the leanest shapes: where not even those fit, nothing does."""
        tops = range(1, len(self.levels))
        return [Shape(t, s, kept, 0) for t in tops for s in range(-1, t) for kept in (0, 2)]

    def _program(self, shape: Shape) -> Program | None:
        priced = self._priced(shape) if self._possible(shape) else None
        if priced is None:
            return None
        return Program(
            priced.shape,
            priced.quotas,
            priced.widths,
            priced.new,
            priced.instances,
            worth=self._worth(priced),
        )

    def _possible(self, shape: Shape) -> bool:
        inside = 0 < shape.top < len(self.levels) and -1 <= shape.start < shape.top
        if not inside or not 0 <= shape.kept < len(KEPT):
            return False
        if not 0 <= shape.finalists < len(FINALISTS):
            return False
        return self.more_trials if shape.start < 0 else self.there(shape.start) > 0

    # ---- price ---------------------------------------------------------------------------

    def _quotas(self, shape: Shape) -> list[int] | None:
        """Return how many go on from each level, or None if there aren't enough."""
        finalists, kept, lowest = FINALISTS[shape.finalists], KEPT[shape.kept], max(shape.start, 0)
        quotas = [0] * len(self.levels)
        for level in range(lowest, shape.top):
            quotas[level] = math.ceil(finalists * kept ** -(shape.top - 1 - level) - 1e-9)
        if shape.start >= 0:
            quotas[lowest] = min(quotas[lowest], self.there(lowest))
            if quotas[lowest] < finalists:
                return None
        for level in range(lowest + 1, shape.top):
            quotas[level] = min(quotas[level], quotas[level - 1] + self.there(level))
        return quotas

    def _priced(self, shape: Shape) -> Program | None:
        """Return the program of a shape at the narrowest widths that keep the time, if any do."""
        quotas = self._quotas(shape)
        if quotas is None:
            return None
        stages = range(max(shape.start, 0) + 1, shape.top + 1)
        first = self.costs.seconds(self.levels[0], self.costs.narrow)
        boot = 0.0 if self.live else self.costs.boot
        if shape.start < 0:
            boot = _EXPLORING * (first + self.costs.boot)
        widths = self._widened(stages, quotas, self.seconds - boot)
        if widths is None:
            return None
        spent = sum(self._cost(level, quotas, widths[level]) for level in stages)
        if spent > self.gpu_seconds:
            return None
        works = [
            (self._cost(k, quotas, widths[k]), self.stage_seconds(k, widths[k])) for k in stages
        ]
        sized = self._sized(shape, quotas, works, first, spent)
        if sized is None:
            return None
        new, instances = sized
        return Program(shape, tuple(quotas), tuple(widths), new, instances)

    def _cost(self, level: int, quotas: Sequence[int], width: Width) -> float:
        """Return the GPU-seconds up to a level; a whole instance is the least that is paid."""
        gpus = max(quotas[level - 1] * width, self.costs.gpus)
        return gpus * self.stage_seconds(level, width)

    def _widened(
        self, stages: Iterable[int], quotas: Sequence[int], seconds: float
    ) -> list[Width] | None:
        """Return widths by level whose stages fit in the time, widening where it costs least."""
        stages = list(stages)
        widths = [self.costs.narrow] * len(self.levels)
        depth = sum(self.stage_seconds(level, widths[level]) for level in stages)
        while depth > seconds:
            steps = (s for level in stages for s in self._steps(level, widths[level], quotas))
            step = min(steps, default=None)
            if step is None:
                return None
            _, level, width = step
            depth += self.stage_seconds(level, width) - self.stage_seconds(level, widths[level])
            widths[level] = width
        return widths

    def _steps(
        self, level: int, width: Width, quotas: Sequence[int]
    ) -> Iterable[tuple[float, int, Width]]:
        """Yield wider widths for a level, each with its GPU-seconds for a second saved."""
        cost, seconds = self._cost(level, quotas, width), self.stage_seconds(level, width)
        room = self.most_instances * self.costs.gpus
        for wider in self.costs.widths:
            saved = seconds - self.stage_seconds(level, wider)
            if wider > width and saved > 0 and quotas[level - 1] * wider <= room:
                yield (self._cost(level, quotas, wider) - cost) / saved, level, wider

    def _sized(
        self,
        shape: Shape,
        quotas: Sequence[int],
        works: Sequence[tuple[float, float]],
        first: float,
        spent: float,
    ) -> tuple[int, int] | None:
        """Return the new trials that the rest pays for, and the smallest fleet that is in time."""
        costs, boot = self.costs, self.costs.boot
        unit = (first + costs.start) * costs.narrow
        left = self.gpu_seconds - spent
        new = 0
        if shape.start < 0:
            new = self._whole((left - boot * costs.gpus * max(0, 1 - self.live)) / unit)
        lowest = max(shape.start, 0)

        def span(instances: int) -> float:
            gpus = instances * costs.gpus
            seconds = sum(max(work / gpus, least) for work, least in works)
            exploring = max(new * unit / gpus, first) if new else 0.0
            return seconds + exploring + (boot if instances > self.live else 0.0)

        instances = 1
        while span(instances) > self.seconds and instances < self.most_instances:
            instances += 1
        if shape.start < 0:
            extra = max(0, instances - self.live) * boot * costs.gpus
            new = min(new, self._whole((left - extra) / unit))
        if span(instances) > self.seconds and new:
            over = (span(instances) - self.seconds) * instances * costs.gpus
            new = self._whole((new * unit - over) / unit)
        elif span(instances) > self.seconds:
            return None
        if shape.start < 0 and (new < 1 or new + len(self.resting[0]) < quotas[lowest]):
            return None
        return new, instances

    @staticmethod
    def _whole(trials: float) -> int:
        return int(min(max(trials, 0.0), 1e6))

    # ---- worth ---------------------------------------------------------------------------

    def _worth(self, program: Program) -> float:
        """Return the expected best value when the program has been carried out.

        New trials are those of this run drawn again, as far as these went, each a little shifted.
        """
        crowd = self._newcomers(program.new) if program.new else None
        best = np.full(SAMPLES, self.best)
        if crowd is not None:
            best = np.maximum(best, crowd.values.max(1))
        for level in range(program.lowest, program.shape.top):
            here = [*self.resting[level], *self.coming[level]]
            known = np.sort(np.array(here))[::-1][: program.quotas[level]]
            crowd = _joined(crowd, known)
            if crowd is None:
                return -math.inf
            crowd = self._one_level_on(crowd.best(min(program.quotas[level], MOST)), level + 1)
            best = np.maximum(best, crowd.values.max(1))
        return float(best.mean())

    def _newcomers(self, count: int) -> _Crowd:
        count = min(count, MOST)
        rows = len(self.table)
        if rows < 4:
            values = self.draws[0, :, :count]
            return _Crowd(values, np.full(values.shape, -1), np.zeros(values.shape))
        chosen = ((np.abs(self.draws[0, :, :count]) * 9973.0) % 1.0 * rows).astype(np.int64)
        top = better_half(self.table[:, 0])
        shift = deviation(top) * rows**-0.2 * self.draws[0, ::-1, :count]
        return _Crowd(self.table[chosen, 0] + shift, chosen, shift)

    def _one_level_on(self, crowd: _Crowd, level: int) -> _Crowd:
        width = crowd.values.shape[1]
        grown = self.growth.grown(crowd.values, level, self.draws[level, :, :width])
        if len(self.table):
            seen = np.where(crowd.rows >= 0, self.table[crowd.rows, level], np.nan) + crowd.shift
            grown = np.where(np.isnan(seen), grown, seen)
        return _Crowd(grown, crowd.rows, crowd.shift)


@dataclass(frozen=True)
class _Crowd:
    """Trials by sample: their values, which of the run's trials each repeats (or -1), its shift."""

    values: Floats
    rows: np.typing.NDArray[np.int64]
    shift: Floats

    def best(self, count: int) -> _Crowd:
        """Return the best of each sample."""
        if count >= self.values.shape[1]:
            return self
        chosen = np.argpartition(-self.values, count - 1, 1)[:, :count]
        return _Crowd(
            np.take_along_axis(self.values, chosen, 1),
            np.take_along_axis(self.rows, chosen, 1),
            np.take_along_axis(self.shift, chosen, 1),
        )


def _joined(crowd: _Crowd | None, known: Floats) -> _Crowd | None:
    """Return a crowd with these values in each of its samples."""
    if not len(known):
        return crowd
    values = np.broadcast_to(known, (SAMPLES, len(known)))
    rows, shift = np.full(values.shape, -1), np.zeros(values.shape)
    if crowd is None:
        return _Crowd(values, rows, shift)
    pairs = ((crowd.values, values), (crowd.rows, rows), (crowd.shift, shift))
    return _Crowd(*(np.concatenate(pair, 1) for pair in pairs))


__all__ = ["FAILED", "FINALISTS", "KEPT", "Program", "Prospects", "Shape"]
