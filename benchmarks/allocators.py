"""Makespans of the allocators against the integer program and against its bound: random groups.

    python -m benchmarks.allocators [--groups 1000] [--seed 0]

Groups of 2 to 10 trials on 1 to 3 nodes of 1, 2, 4 or 8 GPUs, with 1, 2, 4 or 8 trials to a GPU at
most; budgets are uniform, of a long tail, or those of a halving rung. Curves: twice the GPUs are
twice as fast (linear), less so (sublinear: width to the power 0.8), over a node's edge slower
(uneven), or measured: a published profile (docs/profiles.md) drawn at random with the nodes that it
was measured on, some of which are slower at 8 GPUs than at 4. Static
widths are list-scheduled on the real nodes. DynamicFluid is the real allocator in the real policy,
in virtual time, where a resize takes 1, 10, 60 or 300 s and an epoch at one GPU half a minute;
trials are asked for longest first, as the lists do, and once in the order they were drawn. It may
end before the program and its bound, whose trials keep their width; not before the bound of any
schedule. A first start takes no time, as in the lists. Of the published DynamicFluid a trial's
first epoch is at one GPU, for nothing was measured.
"""

from __future__ import annotations

import argparse
import platform
import random
from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld
from cloudtune.model.catalog import InstanceType, Offer
from cloudtune.model.events import EpochDone
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.model.trial import Trial
from cloudtune.policy.base import Brakes, Components, Metric
from cloudtune.policy.context import BuildContext
from cloudtune.policy.registry import ALLOCATORS, run_policy
from cloudtune.profiles import bundled
from cloudtune.strategies.allocators.fluid_rules import static_fluid
from cloudtune.strategies.allocators.ilp import best_widths, least
from cloudtune.strategies.allocators.schedules import makespan
from cloudtune.strategies.fleets import ConstantFleet
from cloudtune.strategies.grid import GridSearch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.model.trial import Width

_EPOCHS, _MAX_EPOCHS = 20, 800
"""The least budget is so many epochs, and the most: at their ends DynamicFluid may resize."""
_EPOCH_SECONDS = 30.0
"""What an epoch takes at one GPU, where a resize takes real seconds."""
_RESIZES = (1.0, 10.0, 60.0, 300.0)
_PLAIN = 10.0
"""The cost of a resize at which DynamicFluid is compared with its other forms."""
_PROGRAM, _PUBLISHED, _REPAIRED = "integer program", "StaticFluid, published", "StaticFluid, ours"
_PROVEN = 1e-4


@dataclass(frozen=True)
class Group:
    """Trials by their epochs, how fast each width is (1 GPU: 1 epoch a second), and the nodes."""

    epochs: tuple[int, ...]
    speed: Mapping[Width, float]
    gpus: int
    nodes: int
    curve: str

    @property
    def heights(self) -> list[dict[Width, float]]:
        """Seconds of each trial's budget at each width."""
        return [{w: n / rate for w, rate in self.speed.items()} for n in self.epochs]

    @property
    def packed(self) -> int:
        """How many trials share a GPU at most."""
        return max(1, round(1 / min(self.speed)))

    @property
    def machines(self) -> list[int]:
        """The GPUs of each node."""
        return [self.gpus] * self.nodes


def group(seed: int) -> Group:
    """Return the group of a seed."""
    rng = random.Random(seed)
    nodes = rng.choice((1, 1, 2, 3))
    epochs = _epochs(rng, rng.randrange(2, 11))
    curve = rng.choice(("linear", "sublinear", "uneven", "measured"))
    if curve == "measured":
        speed, gpus = _measured(rng.choice(bundled.names()), nodes)
    else:
        gpus, packed = rng.choice((1, 2, 4, 8)), rng.choice((1, 2, 4, 8))
        speed = _made_up(curve, gpus, nodes, packed)
    return Group(epochs, speed, gpus, nodes, curve)


def _epochs(rng: random.Random, count: int) -> tuple[int, ...]:
    kind = rng.choice(("uniform", "tail", "rung"))
    if kind == "uniform":
        budgets = [rng.uniform(10, 100) for _ in range(count)]
    elif kind == "tail":
        budgets = [10 * rng.paretovariate(1.2) for _ in range(count)]
    else:
        budgets = [rng.choice((30.0, 90.0)) * rng.uniform(0.9, 1.1) for _ in range(count)]
    unit = min(budgets) / _EPOCHS
    return tuple(min(_MAX_EPOCHS, round(budget / unit)) for budget in budgets)


