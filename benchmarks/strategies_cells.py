"""What the strategies are compared on: curves, scaling profiles, one offer, a grid of limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.compare.benchmark import Benchmark, Delays, benchmark
from benchmarks.compare.curves import Columns, read_curves
from benchmarks.compare.speeds import Scaling
from benchmarks.curves_synthetic import annealed, finetuned, synthetic
from cloudtune.infra.aws import pricing
from cloudtune.model.catalog import InstanceType, Offer
from cloudtune.model.plans import Limits
from cloudtune.model.trial import rank_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.compare.curves import Curves
    from benchmarks.compare.pools import SpotTrace
    from cloudtune.model.trial import Mode

MACHINE = InstanceType("p3.8xlarge", 4, "V100", 16384, 32, 249856)
OFFER = Offer(MACHINE, "on-demand", "us-east-1", 12.24)
PACKED = 0.645
"""Of two equal jobs on one V100 each has so much of its speed: median of 22 pairs, Gavel's."""
DELAYS = Delays(launch=20.0, boot=120.0, start=10.0, resize=20.0, release=5.0)
PROFILES: dict[str, dict[float, float]] = {
    # petuum/adaptdl, branch osdi21-artifact: ImageNet at a batch of 1600, nodes of 4 GPUs
    "near-linear": {1.0: 1.0, 2.0: 1.95, 4.0: 3.68, 8.0: 7.28, 16.0: 12.79},
    # ucbrise/hypersched @8b5435e: ResNet-50 on CIFAR-10, one node of 8 GPUs
    "sublinear": {1.0: 1.0, 2.0: 1.87, 4.0: 3.42, 8.0: 5.6},
    # stanford-futuredata/gavel @c4fa4009: ResNet-50 at a batch of 16 on V100 of one server
    "strongly sublinear": {1.0: 1.0, 2.0: 1.22, 4.0: 2.04, 8.0: 2.44},
    # petuum/adaptdl, as above: CIFAR-10 at a batch of 512
    "non-monotone": {1.0: 1.0, 2.0: 1.70, 4.0: 3.23, 8.0: 2.08, 16.0: 2.33},
}
DEADLINES = (0.25, 0.5, 1.0, 2.0)
BUDGETS = (1.0, 3.0, 8.0, 20.0, 50.0)
EPOCH_SECONDS = 60.0
"""What an epoch of DeepOBS is taken to take, as nothing is known of it: a parameter."""
SIZES = (1, 2, 4, 8, 16, 32)
FLOOR = 0.005
"""Regrets below this share of a table's range count as this much: nobody can tell them apart."""
_HOPELESS = 90.0
"""The percentile of configurations beyond which one is as bad as nothing at all."""


def _spot_share() -> float:
    """Return the median price of spot, as a share of on-demand's, of our own catalogue's types."""
    prices: dict[str, dict[str, float]] = {}
    for offer in pricing.catalog("us-east-1", pricing.MARKETS).offers:
        prices.setdefault(offer.instance_type.name, {})[offer.market] = offer.usd_per_hour
    return median(p["spot"] / p["on-demand"] for p in prices.values() if len(p) > 1)


SPOT_SHARE = _spot_share()


class Cell(NamedTuple):
    """A deadline in times of one full training on one GPU, a budget in times of its price."""

    deadline: float
    budget: float


GRID = tuple(Cell(deadline, budget) for deadline in DEADLINES for budget in BUDGETS)
QUICK_GRID = tuple(Cell(deadline, budget) for deadline in DEADLINES for budget in (3.0, 20.0))


@dataclass(frozen=True)
class Ground:
    """A table of curves to compare on."""

    name: str
    curves: Curves
    epoch_seconds: float

    @property
    def full_seconds(self) -> float:
        """What one full training takes on one GPU, on average."""
        return self.curves.max_epochs * self.epoch_seconds

    @property
    def full_dollars(self) -> float:
        """What that costs, if the other GPUs of the instance are put to use."""
        return self.full_seconds * OFFER.usd_per_second / OFFER.gpus

    def limits(self, cell: Cell) -> Limits:
        """Return the limits of a cell, in seconds and dollars."""
        return Limits(cell.deadline * self.full_seconds, cell.budget * self.full_dollars)

    def benchmark(
        self, profile: str, trace: SpotTrace | None = None, *, packs: bool = False
    ) -> Benchmark:
        """Return what runs are played on: with a trace of its pool there is spot as well."""
        scaling = Scaling({**({0.5: PACKED} if packs else {}), **PROFILES[profile]})
        spot = replace(OFFER, market="spot", usd_per_hour=SPOT_SHARE * OFFER.usd_per_hour)
        offers = [OFFER] if trace is None else [spot, OFFER]
        return benchmark(
            self.curves,
            [scaling] * len(offers),
            offers,
            epoch_seconds=self.epoch_seconds,
            delays=DELAYS,
            max_instances=max(SIZES) * 2,
            traces=None if trace is None else {spot: trace},
        )


