"""A planned run whose world isn't that of its profile: the rest is replanned, and reported."""

import math
import re
from dataclasses import replace

import pytest

from cloudtune.engine.resume import replayed
from cloudtune.engine.spot_pools import PoolTrace
from cloudtune.infra.aws import pricing
from cloudtune.model.catalog import Offer, pool
from cloudtune.model.commands import Launch, PlanAnew, StartTrial
from cloudtune.model.events import EpochDone, LaunchFailed
from cloudtune.model.plans import Estimate, Limits, Rentable
from cloudtune.model.scaling import DELAYS
from cloudtune.model.trial import EndReason
from cloudtune.planners.exact import ExactPlanner
from cloudtune.policy.base import Brakes
from cloudtune.profiles import bundled
from cloudtune.runs.report import build, to_json
from tests.builders import (
    LINEAR,
    SUBLINEAR,
    Played,
    Setting,
    by_plan,
    itinerary_of,
    offer,
    play,
    profile,
)

SHA = Setting(
    trials=8,
    max_epochs=16,
    offer=offer(4, 36.0),
    profile=profile(SUBLINEAR),
    max_instances=8,
    by="sha",
    limits=Limits(130.0, 60.0),
)


def slower(times: float, per_doubling: float = 1.0, job: Setting = SHA) -> Setting:
    """Return a job that trains n times slower than its profile, and more when wide."""
    doublings = {1.0: 0, 2.0: 1, 4.0: 2}
    epoch = {w: s * times * per_doubling ** doublings[w] for w, s in SUBLINEAR.items()}
    return job.but(real=(Rentable(job.offer, profile(epoch), 8),))


def changes(played: Played) -> list[PlanAnew]:
    return [c for said in played.commands for c in said if isinstance(c, PlanAnew)]


@pytest.mark.parametrize("times", [0.85, 1.0, 1.1])
def test_a_plan_stays_where_no_other_is_clearly_better(times: float) -> None:
    played = play(slower(times))
    assert changes(played) == []
    assert itinerary_of(played.policy).replanned == 0


@pytest.mark.parametrize("seed", [0, 5, 8])
def test_no_trial_is_dropped_for_an_almost_finished_round(seed: int) -> None:
    """Sixteen trials take turns on four GPUs; 6 % slower with 12 % to spare cuts none."""
    epoch = {1.0: 60.0, 2.0: 31.0, 4.0: 16.0}
    real = profile({width: 1.06 * seconds for width, seconds in epoch.items()}, spread=0.03)
    job = Setting(
        trials=16,
        eta=3,
        offer=offer(4, 4.0),
        profile=profile(epoch, spread=0.03),
        max_instances=1,
        by="sha",
        seed=seed,
    )
    seconds, dollars = play(job).bill()
    limits = Limits(1.12 * seconds, 1.12 * dollars)
    played = play(job.but(limits=limits, real=(Rentable(job.offer, real, 1),)))
    trained = [max(trial.history, default=0) for trial in played.policy.trials.values()]
    assert (len(trained), sum(trained)) == (16, 27)
    assert limits.admit(Estimate(*played.bill()))


@pytest.mark.parametrize("times", [1.15, 1.2, 1.3])
def test_r1_a_slower_runs_winner_is_trained_in_full(times: float) -> None:
    played = play(slower(times))
    assert (played.policy.ending, played.furthest) == (EndReason.DONE, 16)
    assert played.bill()[0] <= 130.0
    assert any("times the profile's" in change.why for change in changes(played))


