"""What drawn jobs come to: their plans, and their runs in virtual time, a line each.

    python -m tests.parity.recorded

writes `recorded.txt` again. A change of planners, strategies or policy shows there which jobs it
changes and how, next to the code in the same commit; where it should change none, a test fails.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

from benchmarks.compare.stages import plan_stages
from benchmarks.faults import BRAKES, METRIC, Case, case
from benchmarks.one_price import MARKETS, TYPES, made_profile
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.experiment.search_space import Uniform
from cloudtune.forecast.make import Planned, make_plan
from cloudtune.forecast.problem import build_problem
from cloudtune.forecast.staged_plans import PlanOptions
from cloudtune.model.commands import (
    EndRun,
    ExtendTrial,
    Launch,
    PlanAnew,
    Release,
    SetTimer,
    StartTrial,
    StopTrial,
)
from cloudtune.model.plans import Charges, Limits, Plan
from cloudtune.planners.base import InfeasibleError
from cloudtune.policy.context import BuildContext
from cloudtune.policy.registry import (
    STRATEGIES,
    Choice,
    chosen,
    components,
    has_stages,
    run_policy,
)
from cloudtune.policy.run import RunPolicy
from cloudtune.policy.schedule.stages import PLANNERS
from cloudtune.strategies.samplers.sampler import SpaceSampler

FILE = Path(__file__).with_name("recorded.txt")
RUNS = 250
PLANS = 120
ALLOCATORS = (
    "same",
    "static-fluid",
    "static-fluid:published",
    "dynamic-fluid",
    "fluid",
    "dynamic-fluid:published",
    "dynamic-fluid:published-idle",
)


# ---- runs ---------------------------------------------------------------------------------------


def _choice(seed: int) -> Choice:
    """Return a strategy, each in turn, and an allocator and a fleet that go with it."""
    luck = random.Random(seed)
    strategy = sorted(STRATEGIES)[seed % len(STRATEGIES)]
    if STRATEGIES[strategy].allocator != "same":
        return chosen(strategy)
    return chosen(strategy, luck.choice(ALLOCATORS), luck.choice(["naive", "constant:2"]))


def _policy(drawn: Case, choice: Choice) -> RunPolicy:
    context = BuildContext(
        drawn.rentables,
        max_instances=4,
        limits=drawn.limits,
        mode="max",
        min_epochs=1,
        max_epochs=9,
        seed=drawn.seed,
        trials=12,
    )
    plan = None
    if has_stages(choice.strategy):
        plan = plan_stages(choice.strategy, context, BRAKES, trials=12)
    sampler = SpaceSampler({"lr": Uniform(0.0, 1.0)}, seed=drawn.seed, most=12)
    parts = components(context, sampler, choice, BRAKES, plan)
    luck = random.Random(drawn.seed)
    charges = luck.choice([Charges(), Charges(usd_per_launch=0.01, usd_per_second=1e-4)])
    at_once = luck.choice([None, None, None, 5])
    return run_policy(context, parts, METRIC, BRAKES, charges=charges, max_concurrent=at_once)


def _run(seed: int) -> str:
    """Return how a run begins, what it commands and how it ends; mishaps are part of most."""
    drawn = case(seed)
    choice = _choice(seed)
    if drawn.limits == Limits():
        drawn = replace(drawn, limits=Limits(deadline=600.0))
    try:
        policy = _policy(drawn, choice)
    except InfeasibleError as error:
        return f"{choice.strategy} {error}"
    ledger = MemoryLedger()
    run(policy, drawn.world(), ledger)
    name = f"{choice.strategy} {choice.allocator} {choice.fleet}"
    best = policy.best
    winner = "no trial" if best is None else f"{best.trial} {best.epoch}"
    assert policy.ending is not None
    end = f"{policy.ending.value} {winner} {ledger.entries[-1].event.at:.6g} s"
    return f"{name}: {end}: {' '.join(_commands(ledger))}"


def _commands(ledger: MemoryLedger) -> Iterator[str]:
    """Yield what a run does, each time before what is done then."""
    last = 0.0
    for entry in ledger.entries:
        acts = any(not isinstance(command, SetTimer | EndRun) for command in entry.commands)
        if acts and entry.event.at > last:
            last = entry.event.at
            yield f"{last:.6g}"
        for command in entry.commands:
            match command:
                case Launch():
                    yield f"+{command.instance_type},{command.market}"
                case Release():
                    yield f"-{command.intent}"
                case StartTrial():
                    yield f"{command.trial}x{command.width:.3g}"
                case ExtendTrial():
                    yield f"{command.session}>{command.until_epoch}"
                case StopTrial():
                    yield f"{command.session}!"
                case PlanAnew():
                    yield f"[{command.why}: {command.plan} $ {command.dollars:.4g} ]"
                case _:
                    pass


# ---- plans --------------------------------------------------------------------------------------


def _experiment(luck: random.Random, market: str, strategy: str, folder: Path) -> Experiment:
    return Experiment(
        name="job",
        train="train.py:train",
        metric={"name": "score", "mode": luck.choice(["max", "min"])},
        search={"lr": {"loguniform": [1e-4, 1]}},
        trials=luck.choice([4, 8, 16, 48]),
        epochs={"min": luck.choice([1, 1, 2]), "max": luck.choice([4, 9, 27])},
        eta=luck.choice([2, 3]),
        strategy=strategy,
        cloud={
            "provider": "aws",
            "instances": luck.sample(sorted(TYPES), luck.choice([1, 2])),
            "max_instances": luck.choice([2, 6, 6, 20]),
            "market": market,
            "billing": luck.choice(["second", "second", "minute", "hour"]),
            "vcpu_quotas": luck.choice([{}, {}, {"on-demand g": 48, "spot g": 96, "spot p": 24}]),
        },
        charges=luck.choice([{}, {"per_launch": "$0.05", "per_hour": "$0.8"}]),
        history="off",
        directory=folder,
    )


def _plan(seed: int, folder: Path) -> str:
    """Return what a drawn job's plan is, or why there is none."""
    luck = random.Random(seed)
    market = MARKETS[seed % len(MARKETS)]
    strategy = "best" if luck.random() < 0.2 else "sha"
    experiment = _experiment(luck, market, strategy, folder)
    problem = build_problem(
        experiment, [made_profile(luck, name, TYPES[name]) for name in experiment.cloud.instances]
    )
    hours = luck.choice([0.1, 0.25, 1.0, 6.0])
    deadline = luck.choice([None, hours * 3600])
    limits = Limits(deadline, luck.choice([None, hours * luck.choice([0.1, 1.0, 6.0])]))
    options = PlanOptions()
    if strategy == "sha":
        objective = luck.choice([None, "cost", "time", "trials" if deadline == 360 else "time"])
        planner = luck.choice([None, None, *PLANNERS])
        sure = None if objective == "trials" or hours > 1 else luck.choice([None, None, None, 0.9])
        options = PlanOptions(objective, planner, sure)  # type: ignore[arg-type]
    return (
        f"{market} {options.objective} {options.planner}: {_planned_text(problem, limits, options)}"
    )