@dataclass(frozen=True)
class Scale:
    """How regrets of a table are to be read."""

    floor: float
    nothing: float

    def regret(self, regret: float | None) -> float:
        """Return a regret; what found nothing is as bad as the hopeless configurations."""
        return self.nothing if regret is None else min(regret, self.nothing)


def scale_of(curves: Curves) -> Scale:
    """Return a table's scale.

    Its range is from the best value that there is to the median of what configurations reach at
    their best; the worst tenth counts as nothing, as a loss that diverges may be anything.
    """
    found = [_best(curve.metrics, curves.mode) for curve in curves.curves]
    regrets = [curves.regret(best) for best in found if best is not None]
    known = np.array([regret for regret in regrets if regret is not None])
    return Scale(FLOOR * float(np.median(known)), float(np.percentile(known, _HOPELESS)))


def _best(values: tuple[float, ...], mode: Mode) -> float | None:
    """Return the best of a configuration; None where it diverged in its first epoch."""
    known = [value for value in values if not math.isnan(value)]
    return min(known, key=lambda value: rank_key(mode, value)) if known else None


# ---- tables --------------------------------------------------------------------------------------


def _alexnet(folder: Path, _seconds: float) -> Ground:
    curves = read_curves(
        folder / "curves_opda_alexnet.parquet",
        "val_top1",
        "max",
        configs=folder / "curves_opda_alexnet_configs.csv",
    )
    assert curves.mean_seconds is not None
    return Ground("alexnet", curves, curves.mean_seconds)


def _deepobs(folder: Path, seconds: float, *, problem: str) -> Ground:
    loss = problem == "mnist_vae"
    curves = read_curves(
        folder / "curves_deepobs.parquet",
        "test_loss" if loss else "test_acc",
        "min" if loss else "max",
        configs=folder / "curves_deepobs_runs.csv",
        columns=Columns(config="run", planned="num_epochs", hyperparameters=("lr", "optimizer")),
        where=(("testproblem", problem),),
    )
    return Ground(problem, curves, seconds)


def algoperf(folder: Path, _seconds: float = 0.0, *, workload: str) -> Ground:
    """Return AlgoPerf's runs of a workload, with the seconds that they took themselves.

    They stop at their target, so those that reach it are as good as each other.
    """
    curves = read_curves(
        folder / "curves_algoperf.parquet",
        "val_metric",
        "max",
        configs=folder / "curves_algoperf_runs.parquet",
        columns=Columns(
            config="run", epoch="eval", elapsed="submission_s", hyperparameters=("submission",)
        ),
        where=(("workload", workload),),
    )
    assert curves.mean_seconds is not None
    return Ground(workload, curves, curves.mean_seconds)


def _made_up(_folder: Path, _seconds: float, *, name: str, make: Callable[[], Curves]) -> Ground:
    curves = make()
    assert curves.mean_seconds is not None
    return Ground(name, curves, curves.mean_seconds)


GROUNDS: Mapping[str, Callable[[Path, float], Ground]] = {
    "alexnet": _alexnet,
    "cifar10_3c3d": partial(_deepobs, problem="cifar10_3c3d"),
    "fmnist_2c2d": partial(_deepobs, problem="fmnist_2c2d"),
    "mnist_vae": partial(_deepobs, problem="mnist_vae"),
    "ogbg": partial(algoperf, workload="ogbg"),
    "synthetic": partial(_made_up, name="synthetic", make=synthetic),
    "finetuned": partial(_made_up, name="finetuned", make=finetuned),
    "annealed": partial(_made_up, name="annealed", make=annealed),
}
HALVES = (
    ("alexnet", "fmnist_2c2d", "finetuned", "synthetic"),
    ("cifar10_3c3d", "mnist_vae", "ogbg", "annealed"),
)
"""Constants that were chosen on one half are judged on the other."""