@pytest.mark.parametrize("per_doubling", [1.0, 1.15, 1.3])
def test_published_speeds_are_doubted_at_widths_without_an_epoch(per_doubling: float) -> None:
    """The last stages are the first wide ones: too late to learn that they are slower."""
    machine = pricing.instance_types()["p3.8xlarge"]
    published = bundled.load("resnet50-cifar10@v100", machine)
    planned = {width: published.epoch_seconds(width) for width in published.widths}
    real = {width: s * per_doubling ** math.log2(width) for width, s in planned.items()}
    delays = {name: getattr(published, name).mean for name in DELAYS}
    foreign = replace(profile(planned, **delays), provenance=published.provenance)
    job = Setting(
        trials=64,
        max_epochs=64,
        offer=Offer(machine, "on-demand", "", 12.24),
        profile=foreign,
        max_instances=16,
        by="sha",
        limits=Limits(3600.0, 400.0),
    )
    played = play(job.but(real=(Rentable(job.offer, profile(real, **delays), 16),)))
    assert (played.policy.ending, played.furthest) == (EndReason.DONE, 64)
    assert played.bill()[1] < {1.0: 21.9, 1.15: 23.3, 1.3: 26.0}[per_doubling]


def test_a_faster_run_is_cheaper_than_its_plan() -> None:
    expected, faster = play(SHA), play(slower(0.6))
    assert faster.dollars < 0.9 * expected.dollars
    assert faster.furthest == 16


@pytest.mark.parametrize("times", [0.85, 1.12])
def test_r6_a_fast_plan_does_not_become_a_cheaper_one(times: float) -> None:
    """Once it is looked at again, there is a plan that is cheaper within the limits."""
    limits = Limits(1200.0, 60.0)
    job = slower(times, job=SHA.but(max_epochs=32, offer=offer(1, 9.0), limits=limits))
    fastest = ExactPlanner().front(job.request(), 15)[0]
    seconds = fastest.estimate.seconds
    ends = {}
    for wished in (None, seconds):
        plan, planner = replace(fastest, wished=wished), ExactPlanner()
        made = by_plan(plan, job.strategy, job.rentables, limits=limits, planner=planner)
        ends[wished] = play(job, made).policy.over_at
    assert ends[seconds] < 1.2 * seconds
    assert ends[None] > 1.3 * seconds, "else the run pays as little as the limits let it"


def test_if_no_plan_keeps_the_limits_fewer_trials_go_on() -> None:
    played = play(slower(1.9, job=SHA.but(limits=Limits(170.0, 60.0))))
    assert played.bill()[0] <= 170.0
    assert played.furthest == 16, "one is trained in full"
    result = [change for change in changes(played) if "no plan keeps the limits" in change.why]
    assert result
    counts = [re.search(r"(\d+) trials? instead of (\d+)", change.plan) for change in result]
    fewer = [(int(actual[1]), int(actual[2])) for actual in counts if actual]
    assert fewer
    assert all(now < before for now, before in fewer), fewer
    assert not any("to go on" in change.plan for change in result), "a cut trial is reported once"


def test_if_not_one_trial_fits_it_trains_until_the_limits() -> None:
    played = play(slower(4.0))
    assert played.policy.ending is EndReason.DEADLINE
    assert 2 <= played.furthest < 16
    assert any(
        "as far as the limits" in c.plan or "to about epoch" in c.plan for c in changes(played)
    )


def test_what_changes_is_on_record_and_replayed_and_reported() -> None:
    job = slower(1.3)
    played = play(job)
    replayed(job.policy(), played.entries)
    result = to_json(build(job.job(itinerary_of(played.policy).first_plan), played.entries))
    assert [item["why"] for item in result["plan_changes"]] == [c.why for c in changes(played)]


def test_published_strategies_keep_their_first_plan() -> None:
    for name in ("rubberband", "rubberband-exact", "sha-static"):
        assert changes(play(slower(1.3, job=SHA.but(by=name)))) == []


SPOT = offer(4, 9.0, name="s.4x", market="spot")
BOTH = SHA.but(
    offer=SPOT,
    profile=profile(SUBLINEAR, name="s.4x"),
    others=(Rentable(SHA.offer, SHA.profile, 8),),
    max_instances=2,
    trials=4,
    heartbeat=True,
)


def dry(rounds: int) -> list[LaunchFailed]:
    """Return that the only request of each of n rounds, 180 s apart, is refused."""
    return [
        LaunchFailed(0.5 + 181.0 * n, f"i{n:03d}", "Dry", "none left", kind="capacity")
        for n in range(rounds)
    ]


