"""How fast simulated runs are: jobs per second against Syne Tune's simulator, events, memory.

    python -m benchmarks.simulation_speed [--data FOLDER] [--syne-tune PYTHON] [--repeats 5]

Jobs are 512 trials on 16 GPUs until none is left: ASHA of the stopping type (the one that Syne Tune
0.16 has), eta 3, rungs 1, 3, 9 …, the same configurations in the same order, the same curves and
seconds an epoch. `--data` adds the real curves of AlexNet on ImageNet. Ours rents two instances of
8 GPUs, boots and bills them, and keeps its ledger in memory; the time of a job goes from making its
policy to its end, without and with the audit of its ledger that `cloudtune simulate` makes.
Syne Tune runs in a process of its own, by the Python that is named; reading the table, its imports
and its first job aren't counted, and it writes no files. Its tuner looks for results every few
virtual seconds; a second row is with one look an epoch, which is coarse and saves much of its time.
All seconds are the processor's, so that what else runs on the machine counts for little.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import time
import tracemalloc
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.compare.benchmark import Benchmark, Delays, benchmark
from benchmarks.compare.case import Case, context_of, play, policy_of
from benchmarks.compare.curves import Curve, Curves, read_curves
from benchmarks.compare.speeds import Scaling
from benchmarks.curves_synthetic import synthetic
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.model.catalog import InstanceType, Offer
from cloudtune.model.plans import Limits
from cloudtune.policy.registry import chosen, components, run_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cloudtune.engine.ledger import Entry
    from cloudtune.model.trial import Trial
    from cloudtune.policy.run import RunPolicy

PEER = "benchmarks.simulation_speed_syne"
ROOT = Path(__file__).parents[1]
TRIALS, EPOCHS, WORKERS, ETA, MANY = 512, 81, 16, 3, 10_000
OFFER = Offer(InstanceType("p3.16xlarge", 8, "V100", 16384, 64, 499712), "on-demand", "", 24.48)
LINEAR = Scaling({1.0: 1.0, 2.0: 1.9, 4.0: 3.6, 8.0: 6.8})
NO_DELAYS = Delays(launch=0.0, boot=0.0, start=0.0, resize=0.0, release=0.0, spread=0.0)
DAY = Limits(8 * 3600.0, 300.0)
SIZES = (8, 16, 32, 64, 128, 210, 512, 1024)
DOLLARS_EACH = 0.6
ROOMY = Limits(4 * 3600.0)
STRATEGIES = ("random", "sha", "hyperband", "asha", "asha-stopping", "hypersched", "seer")


@dataclass(frozen=True)
class Timed:
    """What jobs took, each in seconds, and what one of them trained."""

    seconds: tuple[float, ...]
    trials: int
    epochs: int
    virtual: float

    @property
    def per_second(self) -> float:
        """Jobs per second, by the median."""
        return 1 / median(self.seconds)


# ---- the table -----------------------------------------------------------------------------------


def whole(curves: Curves) -> Curves:
    """Return the curves that have an epoch, each cut where it diverged: what both can play."""
    kept = []
    for curve in curves.curves:
        metrics = tuple(value for value in curve.metrics if value == value)  # noqa: PLR0124  nan
        if metrics:
            seconds = curve.seconds[: len(metrics)]
            kept.append(Curve(curve.name, metrics, len(metrics), curve.config, seconds))
    return Curves(curves.metric, curves.mode, tuple(kept))


def alexnet(folder: Path) -> Curves:
    """Return the AlexNet curves of the data folder."""
    table = folder / "curves_opda_alexnet.parquet"
    configs = folder / "curves_opda_alexnet_configs.csv"
    return read_curves(table, "val_top1", "max", configs=configs)


def ground(curves: Curves, delays: Delays | None = None) -> Benchmark:
    """Return what jobs on these curves are played on."""
    seconds = curves.mean_seconds
    assert seconds is not None
    return benchmark(curves, [LINEAR], [OFFER], epoch_seconds=seconds, delays=delays)


# ---- the same job on both ------------------------------------------------------------------------


class InOrder:
    """A sampler of all that there is, in the order of the table."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._left: Iterator[Trial] = iter(trials)

    def more(self, _trials: int) -> int:
        """Return 0: there are those that were given."""
        return 0

    def ask(self) -> Trial | None:
        """Return the next one."""
        return next(self._left, None)

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn nothing."""


def in_order(place: Benchmark, case: Case) -> RunPolicy:
    """Return the policy of a job that tries the configurations in the order of the table."""
    context, brakes = context_of(place, case), place.brakes
    choice = chosen(case.strategy, "same", case.fleet)
    made = components(context, InOrder(place.trials), choice, brakes)
    return run_policy(context, made, place.metric, brakes, heartbeat=False, checked=False)


ASHA = Case("asha-stopping", fleet=f"constant:{WORKERS // OFFER.gpus}", eta=ETA)


def ledger_of(
    place: Benchmark, case: Case, make: Callable[[Benchmark, Case], RunPolicy]
) -> list[Entry]:
    """Return the ledger of a job that is played to its end."""
    policy, ledger = make(place, case), MemoryLedger()
    run(policy, place.world(case.seed), ledger)
    return ledger.entries


def timed(work: Callable[[], object], repeats: int) -> tuple[float, ...]:
    """Return what it takes, each time; the first time isn't counted."""
    taken = []
    for _ in range(repeats + 1):
        gc.collect()
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return tuple(taken[1:])


