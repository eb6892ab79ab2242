"""What a deadline and a budget alone buy, beside machines that a person names.

    python -m benchmarks.defaults [--strategy best] [--budgets 5,20,100,500,2000]
        [--hours 1,4,24] [--draws 3] [--processes 2]
    python -m benchmarks.defaults --data DATA --tables alexnet,fmnist_2c2d [the same options]

The script is ResNet-50 on CIFAR-10 at its published speeds, with epochs 8 to 64 and eta 2, on AWS
without quotas; beyond $100 a larger model, whose epochs take as many times as long as the budget is
larger. Each draw is a world: how far published speeds are off by GPU model, and how spot
pools behave. Runs of the policy in virtual time begin with what is assumed of a script that never
ran, and choose

- *before*: up to four g4dn.12xlarge on demand, the default of 0.3;
- *default*: among all types and both markets, as many as the limits pay for;
- *named*: the same by `--instances '*' --market any --max-instances 64`;
- *knows*: the one type that buys most at the world's true speeds, in both markets, and no other.

Prints configurations, epochs trained, the last epoch of the best trial and dollars, all medians of
the draws, and the machines of the first draw; then `default` as a share of the better of *named*
and *knows*, by the median of draws.

With `--tables` the trials are those of recorded curves (strategies_cells.py), whose epochs take as
long as theirs on a V100. Then it prints the mean regret of *before* and *default*, and the second
over the first.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle, groupby
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import TYPE_CHECKING, Any

from benchmarks.compare.benchmark import Benchmark
from benchmarks.compare.case import Case
from benchmarks.compare.case import policy_of as table_policy_of
from benchmarks.runner import in_processes, parser, print_table
from benchmarks.strategies_cells import EPOCH_SECONDS, GROUNDS, scale_of
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.experiment import Experiment
from cloudtune.forecast.prediction import draw_rentable
from cloudtune.forecast.problem import build_problem, stored_profiles
from cloudtune.model.plans import Limits, Rentable
from cloudtune.runs.figures import figures
from cloudtune.runs.job import make_policy, max_instances
from cloudtune.strategies.worth import by_worth, means_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from benchmarks.strategies_cells import Ground
    from cloudtune.forecast.staged_plans import Problem

PROFILE = "resnet50-cifar10@v100"
CHOICES: dict[str, dict[str, Any]] = {
    "before": {"instances": ["g4dn.12xlarge"], "market": "on-demand", "max_instances": 4},
    "default": {},
    "named": {"instances": ["*"], "market": "any", "max_instances": 64},
}
KNOWS = "knows"
# A spot pool behaves in one of several ways: offers are spread over them by these bases.
_POOLS = (17, 19, 23, 29, 31)


@dataclass(frozen=True)
class Cell:
    """Limits, in dollars and hours, and the number of the world that is drawn.

    `table` names recorded curves; without one, curves are made up.
    """

    budget: float
    hours: float
    draw: int
    table: str = ""

    @property
    def limits(self) -> Limits:
        return Limits(self.hours * 3600.0, self.budget)

    @property
    def size(self) -> float:
        """How many times as long an epoch takes as ResNet-50's."""
        return max(1.0, self.budget / 100.0)

    def slowdown(self, epoch: float, data: Path | None) -> float:
        """Return how many times as long an epoch takes as `epoch` seconds, ResNet-50's."""
        if not self.table or data is None:
            return self.size
        return ground_of(self.table, data).epoch_seconds / epoch


@cache
def ground_of(table: str, data: Path) -> Ground:
    return GROUNDS[table](data, EPOCH_SECONDS)


@dataclass(frozen=True)
class Outcome:
    """What a simulated run bought; `machines` are the instances that trained, by offer.

    `reached` is the last epoch of the best trial.
    """

    configurations: int
    epochs: int
    reached: int
    dollars: float
    machines: str


