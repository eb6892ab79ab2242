"""What earlier runs are worth to forecasts: how far off they are, and how wide.

    python -m benchmarks.foretold [--worlds 20] [--runs 4] [--strategy sha]

In each made-up world a script is measured once, of one configuration, on a machine that boots as
slowly as it happens to. How far off that is from what runs then see is drawn from what few
measurements can't tell (profiles/priors.csv): speed by the configuration and by the machine, delays
by the run. The runs follow each other; each is planned with `history: off` and with `times: auto`,
and the run itself, in virtual time, goes by the latter. Their true seconds of an epoch, and the
means of their delays, differ from run to run as that table says.

Told for the first run, the second and so on: how far the forecast's p50 was from what it took, at
the median and at the 90th percentile, how many ended between p5 and p95, and how wide that is.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

from cloudtune.engine.ledger import FileLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.experiment import Experiment
from cloudtune.model.plans import Limits
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.planning import make
from cloudtune.planning.plan_file import job_of
from cloudtune.planning.problem import problem_of
from cloudtune.profiles import store
from cloudtune.profiles.priors import prior
from cloudtune.runs import home
from cloudtune.runs.job import Job
from cloudtune.runs.report import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.model.plans import RunPlan

TYPE, WHERE = "g4dn.12xlarge", "aws"
EPOCH = {1.0: 90.0, 2.0: 50.0, 4.0: 31.0}
DELAYS = {"launch": 20.0, "boot": 90.0, "start": 12.0, "resize": 14.0, "release": 5.0}
LIMITS = Limits(4 * 3600.0, 60.0)


@dataclass(frozen=True)
class Told:
    """A forecast's p5, p50 and p95 in seconds, and what the run took."""

    p5: float
    p50: float
    p95: float
    took: float

    @property
    def off(self) -> float:
        """How far the middle was off, as a share of what the run took."""
        return abs(self.p50 / self.took - 1)

    @property
    def kept(self) -> bool:
        """Whether the run ended within the forecast."""
        return self.p5 <= self.took <= self.p95

    @property
    def width(self) -> float:
        """How wide the forecast is, as a share of its middle."""
        return (self.p95 - self.p5) / self.p50


def _profile(script: str, speed: float, delays: dict[str, float]) -> ScalingProfile:
    return ScalingProfile(
        instance_type=TYPE,
        epoch={w: Measurement(s * speed, 0.03 * s * speed, 4) for w, s in EPOCH.items()},
        **{name: Measurement(seconds, 0.08 * seconds, 1) for name, seconds in delays.items()},  # type: ignore[arg-type]
        script_hash=script,
        measured_at="2026-11-01T00:00:00Z",
        source="made up",
    )


class _World:
    """What is true of a script and a cloud, and what each run happens to meet."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        # The table's figures are how far one run is from another: sqrt(2) times from the mean.
        self._delays = {name: self._near(name, mean) for name, mean in DELAYS.items()}

    def _near(self, name: str, mean: float) -> float:
        return mean * math.exp(self._random.gauss(0, prior(name, WHERE).between / math.sqrt(2)))

    def profile(self, script: str, *, configurations: int) -> ScalingProfile:
        """Return what a run of so many configurations meets."""
        spread = prior("speed of other configurations", WHERE).between / math.sqrt(configurations)
        machine = prior("speed of other machines", WHERE).between
        speed = math.exp(self._random.gauss(0, math.hypot(spread, machine)))
        met = {name: self._near(name, mean) for name, mean in self._delays.items()}
        return _profile(script, speed, met)


def _experiment(folder: Path, strategy: str, times: str, seed: int) -> Experiment:
    return Experiment(
        name="foretold",
        train="train.py:train",
        metric={"name": "score", "mode": "max"},
        search={"lr": {"loguniform": [1e-4, 1]}},
        trials=16,
        epochs={"min": 1, "max": 16},
        eta=2,
        strategy=strategy,
        limits={"deadline": f"{LIMITS.deadline}s", "budget": LIMITS.budget},
        cloud={"provider": WHERE, "instances": [TYPE], "max_instances": 4},
        history={"times": times},
        seed=seed,
        directory=folder,
    )


def _planned(experiment: Experiment, measured: ScalingProfile) -> Job:
    problem = problem_of(experiment, [measured])
    return job_of(make.make_plan(problem, LIMITS, force=True), 0.0, paced=False)


def played(folder: Path, strategy: str, runs: int, seed: int) -> list[tuple[Told, Told]]:
    """Return of each run of a world what was foretold without the earlier ones, and with them."""
    script = folder / "train.py"
    script.write_text("def train(config):\n    pass\n")
    world = _World(seed)
    measured = world.profile(store.script_hash(script), configurations=1)
    found = []
    for number in range(runs):
        cold = _planned(_experiment(folder, strategy, "off", number), measured)
        job = _planned(_experiment(folder, strategy, "auto", number), measured)
        name = f"world-{seed}-{number}"
        header = {**job.to_json(), "run": name, "began": 1.79e9 + 86400 * number}
        took = _took(name, header, world.profile(measured.script_hash, configurations=4))
        found.append((_told(cold.plan, took), _told(job.plan, took)))
    return found


def _took(name: str, header: dict[str, object], really: ScalingProfile) -> float:
    job = Job.from_json(header)
    real = tuple(replace(each, profile=really) for each in job.rentables)
    target = home.runs() / name
    target.mkdir(parents=True)
    ledger = FileLedger(target / "ledger.jsonl", header)
    world = SimWorld(real, "score", synthetic_metric("max", job.experiment.seed), 0)
    run(job.policy(), world, ledger)
    ledger.close()
    return load(target).seconds


def _told(plan: RunPlan, took: float) -> Told:
    seconds = plan.forecast.seconds
    return Told(seconds.p5, seconds.p50, seconds.p95, took)


def _line(found: Sequence[Told]) -> str:
    offs = [each.off for each in found]
    p90 = quantiles(offs, n=10)[-1] if len(offs) > 1 else offs[0]
    kept = sum(each.kept for each in found) / len(found)
    wide = median(each.width for each in found)
    return f"off by {median(offs):.1%} (p90 {p90:.1%}), {kept:.0%} within, {wide:.0%} wide"


def main() -> None:
    """Print what is told above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--strategy", default="sha")
    given = parser.parse_args()
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # prices are those of the table
    by_run: list[list[tuple[Told, Told]]] = [[] for _ in range(given.runs)]
    for seed in range(given.worlds):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["CLOUDTUNE_HOME"] = f"{folder}/home"
            for each, pair in zip(
                by_run, played(Path(folder), given.strategy, given.runs, seed), strict=True
            ):
                each.append(pair)
    for number, pairs in enumerate(by_run, start=1):
        print(f"run {number}: without  {_line([cold for cold, _ in pairs])}")
        print(f"       with     {_line([warm for _, warm in pairs])}", flush=True)


if __name__ == "__main__":
    main()
