"""Jobs to plan: measured scaling curves, EC2's types and prices, random successive halving.

Curves are read from the data folder (HyperSched, Gavel and Shockwave: V100, within one server) and
from the bundled profiles (Pollux: T4, nodes of four). How long an epoch takes on one GPU, how long
an instance boots and how many trials there are is drawn.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from cloudtune.infra.aws import pricing
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.planners.base import PlanRequest
from cloudtune.profiles import bundled
from cloudtune.strategies.successive_halving import SuccessiveHalving

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from cloudtune.model.catalog import InstanceType, Market, Offer

KINDS = ("near-linear", "sublinear", "non-monotone")
# The least speed-up a GPU, at the widest, that is called near-linear.
NEAR_LINEAR = 0.75

_SINGLE = {
    "v100": ("p3.8xlarge", "p3.16xlarge", "p3.16xlarge", "p3dn.24xlarge"),
    "t4": ("g4dn.12xlarge",),
}
_FAMILIES = {
    "v100": (("p3.*",), ("g5.*",), ("g6.*",), ("g5.*", "g6.*")),
    "t4": (("g4dn.*",), ("g4dn.12xlarge", "g4dn.xlarge", "g4dn.metal"), ("g5.*",)),
}
_SMALL = {
    "v100": ("p3.2xlarge", "p3.8xlarge", "p3.16xlarge"),
    "t4": ("g4dn.xlarge", "g4dn.12xlarge"),
}
_MIXED_OFFERS, _MIXED_INSTANCES = 6, 8  # what `cloudtune plan` mixes within a stage


@dataclass(frozen=True)
class Curve:
    """How many times as fast as one GPU so many are; beyond `node` they are on several nodes."""

    name: str
    gpu: str
    node: int
    speed: tuple[tuple[float, float], ...]

    def on(self, machine: InstanceType) -> tuple[tuple[float, float], ...]:
        """Return the part that was measured in the layout that such instances give."""
        alike = machine.gpus == self.node
        most = math.inf if alike else min(machine.gpus, self.node)
        return tuple((width, speed) for width, speed in self.speed if width <= most)


def kind_of(speed: Sequence[tuple[float, float]]) -> str:
    """Return the class of a curve of speed-ups by width, ascending."""
    speeds = [value for _, value in speed]
    if any(wider < narrower for narrower, wider in itertools.pairwise(speeds)):
        return "non-monotone"
    width, fastest = speed[-1]
    return "near-linear" if fastest >= NEAR_LINEAR * width else "sublinear"


@dataclass(frozen=True)
class Job:
    """What is to be planned; `slack` is how many times the fastest plan's time the deadline is."""

    name: str
    kind: str
    request: PlanRequest
    slack: float


# ---- curves -------------------------------------------------------------------------------------


def curves(data: Path) -> list[Curve]:
    """Return the measured curves that have a figure for one GPU and for more."""
    return [*_hypersched(data), *_gavel(data), *_pollux()]


def _hypersched(data: Path) -> Iterator[Curve]:
    table = pd.read_csv(data / "gpu_scaling_hypersched.csv")
    for (dataset, model), rows in table.groupby(["dataset", "model"]):
        speed = zip(rows["num_gpus"].astype(float), rows["speedup"], strict=True)
        yield Curve(f"hypersched {model} {dataset}", "v100", 8, tuple(sorted(speed)))


def _gavel(data: Path) -> Iterator[Curve]:
    """Yield the V100 curves as they are: noisy, a few above linear, many not monotone."""
    table = pd.read_csv(data / "gpu_scaling_gavel.csv")
    table = table[(table["gpu"] == "v100") & table["consolidated"] & (table["steps_per_s"] > 0)]
    for (source, model, batch), rows in table.groupby(["source", "model", "batch_size"]):
        steps = dict(zip(rows["num_gpus"].astype(float), rows["steps_per_s"], strict=True))
        if 1.0 in steps and len(steps) > 1:
            speed = tuple((width, steps[width] / steps[1.0]) for width in sorted(steps))
            yield Curve(f"{source} {model} b{batch:g}", "v100", 8, speed)


def _pollux() -> Iterator[Curve]:
    machine = pricing.instance_types()["g4dn.12xlarge"]
    for name in bundled.names():
        if "Pollux" in bundled.published_figures(name).source:
            epoch = bundled.load(name, machine).epoch
            whole = sorted(width for width in epoch if width >= 1.0)
            speed = tuple((width, epoch[1.0].mean / epoch[width].mean) for width in whole)
            yield Curve(f"pollux {name}", "t4", machine.gpus, speed)


# ---- jobs ---------------------------------------------------------------------------------------


