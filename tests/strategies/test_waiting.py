"""Runs whose machines the cloud refuses, from an experiment to what they rent instead, and when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from cloudtune.engine.ledger import Entry, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.engine.spot_pools import UNLIMITED, PoolTrace
from cloudtune.lifecycle.planning import load_problem
from cloudtune.model.catalog import PoolName, SpotBehaviour
from cloudtune.model.commands import Launch
from cloudtune.model.plans import Limits
from cloudtune.runs.job import make_policy
from cloudtune.strategies.fleets import SpendingFleet
from cloudtune.strategies.waiting import outage_left
from tests.builders.searches import search_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cloudtune.experiment import Experiment
    from cloudtune.policy.run import RunPolicy

# The same GPU; an epoch on the second costs 1.6 times as much.
CHEAP, DEAR = "g4dn.xlarge", "g4dn.2xlarge"
# By the prior an epoch on the second costs 1.3 times as much.
L40S, A10G = "g6e.xlarge", "g5.xlarge"
HOUR = 3600.0
STRATEGIES = ("best", "asha", "asha-stopping", "random")


def experiment(deadline: str, budget: str, strategy: str = "best", **cloud: object) -> Experiment:
    """Return a search on two spot offers with the same GPU."""
    return search_for(
        deadline,
        budget,
        strategy,
        **{"instances": [CHEAP, DEAR], "market": "spot", "max_instances": 64, **cloud},
    )


@dataclass(frozen=True)
class Waited:
    """A run that has ended."""

    policy: RunPolicy
    entries: list[Entry]

    def dollars(self, name: str) -> float:
        fleet = self.policy.fleet
        return sum(r.dollars(self.policy.now) for r in fleet if r.offer.instance_type.name == name)

    def requests(self, name: str, after: float = 0.0) -> list[float]:
        """Return when instances of a type were requested."""
        return [
            entry.event.at
            for entry in self.entries
            for command in entry.commands
            if isinstance(command, Launch)
            and command.instance_type == name
            and entry.event.at >= after
        ]

    def joined(self, name: str, at: float) -> int:
        """Return the instances of a type that there were at a run second."""
        return sum(
            rented.joined and rented.requested_at <= at and (rented.gone_at or at + 1) > at
            for rented in self.policy.fleet
            if rented.offer.instance_type.name == name
        )


def play(
    asked: Experiment,
    away: Mapping[str, tuple[float, float]],
    slower: Mapping[str, float] = MappingProxyType({}),
) -> Waited:
    """Play a run in a world where types are away from a run second to another.

    Epochs on a type take `slower` times what is assumed.
    """
    rentables = load_problem(asked, None).rentables
    real = []
    for rentable in rentables:
        profile = replace(rentable.profile, error=0.0, gpu_error=0.0)
        profile = profile.slow_down(slower.get(rentable.offer.instance_type.name, 1.0))
        offer = replace(rentable.offer, interruptions_per_hour=0.0)
        real.append(replace(rentable, offer=offer, profile=profile, behaviours=()))
    pools: dict[PoolName, PoolTrace] = {
        (name, "spot", ""): PoolTrace(name, (0.0, begin, end), (UNLIMITED, 0, UNLIMITED), 1e9)
        for name, (begin, end) in away.items()
    }
    limits = Limits(asked.limits.deadline, asked.limits.budget)
    policy = make_policy(asked, rentables, limits, heartbeat=False, checked=False, learns=False)
    ledger = MemoryLedger()
    run(policy, SimWorld(real, "score", synthetic_metric("max", 1), 1, pools=pools), ledger)
    assert policy.ended
    return Waited(policy, ledger.entries)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_long_deadline_waits_for_the_cheap_offer(folder: Path, strategy: str) -> None:
    waited = play(experiment("24h", "$10", strategy), {CHEAP: (2 * HOUR, 4 * HOUR)})
    assert waited.dollars(DEAR) == 0.0
    assert waited.dollars(CHEAP) > 9.0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_short_deadline_takes_the_dear_offer_at_once(folder: Path, strategy: str) -> None:
    waited = play(experiment("2h", "$5", strategy), {CHEAP: (0.5 * HOUR, 2 * HOUR)})
    assert waited.dollars(DEAR) > 2.0
    assert waited.requests(DEAR, after=0.5 * HOUR)[0] < 0.6 * HOUR


def test_a_wait_ends_while_the_dear_offer_can_spend_the_rest(folder: Path) -> None:
    waited = play(experiment("12h", "$10"), {CHEAP: (2 * HOUR, 12 * HOUR)})
    assert 4 * HOUR < waited.requests(DEAR)[0] < 11 * HOUR
    assert waited.policy.spent(waited.policy.now) > 9.0


@pytest.mark.parametrize("strategy", ["best", "asha"])
def test_a_fleet_is_larger_after_a_wait(folder: Path, strategy: str) -> None:
    """The same money is left, in less time."""
    waited = play(experiment("24h", "$10", strategy), {CHEAP: (2 * HOUR, 8 * HOUR)})
    assert waited.joined(CHEAP, 11 * HOUR) > waited.joined(CHEAP, 1.9 * HOUR)


def test_exploring_goes_on_for_longer_after_a_wait(folder: Path) -> None:
    there = play(experiment("24h", "$10"), {})
    waited = play(experiment("24h", "$10"), {CHEAP: (2 * HOUR, 10 * HOUR)})
    assert len(waited.policy.trials) > 0.8 * len(there.policy.trials)


def test_nothing_is_waited_for_until_something_has_trained(folder: Path) -> None:
    """A run finds out at once whether its script trains."""
    waited = play(experiment("24h", "$10"), {CHEAP: (0.0, 3 * HOUR)})
    assert waited.requests(DEAR)[0] < 0.1 * HOUR


def test_a_stand_in_and_the_way_back_are_no_moves(folder: Path) -> None:
    """A run that took another GPU model for want of its own may still move twice."""
    asked = experiment("2h", "$20", instances=[L40S, A10G])
    away = (0.5 * HOUR, 0.9 * HOUR)
    waited = play(asked, {L40S: away}, slower={A10G: 2.0})
    assert waited.requests(A10G, after=away[0])
    assert waited.joined(L40S, 1.5 * HOUR) > waited.joined(A10G, 1.5 * HOUR)
    rule = waited.policy.fleet_rule
    assert isinstance(rule, SpendingFleet)
    assert rule.offers.scouting.moves == 0


@pytest.mark.parametrize("strategy", ["best", "asha"])
def test_a_stand_in_with_the_same_gpu_goes_when_the_cheap_offer_is_back(
    folder: Path, strategy: str
) -> None:
    waited = play(experiment("24h", "$10", strategy), {CHEAP: (0.0, 3 * HOUR)})
    assert waited.joined(DEAR, 2.9 * HOUR)
    assert waited.joined(CHEAP, 4 * HOUR)
    assert not waited.joined(DEAR, 4 * HOUR)


def test_a_pool_that_is_away_is_asked_for_one_instance_at_a_time(folder: Path) -> None:
    waited = play(experiment("24h", "$10"), {CHEAP: (2 * HOUR, 4 * HOUR)})
    while_away = [at for at in waited.requests(CHEAP) if 2.2 * HOUR < at < 3.9 * HOUR]
    assert 20 < len(while_away) < 40, "every three minutes"
    assert len(set(while_away)) == len(while_away)


def test_all_are_requested_as_soon_as_one_of_them_has_come(folder: Path) -> None:
    """The outage is over then, and counts no more."""
    waited = play(experiment("24h", "$40"), {CHEAP: (2 * HOUR, 4 * HOUR)})
    first, *others = waited.requests(CHEAP, after=4 * HOUR)[: waited.joined(CHEAP, 4.5 * HOUR)]
    assert len(others) > 3
    assert first < others[0]
    assert others.count(others[0]) > 0.8 * len(others)


def test_a_pool_that_has_been_away_for_long_stays_away_for_long() -> None:
    ways = (SpotBehaviour(1.0, 0.9), SpotBehaviour(1.0, 0.2))
    short, long = (way.outage for way in ways)
    left = [outage_left(ways, away, 0.0) for away in (0.0, short, 5 * short, 50 * short)]
    assert left == sorted(left)
    assert short < left[0] < long
    assert left[-1] == pytest.approx(long, rel=0.01)


def test_a_refusal_counts_for_less_the_longer_ago_it_was() -> None:
    ways = (SpotBehaviour(1.0, 0.9), SpotBehaviour(1.0, 0.5))
    left = [outage_left(ways, HOUR, unasked) for unasked in (0.0, HOUR, 10 * HOUR, 100 * HOUR)]
    assert left == sorted(left, reverse=True)
    assert left[-1] < 0.5 * left[0], "as if nobody had ever asked"
    assert outage_left((), HOUR, 10 * HOUR) < 1.0


def test_of_an_unknown_pool_the_time_away_is_the_best_guess() -> None:
    assert outage_left((), 700.0, 0.0) == 700.0
    assert outage_left((SpotBehaviour(0.5),), 700.0, 0.0) == 700.0, "one that is never away"
