"""How well an outlook foretells runs: predicted spread against simulated runs of the same plan.

    python benchmarks/outlook.py [--seeds 300] [--samples 4000]

Each run is the policy in a simulated world (SimWorld) with a seed of its own. Prints, for each job
and spread, the predicted 5th, 50th and 95th percentile of seconds and dollars, how far mean and
median of the runs are from the predicted ones, and the share of runs between the 5th and the 95th
(ideally 90 %); `±` is twice the standard error of the runs' mean.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.model.catalog import InstanceType, Offer
from cloudtune.model.placement import slots
from cloudtune.model.plans import Charges, Group, Limits, Rentable
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.model.trial import EndReason, Trial
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.estimate.outlook import outlook
from cloudtune.policy.base import Brakes, Components, Metric, drain_seconds
from cloudtune.policy.context import BuildContext
from cloudtune.policy.planned.stages import follow
from cloudtune.policy.registry import run_policy
from cloudtune.strategies.successive_halving import SuccessiveHalving

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cloudtune.model.plans import Plan, Spread
    from cloudtune.planners.estimate.draws import Floats

WIDTHS = (1 / 3, 0.5, 1.0, 2.0, 4.0, 8.0)
SPREADS = (0.05, 0.10, 0.20)


@dataclass(frozen=True)
class Case:
    """A job, what it may run on, and how: (offer, instances, width, trials) of each group."""

    name: str
    strategy: SuccessiveHalving
    rentables: tuple[Rentable, ...]
    stages: Sequence[Sequence[tuple[Offer, int, float, int]]]

    def request(self, spread: float) -> PlanRequest:
        """Return the case as a request, every duration with that relative deviation."""
        noisy = tuple(
            replace(each, profile=_spread_out(each.profile, spread)) for each in self.rentables
        )
        charges = Charges(usd_per_launch=0.02, usd_per_second=0.0001)
        return PlanRequest(self.strategy.stages(), noisy, Limits(), 32, charges=charges)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--samples", type=int, default=4000)
    given = parser.parse_args()
    print(f"{given.seeds} runs and {given.samples} samples each; errors are runs over prediction\n")
    print(
        f"{'job':<16}{'sd':>4}  {'':8}{'p5':>9}{'p50':>9}{'p95':>9}"
        f"{'mean off':>10}{'±':>7}{'p50 off':>9}{'covered':>9}"
    )
    rows = [
        row
        for case in cases()
        for spread in SPREADS
        for row in compare(case, spread, given.seeds, given.samples)
    ]
    print()
    for what in ("seconds", "dollars"):
        total(what, [row for row in rows if row.what == what])
    for waves in (1, 2, 8):
        seconds, trials, stages = speed(waves)
        print(
            f"time: {trials} trials, {stages} stages, 1,000 samples, "
            f"stages of up to {waves} wave(s): {seconds * 1000:.0f} ms"
        )


@dataclass(frozen=True)
class Row:
    """How one prediction did: errors as shares of what was predicted."""

    what: str
    mean: float
    error: float
    median: float
    covered: float


def compare(case: Case, spread: float, seeds: int, samples: int) -> list[Row]:
    """Print and return how the outlook of a case did, in seconds and in dollars."""
    request = case.request(spread)
    groups = [tuple(map(_group, stage)) for stage in case.stages]
    plan = price(request, groups, "by hand")
    told = outlook(request, plan, samples=samples)
    runs = np.array([play(case, request, plan, seed) for seed in range(seeds)])
    rows = []
    for what, predicted, actual in (
        ("seconds", told.seconds, runs[:, 0]),
        ("dollars", told.dollars, runs[:, 1]),
    ):
        row = _row(what, predicted, actual)
        rows.append(row)
        print(
            f"{case.name:<16}{spread:>4.0%}  {what:<8}{predicted.p5:>9.2f}{predicted.p50:>9.2f}"
            f"{predicted.p95:>9.2f}{row.mean:>+10.2%}{2 * row.error:>7.2%}{row.median:>+9.2%}"
            f"{row.covered:>9.1%}",
            flush=True,
        )
    return rows


def total(what: str, rows: Sequence[Row]) -> None:
    means, medians = [abs(row.mean) for row in rows], [abs(row.median) for row in rows]
    covered = [row.covered for row in rows]
    print(
        f"{what}: mean off by {fmean(means):.2%} (worst {max(means):.2%}), median by "
        f"{fmean(medians):.2%} (worst {max(medians):.2%}), covered {fmean(covered):.1%} "
        f"({min(covered):.1%} to {max(covered):.1%})"
    )


def play(case: Case, request: PlanRequest, plan: Plan, seed: int) -> tuple[float, float]:
    """Return the seconds and dollars of one simulated run."""
    # Hardly any ticks: nothing depends on them here, and a run has thousands.
    drain = drain_seconds(*(each.profile for each in request.rentables))
    brakes = Brakes(tick=600.0, drain=drain)
    work, schedule = request.work, case.strategy
    context = BuildContext(
        request.rentables,
        request.max_instances,
        Limits(),
        schedule.mode,
        work[0].end_epoch,
        work[-1].end_epoch,
        schedule.eta,
    )
    trials = [Trial(f"t{n:03d}", {"x": n}) for n in range(schedule.trials)]
    parts = follow("rubberband", context, plan, trials, brakes)
    policy = run_policy(
        context,
        Components(parts.stages, parts.widths, parts.fleet, parts.itinerary),
        Metric("score", "max"),
        brakes,
        charges=plan.charges,
        vcpu_quotas=plan.vcpu_quotas,
    )
    world = SimWorld(request.rentables, "score", synthetic_metric("max", seed), seed)
    run(policy, world, MemoryLedger())
    assert policy.ending is EndReason.DONE, f"seed {seed} ended as {policy.ending}"
    ends = [rented.gone_at for rented in policy.fleet if rented.gone_at is not None]
    return max(ends), policy.spent(policy.now)


def speed(waves: int) -> tuple[float, int, int]:
    """Return what a large outlook takes, the best of five; its trials and stages."""
    strategy = SuccessiveHalving(512, 1, 512, 2, "max")
    on = _offer("p.8x", 8, 40.0)
    case = Case("large", strategy, (_rentable(on, lambda width: 300 / width),), [])
    request = replace(case.request(0.1), max_instances=64)
    stages = [
        (_group((on, max(1, math.ceil(stage.trials / 8 / waves)), 1.0, stage.trials)),)
        for stage in request.work
    ]
    plan, taken = price(request, stages, "by hand"), []
    for _ in range(5):
        began = time.perf_counter()
        outlook(request, plan)
        taken.append(time.perf_counter() - began)
    return min(taken), strategy.trials, len(stages)


def cases() -> list[Case]:
    """Return jobs of different kinds, with epochs of five minutes on one GPU."""
    one, other = _offer("g.4x", 4, 12.0), _offer("p.8x", 8, 40.0)
    spot = replace(one, market="spot", usd_per_hour=4.0, interruptions_per_hour=0.15)
    halving = SuccessiveHalving(16, 1, 15, 2, "max")  # 16 x 1, 8 x 1, 4 x 2, 2 x 4, 1 x 7 epochs
    linear, sub = (lambda width: 300 / width), (lambda width: 300 / width**0.6)
    boundary = {1 / 3: 800.0, 0.5: 540.0, 1.0: 300.0, 2.0: 176.0, 4.0: 93.0, 8.0: 144.0}
    narrow = [(16, 1.0, 16), (8, 4.0, 8), (4, 4.0, 4), (2, 4.0, 2), (1, 4.0, 1)]
    shrink = [(4, 1.0, 16), (2, 1.0, 8), (1, 1.0, 4), (1, 2.0, 2), (1, 4.0, 1)]
    same = [(2, 1.0, 16), (2, 1.0, 8), (2, 2.0, 4), (2, 4.0, 2), (2, 4.0, 1)]
    grown = [(2, 1.0, 16), (2, 1.0, 8), (4, 4.0, 4), (4, 8.0, 2), (2, 8.0, 1)]
    packed = [(2, 1 / 3, 16), (1, 0.5, 8), (1, 1.0, 4), (1, 1.0, 2), (1, 1.0, 1)]
    waves = [(2, 1.0, 16), (1, 1.0, 8), (1, 2.0, 4), (1, 4.0, 2), (1, 4.0, 1)]
    apart = [[(one, 2, 1.0, 8), (other, 1, 1.0, 8)], [(other, 1, 1.0, 8)]]
    apart += [[(one, 1, 2.0, 2), (other, 1, 4.0, 2)], [(other, 1, 4.0, 2)], [(one, 1, 4.0, 1)]]
    both = (_rentable(one, linear), _rentable(other, lambda width: 180 / width**0.9))
    few = _rentable(one, lambda width: 300 / width if width >= 1 else 300 / width**0.8)
    return [
        Case("linear", halving, (_rentable(one, linear),), _on(one, shrink)),
        Case("one fleet", halving, (_rentable(one, linear),), _on(one, same)),
        Case("sublinear", halving, (_rentable(one, sub),), _on(one, narrow)),
        Case("node boundary", halving, (_rentable(one, boundary.__getitem__),), _on(one, grown)),
        Case("packed waves", halving, (few,), _on(one, packed)),
        Case("waves", halving, (few,), _on(one, waves)),
        Case("spot", halving, (_rentable(spot, linear),), _on(spot, shrink)),
        Case("spot waves", halving, (_rentable(spot, linear),), _on(spot, waves)),
        Case("two offers", halving, both, apart),
    ]


def _offer(name: str, gpus: int, usd_per_hour: float) -> Offer:
    return Offer(InstanceType(name, gpus, "T4", 16_384, 16, 65_536), "on-demand", "r", usd_per_hour)


def _rentable(offer: Offer, epoch: Callable[[float], float]) -> Rentable:
    """Return an offer, with the seconds of an epoch at all widths that are used here."""
    profile = ScalingProfile(
        offer.instance_type.name,
        {width: Measurement(epoch(width)) for width in WIDTHS},
        launch=Measurement(20.0),
        boot=Measurement(90.0),
        start=Measurement(15.0),
        resize=Measurement(20.0),
        release=Measurement(30.0),
        script_hash="",
        measured_at="2026-11-20",
        source="made up",
    )
    return Rentable(offer, profile, 32)


def _on(
    offer: Offer, stages: Sequence[tuple[int, float, int]]
) -> list[list[tuple[Offer, int, float, int]]]:
    return [[(offer, *stage)] for stage in stages]


def _group(part: tuple[Offer, int, float, int]) -> Group:
    offer, instances, width, trials = part
    waves = math.ceil(trials / slots(width, offer.gpus, instances))
    return Group(offer, instances, width, trials, waves)


def _spread_out(profile: ScalingProfile, spread: float) -> ScalingProfile:
    def wide(measured: Measurement) -> Measurement:
        return replace(measured, sd=measured.mean * spread)

    return replace(
        profile,
        epoch={width: wide(measured) for width, measured in profile.epoch.items()},
        launch=wide(profile.launch),
        boot=wide(profile.boot),
        start=wide(profile.start),
        resize=wide(profile.resize),
        release=wide(profile.release),
    )


def _row(what: str, predicted: Spread, actual: Floats) -> Row:
    return Row(
        what,
        float(actual.mean()) / predicted.mean - 1,
        float(actual.std(ddof=1)) / math.sqrt(len(actual)) / predicted.mean,
        float(np.median(actual)) / predicted.p50 - 1,
        float(np.mean((predicted.p5 <= actual) & (actual <= predicted.p95))),
    )


if __name__ == "__main__":
    main()
