"""More types, another market, a higher cap, a larger budget, a later deadline never buy less."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from cloudtune.api.experiments import load_experiment
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.forecast.make import make_plan
from cloudtune.infra.aws import pricing
from cloudtune.lifecycle.planning import load_problem
from cloudtune.model.events import EpochDone
from cloudtune.model.plans import Limits, Plan, Rentable
from cloudtune.planners.base import InfeasibleError
from cloudtune.policy.registry import STRATEGIES, explores, planned_names
from cloudtune.profiles.ratios import gpu_speeds
from cloudtune.runs.job import make_policy

if TYPE_CHECKING:
    from pathlib import Path

TYPES = ("g4dn.xlarge", "g4dn.12xlarge", "g5.xlarge", "g5.12xlarge", "g6.xlarge", "g6e.xlarge")
DEAREST = max(
    listing.on_demand or 0.0
    for listing in pricing.listings()
    if listing.instance_type.name in TYPES
)
# An epoch on a V100.
SECONDS = 120.0
# Fleets are of whole instances, and a strategy's rungs of whole trials: 3 of 260 drawn pairs bought
# up to 8 % less.
TOLERANCE = 0.15


@dataclass(frozen=True)
class Choice:
    """What a person may choose; the deadline is in seconds, the budget in dollars."""

    strategy: str
    types: frozenset[str]
    market: str
    cap: int
    deadline: float
    budget: float

    @property
    def experiment(self) -> dict[str, Any]:
        """The fields of an experiment file."""
        return {
            "name": "more",
            "train": "train.py:train",
            "metric": {"name": "score", "mode": "max"},
            "search": {"x": {"uniform": [0, 1]}},
            "epochs": {"max": 27},
            "strategy": self.strategy,
            "trial": {"try_first": False},
            "limits": {"deadline": f"{self.deadline:.0f}s", "budget": f"${self.budget:.2f}"},
            "cloud": {
                "provider": "emulated",
                "instances": sorted(self.types),
                "market": self.market,
                "max_instances": self.cap,
            },
        }


CHOICES = st.builds(
    Choice,
    strategy=st.sampled_from(sorted(STRATEGIES.keys() - {*planned_names(), "grid", "seer"})),
    types=st.frozensets(st.sampled_from(TYPES), min_size=1, max_size=3),
    market=st.sampled_from(["on-demand", "spot"]),
    cap=st.sampled_from([4, 8, 16]),
    deadline=st.sampled_from([1800.0, 3600.0]),
    budget=st.floats(1.5, 8.0).map(lambda hours: hours * DEAREST),
)
# With twice the time the money pays for one and a half instances.
HALF_AN_INSTANCE = Choice("asha", frozenset({"g6e.xlarge"}), "on-demand", 8, 3600.0, 5.6)
# More money pays for four GPUs where few trials train at once, and each of them slower.
BARRIERS = Choice(
    "halving",
    frozenset({"g6e.xlarge", "g5.xlarge", "g5.12xlarge"}),
    "on-demand",
    16,
    3600.0,
    44.369636951912675,
)
# A p4d's trials would reach their last epoch on all of its GPUs alone, one after the other.
SMALL = Choice("best", frozenset({"g4dn.xlarge"}), "on-demand", 8, 3600.0, 2.0)
A_P4D = {"types": frozenset({"p4d.24xlarge"})}
STAGED = st.builds(replace, CHOICES, strategy=st.sampled_from(sorted(planned_names())))
MORE = st.one_of(
    st.frozensets(st.sampled_from(TYPES), min_size=1).map(lambda types: {"types": types}),
    st.just({"market": "any"}),
    st.sampled_from([{"cap": 2.0}, {"budget": 1.3}, {"budget": 2.0}]),
    st.sampled_from([{"deadline": 1.3}, {"deadline": 2.0}]),
)


def with_more(choice: Choice, more: dict[str, Any]) -> Choice:
    """Return a choice with more types, another market, or so many times as much of something."""
    if "types" in more:
        return replace(choice, types=choice.types | more["types"])
    if "market" in more:
        return replace(choice, market="any")
    [(name, factor)] = more.items()
    kind = type(getattr(choice, name))
    return replace(choice, **{name: kind(factor * getattr(choice, name))})


def count_epochs(choice: Choice) -> int:
    """Return how many epochs a run trains where speeds are those that were measured."""
    asked = load_experiment(choice.experiment, {})
    rentables = [measure(each) for each in load_problem(asked, None).rentables]
    limits = Limits(asked.limits.deadline, asked.limits.budget)
    policy = make_policy(asked, rentables, limits, heartbeat=False, checked=False, learns=False)
    world = SimWorld(rentables, "score", synthetic_metric("max", 1), 1)
    ledger = MemoryLedger()
    run(policy, world, ledger)
    return sum(isinstance(entry.event, EpochDone) for entry in ledger.entries)


def plan_choice(choice: Choice) -> Plan | None:
    """Return the stages that are planned where speeds are known; None if no plan keeps the limits.

    A number of trials is named, but for strategies that plan as many as the limits pay for.
    """
    fields = {**choice.experiment, "trials": 16}
    if explores(choice.strategy):
        del fields["trials"]
    asked = load_experiment(fields, {})
    problem = load_problem(asked, None)
    known = tuple(measure(rentable) for rentable in problem.rentables)
    limits = Limits(asked.limits.deadline, asked.limits.budget)
    try:
        return make_plan(replace(problem, rentables=known), limits, runs=1).plan.staged
    except InfeasibleError:
        return None


def measure(rentable: Rentable) -> Rentable:
    """Return a rentable at published speeds, as if they were measured, on spot that stays."""
    logs = gpu_speeds().logs
    seconds = SECONDS / math.exp(logs[rentable.offer.instance_type.gpu] - logs["v100"])
    provenance = replace(rentable.profile.provenance, origin="measured")
    known = replace(rentable.profile, error=0.0, gpu_error=0.0, provenance=provenance)
    profile = known.slow_down(seconds / known.epoch_seconds(1.0))
    offer = replace(rentable.offer, interruptions_per_hour=0.0)
    return replace(rentable, offer=offer, profile=profile, behaviours=())


@settings(
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(choice=CHOICES, more=MORE)
@example(choice=HALF_AN_INSTANCE, more={"deadline": 2.0})
@example(choice=BARRIERS, more={"budget": 1.3})
@example(choice=SMALL, more=A_P4D)
@example(choice=replace(SMALL, strategy="asha-stopping"), more=A_P4D)
def test_more_never_buys_less(folder: Path, choice: Choice, more: dict[str, Any]) -> None:
    assert count_epochs(with_more(choice, more)) >= (1 - TOLERANCE) * count_epochs(choice)


@settings(
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(choice=STAGED, more=MORE)
def test_more_never_plans_less(folder: Path, choice: Choice, more: dict[str, Any]) -> None:
    """Stages of the same work never cost more."""
    before = plan_choice(choice)
    assume(before is not None)
    assert before is not None
    after = plan_choice(with_more(choice, more))
    assert after is not None
    assert after.epochs >= before.epochs
    if after.epochs == before.epochs:
        assert after.estimate.dollars <= 1.01 * before.estimate.dollars
