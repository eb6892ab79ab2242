"""Which widths fit together: so many trials of each kind on instances of each size.

An integer program over counts, not over places: patterns say how a GPU can be shared among
fractions, and how an instance can be cut into widths.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pulp

from cloudtune.planners.solver import solve, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cloudtune.planners.seating import Pattern, Piece
    from cloudtune.planners.solver import Solved
    from cloudtune.trial import TrialId, Width

_EPSILON = 1e-6  # 1/3 + 1/3 + 1/3 must fit on one GPU


@dataclass(frozen=True)
class Kind:
    """Tasks that are alike, by name."""

    seconds: Mapping[Width, float]
    names: tuple[TrialId, ...]

    def within(self, deadline: float) -> list[Width]:
        """Return the widths that are fast enough, ascending."""
        return sorted(width for width, taken in self.seconds.items() if taken <= deadline)


class Packing:
    """The integer program: so many of each kind at a width on a size of instance."""

    def __init__(
        self, kinds: Sequence[Kind], widths: Sequence[Sequence[Width]], sizes: Sequence[int]
    ) -> None:
        self._kinds = kinds
        self._problem: Any = pulp.LpProblem("allocation", pulp.LpMinimize)
        self._placed: dict[tuple[int, Width, int], Any] = {
            (k, width, gpus): self._count(f"x{k}_{n}_{gpus}", len(kinds[k].names))
            for k, some in enumerate(widths)
            for n, width in enumerate(some)
            for gpus in sizes
        }
        used = sorted({width for some in widths for width in some})
        fractions = [width for width in used if width < 1]
        self._shares = {
            (gpus, pattern): self._count(f"u{gpus}_{n}")
            for gpus in sizes
            for n, pattern in enumerate(_patterns(fractions, 1.0))
        }
        self._cuts = {
            (gpus, pattern): self._count(f"v{gpus}_{n}")
            for gpus in sizes
            for n, pattern in enumerate(_patterns([1.0, *(w for w in used if 1 < w <= gpus)], gpus))
        }

    def solve(self, machines: Mapping[str, int], nodes: int | None, *, thrifty: bool) -> Solved:
        """Look for the least GPU-seconds, or for anything that fits."""
        for k, kind in enumerate(self._kinds):
            mine = [(x, 1.0) for (other, _, _), x in self._placed.items() if other == k]
            self._problem.addConstraint(total(mine) == len(kind.names))
        for gpus in sorted(set(machines.values())):
            self._room(gpus, sum(1 for each in machines.values() if each == gpus))
        costs = [
            (x, _taken_gpus(width, gpus) * self._kinds[k].seconds[width] if thrifty else 0.0)
            for (k, width, gpus), x in self._placed.items()
        ]
        self._problem.setObjective(total(costs))
        return solve(self._problem, nodes)

    def pieces(self) -> list[Piece]:
        """Return which task got which width, on which size of instance."""
        left = [list(kind.names) for kind in self._kinds]
        return [
            (left[k].pop(0), width, self._kinds[k].seconds[width], gpus)
            for (k, width, gpus), x in self._placed.items()
            for _ in range(round(x.varValue or 0.0))
        ]

    def cuts(self) -> list[tuple[int, Pattern]]:
        """Return how instances are cut into widths: one entry an instance."""
        return list(_expanded(self._cuts))

    def shares(self) -> list[tuple[int, Pattern]]:
        """Return how GPUs are shared: one entry a GPU."""
        return list(_expanded(self._shares))

    def _count(self, name: str, most: int | None = None) -> Any:
        return self._problem.add_variable(name, 0, most, pulp.LpInteger)

    def _room(self, gpus: int, machines: int) -> None:
        """Let everything on instances of this size fit there."""
        shares = {pattern: u for (size, pattern), u in self._shares.items() if size == gpus}
        cuts = {pattern: v for (size, pattern), v in self._cuts.items() if size == gpus}
        whole: list[tuple[Any, float]] = [(v, 1.0) for v in cuts.values()]
        here: dict[Width, list[Any]] = {1.0: []} if shares else {}
        for (_, width, size), x in self._placed.items():
            if size == gpus:
                here.setdefault(width, []).append(x)
        for width, placed in here.items():
            if width > gpus:
                whole += [(x, float(math.ceil(width / gpus))) for x in placed]
                continue
            supply = shares if width < 1 else cuts
            room = [(y, float(pattern.count(width))) for pattern, y in supply.items()]
            demand = [(x, -1.0) for x in placed]
            demand += [(u, -1.0) for u in shares.values()] if width == 1 else []
            self._problem.addConstraint(total(room + demand) >= 0)
        self._problem.addConstraint(total(whole) <= machines)


def _taken_gpus(width: Width, gpus: int) -> float:
    """Return the GPUs that a trial takes: its width, or whole instances."""
    return width if width <= gpus else float(math.ceil(width / gpus) * gpus)


def _expanded(found: Mapping[tuple[int, Pattern], Any]) -> Iterator[tuple[int, Pattern]]:
    for key, variable in found.items():
        yield from itertools.repeat(key, round(variable.varValue or 0.0))


def _patterns(widths: Iterable[Width], room: float) -> Iterator[Pattern]:
    """Yield every way to fill the room with widths so that no other one fits, widest first."""
    descending = sorted(widths, reverse=True)

    def fill(start: int, left: float) -> Iterator[Pattern]:
        for index in range(start, len(descending)):
            if descending[index] <= left + _EPSILON:
                for rest in fill(index, left - descending[index]):
                    yield descending[index], *rest
        if not descending or descending[-1] > left + _EPSILON:
            yield ()

    return (pattern for pattern in fill(0, room) if pattern)