def _made_up(curve: str, gpus: int, nodes: int, packed: int) -> dict[Width, float]:
    widest = gpus * nodes if curve == "uneven" else gpus
    whole = (w for w in (1, 2, 3, 4, 6, 8, 16, 24) if w <= widest)
    wide = [float(w) for w in whole if w <= gpus or w % gpus == 0]
    speed: dict[Width, float] = {w: _speed(w, curve, gpus) for w in wide}
    for part in (2, 4, 8):
        if part <= packed:
            speed[1 / part] = 1 / part * (1.0 if curve == "linear" else part**0.25)
    return dict(sorted(speed.items()))


def _speed(width: float, curve: str, gpus: int) -> float:
    if curve == "linear":
        return width
    speed: float = width**0.8
    return speed * 0.55 if width > gpus else speed


def _measured(name: str, nodes: int) -> tuple[dict[Width, float], int]:
    figures = bundled.published(name)
    gpus = figures.machine.gpus
    seconds = {
        w: m.mean for w, m in figures.profile(figures.machine, bundled.ASSUMED).epoch.items()
    }
    one = seconds[1.0]
    return {w: one / s for w, s in sorted(seconds.items()) if w <= gpus * nodes}, gpus


# ---- the allocators ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ends:
    """When each allocator is done with a group, and what none beats."""

    took: dict[str, float]
    bound: float
    least: float
    took_to_solve: float


def ends(one: Group) -> Ends:
    """Return what each allocator makes of a group."""
    heights, known, machines = one.heights, list(one.speed), one.machines
    began = perf_counter()
    found = best_widths(heights, machines)
    solving = perf_counter() - began
    even = max((w for w in known if w <= sum(machines) / len(heights)), default=min(known))
    chosen: dict[str, Sequence[Width]] = {
        "one GPU each": [1.0] * len(heights),
        "uniform width": [even] * len(heights),
        _PUBLISHED: _fluid(one, repaired=False),
        _REPAIRED: _fluid(one, repaired=True),
    }
    took = {name: makespan(widths, heights, machines) for name, widths in chosen.items()}
    longest_first = replace(one, epochs=tuple(sorted(one.epochs, reverse=True)))
    for resize in _RESIZES:
        took[f"DynamicFluid, {resize:.0f} s"] = _dynamic(longest_first, resize)
    took[f"DynamicFluid, {_PLAIN:.0f} s, as drawn"] = _dynamic(one, _PLAIN)
    for name in ("published", "published-idle"):
        took[f"{name}, {_PLAIN:.0f} s"] = _dynamic(longest_first, _PLAIN, f"dynamic-fluid:{name}")
    took[_PROGRAM] = found.seconds
    return Ends(took, found.bound, least(heights, sum(machines)), solving)


def _fluid(one: Group, *, repaired: bool) -> list[Width]:
    known = list(one.speed)
    shares = static_fluid(
        one.epochs, one.gpus * one.nodes, one.packed, int(max(known)), repaired=repaired
    )
    return [max((w for w in known if w <= share + 1e-9), default=min(known)) for share in shares]


def _dynamic(one: Group, resize: float, name: str = "dynamic-fluid") -> float:
    """Return in how many epochs' time the last trial is done, by the real policy and allocator."""
    trials = [Trial(f"t{n:02d}", {}, epochs) for n, epochs in enumerate(one.epochs)]
    rentable = Rentable(_offer(one.gpus), _profile(one, resize), one.nodes)
    context = BuildContext((rentable,), one.nodes, Limits(), "max", 1, 10**6)
    parts = Components(
        GridSearch(_Given(trials), max_epochs=10**6),
        ALLOCATORS[name](context),
        ConstantFleet(rentable.offer, one.nodes),
    )
    metric = Metric("score", "max")
    policy = run_policy(context, parts, metric, Brakes(), heartbeat=False, checked=False)
    ledger = MemoryLedger()
    run(policy, SimWorld((rentable,), "score", lambda _config, _epoch: 0.0), ledger)
    done = {name: max(trial.history, default=0) for name, trial in policy.trials.items()}
    if done != {trial.id: trial.epochs for trial in trials}:
        raise AssertionError(f"not all was trained: {done}")
    seconds = max(e.event.at for e in ledger.entries if isinstance(e.event, EpochDone))
    return seconds / _EPOCH_SECONDS


