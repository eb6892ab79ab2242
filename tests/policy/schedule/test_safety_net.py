"""The net below spot: when a run waits, goes over to on-demand, and comes back."""

import random
from dataclasses import replace
from itertools import accumulate

import pytest

from cloudtune.engine.resume import replay
from cloudtune.model.commands import Command, Launch, Release, SetTimer
from cloudtune.model.plans import Allowance, Stage
from cloudtune.model.trial import EndReason
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.reserve import MARGIN, Reserve
from cloudtune.policy.schedule.safety_net import Answers, SafetyNet
from cloudtune.policy.schedule.situation import Situation
from tests.builders import Played, Setting, itinerary_of
from tests.builders.values import present
from tests.policy.schedule.spot_jobs import (
    DEAR,
    job,
    markets,
    on,
    plan_changes,
    rentable,
)


def net(setting: Setting) -> SafetyNet:
    """Return what a look finds at the very beginning of a run."""
    policy = setting.policy()
    brakes = policy.state.brakes
    reserve = Reserve(brakes.tick + brakes.drain)
    situation = Situation(policy.state, itinerary_of(policy), ExactPlanner(), reserve)
    return SafetyNet(situation, Answers())


def rest_of(deadline: float) -> PlanRequest:
    """Return the work of two trials on demand, within a deadline and $60."""
    stages = (Stage(trials=2, start_epoch=0, end_epoch=24),)
    offers = (rentable(DEAR, 2),)
    return PlanRequest(
        work=stages, rentables=offers, allowance=Allowance(deadline, 60.0), max_instances=2
    )


def test_a_plan_is_remembered_while_narrower_limits_admit_it() -> None:
    answers = Answers()
    long = present(answers.within(rest_of(9000.0)))
    assert answers.within(rest_of(long.estimate.seconds)) is long
    short = present(answers.within(rest_of(long.estimate.seconds - 60.0)))
    assert short.estimate.seconds < long.estimate.seconds
    again = answers.within(rest_of(9000.0))
    assert again == long, "wider limits are asked of the planner"


