"""Staged runs by their names."""

from __future__ import annotations

import pytest

from cloudtune.errors import InfeasibleError, UsageError
from cloudtune.plan import Limits, Rentable
from cloudtune.replanning import ReplanningPolicy
from cloudtune.staged import STAGED
from cloudtune.trial import EndReason
from tests.builders import SUBLINEAR, offer, profile
from tests.staged_builders import Deal

NAMES = tuple(STAGED)
GIVEN = tuple(name for name in NAMES if name != "seer-barrier")
DEAL = Deal(trials=16, max_epochs=8, limits=Limits(600.0, 40.0))


@pytest.mark.parametrize("name", NAMES)
def test_each_runs_to_its_end_within_the_limits(name: str) -> None:
    show = DEAL.but(name=name).play()
    seconds, dollars = show.bill()
    assert show.policy.ending is EndReason.DONE
    assert show.epochs == 8
    assert seconds <= 600.0
    assert dollars <= 40.0


@pytest.mark.parametrize("name", NAMES)
def test_without_a_heartbeat_the_same_is_done_at_fewer_events(name: str) -> None:
    deal = DEAL.but(name=name, limits=Limits(500.0, 2.5))
    with_it, without = deal.but(heartbeat=True).play(), deal.play()
    assert len(without.entries) < len(with_it.entries) / 2
    assert without.members == with_it.members
    assert without.policy.ending is with_it.policy.ending
    assert without.bill() == pytest.approx(with_it.bill(), rel=0.01)


@pytest.mark.parametrize("name", GIVEN)
def test_a_given_schedule_is_carried_out_as_it_is(name: str) -> None:
    assert DEAL.but(name=name).play().members == [16, 8, 4, 2]
    assert DEAL.but(name=name, first_trials=5).play().members == [5, 2, 1, 1]


def test_rubberband_costs_no_more_than_a_static_cluster_and_no_less_than_the_best_plan() -> None:
    """On tight deadlines the order is strict; all three try the same and reach the same."""
    rentables = (Rentable(offer(1), profile(SUBLINEAR), 16),)
    deal = DEAL.but(rentables=rentables, max_instances=16, limits=Limits(190.0, None))
    shows = [deal.but(name=n).play() for n in ("rubberband-exact", "rubberband", "sha-static")]
    exact, greedy, static = (show.bill()[1] for show in shows)
    assert exact <= greedy < static
    assert {show.policy.best for show in shows} == {shows[0].policy.best}
    assert all(show.bill()[0] <= 190.0 for show in shows)


@pytest.mark.parametrize("name", GIVEN)
def test_a_budget_too_small_ends_a_given_schedule_on_its_way(name: str) -> None:
    show = DEAL.but(name=name, limits=Limits(600.0, 1.0)).play()
    assert show.policy.ending is EndReason.BUDGET
    assert show.bill()[1] <= 1.0


@pytest.mark.parametrize("name", GIVEN)
def test_a_deadline_too_short_is_met_by_the_fastest_plan_as_far_as_it_goes(name: str) -> None:
    show = DEAL.but(name=name, limits=Limits(60.0, 40.0)).play()
    assert show.policy.ending is EndReason.DEADLINE
    assert show.bill()[0] <= 60.0
    assert 1 <= show.epochs < 8


def test_seer_tries_as_many_as_the_limits_pay_for_and_no_more_than_it_is_told() -> None:
    poor = DEAL.but(limits=Limits(600.0, 1.5)).policy()
    assert isinstance(poor, ReplanningPolicy)
    assert 1 < len(poor.trials) < 16
    assert len(DEAL.policy().trials) == 16
    assert len(DEAL.but(first_trials=3).policy().trials) == 3


def test_seer_rents_nothing_where_not_one_epoch_fits() -> None:
    with pytest.raises(InfeasibleError, match=r"The fastest takes .*"):
        DEAL.but(limits=Limits(20.0, 5.0)).policy()
    with pytest.raises(InfeasibleError):
        DEAL.but(limits=Limits(600.0, 0.0)).policy()


def test_without_limits_all_are_tried_and_the_best_half_goes_on() -> None:
    show = DEAL.but(limits=Limits()).play()
    assert show.members == [16, 16, 16, 16], "nothing says that anyone is to be dropped"


@pytest.mark.parametrize("name", GIVEN)
def test_where_no_width_fits_on_what_may_be_rented_there_is_no_run(name: str) -> None:
    wide = (Rentable(offer(1), profile({4.0: 3.0}), 2),)
    with pytest.raises(InfeasibleError, match="no measured width fits"):
        DEAL.but(name=name, rentables=wide, max_instances=2).policy()


def test_a_wrong_name_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="rubberband"):
        DEAL.but(name="ruberband").policy()


def test_no_trial_no_run() -> None:
    with pytest.raises(UsageError, match="no trial"):
        DEAL.but(trials=0).policy()


@pytest.mark.parametrize("name", GIVEN)
def test_a_trials_own_last_epoch_is_kept(name: str) -> None:
    show = DEAL.but(name=name, caps=dict.fromkeys(range(0, 16, 2), 3)).play()
    capped = [show.policy.trials[f"t{n:02d}"] for n in range(0, 16, 2)]
    assert max(max(trial.history) for trial in capped) <= 3
    assert show.epochs == 8, "those that can go on take the places"
    assert show.policy.ending is EndReason.DONE


def test_when_every_trial_has_ended_by_itself_the_run_is_done() -> None:
    show = DEAL.but(name="rubberband", caps=dict.fromkeys(range(16), 2)).play()
    assert show.policy.ending is EndReason.DONE
    assert show.epochs == 2
    assert {t.status for t in show.policy.trials.values()} == {"finished", "cut"}