def _planned_text(problem: object, limits: Limits, options: PlanOptions) -> str:
    try:
        planned = make_plan(problem, limits, options, runs=7)  # type: ignore[arg-type]
    except (InfeasibleError, UsageError) as error:
        return str(error)
    forecast = planned.plan.forecast
    figures = [forecast.seconds.p50, forecast.seconds.p95, forecast.trials.p50]
    figures += [forecast.dollars.p5, forecast.dollars.p50, forecast.dollars.p95]
    shown = " ".join(f"{figure:.6g}" for figure in figures)
    return f"{forecast.source} {shown} {forecast.within or 0:.6g} {_stages(planned)}"


def _stages(planned: Planned) -> str:
    plan: Plan | None = planned.plan.staged
    if plan is None:
        return ""
    return f"gap {plan.gap:.6g} " + " ".join(
        f"{stage.stage.trials}:{stage.stage.end_epoch}="
        + "&".join(
            f"{group.trials}x{group.width:.3g}@{group.instances}"
            f"{group.offer.instance_type.name},{group.offer.market}"
            for group in stage.groups
        )
        for stage in plan.stages
    )


def lines(folder: Path, part: int = 0, parts: int = 1) -> Iterator[str]:
    """Yield a line for each job of a part of all; `folder` is a home for what plans look up."""
    with mock.patch.dict(
        "os.environ", {"CLOUDTUNE_HOME": str(folder), "AWS_EC2_METADATA_DISABLED": "true"}
    ):
        for seed in range(part, RUNS, parts):
            yield f"run {seed} {_run(seed)}"
        for seed in range(part, PLANS, parts):
            yield f"plan {seed} {_plan(seed, folder)}"


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines(Path(sys.argv[1]))), "utf-8")