def ours(place: Benchmark, repeats: int, *, audited: bool) -> Timed:
    """Return what our jobs take."""
    result = play(place, ASHA, in_order)
    assert result.ended == "done", result.ended
    trained = sum(
        type(entry.event).__name__ == "EpochDone" for entry in ledger_of(place, ASHA, in_order)
    )
    work = partial(play if audited else ledger_of, place, ASHA, in_order)
    return Timed(timed(work, repeats), result.trials, trained, result.seconds)


def answer(python: str, module: str, job: object) -> str:
    """Return what a module says of a job (JSON), run by a Python that has what it needs."""
    done = subprocess.run(
        [python, "-m", module],
        input=json.dumps(job),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{python} -m {module} failed:\n{done.stderr}")
    return done.stdout


def syne(python: str, curves: Curves, repeats: int, sleep: float | None) -> tuple[str, Timed]:
    """Return Syne Tune's version, and what its jobs take on the same curves."""
    job = {
        "metrics": [curve.metrics for curve in curves.curves],
        "seconds": [curve.seconds for curve in curves.curves],
        "eta": ETA,
        "workers": WORKERS,
        "repeats": repeats,
        "sleep": sleep,
    }
    said = json.loads(answer(python, PEER, job))
    jobs: list[dict[str, Any]] = said["jobs"]
    last = jobs[-1]
    seconds = tuple(each["seconds"] for each in jobs)
    return said["version"], Timed(seconds, last["trials"], last["epochs"], last["virtual"])


def against(name: str, curves: Curves, python: str | None, repeats: int) -> None:
    """Print the same job on both."""
    place = ground(curves, NO_DELAYS)
    plain = ours(place, repeats, audited=False)
    rows = [("cloudtune", plain), ("cloudtune, audited", ours(place, repeats, audited=True))]
    if python is not None:
        version, found = syne(python, curves, repeats, None)
        rows.append((f"Syne Tune {version}", found))
        mean = curves.mean_seconds
        rows.append(("… looking once an epoch", syne(python, curves, repeats, mean)[1]))
    print(f"\n{name}: {len(curves.curves)} configurations of {curves.max_epochs} epochs at most")
    print("| | s a job (least to most) | jobs/s | times ours | trials | epochs | virtual s |")
    print("|---|---|---|---|---|---|---|")
    for who, each in rows:
        spread = f"{median(each.seconds):.3f} ({min(each.seconds):.3f} to {max(each.seconds):.3f})"
        ratio = plain.per_second / each.per_second
        counts = f"{each.trials} | {each.epochs} | {each.virtual:,.0f}"
        print(f"| {who} | {spread} | {each.per_second:.2f} | {ratio:.1f} | {counts} |")
    if python is None:
        print("| Syne Tune | not measured | | | | | |")


# ---- every strategy, and many trials -------------------------------------------------------------


def strategies(place: Benchmark, repeats: int) -> None:
    """Print how many events a second go through a whole job, and through its policy alone."""
    print(f"\n{TRIALS} trials, {DAY.deadline:,.0f} s and ${DAY.budget:g} of virtual limits")
    print("| strategy | events | s a job | events/s | through the policy alone, events/s |")
    print("|---|---|---|---|---|")
    for name in STRATEGIES:
        case = Case(name, DAY, sampler="random")
        entries = ledger_of(place, case, policy_of)
        job = median(timed(partial(ledger_of, place, case, policy_of), repeats))
        alone = median(_alone(place, case, entries) for _ in range(repeats))
        count = len(entries)
        print(f"| {name} | {count:,} | {job:.3f} | {count / job:,.0f} | {count / alone:,.0f} |")


def _alone(place: Benchmark, case: Case, entries: Sequence[Entry]) -> float:
    """Return the seconds that a fresh policy takes to handle the events of a ledger."""
    policy = policy_of(place, case)
    began = time.process_time()
    commands = [policy.handle(entry.event) for entry in entries]
    taken = time.process_time() - began
    assert commands == [entry.commands for entry in entries]
    return taken


def many(repeats: int) -> None:
    """Print time and memory of a job of very many trials."""
    place = ground(synthetic(MANY, EPOCHS, diverging=0.0, epoch_seconds=60.0))
    case = Case("asha", fleet="constant:8", sampler="random")
    entries = ledger_of(place, case, policy_of)
    job = median(timed(partial(ledger_of, place, case, policy_of), repeats))
    count = len(entries)
    del entries
    gc.collect()
    tracemalloc.start()
    kept = ledger_of(place, case, policy_of)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"\nASHA, {MANY:,} trials on {8 * OFFER.gpus} GPUs: {count:,} events in {job:.2f} s,")
    print(f"{count / job:,.0f} events/s; at most {peak / 2**20:.1f} MiB of its own (policy, world")
    print(f"and the ledger of {len(kept):,} entries): {peak / MANY:,.0f} bytes a trial.")