def test_r2_a_dry_spot_pool_leads_to_on_demand() -> None:
    """All of it takes $0.26 on spot and $1.05 on demand, and waiting would miss the deadline."""
    played = play(BOTH.but(limits=Limits(230.0, 0.8), trouble=dry(1)))
    asked = [c.market for said in played.commands for c in said if isinstance(c, Launch)]
    assert asked[:2] == ["spot", "on-demand"]
    assert played.furthest >= 8, "as far as the money goes"
    assert played.dollars <= 0.8


def test_r2_a_dry_pool_is_asked_for_while_time_allows() -> None:
    """Four rounds of refusals, far more time than that left, and nothing else to rent."""
    job = BOTH.but(others=(), limits=Limits(2000.0, 60.0))
    played = play(job.but(trouble=dry(5)))
    assert played.policy.ending is EndReason.DONE
    assert played.furthest == 16


def test_a_fast_run_is_wide_again_after_a_refusals_rung() -> None:
    """At first three of the eight instances that would be fastest can't be had."""
    job = SHA.but(limits=Limits(None, 20.0))
    plan = ExactPlanner().plan(replace(job.request(), objective="time"))
    refused = [replace(dry(1)[0], intent=f"i00{n}") for n in (5, 6, 7)]
    made = by_plan(
        plan,
        job.strategy,
        job.rentables,
        limits=job.limits,
        planner=ExactPlanner(),
        brakes=Brakes(avoid=10.0),
    )
    first, second = changes(play(job.but(trouble=tuple(refused)), made))
    assert "on 5 x g.4x" in first.plan
    assert (second.stage, second.why) == (1, "at the rung")
    assert "4 GPUs each, on 4 x g.4x" in second.plan


def test_r4_seer_stops_widening_once_width_brings_nothing() -> None:
    """By the profile twice as many GPUs are twice as fast; really they are no faster.

    With time enough no trial is wide. Where one GPU is too slow it widens, a step at a time; once
    an epoch at a width has shown that it brings nothing, no trial starts at that width again.
    """
    job = Setting(trials=3, max_epochs=27, eta=3, profile=profile(LINEAR), by="seer")
    flat = Rentable(job.offer, profile(dict.fromkeys(LINEAR, 8.0)), 2)
    ample = play(job.but(limits=Limits(900.0, 60.0), real=(flat,)))
    assert set(ample.widths) == {1.0}
    tight = play(job.but(limits=Limits(180.0, 60.0), real=(flat,)))
    assert max(tight.widths) > 1.0
    known = tight.policy.state.corrected(job.rentables[0], ()).profile
    assert known.epoch_seconds(max(tight.widths)) > 7.0
    width: dict[str, float] = {}
    useless: set[float] = set()
    for entry in tight.entries:
        if isinstance(entry.event, EpochDone) and width[entry.event.session] > 1.0:
            useless.add(width[entry.event.session])
        for command in entry.commands:
            if isinstance(command, StartTrial):
                width[command.session] = sum(piece.gpus for piece in command.placement)
                assert width[command.session] not in useless
    assert useless


@pytest.mark.parametrize("seed", [3, 15, 24])
def test_a_trial_at_its_rung_leaves_an_instance_that_goes(seed: int) -> None:
    """In waves on one instance: spot is there again, and on-demand must go first, as one may be.

    The trial that had reached the rung held it until the deadline.
    """
    spot = offer(1, 1.0, name="s.1x", market="spot")
    dear = Rentable(offer(1, 10.0, name="g.1x"), profile({1.0: 40.0}, name="g.1x", spread=0.15), 1)
    job = Setting(
        trials=6,
        min_epochs=4,
        max_epochs=16,
        offer=spot,
        profile=profile({1.0: 40.0}, name="s.1x", spread=0.15),
        others=(dear,),
        max_instances=1,
        by="sha",
        limits=Limits(9000.0, 60.0),
        seed=seed,
        heartbeat=False,
        pools={pool(spot): PoolTrace("late", (0.0, 150.0), (0, 1), 10_000.0)},
    )
    played = play(job)
    assert (played.policy.ending, played.furthest) == (EndReason.DONE, 16)
    assert played.bill()[0] < 2000.0
