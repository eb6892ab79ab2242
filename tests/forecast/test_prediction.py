"""What is forecast of a run before it begins: by its stages, or by its own policy."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import large_job
from cloudtune.api.experiments import load_experiment
from cloudtune.display import plan_brief, plan_tables
from cloudtune.errors import ExperimentError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast.make import Planned, longest, make_plan, worst_bill
from cloudtune.forecast.prediction import MIN_RUNS, RUNS, PlayedRuns
from cloudtune.forecast.problem import build_problem, stored_profiles
from cloudtune.forecast.proposal import propose
from cloudtune.forecast.smaller_runs import SmallerRun
from cloudtune.forecast.staged_plans import PlanOptions, Problem, Question
from cloudtune.lifecycle.planning import load_problem
from cloudtune.model.plans import Forecast, Limits
from cloudtune.model.text import percent
from cloudtune.planners.base import InfeasibleError
from cloudtune.strategies.samplers.learner import Learner
from tests.builders.live import BUDGET, DEADLINE, LIMITS, elastic_job, problem, report_of
from tests.builders.values import present


def forecast(asked: Problem, limits: Limits, elapsed: float = 0.0) -> Forecast:
    return PlayedRuns(Question(asked, limits, PlanOptions(), elapsed)).forecast()


def test_the_forecast_is_the_policys_own_and_repeatable() -> None:
    result = forecast(problem(), LIMITS)
    assert result == forecast(problem(), LIMITS)
    assert (result.samples, result.results) == (RUNS, 1.0)
    assert result.seconds.p5 <= result.seconds.p50 <= result.seconds.p95 <= DEADLINE
    assert 0 < result.dollars.p95 <= BUDGET
    assert (result.in_time, result.in_money, result.within) == (1.0, 1.0, 1.0)
    assert result.source == "policy"
    assert result.trials.p95 <= 12
    assert result.instances.p95 <= 3


def test_stages_and_runs_forecast_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile may be 20 % off: that spreads either forecast, once, and keeps some runs short."""
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path))
    asked = problem({"name": "sha"}, trials=16)
    unsure = tuple(
        replace(rentable, profile=replace(rentable.profile, error=0.2))
        for rentable in asked.rentables
    )
    asked = replace(asked, rentables=unsure)
    free = make_plan(asked, Limits(), runs=1).plan.estimate

    def both(limits: Limits) -> tuple[Forecast, Forecast]:
        plan = make_plan(asked, limits).plan
        question = Question(asked, limits, PlanOptions())
        played = PlayedRuns(question, plan.staged, samples=31, follows=True)
        return plan.forecast, played.forecast()

    stages, played = both(Limits(9 * free.seconds, 9 * free.dollars))
    assert (stages.source, played.source) == ("stages", "runs")
    for one, other in ((stages.seconds, played.seconds), (stages.dollars, played.dollars)):
        assert one.p50 == pytest.approx(other.p50, rel=0.06)
        assert one.p95 - one.p5 == pytest.approx(other.p95 - other.p5, rel=0.25)
    shown, played = both(Limits(9 * free.seconds, 1.15 * free.dollars))
    assert 0.5 < present(shown.within) < 0.95
    assert shown == played, "near a limit runs drop trials, which draws of stages can't know"
    poor = Limits(None, 0.7 * free.dollars)
    forced = make_plan(asked, poor, force=True, runs=5).plan
    assert (forced.forecast.source, forced.forecast.within) == ("runs", 0.0)
    assert forced.estimate.dollars <= 0.7 * free.dollars


def test_time_before_the_first_request_is_not_forecast_twice() -> None:
    late, early = (forecast(problem("random"), LIMITS, begin) for begin in (100.0, 0.0))
    assert late.seconds.p95 <= DEADLINE - 100.0
    assert early.seconds.p50 <= DEADLINE


def test_a_large_job_is_played_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    few = []
    for events in (600, 200, 30):
        monkeypatch.setattr("cloudtune.forecast.prediction.FORECAST_EVENTS", events)
        few.append(forecast(problem(), LIMITS).samples)
    assert few == [7, MIN_RUNS, 1]