def growth(repeats: int) -> None:
    """Print how a whole job's time grows with its trials: the same deadline, ever more money."""
    place = ground(synthetic(max(SIZES), EPOCHS, diverging=0.0, epoch_seconds=60.0))
    print("\nThe same deadline, and money for n trials: least time of a job, audited")
    print("| strategy | trials | events | s a job | jobs/s | times that of 64 trials |")
    print("|---|---|---|---|---|---|")
    for name in ("asha", "seer", "sha"):
        found = {}
        for size in SIZES:
            # In less time `sha` could hardly be planned, and would be planned again and again.
            limits = ROOMY if name == "sha" else Limits(1800.0, DOLLARS_EACH * size)
            case = Case(name, limits, sampler="random", max_trials=size)
            job = min(timed(partial(play, place, case), repeats))
            found[size] = play(place, case), job
        for played, job in found.values():
            times = job / found[64][1]
            counts = f"{played.trials} | {played.events:,}"
            print(f"| {name} | {counts} | {job:.3f} | {1 / job:.1f} | {times:.2f} |")


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--syne-tune", metavar="PYTHON")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    made = synthetic(TRIALS, EPOCHS, diverging=0.0, epoch_seconds=60.0)
    against("Made-up curves", made, options.syne_tune, options.repeats)
    if options.data is not None:
        curves = whole(alexnet(options.data))
        against("AlexNet on ImageNet", curves, options.syne_tune, options.repeats)
    strategies(ground(made), options.repeats)
    growth(options.repeats)
    many(min(3, options.repeats))


if __name__ == "__main__":
    main()
