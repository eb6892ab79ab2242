"""Who is better in which cell: against the best peer, chosen on the other half of the seeds."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.strategies_cells import Cell
from benchmarks.strategies_runs import ANY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.strategies_runs import Row

_ERRORS = 2.0
"""So many paired standard errors apart, and one is better."""
Regrets = dict[str, dict[int, float]]
"""By variant, then by seed."""


class Verdict(NamedTuple):
    """How a method did in one cell: `regret` and its best peer's, floored, and their ratio.

    `hindsight` is the ratio if the peer were chosen on all seeds, which flatters it: by luck too.
    `difference` is the mean over seeds of the one minus the other, `error` its standard error.
    """

    ground: str
    profile: str
    cell: Cell
    method: str
    seeds: int
    regret: float
    peer: float
    difference: float
    error: float
    ratio: float
    hindsight: float
    verdict: str
    variant: str
    peers: str


def crossed(regrets: Regrets, seeds: Sequence[int]) -> tuple[dict[int, float], tuple[str, ...]]:
    """Return each seed's regret by the variant that is best on the other half of the seeds.

    Also returns the two variants that were chosen. The halves are every other seed.
    """
    found: dict[int, float] = {}
    chosen = []
    for half in (0, 1):
        judged, choosing = seeds[half::2], seeds[1 - half :: 2]
        best = min(regrets, key=lambda name: (fmean(regrets[name][s] for s in choosing), name))
        chosen.append(best)
        found |= {seed: regrets[best][seed] for seed in judged}
    return found, tuple(dict.fromkeys(chosen))


def judged(differences: Sequence[float]) -> tuple[float, float, str]:
    """Return the mean difference, its standard error, and who is better by it."""
    mean = fmean(differences)
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    if mean == 0 or abs(mean) <= _ERRORS * error:
        return mean, error, "tied"
    return mean, error, "better" if mean < 0 else "worse"


@dataclass
class Book:
    """The regrets of all runs, by table, profile and cell, then by method."""

    floors: Mapping[str, float]

    def __post_init__(self) -> None:
        self._found: dict[tuple[str, str, Cell], dict[str, Regrets]] = defaultdict(dict)

    def add(self, rows: Iterable[Row]) -> None:
        """Take runs down."""
        for row in rows:
            key = row.ground, row.profile, Cell(row.deadline, row.budget)
            of = self._found[key].setdefault(row.method, {})
            of.setdefault(row.variant, {})[row.seed] = max(row.regret, self.floors[row.ground])

    def methods(self, ground: str, profile: str, cell: Cell) -> dict[str, Regrets]:
        """Return what was found in a cell; what never widens is the same by each profile."""
        same = self._found.get((ground, ANY, cell), {})
        return {**same, **self._found.get((ground, profile, cell), {})}

    def verdicts(
        self,
        profiles: Sequence[str],
        subjects: Sequence[str],
        peers: Sequence[str],
        seeds: Sequence[int],
    ) -> list[Verdict]:
        """Return how each subject did in each cell, against the best of the others."""
        places = dict.fromkeys((ground, cell) for ground, _, cell in self._found)
        found = []
        for ground, cell in places:
            for profile in profiles:
                by_method = self.methods(ground, profile, cell)
                for subject in subjects:
                    one = _verdict(subject, by_method, peers, seeds)
                    if one is not None:
                        found.append(Verdict(ground, profile, cell, subject, len(seeds), *one))
        return found


def _verdict(
    subject: str, found: Mapping[str, Regrets], peers: Sequence[str], seeds: Sequence[int]
) -> tuple[float, float, float, float, float, float, str, str, str] | None:
    own = _whole(found.get(subject, {}), seeds)
    others = {
        name: regrets
        for peer in peers
        if peer != subject
        for name, regrets in _whole(found.get(peer, {}), seeds).items()
    }
    if not own or not others:
        return None
    mine, chosen = crossed(own, seeds)
    best, rivals = crossed(others, seeds)
    mean, error, verdict = judged([mine[seed] - best[seed] for seed in seeds])
    ours, theirs = fmean(mine.values()), fmean(best.values())
    hindsight = _least(own, seeds) / _least(others, seeds)
    names = " / ".join(chosen), " / ".join(rivals)
    return ours, theirs, mean, error, ours / theirs, hindsight, verdict, *names


def _least(regrets: Regrets, seeds: Sequence[int]) -> float:
    return min(fmean(of[seed] for seed in seeds) for of in regrets.values())


def _whole(regrets: Regrets, seeds: Sequence[int]) -> Regrets:
    """Return the variants of which all seeds are there."""
    return {name: of for name, of in regrets.items() if all(seed in of for seed in seeds)}


# ---- tables --------------------------------------------------------------------------------------


class Share(NamedTuple):
    """How a method did over all cells of a group."""

    cells: int
    better: int
    tied: int
    worse: int
    median: float
    p90: float
    hindsight: float


def share(verdicts: Sequence[Verdict]) -> Share:
    """Return the summary of some verdicts."""
    kinds = [each.verdict for each in verdicts]
    ratios = sorted(each.ratio for each in verdicts)
    counts = (kinds.count("better"), kinds.count("tied"), kinds.count("worse"))
    p90 = ratios[min(len(ratios) - 1, math.ceil(0.9 * len(ratios)) - 1)]
    return Share(len(kinds), *counts, median(ratios), p90, median(v.hindsight for v in verdicts))


HEAD = (
    f"{'curves':13} {'profile':19} {'method':14} {'cells':>5} "
    f"{'better':>6} {'tied':>5} {'worse':>5} {'median':>7} {'p90':>6} {'hindsight':>9}"
)


def table(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the summary, a line for each table of curves, profile and method, then for all."""
    lines = [HEAD]
    grounds = [*dict.fromkeys(each.ground for each in verdicts), "all"]
    for ground in grounds:
        of = [each for each in verdicts if ground in {"all", each.ground}]
        for profile in dict.fromkeys(each.profile for each in of):
            for method in dict.fromkeys(each.method for each in of):
                own = [v for v in of if (v.profile, v.method) == (profile, method)]
                lines += [_line(ground, profile, method, share(own))] if own else []
    return lines


def _line(ground: str, profile: str, method: str, of: Share) -> str:
    return (
        f"{ground:13} {profile:19} {method:14} {of.cells:5d} "
        f"{of.better:6d} {of.tied:5d} {of.worse:5d} "
        f"{of.median:7.2f} {of.p90:6.2f} {of.hindsight:9.2f}"
    )


def cells_table(verdicts: Sequence[Verdict], method: str) -> list[str]:
    """Return a method's cells one by one, the worst first."""
    own = sorted((v for v in verdicts if v.method == method), key=lambda v: -v.ratio)
    return [
        f"{v.ground:13} {v.profile:19} {v.cell.deadline:5g} {v.cell.budget:5g} "
        f"{v.regret:9.4f} {v.peer:9.4f} {v.ratio:6.2f} {v.verdict:6}  {v.peers}"
        for v in own
    ]
