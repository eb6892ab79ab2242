"""A plan that the cloud won't have is solved again, event by event."""

from collections.abc import Sequence
from typing import Any

import pytest

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.model import events
from cloudtune.model.commands import Command, Launch, StartTrial
from cloudtune.model.plans import Allowance, Limits, Rentable
from cloudtune.model.trial import EndReason, Trial
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.reserve import Reserve
from cloudtune.policy.base import Brakes
from cloudtune.policy.run import RunPolicy
from cloudtune.policy.schedule.situation import Situation
from cloudtune.strategies.successive_halving import SuccessiveHalving
from tests.builders import by_plan, epoch, itinerary_of, join, offer, plan_of, profile
from tests.builders.events import dry

CHEAP = offer(gpus=4, usd_per_hour=2.0, name="cheap.4x")
DEAR = offer(gpus=4, usd_per_hour=6.0, name="dear.4x")
SPOT = offer(gpus=4, usd_per_hour=1.0, name="cheap.4x", market="spot")
NO_LIMITS = Limits()


def rentables(*offers: Any) -> tuple[Rentable, ...]:
    return tuple(
        Rentable(offer, profile(name=offer.instance_type.name, epoch={1: 10.0, 2: 6.0, 4: 4.0}), 4)
        for offer in offers
    )


def resolving(*offers: Any, limits: Limits = NO_LIMITS, zones: Sequence[str] = ()) -> RunPolicy:
    """Return a policy for nine trials, 1 to 9 epochs, on the best plan with the first offer."""
    strategy = SuccessiveHalving(9, 1, 9, 3, "max")
    known = rentables(*offers)
    allowance = Allowance(limits.deadline, limits.budget)
    plan = ExactPlanner().plan(PlanRequest(strategy.stages(), known[:1], allowance, 4))
    return by_plan(
        plan,
        strategy,
        known,
        limits=limits,
        brakes=Brakes(),
        zones=zones,
        given=[Trial(f"t{n:02d}", {"lr": n}) for n in range(9)],
        planner=ExactPlanner(),
    )


def launches(said: Sequence[Command]) -> list[tuple[str, str]]:
    return [(c.instance_type, c.market) for c in said if isinstance(c, Launch)]


@pytest.mark.parametrize(
    ("second", "wait"),
    [
        (0.0, 21.0),
        (10.0, 11.0),
        (20.0, 5.0),  # it is waited for: a boot takes a quarter longer than it has taken by now
        (24.0, 3.0),
        (28.0, 0.0),  # that quarter is over: from now on it is unknown
    ],
)
def test_a_late_boot_is_given_a_quarter_more_time(second: float, wait: float) -> None:
    policy = resolving(CHEAP)
    policy.handle(events.RunStarted(0.0))
    policy.handle(events.TimerFired(second, "tick"))
    situation = Situation(policy.state, itinerary_of(policy), ExactPlanner(), Reserve(7.0))
    assert situation.going_on is not None
    assert situation.delay == pytest.approx(wait - situation.rounded)


def test_another_offer_is_asked_for_in_the_same_breath() -> None:
    policy = resolving(CHEAP, DEAR)
    asked = launches(policy.handle(events.RunStarted(0.0)))
    assert set(asked) == {("cheap.4x", "on-demand")}
    said = launches(policy.handle(dry(1.0, "i000")))
    assert set(said) == {("dear.4x", "on-demand")}
    assert itinerary_of(policy).replanned == 1


def test_zones_come_before_offers() -> None:
    policy = resolving(CHEAP, DEAR, zones=("a",))
    policy.handle(events.RunStarted(0.0))
    assert launches(policy.handle(dry(1.0, "i000")))[0] == ("cheap.4x", "on-demand")
    late = policy.handle(dry(2.0, f"i{len(policy.fleet.rented) - 1:03d}"))
    assert launches(late)[0] == ("dear.4x", "on-demand")


def test_what_is_held_stays_in_the_new_plan() -> None:
    policy = resolving(CHEAP, DEAR, limits=Limits(deadline=90.0))
    count = len(launches(policy.handle(events.RunStarted(0.0))))
    assert count > 1, "the deadline takes more than one"
    assert any(isinstance(c, StartTrial) for c in join(policy, 5.0, "i000"))
    for number in range(1, count):
        said = policy.handle(dry(6.0, f"i{number:03d}"))
    assert {name for name, _ in launches(said)} <= {"dear.4x"}
    assert policy.fleet["i000"].usable, "the one that came is used"
    assert {g.offer for g in itinerary_of(policy).stage_plan.groups} <= {CHEAP, DEAR}


def test_where_nothing_else_keeps_the_limits_the_plan_stays() -> None:
    policy = resolving(CHEAP, DEAR, limits=Limits(budget=0.2))
    plan = plan_of(policy)
    policy.handle(events.RunStarted(0.0))
    assert launches(policy.handle(dry(1.0, "i000"))) == [], "the dear one costs too much"
    assert plan_of(policy) == plan
    assert itinerary_of(policy).replanned == 0


def test_short_of_time_reclaimed_spot_leads_to_on_demand() -> None:
    """Spot is dry, and waiting for it would miss the deadline."""
    policy = resolving(SPOT, CHEAP, limits=Limits(deadline=200.0))
    policy.handle(events.RunStarted(0.0))
    join(policy, 5.0, "i000")
    said = list(policy.handle(events.InterruptionNotice(20.0, "i000", 140.0)))
    assert set(launches(said)) == {("cheap.4x", "spot")}
    intent = next(c.intent for c in said if isinstance(c, Launch))
    assert set(launches(policy.handle(dry(21.0, intent)))) == {("cheap.4x", "on-demand")}


@pytest.mark.parametrize("seed", range(5))
def test_runs_with_refusals_and_losses_come_to_their_end(seed: int) -> None:
    policy = resolving(SPOT, CHEAP, DEAR, limits=Limits(deadline=400.0, budget=4.0))
    metric = synthetic_metric("max", seed)
    world = SimWorld(rentables(SPOT, CHEAP, DEAR), "score", metric, seed)
    trouble: list[events.Event] = [
        dry(0.5, "i000"),
        events.InstanceGone(30.0, "i001", 30.0, "taken back"),
    ]
    for event in trouble:
        world.schedule(event)
    run(policy, world, MemoryLedger())
    assert policy.ending is EndReason.DONE
    assert not policy.fleet.alive()
    assert policy.spent(policy.now) <= 4.0


def test_at_the_rung_the_new_plan_goes_on() -> None:
    policy = resolving(CHEAP, DEAR)
    policy.handle(events.RunStarted(0.0))
    policy.handle(dry(1.0, "i000"))
    alive = [r.intent for r in policy.fleet.alive()]
    join(policy, 5.0, *alive)
    at = 10.0
    while itinerary_of(policy).stage == 0:
        live = [t for t in policy.trials.values() if t.live and t.epoch == 0]
        at += 1.0
        policy.handle(epoch(at, live[0].session, 1))
        if live[0].status == "stopping":
            policy.handle(events.TrialStopped(at, live[0].session))
    assert itinerary_of(policy).stage_plan.groups[0].offer == DEAR