def made_experiment(
    cell: Cell, strategy: str, cloud: Mapping[str, Any], folder: Path
) -> Experiment:
    return Experiment(
        name="defaults",
        train="train.py:train",
        metric={"name": "accuracy", "mode": "max"},
        search={"lr": {"loguniform": [1e-4, 1]}},
        epochs={"min": 8, "max": 64},
        eta=2,
        strategy=strategy,
        limits={"deadline": f"{cell.hours:g}h", "budget": f"${cell.budget:g}"},
        cloud={"provider": "aws", **cloud},
        history="off",
        directory=folder,
    )


def world_of(cell: Cell, strategy: str, folder: Path, data: Path | None = None) -> list[Rentable]:
    """Return all offers as they are in the world of a cell."""
    experiment = made_experiment(cell, strategy, {"instances": ["*"], "market": "any"}, folder)
    problem = build_problem(experiment, stored_profiles(experiment, PROFILE))
    epochs = [r.profile.epoch_seconds(1.0) for r in problem.rentables if _is_v100(r)]
    factor = cell.slowdown(min(epochs), data)
    slowed = [replace(each, profile=each.profile.slow_down(factor)) for each in problem.rentables]
    return [
        draw_rentable(each, cell.draw, base)
        for each, base in zip(slowed, cycle(_POOLS), strict=False)
    ]


def _is_v100(rentable: Rentable) -> bool:
    return rentable.offer.gpu_model == "v100"


def regrets(cell: Cell, strategy: str, data: Path) -> dict[str, float]:
    """Return the regret of the old default and of today's on a table, in the world of a cell."""
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # prices are those of the table
    curves = ground_of(cell.table, data).curves
    scale = scale_of(curves)
    found = {}
    with tempfile.TemporaryDirectory() as name:
        os.environ["CLOUDTUNE_HOME"] = f"{name}/home"
        folder = Path(name)
        (folder / "train.py").write_text("def train(config): ...\n")
        world = world_of(cell, strategy, folder, data)
        for choice in ("before", "default"):
            experiment = made_experiment(cell, strategy, CHOICES[choice], folder)
            rentables = build_problem(experiment, []).rentables
            most = max_instances(experiment, rentables)
            believed = Benchmark(curves, tuple(rentables), 1.0, most)
            policy = table_policy_of(believed, Case(strategy, cell.limits, seed=cell.draw))
            real = Benchmark(curves, tuple(world), 1.0, most)
            run(policy, real.world(cell.draw), MemoryLedger())
            best = policy.best
            regret = scale.regret(curves.regret(best.metric if best is not None else None))
            found[choice] = max(regret, scale.floor)
    return found


def outcomes(cell: Cell, strategy: str) -> dict[str, Outcome]:
    """Return what each choice buys in the world of a cell."""
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # prices are those of the table
    with tempfile.TemporaryDirectory() as name:
        os.environ["CLOUDTUNE_HOME"] = f"{name}/home"
        folder = Path(name)
        (folder / "train.py").write_text("def train(config): ...\n")
        world = world_of(cell, strategy, folder)
        found = {}
        for choice, cloud in CHOICES.items():
            problem = build_problem(made_experiment(cell, strategy, cloud, folder), [])
            found[choice] = play(cell, problem, world)
        best = _best_type(cell, world)
        cloud = {"instances": [best], "market": "any", "max_instances": 64}
        problem = build_problem(made_experiment(cell, strategy, cloud, folder), [])
        true = {rentable.offer: rentable for rentable in world}
        known = tuple(
            replace(rentable, profile=true[rentable.offer].profile)
            for rentable in problem.rentables
        )
        found[KNOWS] = play(cell, replace(problem, rentables=known), world)
        return found


def _best_type(cell: Cell, world: Sequence[Rentable]) -> str:
    means = means_within(cell.limits, 64, 64)
    return by_worth(world, means)[0].offer.instance_type.name