@pytest.mark.parametrize(
    ("strategy", "off"), [("best", 0.25), ("asha", 0.1), ("asha-stopping", 0.25), ("random", 0.1)]
)
def test_large_run_is_forecast_by_smaller(tmp_path: Path, strategy: str, off: float) -> None:
    """Also on spot, where rare reports would lose more of what an interrupted trial has trained."""
    experiment, profile = large_job.write(tmp_path)
    experiment.write_text(experiment.read_text().replace("max: 512", "max: 16"))
    options = {"strategy": strategy, "trials": 10_000, "instances": ("g4dn.xlarge",)}
    job = load_problem(load_experiment(experiment, options), str(profile))
    question = Question(job, Limits(24 * 3600.0, 200.0), PlanOptions())
    whole = PlayedRuns(question, samples=MIN_RUNS, whole=True).forecast()
    smaller = PlayedRuns(question, samples=MIN_RUNS).forecast()
    size = SmallerRun.of(question, job.rentables)
    assert size.parts >= 4
    assert smaller.dollars.mean == pytest.approx(whole.dollars.mean, rel=0.02)
    assert smaller.trials.mean == pytest.approx(whole.trials.mean, rel=off)
    assert smaller.gpu_hours.mean == pytest.approx(whole.gpu_hours.mean, rel=0.1)
    assert smaller.epochs.p50 == pytest.approx(whole.epochs.p50, rel=0.1)


def test_smaller_run_rents_parts_of_machines(tmp_path: Path) -> None:
    """A sixteenth of six machines of eight GPUs is less than one of them."""
    experiment, profile = large_job.write(tmp_path)
    experiment.write_text(experiment.read_text().replace("max: 512", "max: 16"))
    options = {"strategy": "best", "instances": ("p3.16xlarge",), "market": "on-demand"}
    job = load_problem(load_experiment(experiment, options), str(profile))
    question = Question(job, Limits(24 * 3600.0, 4_000.0), PlanOptions())
    size = SmallerRun.of(question, job.rentables)
    rentable = job.rentables[0]
    part = size.rentable(rentable)
    assert size.parts > 1
    assert part.gpus < rentable.gpus == 8
    assert part.offer.usd_per_second / part.gpus == pytest.approx(
        rentable.offer.usd_per_second / rentable.gpus
    )
    played = PlayedRuns(question, samples=MIN_RUNS).play()
    offers = {each.offer for each in job.rentables}
    assert {machines.offer for machines in played.fleet} <= offers, "a plan names whole machines"
    assert sum(machines.instances for machines in played.fleet) <= job.max_instances
    whole = PlayedRuns(question, samples=1, whole=True).forecast()
    assert played.forecast.dollars.p50 == pytest.approx(whole.dollars.p50, rel=0.05)
    assert played.forecast.gpu_hours.p50 == pytest.approx(whole.gpu_hours.p50, rel=0.1)


def test_smaller_search_is_as_deep(tmp_path: Path) -> None:
    """With its own trials alone it would compare them sooner, and begin almost twice as many.

    Whole runs begin 3,500 or 7,500 trials, by the rungs that their first ranks let them choose.
    """
    experiment, profile = large_job.write(tmp_path)
    experiment.write_text(experiment.read_text().replace("max: 512", "max: 16"))
    options = {
        "strategy": "best",
        "trials": 10_000,
        "instances": ("p3.16xlarge",),
        "market": "on-demand",
        "max_instances": 64,
    }
    job = load_problem(load_experiment(experiment, options), str(profile))
    question = Question(job, Limits(24 * 3600.0, 4_000.0), PlanOptions())
    whole = PlayedRuns(question, samples=1, whole=True).forecast()
    smaller = PlayedRuns(question).forecast()
    assert 0.5 * whole.trials.p50 < smaller.trials.p5
    assert smaller.trials.p50 == pytest.approx(whole.trials.p50, rel=0.2)


