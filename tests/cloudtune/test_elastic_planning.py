"""What is told of a run that decides as it goes before it begins: a forecast by its own policy."""

from __future__ import annotations

import json

import pytest

from cloudtune import elastic_tables
from cloudtune.cli_elastic import refuse_plan_options
from cloudtune.elastic_plan import ElasticPlan
from cloudtune.elastic_planning import (
    LEAST_SAMPLES,
    SAMPLES,
    elastic_job,
    elastic_plan,
    forecast,
    propose_elastic,
)
from cloudtune.errors import InfeasibleError, UsageError
from cloudtune.plan import Limits
from cloudtune.planning import longest
from cloudtune.proposal import elastic_to_json
from tests.elastic_builders import BUDGET, DEADLINE, LIMITS, job, play, problem


def test_the_forecast_is_the_policy_s_own_and_the_same_again() -> None:
    found = forecast(problem(), LIMITS)
    assert found == forecast(problem(), LIMITS)
    assert (found.samples, found.results) == (SAMPLES, 1.0)
    assert found.seconds.p5 <= found.seconds.p50 <= found.seconds.p95 <= DEADLINE
    assert 0 < found.dollars.p95 <= BUDGET
    assert found.trials.p95 <= 12
    assert found.instances.p95 <= 3


def test_a_run_comes_near_to_its_forecast() -> None:
    made = job()
    told = play(made)
    assert told.forecast is not None
    assert told.figures is not None
    seconds, dollars = told.forecast.seconds, told.forecast.dollars
    assert 0.8 * seconds.p5 <= told.figures.seconds <= 1.2 * seconds.p95
    assert 0.8 * dollars.p5 <= told.figures.dollars <= 1.2 * dollars.p95


def test_what_goes_by_before_the_first_request_is_not_forecast_twice() -> None:
    late, early = (forecast(problem("random"), LIMITS, begin) for begin in (100.0, 0.0))
    assert late.seconds.p95 <= DEADLINE - 100.0
    assert early.seconds.p50 <= DEADLINE


def test_a_large_job_is_played_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudtune.elastic_planning.FORECAST_EVENTS", 1500)
    assert LEAST_SAMPLES < forecast(problem(), LIMITS).samples < SAMPLES
    assert forecast(problem(trials=500), Limits(budget=99.0)).samples == LEAST_SAMPLES


def test_the_fleet_is_what_the_fleet_rule_may_rent() -> None:
    plan = elastic_plan(problem({"name": "asha", "fleet": "constant:2"}), LIMITS)
    assert [each.instances for each in plan.fleet] == [2]
    assert (plan.most_instances, plan.fleet_rule) == (2, "constant")
    assert plan.usd_per_second == pytest.approx(0.02)


def test_limits_that_leave_no_time_for_an_epoch_are_infeasible() -> None:
    with pytest.raises(InfeasibleError, match="no trial finished an epoch"):
        job(limits=Limits(deadline=40.0))
    forced = elastic_job(problem(), Limits(deadline=40.0), 0.0, force=True)
    assert isinstance(forced.plan, ElasticPlan)
    assert forced.plan.forecast.results == 0


def test_a_run_without_limits_must_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert job(limits=Limits()).plan.estimate.seconds > 0
    monkeypatch.setattr("cloudtune.elastic_planning.MOST_EVENTS", 50)
    with pytest.raises(UsageError, match="would never end"):
        job(limits=Limits())


def test_an_unknown_choice_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"there is no strategy 'ashaa'.*Did you mean 'asha'"):
        job("ashaa")
    with pytest.raises(UsageError, match=r"no sampler 'tpee'.*Did you mean 'tpe'"):
        job({"name": "asha", "sampler": "tpee"})


@pytest.mark.parametrize("option", ["planner", "objective", "save", "plot", "confidence"])
def test_what_says_how_stages_are_planned_is_refused(option: str) -> None:
    experiment = problem().experiment
    refuse_plan_options(experiment, {"deadline": "5m", option: None})
    with pytest.raises(UsageError, match=f"--{option}: asha decides as results come in"):
        refuse_plan_options(experiment, {option: "x"})


def test_a_run_on_a_budget_alone_is_given_the_time_to_spend_it() -> None:
    made = job(limits=Limits(budget=36.0))
    assert longest(made.plan, made.limits) >= 3600.0 + 3600.0


def test_the_proposal_is_told_in_tables_and_in_json() -> None:
    asked = problem({"name": "asha", "target": 0.9, "max_concurrent": 5})
    proposal = propose_elastic(asked, elastic_job(asked, LIMITS, 0.0))
    facts = [
        fact.text for fact in (*elastic_tables.header(proposal), *elastic_tables.renting(proposal))
    ]
    assert "up to 12 trials (random sampler), epochs 1 to 9, eta 3" in facts
    assert "ends as soon as score is 0.9" in facts
    assert "at most 5 trials at once" in facts
    assert "at most $8.00: the budget" in facts
    assert any("metrics are made up" in fact for fact in facts)
    sheet = elastic_tables.forecast(proposal.plan.forecast)
    assert [row[0] for row in sheet.rows][:3] == ["time", "cost", "trials started"]
    told = json.loads(json.dumps(elastic_to_json(proposal), allow_nan=False))
    assert told["plan"]["forecast"]["samples"] == SAMPLES
    assert (told["experiment"], told["strategy"]) == ("made-up", "asha")
