"""Strategies tried on recorded curves, in virtual time: one run, and what it came to.

Pure: a `Study` (what there is) and a `Try` (what to do with it, and a seed) give the same `Outcome`
each time. The command line and the benchmarks both go through `play`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloudtune.audit import audit
from cloudtune.engine import run
from cloudtune.errors import InfeasibleError
from cloudtune.ledger import MemoryLedger
from cloudtune.plan import Limits
from cloudtune.samplers import TableSampler
from cloudtune.staged import STAGED, staged_policy
from cloudtune.tactics import STRATEGIES, Setup, elastic_policy, named, sampler_for, tactic

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from cloudtune.audit import Audit, Point
    from cloudtune.ledger import Entry
    from cloudtune.renting import Renter
    from cloudtune.study import Study


@dataclass(frozen=True)
class Try:
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
class Outcome:
    """What a run came to, by its ledger alone.

    `metric` is the best that was reached, None where nothing was; `regret` by how much the best of
    the table is better. `path` are the bests on the way there. `epochs` is how far the winner was
    trained in the end. `fleet` is the GPUs that bill, after each change; GPU-seconds were `held` by
    trials, of which epochs `trained`, or `idle`. `ended` says why it ended. `violations` says how
    it passed its limits: empty, as it must be.
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
    fleet: tuple[tuple[float, int], ...]
    violations: tuple[str, ...]

    def reached(self, limits: Limits) -> Point | None:
        """Return the best by then, had the run been ended at these limits; None if there was none.

        So one long run of a strategy that doesn't look at its limits is read at any of them.
        """
        found = None
        for point in self.path:
            late = limits.deadline is not None and point.at > limits.deadline
            dear = limits.budget is not None and point.dollars > limits.budget
            if late or dear:
                break
            found = point
        return found


@dataclass(frozen=True)
class Played:
    """A run in full: what it came to, what it was made of, and its ledger."""

    outcome: Outcome
    audit: Audit
    entries: tuple[Entry, ...]


# ---- playing -------------------------------------------------------------------------------------

Maker: TypeAlias = "Callable[[Study, Try], Renter]"
"""Makes the policy of a run: `policy_of`, or a benchmark's own."""


def names() -> tuple[str, ...]:
    """Return the names of the strategies that can be tried."""
    return tuple(dict.fromkeys((*STRATEGIES, *STAGED)))


def policy_of(study: Study, wanted: Try) -> Renter:
    """Return a fresh policy for a run.

    Raises:
        UsageError: no strategy, allocator, fleet or sampler of such a name.
        InfeasibleError: a strategy that plans beforehand finds no plan.
    """
    named("strategy", wanted.strategy, dict.fromkeys(names()))
    setup, sampler = setup_of(study, wanted), sampler_of(study, wanted)
    if wanted.strategy in STAGED:
        trials = list(iter(sampler.ask, None))
        return staged_policy(
            wanted.strategy,
            setup,
            trials,
            study.metric,
            study.brakes,
            heartbeat=False,
            checked=False,
        )
    chosen = tactic(setup, sampler, wanted.strategy, wanted.allocator, wanted.fleet)
    return elastic_policy(setup, chosen, study.metric, study.brakes, heartbeat=False, checked=False)


def sampler_of(study: Study, wanted: Try) -> TableSampler:
    """Return what gives a run its configurations: the rows of the table.

    Raises:
        UsageError: no such sampler, or it needs hyperparameters and the table has none.
    """
    kind, random_fraction = sampler_for(wanted.strategy, wanted.sampler)
    return TableSampler(
        study.trials,
        kind,
        wanted.seed,
        wanted.max_trials,
        mode=study.curves.mode,
        random_fraction=random_fraction,
    )


def check(study: Study, wanted: Try) -> None:
    """Pass if a run can be made: all its names are known.

    Raises:
        UsageError: no strategy, allocator, fleet or sampler of such a name.
    """
    if wanted.strategy in STAGED:
        sampler_of(study, wanted)  # the rest is planning, and takes long
    else:
        policy_of(study, wanted)


def setup_of(study: Study, wanted: Try) -> Setup:
    """Return what strategies, allocators and fleets are made from: what a real run knows too."""
    most = study.curves.max_epochs
    return Setup(
        rentables=study.rentables,
        max_instances=study.max_instances,
        limits=wanted.limits,
        mode=study.curves.mode,
        min_epochs=min(wanted.min_epochs, most),
        max_epochs=most,
        eta=wanted.eta,
        trials=wanted.max_trials,
        seed=wanted.seed,
    )


def play(study: Study, wanted: Try, make: Maker = policy_of) -> Outcome:
    """Return what one run comes to.

    Raises:
        UsageError: no strategy, allocator, fleet or sampler of such a name.
    """
    return record(study, wanted, make).outcome


def record(study: Study, wanted: Try, make: Maker = policy_of) -> Played:
    """Return one run with its ledger, as `play` does; a run without a plan does nothing at all.

    Raises:
        UsageError: no strategy, allocator, fleet or sampler of such a name.
    """
    ledger, ended = MemoryLedger(), "infeasible"
    try:
        policy = make(study, wanted)
    except InfeasibleError:
        pass
    else:
        run(policy, study.world(wanted.seed), ledger)
        ended = policy.ending.value if policy.ended and policy.ending else "stands still"
    offers = [each.offer for each in study.rentables]
    found = audit(ledger.entries, offers, study.curves.metric, study.curves.mode)
    outcome = _outcome(study, wanted, found, ended, len(ledger.entries))
    return Played(outcome, found, tuple(ledger.entries))


def _outcome(study: Study, wanted: Try, found: Audit, ended: str, events: int) -> Outcome:
    best = found.path[-1] if found.path else None
    violations = found.violations(wanted.limits)
    if ended == "stands still":
        violations = (*violations, "nothing happens any more, and the run has not ended")
    return Outcome(
        metric=best and best.metric,
        regret=study.curves.regret(best and best.metric),
        seconds=found.seconds,
        dollars=found.dollars,
        trials=len(found.epochs),
        winner=best and best.trial,
        epochs=found.epochs[best.trial] if best else 0,
        gpu_seconds=found.gpu_seconds,
        held=found.held,
        trained=found.trained,
        idle=found.idle,
        resizes=found.resizes,
        events=events,
        ended=ended,
        path=found.path,
        fleet=found.fleet(),
        violations=violations,
    )