class _Given:
    """A sampler of given trials."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._left = iter(trials)

    def ask(self) -> Trial | None:
        """Return the next trial."""
        return next(self._left, None)

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn nothing."""


def _offer(gpus: int) -> Offer:
    return Offer(InstanceType("x", gpus, "T4", 16384, 4, 1024), "on-demand", "x", 1.0)


def _profile(one: Group, resize: float) -> ScalingProfile:
    def measured(seconds: float) -> Measurement:
        return Measurement(seconds, 0.0, 1)

    none = measured(0.0)
    epoch = {width: measured(_EPOCH_SECONDS / rate) for width, rate in one.speed.items()}
    return ScalingProfile(
        "x", epoch, none, none, none, measured(resize), none, "", "2026-11-21", "made up"
    )


# ---- the tables ----------------------------------------------------------------------------------


def main() -> None:
    """Play the groups, and print the ratios."""
    parser = argparse.ArgumentParser(description="allocators against the integer program")
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.groups)
    played = [(one, ends(one)) for one in map(group, seeds)]
    print(f"{given.groups} groups from seed {given.seed}, Python {platform.python_version()}")
    print(f"{'':26} {'to the program':^22}   {'to its bound':^22}   {'to that of any':^22}")
    print(" " * 24 + "   ".join([f" {'median':>7} {'p90':>6} {'worst':>7}"] * 3))
    for name in played[0][1].took:
        rows = [[e.took[name] / of for _, e in played for of in [_against(e, n)]] for n in range(3)]
        print(f"{name:26} " + "   ".join(map(_row, rows)))
    _print_worst(played, "curve")
    _print_worst(played, "packed")
    _print_counts(played)


def _against(one: Ends, column: int) -> float:
    return (one.took[_PROGRAM], one.bound, one.least)[column]


def _row(ratios: Sequence[float]) -> str:
    return f"{median(ratios):7.3f} {quantiles(ratios, n=10)[-1]:6.3f} {max(ratios):7.3f}"


def _print_worst(played: Sequence[tuple[Group, Ends]], by: str) -> None:
    """Print the worst ratios to the bound for each kind of curve, or degree of packing."""
    kinds: dict[str, list[Ends]] = defaultdict(list)
    for one, ended in played:
        kinds[f"{getattr(one, by)}"].append(ended)
    print(f"\nworst to the bound of the program, by {by}")
    for name in played[0][1].took:
        worst = (
            f"{kind} ({len(kinds[kind])}): {max(e.took[name] / e.bound for e in kinds[kind]):.3f}"
            for kind in sorted(kinds)
        )
        print(f"{name:26} " + ", ".join(worst))


def _print_counts(played: Sequence[tuple[Group, Ends]]) -> None:
    every = [ended for _, ended in played]
    proven = sum(e.took[_PROGRAM] <= e.bound * (1 + _PROVEN) for e in every)
    print(f"\nthe program's schedule is proven the best in {proven} groups")
    solving = [e.took_to_solve for e in every]
    print(f"it took {median(solving):.2f} s at the median, {max(solving):.2f} s at the most")
    for name in (n for n in every[0].took if n.startswith(("Dynamic", "publ"))):
        pairs = [(e.took[name], e.took[_REPAIRED]) for e in every]
        better = sum(dynamic < static * (1 - _PROVEN) for dynamic, static in pairs)
        worse = [dynamic / static for dynamic, static in pairs if dynamic > static * (1 + _PROVEN)]
        print(
            f"{name} is shorter than {_REPAIRED} in {better}, longer in {len(worse)} "
            f"(median {median([1.0, *worse]):.3f}, worst {max(worse, default=1.0):.3f}); "
            f"shorter than the program in {sum(e.took[name] < e.took[_PROGRAM] for e in every)}"
        )
    below = [name for e in every for name in e.took if e.took[name] < e.least * (1 - 1e-9)]
    print(f"below the bound of any schedule: {', '.join(sorted(set(below))) or 'none'}")


if __name__ == "__main__":
    main()
