"""Proposals made by hand, on invented machines, priced by the model that all planners share."""

from collections.abc import Sequence
from dataclasses import replace

from cloudtune.experiment import Experiment
from cloudtune.forecast.alternatives import Alternative, Point
from cloudtune.forecast.proposal import PriceNote, ProfileNote, Proposal
from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Charges, Forecast, Group, Limits, Plan, Rentable, RunPlan, Spread
from cloudtune.model.scaling import Provenance, ScalingProfile
from cloudtune.planners.cost_model import price
from cloudtune.profiles.provenance import Basis
from tests.builders import Setting, certain, offer, profile, run_plan

SPOT = offer(8, 9.0, name="p9.big", market="spot", zone="us-east-1a")
FIXED = offer(8, 30.0, name="p9.big")
CHEAP = offer(1, 0.6, name="g9.small")


def speed(name: str, one_gpu: float) -> ScalingProfile:
    epochs = {width: one_gpu / width**0.8 for width in (0.5, 1.0, 2.0, 4.0, 8.0)}
    return profile(epochs, launch=5.0, boot=30.0, start=10.0, resize=12.0, release=4.0, name=name)


SETTING = Setting(
    trials=16,
    min_epochs=1,
    max_epochs=16,
    eta=4,
    offer=SPOT,
    profile=speed("p9.big", 120.0),
    max_instances=16,
    others=(
        Rentable(FIXED, speed("p9.big", 120.0), 16),
        Rentable(CHEAP, speed("g9.small", 400.0), 16),
    ),
    charges=Charges(usd_per_launch=0.01, usd_per_second=0.0001),
)
"""16 trials to epoch 1, 4 on to epoch 4, 1 on to epoch 16."""


def planned(*stages: Sequence[Group], gap: float | None = None, status: str = "heuristic") -> Plan:
    groups = [tuple(stage) for stage in stages]
    return price(SETTING.request(), groups, "exact", gap=gap, status=status)


def shrinking(one: Offer, first: int) -> Plan:
    """Return a plan that begins with n instances and goes on with one."""
    small = one.gpus == 1
    return planned(
        [Group(one, first, 1.0, 16, -(-16 // (first * one.gpus)))],
        [Group(one, 1, 1.0 if small else 2.0, 4, 4 if small else 1)],
        [Group(one, 1, float(one.gpus), 1, 1)],
    )


STATIC = planned(
    [Group(FIXED, 2, 1.0, 16, 1)], [Group(FIXED, 2, 2.0, 4, 1)], [Group(FIXED, 2, 8.0, 1, 1)]
)
MIXED = planned(
    [Group(SPOT, 1, 0.5, 12, 1), Group(CHEAP, 4, 1.0, 4, 1)],
    [Group(SPOT, 1, 2.0, 4, 1)],
    [Group(SPOT, 1, 8.0, 1, 1)],
    gap=0.0,
    status="optimal",
)
"""The first stage on two offers, packed on one of them; then on one."""


def forecast(plan: Plan, chance: float | None = 0.973) -> Forecast:
    """Return a forecast that spreads a plan's estimate by some percent."""
    seconds, dollars = (
        Spread(value * 0.9, value * 1.01, value * 1.3, value * 1.05)
        for value in (plan.estimate.seconds, plan.estimate.dollars)
    )
    return replace(
        certain(0.0, 0.0, plan),
        seconds=seconds,
        dollars=dollars,
        in_time=chance,
        in_money=0.9996,
        within=chance,
        samples=1000,
        seed=7,
    )


def run_of(plan: Plan, chance: float | None = 0.973, **fields: object) -> RunPlan:
    return run_plan(plan, replace(forecast(plan, chance), **fields))  # type: ignore[arg-type]


def proposal(
    name: str = "digits",
    storage: str = "s3://bucket/digits",
    target: float | None = None,
    **changes: object,
) -> Proposal:
    """Return a full proposal; a deadline of half an hour and a budget of $5, by default."""
    slow = shrinking(CHEAP, 4)
    fields = {
        "name": "digits",
        "train": "train.py:train",
        "metric": {"name": "score", "mode": "max"},
        "search": {"x": {"uniform": [0, 1]}},
        "epochs": {"min": 1, "max": 16},
        "eta": 4,
        "strategy": {"name": "sha", "target": target},
        "storage": storage,
    }
    experiment = Experiment.model_validate(fields).model_copy(update={"name": name})
    made = Proposal(
        experiment=experiment,
        trials=16,
        objective="cost",
        confidence=0.95,
        limits=Limits(deadline=1800.0, budget=5.0),
        plan=run_of(MIXED),
        alternatives=(
            Alternative("best static", run_of(STATIC, in_money=0.0)),
            Alternative("fewest GPUs", run_of(slow, 0.0)),
            Alternative("all spot", run_of(shrinking(SPOT, 2))),
        ),
        front=(
            Point(1, run_of(shrinking(FIXED, 2))),
            Point(2, run_of(shrinking(SPOT, 1))),
            Point(3, run_of(MIXED)),
            Point(4, run_of(slow, 0.0)),
        ),
        prices=PriceNote("our table of EC2 prices", "2026-03-31", 122),
        profiles=(
            ProfileNote("p9.big", "resnet50, published", "2026-01-02", 210),
            ProfileNote(
                *("g9.small", "from p9.big", "2026-01-02", 210),
                error=0.2,
                provenance=Provenance(on="p9.big"),
            ),
        ),
        considered=282,
        worst_dollars=6.5,
        worst_why="every spot instance is taken back once",
        basis=Basis("published 7 months ago for p9.big", ("published", "derived")),
        assumptions=("an instance joins within 35s of its request",),
    )
    return replace(made, **changes)  # type: ignore[arg-type]
