"""Strategies tried on recorded curves, in virtual time: one run, and what it came to.

Pure: a `Benchmark` (what there is) and a `Case` (what to do with it, and a seed) give the same
`Result` each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.compare.audit import audited
from benchmarks.compare.sampler import TableSampler
from benchmarks.compare.stages import plan_stages
from benchmarks.runner import in_processes
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run, without_collection
from cloudtune.engine.record.timeline import read
from cloudtune.model.plans import Limits
from cloudtune.planners.base import InfeasibleError
from cloudtune.policy.context import BuildContext
from cloudtune.policy.registry import choose_sampler, chosen, components, run_policy
from cloudtune.strategies.samplers.adaptive import Adaptive
from cloudtune.strategies.samplers.sampler import ADAPTIVE
from tests.flapping import flaps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from benchmarks.compare.audit import Audit, Point
    from benchmarks.compare.benchmark import Benchmark
    from cloudtune.engine.ledger import Entry
    from cloudtune.policy.run import RunPolicy
    from cloudtune.strategies.base import Sampler


@dataclass(frozen=True)
class Case:
    """One run: by which strategy, within which limits, with which luck.

    An empty allocator, fleet or sampler is what suits the strategy. `max_trials` caps how many
    configurations are tried; those are drawn by the sampler.
    """

    strategy: str
    limits: Limits = field(default_factory=Limits)
    allocator: str = ""
    fleet: str = ""
    eta: int = 3
    min_epochs: int = 1
    seed: int = 0
    sampler: str = ""
    max_trials: int | None = None


@dataclass(frozen=True)
class Result:
    """What a run came to, by its ledger alone.

    `metric` is the best that was reached, None where nothing was; `regret` by how much the best of
    the table is better. `path` are the bests on the way there. `epochs` is how far the winner was
    trained in the end. GPU-seconds were `held` by trials, of which epochs `trained`, or `idle`.
    `ended` says why it ended. `violations` says how it passed its limits, `flaps` what it took back
    or rented again for no cause: both empty, as they must be.
    """

    metric: float | None
    regret: float | None
    seconds: float
    dollars: float
    trials: int
    winner: str | None
    epochs: int
    gpu_seconds: float
    held: float
    trained: float
    idle: float
    resizes: int
    events: int
    ended: str
    path: tuple[Point, ...]
    violations: tuple[str, ...]
    flaps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Played:
    """A run in full: what it came to, what it was made of, and its ledger."""

    result: Result
    audit: Audit
    entries: tuple[Entry, ...]


# ---- playing -------------------------------------------------------------------------------------

# Makes the policy of a run: `policy_of`, or a benchmark's own.
Maker: TypeAlias = "Callable[[Benchmark, Case], RunPolicy]"


def policy_of(benchmark: Benchmark, case: Case) -> RunPolicy:
    """Return a fresh policy for a run.

    Raises:
        UsageError: no strategy, allocator, fleet or sampler of such a name.
        InfeasibleError: a strategy that is planned beforehand finds no plan.
    """
    choice = chosen(case.strategy, case.allocator, case.fleet)
    context = context_of(benchmark, case)
    brakes = benchmark.brakes
    plan = None
    if choice.planned:
        trials = sum(1 for _ in iter(sampler_of(benchmark, case).ask, None))
        plan = plan_stages(choice.strategy, context, brakes, trials=trials)
    parts = components(context, sampler_of(benchmark, case), choice, brakes, plan)
    return run_policy(context, parts, benchmark.metric, brakes, heartbeat=False, checked=False)


def sampler_of(benchmark: Benchmark, case: Case) -> Sampler:
    """Return what gives a run its configurations: the rows of the table.

    Raises:
        UsageError: no such sampler, or it needs hyperparameters and the table has none.
    """
    kind, random_fraction = choose_sampler(case.strategy, case.sampler)
    mode = benchmark.curves.mode
    drawn = TableSampler(
        benchmark.trials,
        kind,
        case.seed,
        case.max_trials,
        mode=mode,
        random_fraction=random_fraction,
    )
    if kind == ADAPTIVE and drawn.axes:
        return Adaptive(drawn, mode, benchmark.curves.max_epochs, seed=case.seed)
    return drawn


def check(benchmark: Benchmark, case: Case) -> None:
    """Pass if a run can be made: all its names are known.

    Raises:
        UsageError: no strategy, allocator, fleet or sampler of such a name.
    """
    if chosen(case.strategy, case.allocator, case.fleet).planned:
        sampler_of(benchmark, case)  # the rest is planning, and takes long
    else:
        policy_of(benchmark, case)


def context_of(benchmark: Benchmark, case: Case) -> BuildContext:
    """Return what strategies, allocators and fleets are made from: what a real run knows too."""
    most = benchmark.curves.max_epochs
    return BuildContext(
        rentables=benchmark.rentables,
        max_instances=benchmark.max_instances,
        limits=case.limits,
        mode=benchmark.curves.mode,
        min_epochs=min(case.min_epochs, most),
        max_epochs=most,
        eta=case.eta,
        trials=case.max_trials,
        seed=case.seed,
    )


def play(benchmark: Benchmark, case: Case, make: Maker = policy_of) -> Result:
    """Return what one run comes to.

    Raises:
        UsageError: no strategy, allocator, fleet or sampler of such a name.
    """
    return record(benchmark, case, make).result


def record(benchmark: Benchmark, case: Case, make: Maker = policy_of) -> Played:
    """Return one run with its ledger, as `play` does; a run without a plan does nothing at all."""
    ledger = MemoryLedger()
    ended = "infeasible"
    stages: Sequence[float] = ()
    with without_collection():
        try:
            policy = make(benchmark, case)
        except InfeasibleError:
            pass
        else:
            run(policy, benchmark.world(case.seed), ledger)
            ended = policy.ending.value if policy.ended and policy.ending else "stands still"
            stages = policy.itinerary.stage_began if policy.itinerary else stages
        entries = tuple(ledger.entries)
        timeline = read(entries)
        rentables = benchmark.rentables
        metric = benchmark.metric
        audit = audited(
            timeline, [rentable.offer for rentable in rentables], metric.name, metric.mode
        )
        flapped = flaps(
            entries, timeline, rentables, brakes=benchmark.brakes, metric=metric, stages=stages
        )
    best = audit.path[-1] if audit.path else None
    violations = audit.violations(case.limits)
    if ended == "stands still":
        violations = (*violations, "nothing happens any more, and the run has not ended")
    result = Result(
        metric=best and best.metric,
        regret=benchmark.curves.regret(best and best.metric),
        seconds=audit.seconds,
        dollars=audit.dollars,
        trials=len(audit.epochs),
        winner=best and best.trial,
        epochs=audit.epochs[best.trial] if best else 0,
        gpu_seconds=audit.gpu_seconds,
        held=audit.held,
        trained=audit.trained,
        idle=audit.idle,
        resizes=audit.resizes,
        events=len(entries),
        ended=ended,
        path=audit.path,
        violations=violations,
        flaps=flapped,
    )
    return Played(result, audit, entries)


# ---- many runs -----------------------------------------------------------------------------------

# That few runs are over before another process has started.
_FEW = 16


def play_all(benchmark: Benchmark, cases: Sequence[Case], processes: int = 1) -> Iterator[Result]:
    """Yield what each run comes to, in order; the same in any number of processes."""
    workers = 1 if len(cases) <= _FEW else min(processes, len(cases))
    yield from in_processes(_play, cases, workers, begin=_begin, given=(benchmark,))


_benchmark: Benchmark


def _begin(benchmark: Benchmark) -> None:
    global _benchmark  # noqa: PLW0603  what a process plays on, from its start
    _benchmark = benchmark


def _play(case: Case) -> Result:
    return play(_benchmark, case)
