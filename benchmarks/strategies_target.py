"""How long, and for how much, until a target metric is reached: AlgoPerf's fastMRI runs.

    python -m benchmarks.strategies_target /work/shared/data [--seeds 5] [--profile sublinear]

The runs of AlgoPerf stop at their target, so they say when it is reached and nothing of later. An
evaluation counts as an epoch; its seconds, measured on 8 V100, count as those of one GPU here. Each
method runs within twice the time and twenty times the price of a full training, and is judged by
when it first reports the target; one that doesn't counts as its whole deadline and budget. Peers
have the fleet that is best in hindsight, chosen on the other half of the seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.compare.case import play
from benchmarks.strategies_cells import PROFILES, Cell, Ground, algoperf
from benchmarks.strategies_methods import Choices
from benchmarks.strategies_runs import Job, place, wanted
from benchmarks.strategies_verdict import crossed
from cloudtune.model.trial import better

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.strategies_methods import Variant
    from benchmarks.strategies_runs import Place

TARGET = 0.723653
"""The validation SSIM that AlgoPerf asks for."""
CELL = Cell(2.0, 20.0)
METHODS = ("random", "hyperband", "asha", "asha-stopping", "hypersched", "seer", "seer-constant")
_CHOICES = Choices(etas=(3,), fleets=("constant",), sizes=(1, 2, 4, 8))


class Reached(NamedTuple):
    """When and for how much the target was reached, the limits if it wasn't."""

    seconds: float
    dollars: float
    reached: bool


def fastmri(folder: Path) -> Ground:
    """Return the fastMRI runs of all submissions."""
    return algoperf(folder, workload="fastmri")


def reached(where: Place, variant: Variant, profile: str, seed: int) -> Reached:
    """Return when a run reached the target."""
    limits = where.ground.limits(CELL)
    job = Job(seed, where.ground.name, profile, variant, (CELL,))
    mode = where.ground.curves.mode
    for point in play(where.benchmark, wanted(job, limits)).path:
        if not better(mode, TARGET, point.metric):
            return Reached(point.at, point.dollars, reached=True)
    assert limits.deadline is not None
    assert limits.budget is not None
    return Reached(limits.deadline, limits.budget, reached=False)


def rows(where: Place, profile: str, methods: Sequence[str], seeds: int) -> list[str]:
    """Return the table, a line for each method."""
    lines = [f"{'method':14} {'reached':>7} {'hours':>6} {'dollars':>8}  variants"]
    for method in methods:
        variants = list(_CHOICES.of(method, len(where.ground.curves.curves)))
        found = {
            v.label: {seed: reached(where, v, profile, seed) for seed in range(seeds)}
            for v in variants
        }
        seconds = {name: {s: r.seconds for s, r in of.items()} for name, of in found.items()}
        lines.append(_line(method, found, *crossed(seconds, range(seeds))))
    return lines


def _line(
    method: str,
    found: dict[str, dict[int, Reached]],
    seconds: dict[int, float],
    chosen: Sequence[str],
) -> str:
    """Return the line of the variants that were chosen; the halves are as in `crossed`."""
    names = {seed: chosen[seed % 2 if len(chosen) > 1 else 0] for seed in seconds}
    runs = [found[name][seed] for seed, name in names.items()]
    share = fmean(each.reached for each in runs)
    hours, dollars = fmean(e.seconds for e in runs) / 3600, fmean(e.dollars for e in runs)
    return f"{method:14} {share:7.0%} {hours:6.2f} {dollars:8.2f}  {' / '.join(chosen)}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--profile", choices=tuple(PROFILES), default="sublinear")
    parser.add_argument("--methods", type=lambda text: tuple(text.split(",")), default=METHODS)
    given = parser.parse_args()
    ground = fastmri(given.data)
    print(f"{len(ground.curves.curves)} runs, {ground.curves.max_epochs} evaluations at most")
    print("\n".join(rows(place(ground, given.profile), given.profile, given.methods, given.seeds)))


if __name__ == "__main__":
    main()