def play(cell: Cell, problem: Problem, world: Sequence[Rentable]) -> Outcome:
    """Simulate a run of a problem in a world."""
    experiment = problem.experiment
    policy = make_policy(
        experiment, problem.rentables, cell.limits, heartbeat=False, checked=False, learns=False
    )
    curves = synthetic_metric(experiment.metric.mode, cell.draw)
    run(policy, SimWorld(world, experiment.metric.name, curves, cell.draw), MemoryLedger())
    trained = Counter[str]()
    for rented in policy.fleet:
        if rented.joined:
            offer = rented.offer
            trained[f"{offer.instance_type.name}{' spot' * (offer.market == 'spot')}"] += 1
    result = figures(policy)
    epochs = sum(max(trial.history, default=0) for trial in policy.trials.values())
    machines = " + ".join(f"{count} x {name}" for name, count in trained.most_common(3))
    return Outcome(result.trials, epochs, result.epochs, result.dollars, machines)


def summary(
    cells: Sequence[Cell], found: Iterable[Mapping[str, Outcome]]
) -> Iterator[dict[str, object]]:
    """Yield a row for each pair of limits, when its draws are there."""
    pairs = zip(cells, found, strict=True)
    for limits, group in groupby(pairs, key=lambda pair: (pair[0].budget, pair[0].hours)):
        budget, hours = limits
        draws = [outcome for _, outcome in group]
        row: dict[str, object] = {"budget": f"${budget:g}", "hours": f"{hours:g}"}
        for choice in (*CHOICES, KNOWS):
            own = [draw[choice] for draw in draws]
            configurations = median(each.configurations for each in own)
            epochs = median(each.epochs for each in own)
            reached = median(each.reached for each in own)
            dollars = median(each.dollars for each in own)
            row[choice] = f"{configurations:g} / {epochs:g} / {reached:g} / ${dollars:.2f}"
        row["configurations"] = f"{median(_shares(draws, 'configurations')):.2f}"
        row["epochs"] = f"{median(_shares(draws, 'epochs')):.2f}"
        row["machines"] = draws[0]["default"].machines
        row["known machines"] = draws[0][KNOWS].machines
        yield row


def regret_summary(
    cells: Sequence[Cell], found: Iterable[Mapping[str, float]]
) -> Iterator[dict[str, object]]:
    """Yield a row for each table and pair of limits, then the geometric mean of all."""
    ratios = []
    pairs = zip(cells, found, strict=True)
    for key, group in groupby(pairs, key=lambda pair: replace(pair[0], draw=0)):
        draws = [outcome for _, outcome in group]
        before = mean(draw["before"] for draw in draws)
        default = mean(draw["default"] for draw in draws)
        ratios.append(default / before)
        yield {
            "table": key.table,
            "budget": f"${key.budget:g}",
            "hours": f"{key.hours:g}",
            "before": f"{before:.4g}",
            "default": f"{default:.4g}",
            "default / before": f"{ratios[-1]:.2f}",
        }
    yield {"table": "geometric mean", "default / before": f"{geometric_mean(ratios):.2f}"}


def _shares(draws: Sequence[Mapping[str, Outcome]], figure: str) -> list[float]:
    """Return what the default reaches of the best that a person names, draw by draw."""
    shares = []
    for draw in draws:
        best = max(getattr(draw[choice], figure) for choice in ("named", KNOWS))
        shares.append(getattr(draw["default"], figure) / max(1, best))
    return shares


def main() -> None:
    known = parser(
        __doc__,
        strategy="best",
        budgets=("5", "20", "100", "500", "2000"),
        hours=("1", "4", "24"),
        draws=3,
        processes=2,
        tables=("",),
    )
    known.add_argument("--data", type=Path, help="the folder of recorded curves")
    given = known.parse_args()
    cells = [
        Cell(float(budget), float(hours), draw, table)
        for table in given.tables
        for budget in given.budgets
        for hours in given.hours
        for draw in range(given.draws)
    ]
    if given.data is not None:
        asked = partial(regrets, strategy=given.strategy, data=given.data)
        print_table(regret_summary(cells, in_processes(asked, cells, given.processes)))
        return
    work = partial(outcomes, strategy=given.strategy)
    found = in_processes(work, cells, given.processes)
    print("configurations / epochs / last epoch of the best / dollars; of the better of both:\n")
    print_table(summary(cells, found))


if __name__ == "__main__":
    main()
