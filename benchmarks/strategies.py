"""Which strategy finds the best model within a deadline and a budget: on recorded curves.

    python -m benchmarks.strategies /work/shared/data --out DIR [--quick] [--seeds 20]
        [--grounds alexnet,cifar10_3c3d,…] [--profiles near-linear,…] [--etas 2,3,4]
        [--fleets constant,naive] [--processes 2] [--again seer,…]

What is tried is in strategies_cells.py (curves, profiles, limits, methods and their variants); how
it is judged, in strategies_verdict.py. Runs are kept in DIR/runs.jsonl as they are done, seed by
seed, so an interrupted comparison goes on where it was; `--again` names methods whose code has
changed since. Without the data folder (-) it is on made-up curves alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from benchmarks.runner import numbers, parser, words
from benchmarks.strategies_cells import (
    EPOCH_SECONDS,
    GRID,
    GROUNDS,
    OURS,
    PEERS,
    PROFILES,
    QUICK_GRID,
    Cell,
    Choices,
    scale_of,
)
from benchmarks.strategies_runs import Contest, Kept, do_all
from benchmarks.strategies_verdict import Book, Verdict, cells_table, table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from benchmarks.strategies_cells import Ground
    from benchmarks.strategies_runs import Done, Job

QUICK_GROUNDS = ("alexnet", "cifar10_3c3d", "synthetic")
QUICK_PROFILES = ("near-linear", "sublinear", "non-monotone")
QUICK = Choices(etas=(3,), fleets=("constant",))
SUBJECTS = (*OURS, "rubberband")
_EVERY_SECONDS = 60.0
# Each half of the seeds needs two.
_FEWEST_SEEDS = 4
_SHOWN = 20


def _options() -> argparse.Namespace:
    options = parser(__doc__, quick=False, processes=2, epoch_seconds=EPOCH_SECONDS)
    add = options.add_argument
    add("data", type=Path, help="the data folder; - for made-up curves alone")
    add("--out", type=Path, required=True)
    add("--seeds", type=int, help="20, or 6 with --quick")
    add("--grounds", type=words)
    add("--profiles", type=words)
    add("--methods", type=words, default=(*PEERS, *OURS))
    add("--sizes", type=numbers)
    add("--cells", type=int, default=1, help="every which cell of the grid")
    add("--etas", type=numbers)
    add("--fleets", type=words)
    add("--again", type=words, default=())
    add("--tables-only", action="store_true", help="of what has been run")
    return options.parse_args()


def _grounds(given: argparse.Namespace) -> list[Ground]:
    usual = QUICK_GROUNDS if given.quick else tuple(GROUNDS)
    names = ("synthetic",) if str(given.data) == "-" else given.grounds or usual
    return [GROUNDS[name](given.data, given.epoch_seconds) for name in names]


def _choices(given: argparse.Namespace) -> Choices:
    usual = QUICK if given.quick else Choices()
    sizes = given.sizes or usual.sizes
    return Choices(given.etas or usual.etas, given.fleets or usual.fleets, sizes)


@dataclass(frozen=True)
class Report:
    """What is known so far, into files of a folder."""

    contest: Contest
    kept: Kept
    out: Path

    @property
    def jobs(self) -> list[Job]:
        return list(self.contest.jobs())

    def write(self) -> None:
        left = {job.seed for job in self.jobs if self.kept.left(job) is not None}
        seeds = [seed for seed in range(self.contest.seeds) if seed not in left]
        if len(seeds) < _FEWEST_SEEDS:
            print(f"{len(seeds)} seeds are complete: no table yet", flush=True)
            return
        done = [self.kept.done[job.key] for job in self.jobs if job.seed in seeds]
        verdicts = self._verdicts(done, seeds)
        lines = [f"{len(seeds)} seeds", *table(verdicts), "", *audited(done)]
        print("\n".join(lines), flush=True)
        cells = [line for name in SUBJECTS for line in cells_table(verdicts, name)]
        for name, text in (("table.txt", lines), ("cells.txt", cells)):
            (self.out / name).write_text("\n".join(text) + "\n", encoding="utf-8")
        rows = pd.DataFrame([{**v.cell._asdict(), **v._asdict()} for v in verdicts])
        rows.drop(columns="cell").to_csv(self.out / "cells.csv", index=False)

    def _verdicts(self, done: Sequence[Done], seeds: Sequence[int]) -> list[Verdict]:
        book = Book({ground.name: scale_of(ground.curves).floor for ground in self.contest.grounds})
        wanted = set(self.contest.cells)
        for one in done:
            book.add(row for row in one.rows if Cell(row.deadline, row.budget) in wanted)
        return book.verdicts(self.contest.profiles, SUBJECTS, PEERS, seeds)


def audited(done: Sequence[Done]) -> list[str]:
    """Return how many runs were played, and which of them passed a limit."""
    plays = sum(one.plays for one in done)
    passed = [violation for one in done for violation in one.violations]
    shown = [f"  {violation}" for violation in passed[:_SHOWN]]
    return [f"{plays} runs were played; {len(passed)} passed a limit, by their ledgers", *shown]


def _run(given: argparse.Namespace, report: Report) -> None:
    left = [report.kept.left(job) for job in report.jobs]
    todo = [job for job in left if job is not None]
    print(f"{len(left)} jobs, {len(todo)} to do", flush=True)
    began = said = time.perf_counter()
    runs = do_all(todo, given.data, given.epoch_seconds, given.processes)
    for count, done in enumerate(runs, 1):
        report.kept.keep(done)
        if time.perf_counter() - said > _EVERY_SECONDS:
            said = time.perf_counter()
            print(f"{count} of {len(todo)} jobs in {said - began:.0f} s", flush=True)
            report.write()


def main() -> None:
    """Run the comparison and print its tables."""
    given = _options()
    given.out.mkdir(parents=True, exist_ok=True)
    contest = Contest(
        grounds=_grounds(given),
        profiles=given.profiles or (QUICK_PROFILES if given.quick else tuple(PROFILES)),
        methods=given.methods,
        choices=_choices(given),
        cells=(QUICK_GRID if given.quick else GRID)[:: given.cells],
        seeds=given.seeds or (6 if given.quick else 20),
    )
    kept = Kept(given.out / "runs.jsonl", given.again)
    report = Report(contest, kept, given.out)
    if not given.tables_only:
        _run(given, report)
    report.write()


if __name__ == "__main__":
    main()
