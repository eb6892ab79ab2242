"""What an earlier run is worth: regret with one that is useful, far off, random or reversed.

    python -m benchmarks.history /work/shared/data [--seeds 4] [--budgets 3,8] [--tables alexnet,…]
    python -m benchmarks.history /work/shared/data --published      # by the trust rule of before

An earlier run is one of `seer` on another table that shares the search space, with other seeds; its
records are carried over as `cloudtune run` does. Useful ones are of a similar task: another data
set with the same grid of learning rates, the same submissions on a changed workload, the other half
of the configurations, or a made-up task whose best learning rate is half as high. Those far off
share the space and little else. Random ones have the scores of the table's own run in another
order, reversed ones upside down.

Peers are `asha`, on the fleet that is best for the cell in hindsight, without the earlier run
(cold) and with it (warm); with a seed both draw the same otherwise. Ratios are of regrets,
geometric means over seeds, as few runs that found next to nothing would decide about other means.
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.compare.case import Case, play, record
from benchmarks.compare.curves import Columns, read_curves
from benchmarks.curves_synthetic import annealed, finetuned, synthetic
from benchmarks.strategies_cells import EPOCH_SECONDS, GROUNDS, Cell, Ground, scale_of
from cloudtune.engine.record.timeline import read
from cloudtune.strategies.samplers import warm_start
from cloudtune.strategies.samplers.past_runs import PastRun, PastTrial, scores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.compare.benchmark import Benchmark
    from benchmarks.compare.curves import Curves

EARLIER = Cell(1.0, 12.0)
"""Within what the earlier run ended."""
PROFILE = "sublinear"
FLEETS = ("naive:1", "naive:4")
_MADE: dict[str, Callable[..., Curves]] = {
    "synthetic": synthetic,
    "finetuned": finetuned,
    "annealed": annealed,
}
_GRIDS = ("cifar10_3c3d", "fmnist_2c2d", "mnist_vae", "quadratic_deep")
_SUBMITTED = {
    "ogbg": ("ogbg_model_size", "fastmri"),
    "ogbg_model_size": ("ogbg", "fastmri_tanh"),
    "fastmri": ("fastmri_tanh", "ogbg"),
    "fastmri_tanh": ("fastmri", "ogbg_model_size"),
}
HALVES = (
    ("alexnet", "fmnist_2c2d", "finetuned", "synthetic", "ogbg", "fastmri_tanh"),
    ("cifar10_3c3d", "mnist_vae", "annealed", "quadratic_deep", "fastmri", "ogbg_model_size"),
)
_MANY = 3000
"""So many configurations have the made-up tables, so that no run uses them up."""
_FAR, _NEAR = 30.0, 2.0
"""By what the learning rates of a made-up task are multiplied."""


class Past(NamedTuple):
    """Where an earlier run comes from, and what kind of a past that is."""

    source: str
    kind: str


def pasts(table: str) -> Iterator[Past]:
    """Yield the earlier runs that a table is tried with."""
    if table in _GRIDS:
        for other in _GRIDS:
            if other != table:
                far = "quadratic_deep" in (table, other)
                yield Past(other, "far" if far else "useful")
    elif table in _SUBMITTED:
        yield from map(Past, _SUBMITTED[table], ("useful", "far"))
    else:
        yield Past(f"{table}:near", "useful")
        if table in _MADE:
            yield Past(f"{table}:far", "far")
    yield Past(table, "random")
    yield Past(table, "reversed")


# ---- tables --------------------------------------------------------------------------------------


class Tables:
    """The tables of a folder, and what is played on them."""

    def __init__(self, folder: Path, seeds: int) -> None:
        self._folder = folder
        self._seeds = range(seeds)
        self.ground = cache(self._ground)
        self.benchmark: Callable[[str], Benchmark] = cache(
            lambda table: self.ground(table).benchmark(PROFILE)
        )
        self.earlier = cache(self._earlier)
        self.regret = cache(self._regret)

    def _ground(self, table: str) -> Ground:
        base, _, part = table.partition(":")
        if base in _MADE:
            curves = _MADE[base](_MANY, seed=7 if part else 0)
            curves = _moved(curves, {"near": _NEAR, "far": _FAR}.get(part, 1.0))
        elif base == "alexnet":
            whole = GROUNDS[base](self._folder, EPOCH_SECONDS).curves
            curves = replace(whole, curves=whole.curves[bool(part) :: 2])
        elif base in _SUBMITTED:
            curves = self._submitted(base)
        elif base == "quadratic_deep":
            curves = self._quadratic(base)
        else:
            return GROUNDS[base](self._folder, EPOCH_SECONDS)
        return Ground(table, curves, curves.mean_seconds or EPOCH_SECONDS)

    def _submitted(self, workload: str) -> Curves:
        return read_curves(
            self._folder / "curves_algoperf.parquet",
            "val_metric",
            "max",
            configs=self._folder / "curves_algoperf_runs.parquet",
            columns=Columns(
                config="run",
                epoch="eval",
                elapsed="submission_s",
                hyperparameters=("submission", "hparams"),
            ),
            where=(("workload", workload),),
        )

    def _quadratic(self, problem: str) -> Curves:
        return read_curves(
            self._folder / "curves_deepobs.parquet",
            "test_loss",
            "min",
            configs=self._folder / "curves_deepobs_runs.csv",
            columns=Columns(
                config="run", planned="num_epochs", hyperparameters=("lr", "optimizer")
            ),
            where=(("testproblem", problem),),
        )

    def _earlier(self, table: str, seed: int) -> PastRun:
        """Return what a run on a table leaves to later ones."""
        ground, benchmark = self.ground(table), self.benchmark(table)
        case = Case("seer", ground.limits(EARLIER), seed=1000 + seed)
        found = read(record(benchmark, case).entries)
        values: dict[str, dict[int, float]] = {
            session.start.trial: {} for session in found.sessions.values()
        }
        for epoch in found.epochs:
            value = epoch.told.metrics.get(benchmark.metric.name, math.nan)
            if math.isfinite(value):
                values[epoch.trial][epoch.number] = value
        configs = {trial.id: dict(trial.config) for trial in benchmark.trials}
        told = zip(values, scores(list(values.values()), benchmark.metric.mode), strict=True)
        return PastRun(table, tuple(PastTrial(configs[name], *score) for name, score in told))

    def past(self, past: Past, seed: int) -> PastRun:
        """Return an earlier run, turned upside down or shuffled if it is to be."""
        found = self.earlier(past.source, seed)
        values = [trial.score for trial in found.trials]
        if past.kind == "reversed":
            values = [1.0 - value for value in values]
        elif past.kind == "random":
            random.Random(seed).shuffle(values)
        told = zip(found.trials, values, strict=True)
        return PastRun(found.run, tuple(replace(trial, score=value) for trial, value in told))

    def _regret(
        self, table: str, cell: Cell, strategy: str, fleet: str, past: Past | None
    ) -> float:
        """Return the regret (geometric mean over seeds), at least what nobody can tell apart."""
        ground, scale = self.ground(table), scale_of(self.ground(table).curves)
        found = []
        for seed in self._seeds:
            known = () if past is None else (self.past(past, seed),)
            limits = ground.limits(cell)
            case = Case(strategy, limits, fleet=fleet, seed=seed, past=known)
            result = play(self.benchmark(table), case)
            found.append(max(scale.floor, scale.regret(result.regret)))
        return geometric_mean(found)


def _moved(curves: Curves, factor: float) -> Curves:
    """Return curves of the same task at learning rates that are so many times as high."""
    moved = (
        replace(each, config={**each.config, "lr": float(str(each.config["lr"])) * factor})
        for each in curves.curves
    )
    return replace(curves, curves=tuple(moved))


# ---- figures -------------------------------------------------------------------------------------

RATIOS = ("seer+/peers", "seer+/peers+", "seer+/seer", "peers+/peers")


def ratios(tables: Tables, table: str, cell: Cell, past: Past) -> tuple[float, ...]:
    """Return `RATIOS` of a cell; + stands for with the earlier run."""
    seer, seer_warm = (tables.regret(table, cell, "seer", "", each) for each in (None, past))
    cold, warm = (
        min(tables.regret(table, cell, "asha", fleet, each) for fleet in FLEETS)
        for each in (None, past)
    )
    return (seer_warm / cold, seer_warm / warm, seer_warm / seer, warm / cold)


def main() -> None:
    """Print a line for each earlier run, and what that comes to by kind and half of the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--budgets", type=_numbers, default=(3.0, 8.0))
    parser.add_argument("--tables", type=lambda text: tuple(text.split(",")), default=())
    parser.add_argument("--published", action="store_true", help="The trust rule of before.")
    given = parser.parse_args()
    if given.published:
        warm_start.trust_of = published  # type: ignore[assignment]
    tables, cells = Tables(given.data, given.seeds), [Cell(1.0, each) for each in given.budgets]
    found: dict[tuple[int, str], list[tuple[float, ...]]] = {}
    print(f"{'table':15} {'earlier run':16} {'kind':9}" + "".join(f"{r:>14}" for r in RATIOS))
    for half, names in enumerate(HALVES):
        for table in names:
            for past in pasts(table) if not given.tables or table in given.tables else ():
                rows = [ratios(tables, table, cell, past) for cell in cells]
                found.setdefault((half, past.kind), []).extend(rows)
                told = [" ".join(f"{row[n]:.2f}" for row in rows) for n in range(len(RATIOS))]
                line = f"{table:15} {past.source:16} {past.kind:9}"
                print(line + "".join(f"{each:>14}" for each in told), flush=True)
    print("\nmedian (worst) over tables and budgets")
    for (half, kind), rows in found.items():
        told = [_both([row[n] for row in rows]) for n in range(len(RATIOS))]
        print(f"half {half + 1} {kind:34}" + "".join(f"{each:>14}" for each in told))


def published(results: int, correlation: float, _at_first: float = 0.0) -> float:
    """Return the trust by the audit's rule (P3)."""
    told = (results * max(0.0, 1.6 * correlation) + 6.0) / (results + 12.0)
    return min(0.9, max(0.0, told))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _both(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({max(values):.2f})"


if __name__ == "__main__":
    main()
