"""What is compared, on which curves, at which speeds, on one offer, within a grid of limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.compare.benchmark import Benchmark, Delays, benchmark
from benchmarks.compare.curves import Columns, read_curves
from benchmarks.compare.speeds import Scaling
from benchmarks.curves_synthetic import annealed, finetuned, synthetic
from cloudtune.model.catalog import InstanceType, Offer
from cloudtune.model.plans import Limits
from cloudtune.model.trial import rank_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from benchmarks.compare.curves import Curves
    from cloudtune.model.trial import Mode

MACHINE = InstanceType("p3.8xlarge", 4, "V100", 16384, 32, 249856)
OFFER = Offer(MACHINE, "on-demand", "us-east-1", 12.24)
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
# What an epoch of DeepOBS is taken to take, as nothing is known of it: a parameter.
EPOCH_SECONDS = 60.0
SIZES = (1, 2, 4, 8, 16, 32)
# Regrets below this share of a table's range count as this much: they can't be told apart.
FLOOR = 0.005
# The percentile of configurations beyond which one is as bad as nothing at all.
_HOPELESS = 90.0


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
        return Limits(cell.deadline * self.full_seconds, cell.budget * self.full_dollars)

    def benchmark(self, profile: str) -> Benchmark:
        return benchmark(
            self.curves,
            [Scaling(PROFILES[profile])],
            [OFFER],
            epoch_seconds=self.epoch_seconds,
            delays=DELAYS,
            max_instances=max(SIZES) * 2,
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
    bests = [_best(curve.metrics, curves.mode) for curve in curves.curves]
    regrets = [curves.regret(best) for best in bests if best is not None]
    reached = np.array([regret for regret in regrets if regret is not None])
    return Scale(FLOOR * float(np.median(reached)), float(np.percentile(reached, _HOPELESS)))


def _best(values: tuple[float, ...], mode: Mode) -> float | None:
    """Return the best of a configuration; None where it diverged in its first epoch."""
    reported = [value for value in values if not math.isnan(value)]
    return min(reported, key=lambda value: rank_key(mode, value)) if reported else None


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


def _algoperf(folder: Path, _seconds: float, *, workload: str) -> Ground:
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


def _taskset(folder: Path, seconds: float, *, task: str) -> Ground:
    curves = read_curves(
        folder / "curves_taskset.parquet",
        "val_loss",
        "min",
        configs=folder / "curves_taskset_configs.csv",
        columns=Columns(config="config", epoch="step"),
        where=(("task", task),),
    )
    return Ground(task, curves, seconds)


def _made_up(_folder: Path, _seconds: float, *, name: str, make: Callable[[], Curves]) -> Ground:
    curves = make()
    assert curves.mean_seconds is not None
    return Ground(name, curves, curves.mean_seconds)


GROUNDS: Mapping[str, Callable[[Path, float], Ground]] = {
    "alexnet": _alexnet,
    "cifar10_3c3d": partial(_deepobs, problem="cifar10_3c3d"),
    "fmnist_2c2d": partial(_deepobs, problem="fmnist_2c2d"),
    "mnist_vae": partial(_deepobs, problem="mnist_vae"),
    "ogbg": partial(_algoperf, workload="ogbg"),
    # Both have the same configurations: they belong on the same side of a split.
    "lstm128": partial(_taskset, task="lstm128"),
    "gru64": partial(_taskset, task="gru64"),
    "synthetic": partial(_made_up, name="synthetic", make=synthetic),
    "finetuned": partial(_made_up, name="finetuned", make=finetuned),
    "annealed": partial(_made_up, name="annealed", make=annealed),
}


# ---- methods, and the variants of each of which the best counts, in hindsight --------------------

PEERS = (
    "random",
    "median",
    "halving",
    "hyperband",
    "asha",
    "asha-stopping",
    "bohb",
    "hypersched",
    "rubberband",
)
# seer-random is seer with the peers' sampler: what of its gain isn't the model's.
OURS = ("seer", "seer-constant", "seer-random", "seer-barrier")
WITHOUT_ETA = frozenset({"random", "median"})
# They look at their limits, or at how training scales: they are played in each cell.
HEEDING = frozenset({"hypersched", "rubberband", *OURS})
# Of which RubberBand, whose schedule is given, gets the best number in hindsight.
TRIALS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SLOW = frozenset({"bohb"})


@dataclass(frozen=True)
class Variant:
    """A strategy with the choices that someone has to make for it; an empty one is its own."""

    strategy: str
    eta: int = 3
    fleet: str = ""
    trials: int | None = None
    sampler: str = ""

    @property
    def method(self) -> str:
        return f"{self.strategy}-{self.sampler}" if self.sampler else self.strategy

    @property
    def read(self) -> bool:
        """Whether one long run tells what it comes to within any limits."""
        return self.strategy not in HEEDING

    @property
    def label(self) -> str:
        trials = "" if self.trials is None else f" of {self.trials}"
        return f"{self.method}{trials} eta {self.eta} {self.fleet}".rstrip()


@dataclass(frozen=True)
class Choices:
    """Which variants there are of the peers."""

    etas: Sequence[int] = (2, 3, 4)
    fleets: Sequence[str] = ("constant", "naive")
    sizes: Sequence[int] = SIZES
    trials: Sequence[int] = TRIALS

    def of(self, method: str, configurations: int) -> Iterator[Variant]:
        """Yield the variants of a method on a table of so many configurations."""
        if method in OURS:
            alike = method.endswith("-random")
            yield Variant(method.removesuffix("-random"), sampler="random" if alike else "")
        elif method == "rubberband":
            for eta in self.etas:
                for trials in self.trials:
                    if trials <= configurations:
                        yield Variant(method, eta, trials=trials)
        else:
            for eta in self._etas(method):
                for fleet in self.fleets if method not in _SLOW else ("constant",):
                    for size in self.sizes:
                        yield Variant(method, eta, f"{fleet}:{size}")

    def _etas(self, method: str) -> Sequence[int]:
        if method in WITHOUT_ETA:
            return (3,)
        return (3,) if method in _SLOW else self.etas
