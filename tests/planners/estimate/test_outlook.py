"""What a plan may take: like its price where nothing varies, and by the rules where it does."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.errors import UsageError
from cloudtune.model.catalog import SpotBehaviour
from cloudtune.model.plans import Allowance, Charges, Group, Limits, Plan, Rentable, Stage
from cloudtune.planners.arrays import Floats
from cloudtune.planners.base import InfeasibleError, Live, PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.estimate import training
from cloudtune.planners.estimate.chance_constrained import quantile_plan
from cloudtune.planners.estimate.outlook import outlook, sample
from cloudtune.planners.exact import ExactPlanner
from tests.builders import SUBLINEAR, Setting, group, offer, profile
from tests.builders.values import present


@pytest.fixture(params=["one wave", "waves", "shrinking", "growing", "two offers"])
def case(request: pytest.FixtureRequest) -> tuple[PlanRequest, Plan]:
    one, two = make_rentable(), make_rentable(name="p.2", gpus=8)
    shapes = {
        "one wave": [[group(one.offer, 2, 1.0, 8)], [group(one.offer, 1, 2.0, 2)]],
        "waves": [[group(one.offer, 1, 1.0, 8)], [group(one.offer, 1, 4.0, 2)]],
        "shrinking": [[group(one.offer, 4, 2.0, 8)], [group(one.offer, 1, 2.0, 2)]],
        "growing": [[group(one.offer, 1, 0.5, 8)], [group(one.offer, 4, 8.0, 2)]],
        "two offers": [
            [group(one.offer, 1, 1.0, 4), group(two.offer, 1, 2.0, 4)],
            [group(two.offer, 1, 4.0, 2)],
        ],
    }
    asked = job([(8, 0, 3), (2, 3, 9)], one, two)
    return asked, price(asked, [tuple(stage) for stage in shapes[request.param]], "by hand")


def make_rentable(
    name: str = "g.4x", gpus: int = 4, epoch: Mapping[float, float] | None = None, **but: Any
) -> Rentable:
    on = replace(offer(gpus, name=name), **but)
    return Rentable(on, profile(epoch or EPOCH, name=name), 64)


EPOCH = {0.5: 15.0, 1.0: 8.0, 2.0: 4.0, 4.0: 2.0, 8.0: 1.5}


def job(work: Sequence[tuple[int, int, int]], *rentables: Rentable, **but: object) -> PlanRequest:
    stages = tuple(Stage(*stage) for stage in work)
    return replace(PlanRequest(stages, rentables, Allowance(), 64), **but)  # type: ignore[arg-type]


def vary(asked: PlanRequest, *, sd: float = 0.0, error: float = 0.0) -> PlanRequest:
    """Return a request with epochs of that relative deviation, and profiles that may be wrong."""

    def noisy(item: Rentable) -> Rentable:
        epoch = {w: replace(m, sd=m.mean * sd) for w, m in item.profile.epoch.items()}
        return replace(item, profile=replace(item.profile, epoch=epoch, error=error))

    return replace(asked, rentables=tuple(map(noisy, asked.rentables)))


def alone(rentable: Rentable, trials: int = 1, epochs: int = 4) -> tuple[PlanRequest, Plan]:
    """Return a job of one stage, each trial on an instance of its own."""
    asked = job([(trials, 0, epochs)], rentable)
    on = rentable.offer
    return asked, price(asked, [(group(on, trials, float(on.gpus), trials),)], "by hand")


def standard_error(draws: Floats) -> float:
    return float(draws.std() / math.sqrt(len(draws)))


@st.composite
def rentables(draw: st.DrawFn, name: str) -> Rentable:
    """Offers of all kinds of bills, and scripts that scale in all kinds of ways."""
    seconds = st.floats(0.0, 300.0)
    widths = draw(st.sets(st.sampled_from([1 / 3, 0.5, 1.0, 2.0, 3.0, 8.0]), min_size=1))
    on = replace(
        offer(draw(st.sampled_from([1, 4, 8])), draw(st.floats(0.1, 99.0)), name=name),
        minimum_seconds=draw(st.sampled_from([0.0, 60.0, 600.0])),
        granularity_seconds=draw(st.sampled_from([0.0, 1.0, 3600.0])),
    )
    delays = ("launch", "boot", "start", "resize", "release")
    scaling = {width: draw(seconds) for width in sorted(widths)}
    made = profile(scaling, name=name, **{delay: draw(seconds) for delay in delays})
    return Rentable(on, made, 6)


@st.composite
def groups(draw: st.DrawFn, on: Rentable, trials: int) -> Group:
    width = draw(st.sampled_from(on.profile.widths))
    least = math.ceil(width / on.gpus)
    return group(on.offer, draw(st.integers(least, least + 5)), width, trials)


@st.composite
def priced_jobs(draw: st.DrawFn) -> tuple[PlanRequest, Plan]:
    """Jobs on two offers, with choices that no planner would make as well."""
    one, two = draw(rentables("g.1")), draw(rentables("p.2"))
    work, choices, epoch = [], [], draw(st.integers(0, 1))
    for trials in sorted(draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)), reverse=True):
        work.append((trials, epoch, epoch := epoch + draw(st.integers(1, 5))))
        first = draw(st.integers(0, trials))
        parts = [(one, first), (two, trials - first)]
        choices.append(tuple(draw(groups(item, count)) for item, count in parts if count))
    live = draw(st.lists(st.sampled_from([one, two]), max_size=2, unique_by=id))
    fleet = [
        Live(
            item.offer,
            tuple(draw(st.lists(st.floats(0.0, 5000.0), min_size=1, max_size=3))),
            draw(st.sampled_from([None, *item.profile.widths])),
        )
        for item in live
    ]
    asked = job(
        work,
        one,
        two,
        fleet=tuple(fleet),
        max_instances=draw(st.integers(1, 20)),
        charges=Charges(draw(st.floats(0.0, 2.0)), draw(st.floats(0.0, 0.01))),
    )
    return asked, price(asked, choices, "by hand")


@settings(deadline=None, max_examples=50)
@given(drawn=priced_jobs())
def test_without_spread_every_draw_is_the_price(drawn: tuple[PlanRequest, Plan]) -> None:
    asked, plan = drawn
    draws = sample(asked, plan, samples=3, seed=1)
    assert draws.seconds == pytest.approx(np.full(3, plan.estimate.seconds), rel=1e-9)
    assert draws.dollars == pytest.approx(np.full(3, plan.estimate.dollars), rel=1e-9, abs=1e-9)


def test_a_stage_is_over_when_its_last_trial_is() -> None:
    asked, plan = alone(make_rentable(epoch={4.0: 100.0}), trials=2, epochs=4)
    draws = sample(vary(asked, sd=0.1), plan, samples=20_000, seed=0)
    late = draws.seconds - plan.estimate.seconds
    # Four epochs deviate by 20 s, and the later of two normals is late by sd / sqrt(pi).
    assert late.mean() == pytest.approx(20.0 / math.sqrt(math.pi), abs=4 * standard_error(late))


def test_a_long_queue_played_in_part_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rentable = make_rentable(epoch={1.0: 100.0})
    asked = job([(403, 0, 4)], rentable)
    plan = price(asked, [(group(rentable.offer, 1, 1.0, 403),)], "by hand")
    noisy = vary(asked, sd=0.2, error=0.1)
    whole = sample(noisy, plan, samples=2000, seed=0)
    monkeypatch.setattr(training, "_FIGURES", 0)
    assert training._skippable_rounds(403, 4, 2000) == 91
    assert training._skippable_rounds(39, 4, 2000) == 0
    part = sample(noisy, plan, samples=2000, seed=0)
    assert part.seconds.mean() == pytest.approx(whole.seconds.mean(), rel=0.01)
    assert part.seconds.std() == pytest.approx(whole.seconds.std(), rel=0.05)
    assert part.dollars.mean() == pytest.approx(whole.dollars.mean(), rel=0.01)
    plain = sample(asked, plan, samples=2, seed=0)
    assert plain.seconds == pytest.approx(plan.estimate.seconds), "without spread it is the price"


def test_a_wrong_profile_is_wrong_in_all_its_epochs() -> None:
    asked, plan = alone(make_rentable(epoch={4.0: 100.0}), trials=8, epochs=16)
    draws = sample(vary(asked, error=0.1), plan, samples=20_000, seed=0)
    assert np.log((draws.seconds - 27) / 1600).std() == pytest.approx(0.1, rel=0.03)
    assert np.median(draws.seconds) == pytest.approx(plan.estimate.seconds, rel=2e-3)


HOURLY: dict[str, Any] = {"usd_per_hour": 0.0, "interruptions_per_hour": 1.0, "market": "spot"}


def test_wide_trial_fails_with_any_instance() -> None:
    epochs = {4.0: 60.0, 8.0: 60.0}
    narrow, wide = (make_rentable(gpus=gpus, epoch=epochs, **HOURLY) for gpus in (8, 4))
    late = []
    for rentable, instances in ((narrow, 1), (wide, 2)):
        asked = job([(1, 0, 30)], rentable)
        plan = price(asked, [(group(rentable.offer, instances, 8.0, 1),)], "by hand")
        draws = sample(asked, plan, samples=20_000, seed=0)
        late.append(draws.seconds.mean() - (1 + 20 + 4 + 1800 + 2))
    assert late[1] == pytest.approx(2 * late[0], rel=0.1)


@pytest.mark.parametrize(("there", "outage"), [(0.5, 3600.0), (0.8, 900.0)])
def test_a_plan_on_spot_waits_for_its_pool(there: float, outage: float) -> None:
    """As long as there is none, on average, at the begin and after each loss."""
    rentable = replace(
        make_rentable(epoch={4.0: 60.0}, **HOURLY),
        behaviours=(SpotBehaviour(1.0, availability=there),),
    )
    asked, plan = alone(rentable, epochs=60)
    counted = replace(asked, charges=Charges(usd_per_launch=1.0))
    draws = sample(counted, plan, samples=20_000, seed=0)
    lost = draws.dollars - 1
    late = draws.seconds - (1 + 20 + 4 + 60 * 60.0 + 2)
    waited = (1 - there) * outage + lost.mean() * (outage + 1 + 20 + 6 + 30)
    assert late.mean() == pytest.approx(waited, rel=0.03)
    assert (np.abs(late) < 1e-6).mean() == pytest.approx(there * math.exp(-3620 / 3600), abs=0.02)


def test_pool_behaviour_is_drawn_by_sample() -> None:
    rentable = make_rentable(epoch={4.0: 60.0}, **HOURLY)
    ways = (SpotBehaviour(0.0), SpotBehaviour(60.0))
    asked, plan = alone(replace(rentable, behaviours=ways), epochs=60)
    late = sample(asked, plan, samples=4000, seed=0).seconds - (1 + 20 + 4 + 3600 + 2)
    assert (np.abs(late) < 1e-6).mean() == pytest.approx(0.5, abs=0.03)


def test_an_outlook_tells_percentiles_and_chances(case: tuple[PlanRequest, Plan]) -> None:
    asked, plan = vary(case[0], sd=0.2, error=0.1), case[1]
    draws = sample(asked, plan, samples=1000, seed=5)
    free = outlook(asked, plan, seed=5)
    assert (free.in_time, free.in_money, free.within) == (None, None, None)
    assert (free.samples, free.seed) == (1000, 5)
    assert free.seconds.mean == draws.seconds.mean()
    assert free.dollars.p50 == np.sort(draws.dollars)[499]
    allowance = Allowance(free.seconds.p95, free.dollars.p50)
    bound = outlook(replace(asked, allowance=allowance), plan, seed=5)
    assert (bound.in_time, bound.in_money) == (0.95, 0.5)
    kept = (draws.seconds <= free.seconds.p95) & (draws.dollars <= free.dollars.p50)
    assert bound.within == kept.mean()


class Counted:
    """The exact planner, and how often it has been asked."""

    name = "exact"

    def __init__(self) -> None:
        self.asked = 0

    def plan(self, request: PlanRequest) -> Plan:
        self.asked += 1
        return ExactPlanner().plan(request)


def uncertain(**limits: float) -> PlanRequest:
    setting = Setting(
        trials=16,
        max_epochs=16,
        profile=profile({w: 10 * s for w, s in SUBLINEAR.items()}, spread=0.15, error=0.05),
        max_instances=8,
    )
    return setting.request(Limits(**limits))


def test_sure_plan_is_unchanged() -> None:
    asked, planner = uncertain(deadline=3000.0, budget=100.0), Counted()
    plan, result = quantile_plan(planner, asked, 0.95)
    assert plan == ExactPlanner().plan(asked)
    assert result.within == 1.0
    assert planner.asked == 1


def test_the_fastest_plan_that_keeps_the_budget_for_sure() -> None:
    asked = replace(uncertain(budget=16.0), objective="time")
    plan, result = quantile_plan(ExactPlanner(), asked, 0.95)
    assert present(result.in_money) >= 0.95
    assert plan.estimate.seconds > ExactPlanner().plan(asked).estimate.seconds


def test_no_plan_that_is_sure_names_the_nearest() -> None:
    with pytest.raises(InfeasibleError) as mean:
        ExactPlanner().plan(uncertain(deadline=0.0))
    assert mean.value.fastest is not None
    deadline = mean.value.fastest.estimate.seconds + 1
    with pytest.raises(InfeasibleError, match=r"with a probability of 0\.99") as caught:
        quantile_plan(ExactPlanner(), uncertain(deadline=deadline), 0.99)
    assert caught.value.fastest == mean.value.fastest
    assert caught.value.cheapest == mean.value.cheapest
    assert "--confidence" in str(caught.value)


def test_a_confidence_is_a_probability() -> None:
    with pytest.raises(UsageError, match=r"0\.95, not 95"):
        quantile_plan(ExactPlanner(), uncertain(), 95)


def test_a_run_that_a_limit_ends_takes_no_more() -> None:
    asked = vary(job([(8, 0, 2), (2, 2, 20)], make_rentable()), error=0.5)
    plan = ExactPlanner().plan(asked)
    allowance = Allowance(plan.estimate.seconds, plan.estimate.dollars)
    result = outlook(replace(asked, allowance=allowance), plan, reacts=True)
    assert present(result.within) < 0.9, "in the others not all was trained"
    release = asked.rentables[0].profile.release.high
    assert result.seconds.p95 <= plan.estimate.seconds + release + 1e-6
    assert result.dollars.p95 <= plan.estimate.dollars + 1e-6
    assert result.gpu_hours.mean < outlook(asked, plan).gpu_hours.mean
