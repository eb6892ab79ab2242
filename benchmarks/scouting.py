"""What a run pays for an epoch where it chooses the GPU model itself, in whole simulated runs.

    python -m benchmarks.scouting DATA [--half tune|report] [--cells 60] [--processes 2]

DATA is the folder with ec2_cnn_latency_profet.csv, as in `benchmarks.machines`. Each cell is a
program of a table, a market, a deadline and a budget, drawn; the programs of half of the models are
for tuning (`--half tune`), the others for the report. The prior is fitted without the rows of the
program's model, and the script's epochs take other times than assumed. Prints the dollars of an
epoch over those of a run that knows the best type and rents nothing else: by one default type, by
the prior alone, by scouting (strategies/scouting.py), and by that oracle; then what that spent on
GPU models that it left, and how often it moved.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean, median, quantiles
from typing import TYPE_CHECKING

from benchmarks.machines import LAMBDA, PROFET, Program, Table, lambdas, profet
from benchmarks.runner import in_processes, parser, print_table
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.experiment.search_space import Uniform
from cloudtune.infra.aws import pricing
from cloudtune.model.events import EpochDone
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.scaling import Measurement, Provenance, ScalingProfile
from cloudtune.policy.base import Brakes, Metric, drain_seconds
from cloudtune.policy.context import BuildContext
from cloudtune.policy.registry import chosen, components, run_policy
from cloudtune.profiles.gpu_speeds import GpuSpeeds, solve, specifications
from cloudtune.profiles.ratios import gpu_speeds
from cloudtune.profiles.unmeasured import prior_profile
from cloudtune.profiles.width_scaling import with_wider
from cloudtune.strategies.fleets import SpendingFleet
from cloudtune.strategies.samplers.sampler import SpaceSampler
from cloudtune.strategies.worth import by_worth, means_within

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cloudtune.model.catalog import Market, Offer
    from cloudtune.model.fleet import Rented

DRAWN = "drawn from the prior"
WRONG = "one GPU twice as fast as published, one half as fast"
TABLES = (PROFET, LAMBDA, DRAWN, WRONG)
_WRONG_PRIORS = 20
DEFAULT = "g4dn.12xlarge"
MARKETS: tuple[Market, ...] = ("on-demand", "spot")
STRATEGIES = ("best", "asha", "asha-stopping")
# Seconds of an epoch on a V100 before anything is known, and how far that may be off (log).
ASSUMED_EPOCH = 60.0
ASSUMED_ERROR = math.log(3)
# How much epochs differ in a trial, and between the configurations of a search (priors.csv).
NOISE = 0.044
PACES = 0.19
LAST = 27
# Seconds in which trials move off instances.
_MOVING = 600.0
MOST = 64


@dataclass(frozen=True)
class Cell:
    """A program on a table's types in a market, with limits and a seed."""

    table: str
    number: int  # of the program in the table
    market: Market
    strategy: str
    deadline: float
    budget: float
    epoch: float  # true seconds on a V100
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What a simulated run bought; `left` are the dollars spent on GPU models that it left."""

    dollars: float
    epochs: int
    left: float = 0.0
    moves: int = 0
    gpus: int = 1
    gpu: str = ""

    @property
    def of_epoch(self) -> float:
        return self.dollars / self.epochs if self.epochs else math.inf


@cache
def table_of(name: str, data: Path) -> Table:
    if name in {DRAWN, WRONG}:
        return drawn() if name == DRAWN else wrong()
    return lambdas() if name == LAMBDA else profet(data)


def drawn() -> Table:
    """Return programs whose speeds are as far off the prior as it says, on all GPUs of AWS."""
    types = _cheapest_types()
    dice = random.Random(0)
    programs = []
    for number in range(200):
        seconds = {}
        for gpu in types:
            off = dice.gauss(0.0, gpu_speeds().own_errors[gpu])
            seconds[gpu] = math.exp(off - gpu_speeds().logs[gpu])
        programs.append(Program(f"drawn {number:03d}", "", "", seconds))
    return Table(DRAWN, programs, types)


def wrong() -> Table:
    """Return programs for which one GPU is twice as fast as published, another half as fast.

    The slow one is the best or the second on demand by the prior, the fast one any other.
    """
    types = _cheapest_types()
    costs = {gpu: _per_gpu(name) / math.exp(gpu_speeds().logs[gpu]) for gpu, name in types.items()}
    ranked = sorted(costs, key=costs.__getitem__)
    dice = random.Random(1)
    programs = []
    for number in range(_WRONG_PRIORS):
        slow = ranked[number % 2]
        fast = dice.choice([gpu for gpu in ranked if gpu != slow])
        seconds = {gpu: math.exp(-gpu_speeds().logs[gpu]) for gpu in types}
        seconds[slow] *= 2
        seconds[fast] /= 2
        programs.append(Program(f"wrong {number:02d}", "", "", seconds))
    return Table(WRONG, programs, types)


def _cheapest_types() -> dict[str, str]:
    """Return the type of each GPU model of AWS whose GPUs cost least on demand."""
    types: dict[str, str] = {}
    for listing in pricing.rentable():
        kind = listing.instance_type
        if kind.gpus < 1 or kind.gpu not in gpu_speeds().logs or listing.on_demand is None:
            continue
        if kind.gpu not in types or _per_gpu(kind.name) < _per_gpu(types[kind.gpu]):
            types[kind.gpu] = kind.name
    return types


def _per_gpu(name: str) -> float:
    """Return the dollars of a GPU-hour of a type on demand."""
    listing = next(listing for listing in pricing.listings() if listing.instance_type.name == name)
    assert listing.on_demand is not None
    return listing.on_demand / listing.instance_type.gpus


@cache
def prior_without(name: str, data: Path, model: str) -> GpuSpeeds:
    if name in {DRAWN, WRONG}:
        return gpu_speeds()
    return solve(table_of(name, data).compared(model), specifications())


def offers_of(table: Table, market: Market) -> dict[str, Offer]:
    """Return the offer of each GPU of a table."""
    found = {}
    for listing in pricing.listings():
        for gpu, name in table.types.items():
            price = listing.price(market)
            if listing.instance_type.name == name and price is not None:
                found[gpu] = listing.offer(market, "us-east-1", price)
    return found


def truth(offer: Offer, seconds: float) -> ScalingProfile:
    """Return the real profile of a program on a type, by the seconds of an epoch on one GPU."""
    made = prior_profile(offer.instance_type, epoch_seconds=seconds, error=0.0)
    one = Measurement(seconds, seconds * NOISE)
    return replace(
        made,
        epoch=with_wider({1.0: one}, 1, offer.gpus),
        error=0.0,
        gpu_error=0.0,
        provenance=Provenance(),
        script_hash="real",
    )


def belief(offer: Offer, gpu: str, prior: GpuSpeeds) -> ScalingProfile:
    """Return what is assumed of a script on a type, by a prior without the program's model."""
    ratio = prior.between("v100", gpu)
    assert ratio is not None
    made = prior_profile(offer.instance_type, epoch_seconds=ASSUMED_EPOCH, error=ASSUMED_ERROR)
    one = Measurement(ASSUMED_EPOCH / ratio.ratio, n=0)
    return replace(
        made, epoch=with_wider({1.0: one}, 1, offer.gpus), gpu_error=prior.own_errors[gpu]
    )


