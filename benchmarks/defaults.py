"""What a person gets who names a deadline and a budget: the default of 0.2, and today's.

    python -m benchmarks.defaults /work/shared/data [--grounds alexnet,…] [--seeds 4]

In each cell (table, scaling, deadline, budget) every default is played with each seed. Its mean
regret is held against that of the best peer, which is chosen in hindsight, seed for seed the same
configurations. A default that finds no plan has found nothing: its regret is the table's worst.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median

from benchmarks.strategies_cells import GROUNDS, Cell
from benchmarks.strategies_methods import Variant
from benchmarks.strategies_runs import ANY, Job, Place, Row, place

CELLS = tuple(Cell(d, b) for d in (0.25, 0.5, 1.0, 2.0) for b in (1.0, 3.0, 12.0))
COUNTS = (128, 64, 32, 16, 8, 4, 2, 1)
"""The numbers of trials that `sha, as many as feasible` tries, the largest first."""
PEERS = tuple(
    Variant(strategy, 3, f"constant:{size}")
    for strategy in ("random", "asha", "asha-stopping", "hyperband", "halving")
    for size in (1, 2, 4, 8)
)
DEFAULTS: dict[str, tuple[Variant, ...]] = {
    "sha, 16 trials": (Variant("sha", trials=16),),
    "sha, 64 trials": (Variant("sha", trials=64),),
    "sha, as many as feasible": tuple(Variant("sha", trials=count) for count in COUNTS),
    "asha": (Variant("asha"),),
    "best": (Variant("best"),),
}


def _first_feasible(where: Place, variants: tuple[Variant, ...], base: Job, cell: Cell) -> Row:
    """Return the row of the first variant that has a plan in a cell, else of the last one."""
    for variant in variants:
        job = Job(base.seed, base.ground, base.profile, variant, (cell,))
        [row] = where._played(job).rows  # noqa: SLF001  played, never read from a longer run
        if row.dollars > 0:
            break
    return row


def main() -> None:
    """Play them, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--grounds", default="alexnet,cifar10_3c3d,ogbg,synthetic,finetuned")
    parser.add_argument("--profiles", default="sublinear")
    parser.add_argument("--seeds", type=int, default=4)
    asked = parser.parse_args()
    began = time.monotonic()
    ratios: dict[str, list[float]] = defaultdict(list)
    used: dict[str, list[float]] = defaultdict(list)
    without: dict[str, int] = defaultdict(int)
    cells = 0
    for name in asked.grounds.split(","):
        ground = GROUNDS[name](asked.data, 60.0)
        plain = place(ground, ANY)
        peers: dict[tuple[Cell, str], list[float]] = defaultdict(list)
        floor = plain.scale.floor
        for seed in range(asked.seeds):
            for variant in PEERS:
                for row in plain.done(Job(seed, name, ANY, variant, CELLS)).rows:
                    at = Cell(row.deadline, row.budget), row.variant
                    peers[at].append(max(floor, row.regret))
        for profile in asked.profiles.split(","):
            where = place(ground, profile)
            for cell in CELLS:
                cells += 1
                best = min(fmean(values) for (at, _), values in peers.items() if at == cell)
                for label, variants in DEFAULTS.items():
                    rows = [
                        _first_feasible(
                            where, variants, Job(seed, name, profile, variants[0], ()), cell
                        )
                        for seed in range(asked.seeds)
                    ]
                    if not any(row.dollars for row in rows):
                        without[label] += 1
                        continue
                    ratios[label].append(fmean(max(floor, row.regret) for row in rows) / best)
                    budget = ground.limits(cell).budget or 1.0
                    used[label].append(fmean(row.dollars for row in rows) / budget)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    print(f"\n| default | no plan, of {cells} cells | median ratio (p90) | budget used |")
    print("|---|---|---|---|")
    for label in DEFAULTS:
        found = sorted(ratios[label])
        p90 = found[int(0.9 * (len(found) - 1))]
        share = fmean(used[label])
        print(f"| {label} | {without[label]} | {median(found):.2f} ({p90:.2f}) | {share:.0%} |")


if __name__ == "__main__":
    main()