def test_a_forecast_fits_no_model_to_made_up_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(Learner, "propose", lambda *_: asked.append(1))
    result = forecast(problem("bohb"), LIMITS)
    assert result.epochs.p50 > 0
    assert not asked


def test_limits_below_an_epoch_are_infeasible() -> None:
    with pytest.raises(InfeasibleError, match="no trial finishes its first epoch"):
        elastic_job(limits=Limits(deadline=40.0))
    forced = make_plan(problem(), Limits(deadline=40.0), force=True)
    assert forced.plan.forecast.results == 0


def test_a_run_without_limits_must_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert elastic_job(limits=Limits()).plan.estimate.seconds > 0
    monkeypatch.setattr("cloudtune.forecast.prediction.MAX_EVENTS", 50)
    with pytest.raises(UsageError, match="doesn't end: a simulated run"):
        elastic_job(limits=Limits())


def test_an_unknown_choice_is_named_with_the_nearest() -> None:
    with pytest.raises(
        UsageError, match=r"unknown strategy 'ashaa'; choose one of best, .*Did you mean 'asha'"
    ):
        elastic_job("ashaa")
    with pytest.raises(UsageError, match=r"unknown sampler 'tpee'.*Did you mean 'tpe'"):
        elastic_job({"name": "asha", "sampler": "tpee"})


def test_budget_alone_leaves_time() -> None:
    made = elastic_job(limits=Limits(budget=36.0))
    assert longest(made.plan, made.limits) >= 3600.0 + 3600.0


def test_stages_replanned_at_each_rung_are_forecast_by_playing() -> None:
    made = make_plan(problem("seer-barrier"), LIMITS, runs=5)
    assert made.plan.staged is not None
    assert made.plan.followed is None
    assert made.plan.forecast.source == "policy"
    assert made.plan.peak_instances == 3
    report = report_of(elastic_job("seer-barrier"))
    assert report.figures.dollars == pytest.approx(made.plan.forecast.dollars.p50, rel=0.2)


def test_rubberband_ends_by_the_budget() -> None:
    """No plan keeps so small a budget: sha refuses it, rubberband goes as far as it pays."""
    poor = Limits(DEADLINE, 1.0)
    with pytest.raises(InfeasibleError):
        make_plan(problem("sha"), poor)
    made = make_plan(problem("rubberband"), poor, runs=5)
    assert present(made.plan.followed).planner == "greedy"
    assert made.plan.estimate.seconds <= DEADLINE
    assert made.plan.forecast.in_money == 0.0
    report = report_of(elastic_job("rubberband", poor))
    assert present(report.policy.ending).value == "budget"
    assert report.figures.dollars <= 1.0


@pytest.mark.parametrize("strategy", ["sha", "asha", "seer-barrier"])
def test_worst_bill_is_budget_plus_boots(strategy: str) -> None:
    made = elastic_job(strategy)
    dollars, why = worst_bill(made.plan, made.limits, made.rentables)
    joining = 1.02  # at least a second's price of one instance, and less than that of all for long
    assert BUDGET + made.plan.usd_per_second * joining < dollars < 2 * BUDGET
    assert "leases end the instances" in why
    endless, why = worst_bill(made.plan, Limits(DEADLINE), made.rentables)
    assert endless == pytest.approx(made.plan.usd_per_second * DEADLINE)
    assert "no budget is set" in why


def spot_problem(**said: object) -> Problem:
    """Return the digits on spot or on demand, by published figures."""
    asked = Experiment.load(
        "examples/digits/experiment.yaml",
        {
            "cloud.instances": ["p3.2xlarge"],
            "cloud.market": "any",
            "cloud.max_instances": 1,
            "limits.deadline": "5h",
            "limits.budget": 40,
            "trials": 2,
            **said,
        },
    )
    return build_problem(asked, stored_profiles(asked, "resnet50-cifar10@v100"))


