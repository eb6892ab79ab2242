"""A planned run whose world isn't that of its profile: the rest is replanned, and reported."""

import re
from dataclasses import replace

import pytest

from cloudtune.engine.resume import replay
from cloudtune.model.commands import Launch, PlanAnew
from cloudtune.model.events import LaunchFailed
from cloudtune.model.plans import Allowance, Estimate, Limits, Rentable
from cloudtune.model.trial import EndReason
from cloudtune.planners.exact import ExactPlanner
from cloudtune.runs.report import build, to_json
from tests.builders import (
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
    assert Allowance(limits.deadline, limits.budget).admit(Estimate(*played.bill()))


@pytest.mark.parametrize("times", [1.15, 1.2, 1.3])
def test_r1_a_slower_runs_winner_is_trained_in_full(times: float) -> None:
    played = play(slower(times))
    assert (played.policy.ending, played.furthest) == (EndReason.DONE, 16)
    assert played.bill()[0] <= 130.0
    assert any("times the profile's" in change.why for change in changes(played))


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


def test_what_changes_is_on_record_and_replayed_and_reported() -> None:
    job = slower(1.3)
    played = play(job)
    replay(job.policy(), played.entries)
    result = to_json(build(job.job(itinerary_of(played.policy).first_plan), played.entries))
    assert [item["why"] for item in result["plan_changes"]] == [c.why for c in changes(played)]


@pytest.mark.parametrize("trials", [1, 2, 4])
def test_replanning_without_wide_trials(trials: int) -> None:
    """The plan has trials on several GPUs, and their workers turn out to train copies."""
    job = SHA.but(trials=trials, copies=True, max_instances=1, limits=Limits(600.0, 60.0))
    played = play(job)
    assert max(played.widths) > 1
    assert played.widths[-1] == 1
    assert (played.policy.ending, played.furthest) == (EndReason.DONE, 16)


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