def curve_of(number: int, curves: Sequence[Curve]) -> Curve:
    """Return the curve of a job: each kind has its turn, and each curve of a kind."""
    kind = KINDS[number % len(KINDS)]
    alike = [curve for curve in curves if kind_of(curve.speed) == kind]
    return alike[number // len(KINDS) % len(alike)]


def single(number: int, seed: int, curves: Sequence[Curve]) -> Job:
    """Return a job on one offer."""
    dice = np.random.default_rng([seed, number, 1])
    curve = curve_of(number, curves)
    names = (str(dice.choice(_SINGLE[curve.gpu])),)
    market: Market = "spot" if dice.random() < 0.2 else "on-demand"
    return _job(dice, f"single {number}", curve, _offers(names, (market,)))


def several(number: int, seed: int, curves: Sequence[Curve]) -> Job:
    """Return a job on several offers of a family, equally fast a GPU: what differs is the size."""
    dice = np.random.default_rng([seed, number, 2])
    curve = curve_of(number, curves)
    families = _FAMILIES[curve.gpu]
    names = families[int(dice.integers(len(families)))]
    markets: tuple[Market, ...] = ("on-demand", "spot") if dice.random() < 0.25 else ("on-demand",)
    return _job(dice, f"several {number}", curve, _offers(names, markets))


def small(number: int, seed: int, curves: Sequence[Curve]) -> Job:
    """Return a job with few enough plans to try them all; billed by the instant."""
    dice = np.random.default_rng([seed, number, 3])
    curve = curve_of(number, curves)
    offers = _offers(_SMALL[curve.gpu], ("on-demand", "spot"))
    count = 1 if dice.random() < 0.5 else 2
    chosen = [offers[int(n)] for n in dice.choice(len(offers), count, replace=False)]
    job = _job(dice, f"small {number}", curve, chosen)
    work = _halving(dice, int(dice.integers(2, 7)), 2, int(dice.integers(1, 4))).stages()
    most = int(dice.integers(2, 5 if count == 1 else 3))
    mix = 2 if count == 2 and dice.random() < 0.5 else 1
    rentables = tuple(replace(_narrowed(dice, r), most=most) for r in job.request.rentables)
    request = replace(job.request, work=work, rentables=rentables, max_instances=most, mix=mix)
    return replace(job, request=billed_by(request, 0.0))


def billed_by(request: PlanRequest, granularity: float) -> PlanRequest:
    """Return a request with bills rounded up to other grains, 0 for none."""
    return replace(
        request,
        rentables=tuple(
            replace(r, offer=replace(r.offer, granularity_seconds=granularity))
            for r in request.rentables
        ),
        fleet=tuple(
            replace(live, offer=replace(live.offer, granularity_seconds=granularity))
            for live in request.fleet
        ),
    )


def _offers(names: Sequence[str], markets: Sequence[Market]) -> tuple[Offer, ...]:
    return pricing.catalog(pricing.PRICED_REGION, markets).matching(
        tuple(dict.fromkeys(names)), markets
    )


def _job(dice: np.random.Generator, name: str, curve: Curve, offers: Sequence[Offer]) -> Job:
    trials = round(_between(dice, 4, 128))
    eta = int(dice.integers(2, 5))
    depth = math.ceil(math.log(trials, eta)) + 1
    work = _halving(dice, trials, eta, int(dice.integers(2, depth + 1))).stages()
    most, epoch = int(dice.integers(4, 33)), _between(dice, 10, 1200)
    delays = _delays(dice)
    rentables = tuple(
        Rentable(offer, _profile(curve, offer.instance_type, epoch, delays), most)
        for offer in offers
    )
    mix = 2 if 1 < len(offers) <= _MIXED_OFFERS and most <= _MIXED_INSTANCES else 1
    widest = max((curve.on(offer.instance_type) for offer in offers), key=len)
    request = PlanRequest(work, rentables, Limits(), most, mix=mix)
    # Every tenth deadline or so is the fastest plan's own time, but for the last bits.
    slack = 1.0 + (1e-9 if dice.random() < 0.1 else _between(dice, 0.02, 4.0))
    return Job(f"{name}: {curve.name}", kind_of(widest), request, slack)


def _halving(dice: np.random.Generator, trials: int, eta: int, stages: int) -> SuccessiveHalving:
    """Return successive halving of about so many stages; the last may be a short one."""
    first = int(dice.integers(1, 5))
    last = first * eta ** (stages - 1)
    most = max(first, last - int(dice.integers(0, max(1, last // 3))))
    return SuccessiveHalving(trials, first, most, eta, "max")


def _delays(dice: np.random.Generator) -> dict[str, Measurement]:
    """Draw the seconds around training: how long EC2's GPU instances boot isn't published."""
    launch, boot = dice.uniform(1, 40), dice.uniform(30, 300)
    start, more = dice.uniform(5, 60), dice.uniform(0, 30)
    delays = {"launch": launch, "boot": boot, "start": start, "resize": start + more}
    delays["release"] = dice.uniform(1, 20)
    return {name: Measurement(float(seconds)) for name, seconds in delays.items()}


def _profile(
    curve: Curve, machine: InstanceType, epoch: float, delays: dict[str, Measurement]
) -> ScalingProfile:
    return ScalingProfile(
        instance_type=machine.name,
        epoch={width: Measurement(epoch / speed) for width, speed in curve.on(machine)},
        **delays,  # type: ignore[arg-type]
        script_hash="",
        measured_at="2026-11-21",
        source=curve.name,
    )


def _narrowed(dice: np.random.Generator, rentable: Rentable) -> Rentable:
    """Return a rentable with three of its widths, one GPU among them."""
    profile = rentable.profile
    wider = [width for width in profile.widths if width > 1.0]
    kept = {1.0, *dice.permutation(np.array(wider))[:2].tolist()}
    epoch = {width: profile.epoch[width] for width in sorted(kept)}
    return replace(rentable, profile=replace(profile, epoch=epoch))


def _between(dice: np.random.Generator, low: float, high: float) -> float:
    return float(math.exp(dice.uniform(math.log(low), math.log(high))))
