"""Who is better in which cell: against the best peer, chosen on the other half of the seeds."""

from __future__ import annotations

import math
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, NamedTuple, cast

import pandas as pd

from benchmarks.strategies_cells import Cell
from benchmarks.strategies_runs import ANY, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# A method is better if it is this many standard errors of the paired difference apart.
_ERRORS = 2.0


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


def crossed(regrets: pd.DataFrame, seeds: Sequence[int]) -> tuple[pd.Series[float], str]:
    """Return each seed's regret by the variant that is best on the other half of the seeds.

    Also returns the names of the variants that were chosen. The halves are every other seed.

    Args:
        regrets: A row for each variant, a column for each seed.
        seeds: The seeds, two at least.
    """
    halves = (seeds[::2], seeds[1::2])
    best = [min((regrets.loc[v, half].mean(), v) for v in regrets.index)[1] for half in halves]
    parts: list[pd.Series[float]] = [
        cast("pd.Series[float]", regrets.loc[best[1 - n], half]) for n, half in enumerate(halves)
    ]
    return pd.concat(parts).sort_index(), " / ".join(dict.fromkeys(reversed(best)))


def judged(differences: Sequence[float]) -> tuple[float, float, str]:
    """Return the mean difference, its standard error, and who is better by it."""
    mean = fmean(differences)
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    if mean == 0 or abs(mean) <= _ERRORS * error:
        return mean, error, "tied"
    return mean, error, "better" if mean < 0 else "worse"


class Book:
    """The regrets of all runs; those below the floor of their table count as the floor."""

    def __init__(self, floors: Mapping[str, float]) -> None:
        self._floors = floors
        self._rows: dict[tuple[object, ...], Row] = {}

    def add(self, rows: Iterable[Row]) -> None:
        """Take runs down; a run that is there already is replaced."""
        for row in rows:
            floored = row._replace(regret=max(row.regret, self._floors[row.ground]))
            self._rows[row[: Row._fields.index("metric")]] = floored

    def verdicts(
        self,
        profiles: Sequence[str],
        subjects: Sequence[str],
        peers: Sequence[str],
        seeds: Sequence[int],
    ) -> list[Verdict]:
        """Return how each subject did in each cell, against the best of the others."""
        rows = pd.DataFrame(self._rows.values(), columns=Row._fields)
        verdicts = []
        for key, own in rows.groupby(["ground", "deadline", "budget"], sort=False):
            ground, deadline, budget = cast("tuple[str, float, float]", key)
            cell = Cell(deadline, budget)
            for profile in profiles:
                # What never widens is the same by each profile.
                here = own[own["profile"].isin([ANY, profile])]
                table = here.pivot(index=["method", "variant"], columns="seed", values="regret")
                whole = table.reindex(columns=list(seeds)).dropna()
                for subject in subjects:
                    figures = _verdict(subject, whole, peers, seeds)
                    if figures is not None:
                        count = len(seeds)
                        verdicts.append(Verdict(ground, profile, cell, subject, count, *figures))
        return verdicts


def _verdict(
    subject: str, regrets: pd.DataFrame, peers: Sequence[str], seeds: Sequence[int]
) -> tuple[float, float, float, float, float, float, str, str, str] | None:
    methods = regrets.index.get_level_values("method")
    own = regrets[methods == subject].droplevel("method")
    others = regrets[methods.isin(set(peers) - {subject})].droplevel("method")
    if own.empty or others.empty:
        return None
    mine, chosen = crossed(own, seeds)
    best, rivals = crossed(others, seeds)
    mean, error, verdict = judged((mine - best).tolist())
    hindsight = own.mean(axis=1).min() / others.mean(axis=1).min()
    ratio = mine.mean() / best.mean()
    figures = (mine.mean(), best.mean(), mean, error, ratio, hindsight)
    return *figures, verdict, chosen, rivals


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
    kinds = [verdict.verdict for verdict in verdicts]
    ratios = sorted(verdict.ratio for verdict in verdicts)
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
    for ground in [*dict.fromkeys(verdict.ground for verdict in verdicts), "all"]:
        here = [verdict for verdict in verdicts if ground in {"all", verdict.ground}]
        for profile in dict.fromkeys(verdict.profile for verdict in here):
            for method in dict.fromkeys(verdict.method for verdict in here):
                own = [v for v in here if (v.profile, v.method) == (profile, method)]
                lines += [_line(ground, profile, method, share(own))] if own else []
    return lines


def _line(ground: str, profile: str, method: str, own: Share) -> str:
    return (
        f"{ground:13} {profile:19} {method:14} {own.cells:5d} "
        f"{own.better:6d} {own.tied:5d} {own.worse:5d} "
        f"{own.median:7.2f} {own.p90:6.2f} {own.hindsight:9.2f}"
    )


def cells_table(verdicts: Sequence[Verdict], method: str) -> list[str]:
    """Return a method's cells one by one, the worst first."""
    own = sorted((v for v in verdicts if v.method == method), key=lambda v: -v.ratio)
    return [
        f"{v.ground:13} {v.profile:19} {v.cell.deadline:5g} {v.cell.budget:5g} "
        f"{v.regret:9.4f} {v.peer:9.4f} {v.ratio:6.2f} {v.verdict:6}  {v.peers}"
        for v in own
    ]
