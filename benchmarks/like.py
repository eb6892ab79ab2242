"""What `--like RUN` is worth where the other run is related, where it isn't, and reversed.

    python -m benchmarks.like DATA [--tables alexnet,lstm128,…] [--seeds 24] [--first 0]

The other run has tried 60 configurations of the same table, and its five best are begun with. By
their order they are *related* (a rank correlation of about 0.7 with what they reach here),
*unrelated* (at random) or *reversed* (the worst here). Prints the mean regret of `best` over the
same seeds without another run, as a geometric mean over budgets of 2, 5 and 12 trainings, for each
table and for all.
"""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.compare.case import Case, context_of, record
from benchmarks.compare.sampler import TableSampler
from benchmarks.runner import parser, print_table
from benchmarks.strategies_cells import EPOCH_SECONDS, GROUNDS, Cell, scale_of
from cloudtune.model.trial import rank_key
from cloudtune.policy.registry import chosen, components, run_policy
from cloudtune.runs.like import COUNT
from cloudtune.strategies.samplers.adaptive import Adaptive

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from benchmarks.compare.benchmark import Benchmark
    from benchmarks.strategies_cells import Ground
    from cloudtune.policy.run import RunPolicy

KINDS = ("related", "unrelated", "reversed")
CELLS = tuple(Cell(0.5, budget) for budget in (2.0, 5.0, 12.0))
_TRIED = 60
# The spread of ranks from 0 to 1 is 0.29; as much noise leaves a correlation of 0.7.
_NOISE = 0.29


def places(ground: Ground) -> np.ndarray:
    """Return the rank of each configuration by the best that it reaches, from 0, the best, to 1."""
    mode = ground.curves.mode
    keys = [
        min((rank_key(mode, value) for value in curve.metrics), default=(9, 0.0))
        for curve in ground.curves.curves
    ]
    order = sorted(range(len(keys)), key=lambda number: keys[number])
    ranks = np.empty(len(keys))
    ranks[order] = np.arange(len(keys)) / len(keys)
    return ranks


def best_rows(ranks: np.ndarray, kind: str, seed: int) -> list[int]:
    """Return the rows that another run would begin this one with, best first."""
    chance = np.random.default_rng((seed, 3))
    rows = chance.permutation(len(ranks))[:_TRIED]
    score = chance.random(len(rows))
    if kind == "related":
        score = ranks[rows] + chance.normal(0.0, _NOISE, len(rows))
    elif kind == "reversed":
        score = -ranks[rows]
    return [int(row) for row in rows[np.argsort(score)[:COUNT]]]


def regret(
    ground: Ground, benchmark: Benchmark, cell: Cell, rows: Sequence[int], seed: int
) -> float:
    """Return the regret of one run that begins with these rows."""

    def make(benchmark: Benchmark, case: Case) -> RunPolicy:
        curves = benchmark.curves
        drawn = TableSampler(benchmark.trials, "random", seed)
        like = map(drawn.take, rows)
        sampler = Adaptive(drawn, curves.mode, curves.max_epochs, seed=seed, like=like)
        context = context_of(benchmark, case)
        parts = components(context, sampler, chosen("seer", "", ""), benchmark.brakes, None)
        brakes = benchmark.brakes
        return run_policy(context, parts, benchmark.metric, brakes, heartbeat=False, checked=False)

    scale = scale_of(ground.curves)
    played = record(benchmark, Case("seer", ground.limits(cell), seed=seed), make)
    return max(scale.floor, scale.regret(played.result.regret))


def ratios(ground: Ground, profile: str, seeds: Sequence[int]) -> Iterator[dict[str, float]]:
    """Yield the mean regret with each kind of other run over that without, cell by cell."""
    benchmark = ground.benchmark(profile)
    ranks = places(ground)
    for cell in CELLS:
        cold = mean(regret(ground, benchmark, cell, (), seed) for seed in seeds)
        over = dict[str, float]()
        for kind in KINDS:
            rows = {seed: best_rows(ranks, kind, seed) for seed in seeds}
            warm = mean(regret(ground, benchmark, cell, rows[seed], seed) for seed in seeds)
            over[kind] = warm / cold
        yield over


def lines(given: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Yield a line for each table, and one for all."""
    seeds = range(given.first, given.first + given.seeds)
    tables: list[dict[str, float]] = []
    for name in given.tables:
        ground = GROUNDS[name](given.data, EPOCH_SECONDS)
        cells = list(ratios(ground, given.profile, seeds))
        tables.append({kind: geometric_mean(cell[kind] for cell in cells) for kind in KINDS})
        yield _line(name, tables[-1:])
    yield _line("all", tables)


def _line(name: str, tables: Sequence[dict[str, float]]) -> dict[str, str]:
    means = {kind: geometric_mean(table[kind] for table in tables) for kind in KINDS}
    return {"curves": name, **{kind: f"{value:.2f}" for kind, value in means.items()}}


def main() -> None:
    """Play and print."""
    usual = ("alexnet", "cifar10_3c3d", "lstm128", "finetuned", "annealed", "synthetic")
    options = parser(__doc__, seeds=24, first=0, profile="sublinear", tables=usual)
    options.add_argument("data", type=Path)
    print_table(lines(options.parse_args()))


if __name__ == "__main__":
    main()