def on_spot(**said: object) -> Planned:
    asked = spot_problem(**said)
    return make_plan(asked, Limits(5 * 3600.0, 40.0), runs=5)


def test_a_spot_plan_is_forecast_on_changing_pools() -> None:
    """All is planned on spot; of the pools that there were, some are seldom there."""
    made = on_spot()
    plan = made.plan
    assert plan.followed is not None, "it goes by its stages all the same"
    assert {offer.market for offer in plan.offers} == {"spot"}
    assert plan.forecast.source == "pools"
    assert plan.forecast.dollars.p95 > 2 * plan.estimate.dollars, "on-demand stands in"
    assert plan.forecast.within == 1.0
    actual = propose(made, others="none")
    (result,) = [text for text in actual.assumptions if text.startswith("spot: available")]
    assert "assumed, as public traces" in result
    assert "17% to 99% of the time" in result
    assert "on spot that comes and goes" in plan_tables.forecast(actual).title


def test_outages_leave_spot() -> None:
    pool = {"losses_per_hour": 60.0, "availability": 0.2}
    made = on_spot(**{"cloud.spot": pool, "cloud.max_instances": 4})
    assert {offer.market for offer in made.plan.offers} == {"on-demand"}
    (remark,) = (note for note in propose(made, others="none").remarks if "not on spot" in note)
    assert "all of the work fits" in remark


@pytest.mark.parametrize(
    ("availability", "market"), [(0.01, "on-demand"), (0.2, "spot")], ids=["dearer", "cheaper"]
)
def test_spot_is_left_where_its_outages_make_it_dearer(availability: float, market: str) -> None:
    """Stages alone are cheaper on spot, whatever outages do to the runs."""
    pool = {"losses_per_hour": 0.5, "availability": availability}
    made = on_spot(**{"cloud.spot": pool, "epochs.max": 10})
    assert {offer.market for offer in made.plan.offers} == {market}
    remarks = propose(made, others="none").remarks
    assert any("not on spot" in note and "on demand" in note for note in remarks) == (
        market == "on-demand"
    )


def test_a_limit_is_kept_only_with_all_work_done() -> None:
    """Every run ends in time and in money, and most have no instance for long."""
    pool = {"losses_per_hour": 60.0, "availability": 0.2}
    asked = spot_problem(**{"cloud.spot": pool, "cloud.market": "spot"})
    limits = Limits(5 * 3600.0, 40.0)
    forecast = make_plan(asked, limits, force=True, runs=7).plan.forecast
    assert forecast.dollars.p95 < 40.0
    assert forecast.in_time == forecast.in_money == forecast.within
    assert present(forecast.within) < 1.0