def play(cell: Cell, believed: Sequence[Rentable], real: Sequence[Rentable], seed: int) -> Outcome:
    """Simulate a run that may rent what it believes in, in a world where speeds are real."""
    limits = Limits(cell.deadline, cell.budget)
    brakes = Brakes(drain=drain_seconds(*(each.profile for each in believed)))
    context = BuildContext(
        tuple(believed), MOST, limits, "max", min_epochs=1, max_epochs=LAST, seed=seed
    )
    sampler = SpaceSampler({"lr": Uniform(0.0, 1.0)}, seed=seed)
    parts = components(context, sampler, chosen(cell.strategy), brakes)
    policy = run_policy(
        context, parts, Metric("score", "max"), brakes, heartbeat=False, checked=False
    )
    names = {each.offer.instance_type.name for each in believed}
    known = [each for each in real if each.offer.instance_type.name in names]
    curves = synthetic_metric("max", seed)

    def pace(config: Mapping[str, object], _epoch: int) -> float:
        return math.exp(random.Random(f"{config} {seed}").gauss(0.0, PACES))

    world = SimWorld(known, "score", curves, seed, pace)
    ledger = MemoryLedger()
    run(policy, world, ledger)
    epochs = sum(isinstance(entry.event, EpochDone) for entry in ledger.entries)
    rule = policy.fleet_rule
    assert isinstance(rule, SpendingFleet)
    scouting = rule.offers.scouting
    left = sum(_until_left(rented, scouting.left, policy.now) for rented in policy.fleet)
    gpus = {rented.offer.instance_type.gpu for rented in policy.fleet}
    final = rule.offers.chosen.offer.instance_type.gpu
    return Outcome(policy.spent(policy.now), epochs, left, scouting.moves, len(gpus), final)


def _until_left(rented: Rented, left: Mapping[str, float], now: float) -> float:
    """Return what an instance cost until its GPU model was left, and as its trials moved.

    What is rented of it later, for money that buys no larger instance, is rented for its price.
    """
    at = left.get(rented.offer.gpu_model)
    if at is None or rented.requested_at > at:
        return 0.0
    gone = now if rented.gone_at is None else rented.gone_at
    return rented.offer.charge(max(0.0, min(gone, at + _MOVING) - rented.began_at))


