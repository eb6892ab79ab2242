"""Random jobs that are planned beforehand: all strategies with stages, offers of several kinds.

Each follows from its number alone: offers, prices, scaling, trials, limits, pools that are dry for
a while, and instances that the cloud takes back. `tests/parity/planned_jobs.csv` has what version
0.1.0 made of some of them, by a policy of its own for planned runs.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.compare.stages import plan_stages
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, _Intent, synthetic_metric
from cloudtune.model.catalog import InstanceType, Market, Offer, of_pool
from cloudtune.model.commands import Launch
from cloudtune.model.events import InstanceGone, InterruptionNotice, LaunchFailed, NodeLost
from cloudtune.model.plans import Charges, Limits, Plan, Rentable
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.model.trial import Mode, Trial
from cloudtune.planners.base import InfeasibleError, PlanRequest
from cloudtune.planners.reserve import Reserve
from cloudtune.policy.base import Brakes, Metric
from cloudtune.policy.context import BuildContext
from cloudtune.policy.planned.stages import PLANNERS
from cloudtune.policy.registry import chosen, components, run_policy
from cloudtune.policy.run import RunPolicy
from cloudtune.strategies.successive_halving import SuccessiveHalving

KINDS = (("g.1x", 1, 16, 3, 12), ("g.4x", 4, 32, 10, 45), ("g.8x", 8, 64, 20, 90))
BRAKES = Brakes(drain=10.0)


@dataclass(frozen=True)
class Job:
    """A job, and the trouble that it meets.

    `dry`: (instance type, market, from, until) in which launches are refused. `lost`: (intent, at,
    whether there is half a minute's notice).
    """

    number: int
    strategy: str
    planner: str
    rentables: tuple[Rentable, ...]
    trials: tuple[Trial, ...]
    epochs: tuple[int, int]
    eta: int
    mode: Mode
    max_instances: int
    mix: int
    charges: Charges
    limits: Limits
    dry: tuple[tuple[str, str, float, float], ...]
    lost: tuple[tuple[str, float, bool], ...]


def make_job(number: int) -> Job:
    draw = random.Random(number)
    kinds = [(name, gpus, vcpus, draw.uniform(low, high)) for name, gpus, vcpus, low, high in KINDS]
    draw.shuffle(kinds)
    kinds = kinds[: draw.choice([1, 1, 2, 3])]
    base, beta = draw.choice([2.0, 8.0, 30.0, 120.0]), draw.uniform(0.55, 1.0)
    rentables = tuple(each for kind in kinds for each in _rentables(draw, kind, base, beta))
    trials = draw.choice([1, 2, 3, 4, 6, 8, 9, 12, 16, 27, 32])
    first = draw.choice([1, 1, 2, 4])
    last = max(first, draw.choice([4, 8, 9, 16, 27]))
    eta, most = draw.choice([2, 3, 4]), draw.choice([1, 2, 4, 8, 16])
    planner = draw.choice(["exact", "greedy", "naive", "static"])
    mix = draw.choice([1, 1, 2]) if planner == "exact" and trials <= 9 else 1
    capped = draw.random() < 0.15
    configs = tuple(
        Trial(
            f"t{n:02d}",
            {"x": draw.random()},
            draw.randint(max(1, first), last) if capped and draw.random() < 0.3 else None,
        )
        for n in range(trials)
    )
    names = ("sha", "sha", "sha", "rubberband", "rubberband-exact", "sha-static", "seer-barrier")
    strategy = names[draw.randrange(7)]
    trouble = draw.choice(["none", "none", "refuse", "lose", "both"])
    dry = tuple(_dry(draw, rentables)) if trouble in {"refuse", "both"} else ()
    lost = tuple(_lost(draw)) if trouble in {"lose", "both"} else ()
    mode: Mode = draw.choice(["max", "min"])
    tight, rich = draw.uniform(1.05, 3.0), draw.uniform(1.02, 2.5)
    limited = draw.choice(["deadline", "budget", "both", "none"])
    charges = draw.choice([Charges(), Charges(0.02, 0.0001)])
    work = SuccessiveHalving(trials, first, last, eta, mode).stages()
    free = PlanRequest(work, rentables, Limits(), most, charges=charges, mix=mix)
    limits = _limits(free, (tight - 1.05) / 1.95, rich, limited)
    return Job(
        number,
        strategy,
        planner,
        rentables,
        configs,
        (first, last),
        eta,
        mode,
        most,
        mix,
        charges,
        limits,
        dry,
        lost,
    )


def _rentables(
    draw: random.Random, kind: tuple[str, int, int, float], base: float, beta: float
) -> list[Rentable]:
    """Return the offers of one instance type, and how the script scales on it."""
    name, gpus, vcpus, price = kind
    speed = draw.uniform(0.6, 1.4)
    measured = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    widths = {w for w in measured if w <= gpus * 2 and (w >= 1 or draw.random() < 0.4)}
    epoch: dict[float, Measurement] = {}
    for width in sorted(widths | {1.0}):
        seconds = base * speed / (width**beta if width >= 1 else width**0.6)
        if width > gpus:
            seconds *= draw.uniform(1.0, 1.6)
        epoch[width] = Measurement(seconds, 0.0, 3)

    def delay(low: float, high: float) -> Measurement:
        return Measurement(draw.uniform(low, high), 0.0, 3)

    profile = ScalingProfile(
        instance_type=name,
        epoch=epoch,
        launch=delay(0.5, 8),
        boot=delay(5, 90),
        start=delay(0, 8),
        resize=delay(0, 12),
        release=delay(0.5, 6),
        script_hash="abc",
        measured_at="2026-01-01",
        source="made up",
    )
    machine = InstanceType(name, gpus, "T4", 16384, vcpus, 65536)
    markets: list[Market] = draw.choice(
        [["on-demand"], ["on-demand"], ["spot"], ["on-demand", "spot"]]
    )
    found = []
    for market in markets:
        usd = price * (0.4 if market == "spot" else 1)
        offer = Offer(machine, market, "us-east-1", usd, draw.choice([0.0, 60.0]))
        found.append(Rentable(offer, profile, draw.choice([2, 4, 8, 16])))
    return found


def _dry(draw: random.Random, rentables: Sequence[Rentable]) -> list[tuple[str, str, float, float]]:
    found: list[tuple[str, str, float, float]] = []
    for rentable in rentables:
        if draw.random() < 0.5:
            begin = draw.uniform(0, 400)
            offer = rentable.offer
            end = begin + draw.uniform(20, 500)
            found.append((offer.instance_type.name, offer.market, begin, end))
    return found


def _lost(draw: random.Random) -> list[tuple[str, float, bool]]:
    return [
        (f"i{draw.randrange(0, 6):03d}", draw.uniform(10, 900), draw.random() < 0.5)
        for _ in range(draw.choice([1, 2, 3]))
    ]


def _limits(free: PlanRequest, slack: float, rich: float, limited: str) -> Limits:
    """Return limits between those of the fastest plan and those of the cheapest."""
    exact = PLANNERS["exact"]
    cheapest = exact.plan(free).estimate
    fastest = exact.plan(replace(free, objective="time")).estimate
    spread = slack * slack * (cheapest.seconds - fastest.seconds)
    deadline = (fastest.seconds + spread) * 1.15 + 25
    least = fastest.dollars * 1.2 if limited == "both" else 0.0
    budget = max(cheapest.dollars * rich + 0.05, least)
    return Limits(
        deadline if limited in {"deadline", "both"} else None,
        budget if limited in {"budget", "both"} else None,
    )


class _Given:
    def __init__(self, trials: Sequence[Trial]) -> None:
        self._left = iter(trials)

    def more(self, trials: int) -> int:
        return 0

    def ask(self) -> Trial | None:
        return next(self._left, None)

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn nothing."""


def policy_of(job: Job) -> RunPolicy | None:
    """Return the policy of a job; None where there is no plan at all."""
    context = BuildContext(
        job.rentables,
        job.max_instances,
        job.limits,
        job.mode,
        *job.epochs,
        job.eta,
        len(job.trials),
    )
    try:
        plan = _plan_of(job, context)
    except InfeasibleError as error:
        if job.strategy != "sha" or error.fastest is None:
            return None
        plan = error.fastest
    made = components(context, _Given(job.trials), chosen(job.strategy), BRAKES, plan)
    metric = Metric("acc", job.mode)
    return run_policy(context, made, metric, BRAKES, charges=job.charges, heartbeat=False)


def _plan_of(job: Job, context: BuildContext) -> Plan:
    if job.strategy != "sha":
        most, charges = len(job.trials), job.charges
        return plan_stages(job.strategy, context, BRAKES, trials=most, charges=charges)
    reserve = Reserve(BRAKES.tick + BRAKES.drain)
    deadline = job.limits.deadline
    late = None if deadline is None else deadline - reserve.seconds
    work = SuccessiveHalving(len(job.trials), *job.epochs, job.eta, job.mode).stages()
    request = PlanRequest(
        work,
        reserve.rentables(job.rentables),
        reserve.limits(Limits(late, job.limits.budget)),
        job.max_instances,
        charges=job.charges,
        mix=job.mix,
    )
    return PLANNERS[job.planner].plan(request)


class _World(SimWorld):
    """A world with dry pools, and instances that are taken back at given times."""

    def __init__(self, job: Job) -> None:
        curves = synthetic_metric(job.mode, job.number)
        super().__init__(job.rentables, "acc", curves, job.number)
        self._job = job
        self.launches = 0
        for intent, at, notice in job.lost:
            if notice:
                self.schedule(InterruptionNotice(at, intent, at + 30))
            end = at + (30 if notice else 0)
            self.schedule(NodeLost(end, intent, "taken"))
            self.schedule(InstanceGone(end, intent, end, "taken"))

    def _launch(self, command: Launch) -> None:
        """Refuse a launch from a dry pool."""
        if command.intent not in self._intents and self._is_dry(command):
            asked = of_pool(self._rentables, command.instance_type, command.market, command.zone)
            self._intents[command.intent] = _Intent(asked, self.now + 1)
            refusal = LaunchFailed(self.now + 1, command.intent, "Dry", "no", kind="capacity")
            self.schedule(refusal)
            return
        self.launches += 1
        super()._launch(command)

    def _is_dry(self, command: Launch) -> bool:
        return any(
            (name, market) == (command.instance_type, command.market) and begin <= self.now < end
            for name, market, begin, end in self._job.dry
        )


@dataclass(frozen=True)
class Came:
    """What a job came to: seconds until the last instance was gone, dollars, and who won."""

    seconds: float
    dollars: float
    winner: str
    ending: str
    launches: int


def came_to(job: Job) -> Came | None:
    """Return what the job comes to; None where there is no plan at all."""
    policy = policy_of(job)
    if policy is None:
        return None
    world = _World(job)
    run(policy, world, MemoryLedger())
    assert policy.ending is not None
    best = "" if policy.best is None else policy.best.trial
    dollars, ending = policy.spent(policy.now), policy.ending.value
    return Came(policy.over_at, dollars, best, ending, world.launches)