def test_a_confidence_is_asked_of_runs_on_spot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most runs get no instance for long; on demand the same limits are kept."""
    pool = {"losses_per_hour": 60.0, "availability": 0.2}
    limits, sure = Limits(5 * 3600.0, 40.0), PlanOptions(confidence=0.9)
    only_spot = spot_problem(**{"cloud.spot": pool, "cloud.market": "spot"})
    with pytest.raises(InfeasibleError, match="no plan finishes"):
        make_plan(only_spot, limits, sure, runs=7)
    monkeypatch.setattr("cloudtune.forecast.make._GLANCE", 1)
    asked = spot_problem(**{"cloud.spot": pool, "cloud.market": "any", "epochs.max": 20})
    plan = make_plan(asked, limits, sure, runs=3).plan
    assert present(plan.forecast.within) >= 0.9


@pytest.mark.parametrize(
    ("market", "hours", "runs", "said"),
    [("spot", 6, 15, {}), ("any", 2, 7, {"cloud.max_instances": 4, "epochs.max": 10})],
    ids=["nothing else", "on demand at three times the price"],
)
def test_a_confidence_is_met_where_only_runs_show_it(
    market: str, hours: int, runs: int, said: dict[str, int]
) -> None:
    """Draws of the stages wait through outages that a run works around."""
    pool = {"losses_per_hour": 2.0, "availability": 0.5}
    asked = spot_problem(**{"cloud.spot": pool, "cloud.market": market, **said})
    limits = Limits(hours * 3600.0, 40.0)
    plan = make_plan(asked, limits, PlanOptions(confidence=0.9), runs=runs).plan
    assert {offer.market for offer in plan.offers} == {"spot"}
    assert present(plan.forecast.within) >= 0.9


def test_confidence_plans_on_demand_alone() -> None:
    """Beside spot, which looks cheaper by its means, the search comes by no plan without it."""
    pool = {"losses_per_hour": 10.0, "availability": 0.2}
    said = {"cloud.spot": pool, "cloud.max_instances": 2, "trials": 4, "epochs.max": 10}
    limits = Limits(3600.0, 40.0)
    made = make_plan(spot_problem(**said), limits, PlanOptions(confidence=0.9), runs=3)
    assert {offer.market for offer in made.plan.offers} == {"on-demand"}


def test_limits_kept_exactly_as_often_as_asked_suffice() -> None:
    pool = {"losses_per_hour": 2.0, "availability": 0.5}
    asked = spot_problem(**{"cloud.spot": pool, "cloud.market": "spot"})
    limits = Limits(4 * 3600.0, 40.0)
    within = present(make_plan(asked, limits, force=True, runs=7).plan.forecast.within)
    assert 0.0 < within < 1.0
    plan = make_plan(asked, limits, PlanOptions(confidence=within), runs=7).plan
    assert present(plan.forecast.within) >= within


def test_stages_on_spot_are_not_called_proven() -> None:
    shown = [fact.text for fact in plan_brief.facts(propose(on_spot(), others="none"))]
    assert "the cheapest while spot lasts (with outages not proven) of 2 offers" in " ".join(shown)


def test_known_pools_are_forecast() -> None:
    sure = on_spot(**{"cloud.spot": {"losses_per_hour": 0.0, "availability": 1.0}})
    spread, planned = sure.plan.forecast.dollars, sure.plan.estimate.dollars
    assert spread.mean < 1.2 * planned, "only its speed is unsure"
    rare = on_spot(**{"cloud.spot": {"losses_per_hour": 2.0, "availability": 0.3}})
    assert rare.plan.forecast.dollars.mean > 2 * spread.mean
    known = "spot: available 30% of the time, lost 2 times an hour; as cloud.spot"
    assert any(text.startswith(known) for text in propose(rare, others="none").assumptions)
    without = on_spot(**{"cloud.market": "on-demand"}).plan.estimate
    assert rare.plan.estimate.seconds > 2 * without.seconds, "it is slower"
    assert rare.plan.estimate.dollars < without.dollars, "but cheaper, so it stays on spot"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"availability": 0.5}, "say both losses_per_hour and availability"),
        ({"losses_per_hour": 0.0, "availability": 0.5}, "a pool that is empty at times loses"),
        ({"losses_per_hour": -1.0, "availability": 0.5}, "-1.0 is too small"),
        ({"losses_per_hour": 1.0, "availability": 0.0}, "0.0 is too small"),
    ],
)
def test_mistakes_about_pools_are_reported(said: dict[str, float], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        spot_problem(**{"cloud.spot": said})


def test_on_demand_that_cannot_be_cheaper_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[bool] = []
    forecast_of = PlayedRuns.forecast

    def recorded(runs: PlayedRuns) -> Forecast:
        played.append(any(rentable.behaviours for rentable in runs.question.problem.rentables))
        return forecast_of(runs)

    monkeypatch.setattr(PlayedRuns, "forecast", recorded)
    steady = {"losses_per_hour": 0.0, "availability": 1.0}
    plan = on_spot(**{"cloud.spot": steady, "cloud.market": "any"}).plan
    assert {offer.market for offer in plan.offers} == {"spot"}
    assert played == [True]


def test_a_spot_plans_screen_plays_only_what_it_shows() -> None:
    planned = on_spot(**{"cloud.market": "any"})
    shown = propose(planned, others="screen")
    everything = propose(planned)
    assert [other.name for other in shown.alternatives] == ["on-demand"]
    assert shown.alternatives[0] in everything.alternatives
    assert len(everything.alternatives) > 3
    assert (shown.front, bool(everything.front)) == ((), True)


def test_large_spot_job_is_forecast_by_small(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = {"losses_per_hour": 1.0, "availability": 0.8}
    job = spot_problem(**{"trials": 48, "cloud.spot": pool})
    limits = Limits(80 * 3600.0, 200.0)
    hurried = Limits(30 * 3600.0, 200.0)
    whole = make_plan(job, limits, runs=3).plan
    whole_in_a_hurry = make_plan(job, hurried, runs=1).plan
    monkeypatch.setattr("cloudtune.forecast.make._MAX_TRIALS", 24)
    monkeypatch.setattr("cloudtune.forecast.make._FEW_TRIALS", (4, 16))
    large = make_plan(job, limits, runs=3).plan
    assert large.followed == whole.followed
    assert large.forecast.source == "pools"
    assert large.forecast.trials.p50 == whole.forecast.trials.p50 == 48
    assert large.forecast.within == whole.forecast.within
    assert large.forecast.seconds != whole.forecast.seconds, "these are other runs"
    for name in ("seconds", "dollars", "gpu_hours"):
        by_few, by_all = (getattr(plan.forecast, name).p50 for plan in (large, whole))
        assert by_few == pytest.approx(by_all, rel=0.1), name
    assert make_plan(job, hurried, runs=1).plan.forecast == whole_in_a_hurry.forecast


def test_spot_that_takes_too_long_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared() -> list[str]:
        planned = on_spot(**{"cloud.market": "on-demand"})
        return [other.name for other in propose(planned, others="screen").alternatives]

    assert "on spot" in compared()
    monkeypatch.setattr("cloudtune.forecast.make.MOST_EPOCHS", 1)
    assert "on spot" in compared(), "a small one stands for it"
    monkeypatch.setattr("cloudtune.forecast.make.has_time", lambda *_: False)
    assert "on spot" not in compared()


def test_remarked_spot_has_no_row() -> None:
    """It was simulated to decide: simulated once more, it would have another price."""
    pool = {"losses_per_hour": 2.0, "availability": 0.01}
    made = on_spot(**{"cloud.spot": pool, "cloud.max_instances": 1, "cloud.market": "any"})
    assert "not on spot" in made.remarks[0]
    assert "on spot" not in [other.name for other in propose(made, others="screen").alternatives]


def test_dropped_trials_are_not_priced() -> None:
    """Its runs end at the deadline with less trained: what they cost isn't comparable."""
    pool = {"losses_per_hour": 60.0, "availability": 0.2}
    steady = on_spot(**{"cloud.spot": pool, "cloud.market": "on-demand"})
    shown = propose(steady, others="screen")
    (other,) = [it for it in shown.alternatives if it.name == "on spot"]
    kept = percent(present(other.plan.forecast.within))
    rows = present(plan_brief.instead(shown)).rows
    (row,) = [row for row in rows if row[0].startswith("on spot")]
    assert row[0] == f"on spot (all of the work fits in {kept} of the runs)"
    assert row[2:] == ("", "", "")


def test_a_catalogue_search_is_played_with_each_sizes_cheapest(tmp_path: Path) -> None:
    """To replan over all of them, at each rung, made such a plan five times as slow."""
    experiment, profile = large_job.write(tmp_path)
    job = load_problem(load_experiment(experiment, {"strategy": "best"}), str(profile))
    limits = Limits(10 * 3600.0, 100.0)
    likely = PlayedRuns(Question(job, limits, PlanOptions())).likely
    assert len(job.rentables) > 10 * len(likely)
    sizes = {rentable.offer.gpus for rentable in job.rentables}
    assert {rentable.offer.gpus for rentable in likely} == sizes
    assert {rentable.offer.market for rentable in likely} == {"spot", "on-demand"}