def outcomes(work: tuple[Cell, Path]) -> dict[str, Outcome]:
    """Return what each choice of types buys in a cell."""
    cell, data = work
    table = table_of(cell.table, data)
    program = table.programs[cell.number]
    offers = offers_of(table, cell.market)
    scale = cell.epoch / program.seconds["v100"]
    real = [Rentable(o, truth(o, scale * program.seconds[g]), MOST) for g, o in offers.items()]
    prior = prior_without(cell.table, data, program.model)
    believed = [Rentable(o, belief(o, g, prior), MOST) for g, o in offers.items()]
    means = means_within(Limits(cell.deadline, cell.budget), MOST, LAST)
    found = {}
    if "t4" in program.seconds:
        found["one default type"] = play(cell, *_default(scale * program.seconds["t4"]), cell.seed)
    found["the prior alone"] = play(cell, by_worth(believed, means)[:1], real, cell.seed)
    found["scouting"] = play(cell, believed, real, cell.seed)
    found["oracle"] = min(
        (play(cell, [each], real, cell.seed) for each in _cheapest(real)),
        key=lambda outcome: outcome.of_epoch,
    )
    return found


def _cheapest(real: Sequence[Rentable]) -> Sequence[Rentable]:
    """Return the two types with the cheapest epochs: boots decide between close ones."""
    return sorted(real, key=lambda each: each.epoch_dollars)[:2]


def _default(seconds: float) -> tuple[list[Rentable], list[Rentable]]:
    listing = next(it for it in pricing.listings() if it.instance_type.name == DEFAULT)
    assert listing.on_demand is not None
    offer = listing.offer("on-demand", "us-east-1", listing.on_demand)
    made = [Rentable(offer, truth(offer, seconds), MOST)]
    return made, made


def cells(data: Path, half: str, count: int, seed: int = 0) -> Iterator[Cell]:
    """Yield the cells of each table and market."""
    for name in TABLES:
        table = table_of(name, data)
        models = sorted({program.model for program in table.programs})
        mine = set(models[::2] if half == "tune" else models[1::2])
        if name == WRONG:
            mine = set(models)
        for market in MARKETS:
            offers = offers_of(table, market)
            numbers = [
                number
                for number, program in enumerate(table.programs)
                if program.model in mine and offers.keys() <= program.seconds.keys()
            ]
            dice = random.Random(f"{name} {market} {half} {seed}")
            some = [dice.choice(numbers) for _ in range(count)]
            for number in numbers[MARKETS.index(market) :: 2] if name == WRONG else some:
                deadline = dice.choice([3600.0, 2 * 3600.0, 4 * 3600.0, 12 * 3600.0])
                dear = min(offer.usd_per_second for offer in offers.values())
                instances = dice.choice([3.0, 8.0, 20.0])
                epoch = ASSUMED_EPOCH * math.exp(dice.gauss(0.0, ASSUMED_ERROR / 2))
                budget = instances * dear * deadline
                strategy = dice.choice(STRATEGIES)
                yield Cell(
                    name, number, market, strategy, deadline, budget, epoch, dice.randrange(10**6)
                )


def main() -> None:
    known = parser(__doc__, half="report", cells=60, processes=2)
    known.add_argument("data", type=Path)
    given = known.parse_args()
    made = [(cell, given.data) for cell in cells(given.data, given.half, given.cells)]
    done = list(in_processes(outcomes, made, given.processes))
    for name in TABLES:
        for market in MARKETS:
            found = [
                (cell, outcome)
                for (cell, _), outcome in zip(made, done, strict=True)
                if cell.table == name and cell.market == market
            ]
            print(f"\n{name}, {market}: {len(found)} runs\n")
            print_table(_summary(found))


def _summary(found: Sequence[tuple[Cell, Mapping[str, Outcome]]]) -> Iterator[dict[str, object]]:
    for name in ("one default type", "the prior alone", "scouting", "oracle"):
        rows = [(cell, them[name], them["oracle"]) for cell, them in found if name in them]
        if not rows:
            continue
        ratios = [own.of_epoch / best.of_epoch for _, own, best in rows]
        epochs = [own.epochs / best.epochs for _, own, best in rows]
        left = [own.left / cell.budget for cell, own, _ in rows]
        yield {
            "choice": name,
            "$ an epoch, median": f"{median(ratios):.2f}",
            "mean": f"{mean(ratios):.2f}",
            "p90": f"{quantiles(ratios, n=10)[8]:.2f}",
            "epochs, median": f"{median(epochs):.2f}",
            "p10": f"{quantiles(epochs, n=10)[0]:.2f}",
            "given up, median": f"{median(left):.1%}",
            "given up, p90": f"{quantiles(left, n=10)[8]:.1%}",
            "moves": f"{mean(own.moves for _, own, _ in rows):.2f}",
            "most moves": max(own.moves for _, own, _ in rows),
            "GPU models": f"{mean(own.gpus for _, own, _ in rows):.2f}",
        }


if __name__ == "__main__":
    main()