def test_a_run_that_remembers_plans_as_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools come and go, most of the time with nothing held: what is done is the same."""
    draw = random.Random(7)
    for _ in range(12):
        gaps = accumulate(draw.uniform(300.0, 4000.0) for _ in range(8))
        changes = [(0.0, draw.randrange(2)), *((at, draw.randrange(2)) for at in gaps)]
        setting = job(draw.uniform(4000.0, 20000.0), most=draw.choice([1, 2]))
        remembered = _done(on(setting, *changes))
        with monkeypatch.context() as patch:
            patch.setattr(Answers, "within", lambda _, request: ExactPlanner().within(request))
            assert _done(on(setting, *changes)) == remembered


def _done(played: Played) -> list[Command]:
    """Return what a run did; when it looks next is its own affair."""
    return [c for said in played.commands for c in said if not isinstance(c, SetTimer)]


AMPLE = 3 * 3600.0


def test_on_demand_is_due_when_only_one_loss_still_fits() -> None:
    ample = net(job(AMPLE))
    assert not ample.due
    spare = (ample.slack - ample.loss) / (1 - MARGIN)
    assert not net(job(AMPLE - spare + 1.0)).due
    assert net(job(AMPLE - spare - 1.0)).due


def test_a_run_waits_while_a_pause_and_loss_fit() -> None:
    ample = net(job(AMPLE))
    spare = (ample.slack - ample.loss - 180.0) / (1 - MARGIN)
    assert net(job(AMPLE - spare + 1.0)).may_wait(180.0)
    assert not net(job(AMPLE - spare - 1.0)).may_wait(180.0)


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({"boot": 120.0}, 30.0),
        ({"launch": 25.0}, 5.0),
        ({"start": 40.0}, 30.0),
        ({"resize": 12.0}, 2.0),
    ],
)
def test_what_on_demand_takes_longer_is_less_slack(more: dict[str, float], less: float) -> None:
    """A resize may fall due several times: at rungs, where trials take turns."""
    lost = net(job(AMPLE)).slack - net(job(AMPLE, on_demand=more)).slack
    assert lost >= less
    assert lost / less == pytest.approx(round(lost / less))


def test_what_may_be_late_on_demand_is_kept_free() -> None:
    sure = job(AMPLE)
    dear = sure.others[0]
    boot = replace(dear.profile.boot, sd=15.0)
    unsure = sure.but(others=(replace(dear, profile=replace(dear.profile, boot=boot)),))
    assert net(sure).slack - net(unsure).slack == pytest.approx(30.0)


def test_a_waiting_run_expects_slow_epochs_until_one_is_seen() -> None:
    sure = job(AMPLE)
    dear = sure.others[0]
    unsure = sure.but(others=(replace(dear, profile=replace(dear.profile, error=0.2)),))
    assert net(sure).blind == 0.0
    assert net(unsure).blind > 0.4 * 2880.0


def test_money_for_on_demand_is_kept_as_time_is() -> None:
    """On demand it is $2.60 or so; what one loss on spot costs must be left besides."""
    alone = present(net(job(AMPLE)).fallback)
    enough = alone.estimate.dollars / (1 - MARGIN)
    lost = net(job(AMPLE)).dollars / (1 - MARGIN)
    assert net(job(AMPLE, budget=enough + lost - 0.01)).due
    assert not net(job(AMPLE, budget=enough + lost + 0.01)).due


def test_there_is_no_net_where_on_demand_does_not_fit() -> None:
    tight = job(AMPLE, budget=1.5)
    assert net(tight).fallback is None
    assert not net(tight).due
    assert on(tight, (0.0, 1)).policy.ending is EndReason.DONE, "spot alone is paid"


def test_a_pool_away_for_a_while_is_waited_for() -> None:
    played = on(job(2 * 3600.0), (0.0, 1), (1500.0, 0), (3000.0, 1))
    assert played.policy.ending is EndReason.DONE
    assert {market for _, market in markets(played)} == {"spot"}
    assert any("waits for it" in text for text in plan_changes(played))


def test_if_spot_stays_away_on_demand_takes_over() -> None:
    played = on(job(2 * 3600.0), (0.0, 1), (1500.0, 0))
    assert played.policy.ending is EndReason.DONE
    (_, first), (over, second) = markets(played)
    assert (first, second) == ("spot", "on-demand")
    assert over > 2000.0, "it waited"
    assert played.bill()[0] <= 7200.0
    assert played.bill()[0] > 7200.0 * (1 - MARGIN) - 180.0 - 600.0, "as long as it could"


@pytest.mark.parametrize("deadline", [3400.0, 6000.0])
@pytest.mark.parametrize("away", [0.0, 150.0, 2000.0])
@pytest.mark.parametrize("most", [1, 2])
def test_what_on_demand_alone_finishes_is_finished(deadline: float, away: float, most: int) -> None:
    """Wherever the pool goes away for good, or comes and goes."""
    assert net(job(deadline, most)).fallback is not None
    for later in ((), ((away + 700.0, 1), (away + 900.0, 0))):
        begin = ((0.0, 1), (away, 0)) if away else ((0.0, 0),)
        played = on(job(deadline, most=most), *begin, *later)
        assert played.policy.ending is EndReason.DONE
        assert played.furthest == 24
        assert played.bill()[0] <= deadline


def test_spot_takes_over_from_on_demand_once_it_is_there() -> None:
    played = on(job(2 * 3600.0, most=2), (0.0, 0), (2600.0, 1))
    assert played.policy.ending is EndReason.DONE
    (_, first), (back, second) = markets(played)
    assert (first, second) == ("on-demand", "spot")
    released = [e.event.at for e in played.entries for c in e.commands if isinstance(c, Release)]
    assert min(released) >= back + 90.0, "not before the other has booted"
    assert any("g.1x spot can be had again" in text for text in plan_changes(played))


def test_under_the_cap_a_trial_pauses_after_its_epoch() -> None:
    """What sits on demand holds up the spot instance, for which the cap has no room as yet."""
    sure = job(2 * 3600.0).but(trials=2, min_epochs=24, max_epochs=48)
    dear = sure.others[0]
    others = (replace(dear, profile=replace(dear.profile, error=0.6)),)
    played = on(sure.but(others=others, real=sure.rentables), (0.0, 0), (200.0, 1))
    (_, first), (back, second) = markets(played)
    assert (first, second) == ("on-demand", "spot")
    assert back < itinerary_of(played.policy).stage_began[1] - 300.0


def test_changing_pools_are_not_asked_for_on_and_on() -> None:
    """`play` fails where anything is rented again and nothing explains it."""
    changes = [(float(at), n % 2) for n, at in enumerate(range(0, 14_400, 400))]
    played = on(job(4 * 3600.0, most=2), *changes)
    assert played.policy.ending is EndReason.DONE
    asked = [c for said in played.commands for c in said if isinstance(c, Launch)]
    assert len(asked) < 14_400 / 180.0


def test_it_is_on_record_and_replayed() -> None:
    setting = job(2 * 3600.0, most=2)
    played = on(setting, (0.0, 1), (1500.0, 0), (5000.0, 1))
    replay(setting.policy(), played.entries)
