"""Whether the price and the chance that `plan` prints are those of the runs that follow.

    python -m benchmarks.one_price [--plans 200] [--runs 200] [--processes 2]

Each plan is of a random job: 4 to 48 trials, on demand, on spot or both, by sha or best, with
limits from loose to tight. Its runs are the policy in virtual time, at speeds and on spot pools
that may be. Printed by kind: the share of plans whose total lies within 5 % of the runs' mean, the
share whose chance to keep the limits differs from the runs' by more than 5 points, and what a plan
takes.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pandas as pd

from benchmarks.runner import in_processes, parser
from cloudtune.experiment import Experiment
from cloudtune.forecast import make, prediction
from cloudtune.forecast.problem import build_problem
from cloudtune.model.plans import Limits
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.planners.base import InfeasibleError

MARKETS = ("on-demand", "spot", "any")
NEAR = 0.05
TYPES = {"g4dn.xlarge": 1, "g4dn.12xlarge": 4, "p3.2xlarge": 1}
# Seeds of the runs begin here: none of them is one of the forecast's.
APART = 1_000


@dataclass(frozen=True)
class Outcome:
    """What a plan prints, and what its runs came to: dollars and chances."""

    kind: str
    printed: float
    low: float
    high: float
    mean: float
    middle: float
    said: float
    kept: float
    seconds: float


def made_profile(draw: random.Random, name: str, gpus: int) -> ScalingProfile:
    epoch, beta = draw.choice([20.0, 60.0, 240.0]), draw.uniform(0.6, 1.0)
    delays = {"launch": 20.0, "boot": draw.uniform(30, 150), "start": 8.0, "resize": 10.0}
    return ScalingProfile(
        instance_type=name,
        epoch={
            w: Measurement(epoch / w**beta, 0.03 * epoch / w**beta, 4)
            for w in (1.0, 2.0, 4.0)
            if w <= gpus
        },
        **{key: Measurement(mean, 0.2 * mean, 4) for key, mean in delays.items()},  # type: ignore[arg-type]
        release=Measurement(5.0, 1.0, 4),
        script_hash="made up",
        measured_at="2026-11-01T00:00:00Z",
        source="made up",
        error=draw.choice([0.02, 0.1]),
    )


def made_experiment(draw: random.Random, market: str, strategy: str, folder: Path) -> Experiment:
    return Experiment(
        name="job",
        train="train.py:train",
        metric={"name": "score", "mode": "max"},
        search={"lr": {"loguniform": [1e-4, 1]}},
        trials=draw.choice([4, 8, 16, 48]),
        epochs={"min": 1, "max": draw.choice([4, 9, 27])},
        eta=draw.choice([2, 3]),
        strategy=strategy,
        cloud={
            "provider": "aws",
            "instances": draw.sample(sorted(TYPES), draw.choice([1, 2])),
            "max_instances": 6,
            "market": market,
        },
        history="off",
        directory=folder,
    )


def _planned(number: int, folder: Path) -> make.Planned | None:
    """Return the plan of a job; None where its limits are too tight for any."""
    draw = random.Random(number)
    strategy = "best" if draw.random() < 0.3 else "sha"
    seed = draw.random()
    market = MARKETS[number % len(MARKETS)]
    fixed, experiment = (
        made_experiment(random.Random(seed), market, name, folder) for name in ("sha", strategy)
    )
    profiles = [made_profile(draw, name, TYPES[name]) for name in experiment.cloud.instances]
    loose = make.make_plan(build_problem(fixed, profiles), Limits()).plan.forecast
    factor = draw.choice([0.9, 1.05, 1.2, 1.6, 3.0])
    limits = Limits(loose.seconds.p50 * factor * draw.uniform(0.8, 1.5), loose.dollars.p50 * factor)
    try:
        return make.make_plan(build_problem(experiment, profiles), limits)
    except InfeasibleError:
        return None


class Elsewhere(prediction.PlayedRuns):
    """Runs that aren't those of the forecast, however many events they take."""

    def _play(self, seed: int) -> prediction.PlayedRun:
        return replace(super()._play(seed + APART), events=0)


def foretold(number: int, runs: int) -> Outcome | None:
    """Return what the plan of a job prints, and what its runs come to."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLOUDTUNE_HOME"] = f"{folder}/home"
        began = time.process_time()
        planned = _planned(number, Path(folder))
        seconds = time.process_time() - began
    if planned is None:
        return None
    plan, forecast = planned.plan, planned.plan.forecast
    follows = forecast.source != "policy"
    played = Elsewhere(planned, plan.staged, samples=runs, follows=follows).forecast()
    kind = f"{MARKETS[number % len(MARKETS)]}, {forecast.source}"
    assert forecast.within is not None
    assert played.within is not None
    return Outcome(
        kind,
        plan.estimate.dollars,
        forecast.dollars.p5,
        forecast.dollars.p95,
        played.dollars.mean,
        played.dollars.p50,
        forecast.within,
        played.within,
        seconds,
    )


def _line(plans: pd.DataFrame) -> str:
    near = ((plans["printed"] / plans["mean"] - 1).abs() <= NEAR).mean()
    middle = ((plans["printed"] / plans["middle"] - 1).abs() <= NEAR).mean()
    within = plans["mean"].between(plans["low"], plans["high"]).mean()
    apart = ((plans["said"] - plans["kept"]).abs() > NEAR).mean()
    return (
        f"{len(plans)} plans: total within 5 % of the mean {near:.0%} (of the median {middle:.0%}; "
        f"mean within p5 to p95 {within:.0%}); kept in off by more than 5 points {apart:.0%}; "
        f"{plans['seconds'].median():.1f} s a plan"
    )


def main() -> None:
    options = parser(__doc__, plans=200, runs=200, processes=2, verbose=False)
    given = options.parse_args()
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # prices are those of the table
    work = partial(foretold, runs=given.runs)
    outcomes = in_processes(work, range(given.plans), given.processes)
    result = pd.DataFrame([outcome for outcome in outcomes if outcome is not None])
    if given.verbose:
        print(result.to_string())
    for kind, own in result.groupby("kind"):
        print(f"{kind}: {_line(own)}")
    print(f"all: {_line(result)}")


if __name__ == "__main__":
    main()
