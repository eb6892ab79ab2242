"""Provider local in an experiment and in a plan: this machine, at no cost unless one is set."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cloudtune.display.plan_screen import show_all, show_plan
from cloudtune.display.report_screen import show_report
from cloudtune.errors import ExperimentError
from cloudtune.experiment import Experiment
from cloudtune.forecast import make, staged_plans
from cloudtune.forecast.plan_file import make_job
from cloudtune.forecast.problem import build_problem
from cloudtune.forecast.proposal import propose
from cloudtune.infra.node.this_machine import this_machine
from cloudtune.infra.provider import find_provider
from cloudtune.lifecycle.planning import read_limits
from cloudtune.model.menu import PLANNERS
from cloudtune.model.plans import Limits
from cloudtune.planners.base import InfeasibleError
from cloudtune.runs.report import simulate
from tests.builders import profile
from tests.builders.experiments import write_experiment
from tests.display.test_run_screen import print_lines

LOCAL = """\
name: digits
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {loguniform: [1e-4, 1]}}
trials: 6
epochs: {min: 1, max: 8}
eta: 2
limits: {deadline: 10m}
cloud:
  provider: local
  slots: 2
"""


def load(folder: Path, text: str = LOCAL, **options: Any) -> Experiment:
    path = write_experiment(folder, text)
    return Experiment.load(path, options, known_instances=lambda _: ["g4dn.12xlarge", "g5.xlarge"])


def refusal(folder: Path, text: str, **options: Any) -> str:
    with pytest.raises(ExperimentError) as error:
        load(folder, text, **options)
    return str(error.value).replace(str(folder / "experiment.yaml"), "file")


def with_cloud(line: str) -> str:
    return f"{LOCAL}  {line}\n"


@pytest.mark.parametrize("price", ["0.5", "$0.50", "$0.50/h", "0.50 USD per hour", "$0.50 / h"])
def test_price_may_say_per_hour(tmp_path: Path, price: str) -> None:
    assert load(tmp_path, with_cloud(f"price: {price}")).cloud.price == 0.5


@pytest.mark.parametrize(
    "line", ["instances: [g5.xlarge]", "market: spot", 'vcpu_quotas: {"on-demand g": 8}']
)
def test_rented_fields_are_refused_locally(tmp_path: Path, line: str) -> None:
    field = line.partition(":")[0]
    assert refusal(tmp_path, with_cloud(line)) == (
        f"file:12: cloud.{field}: is for rented instances, and provider local only has this "
        "machine; leave it out"
    )


def test_by_option_a_file_for_rented_instances_runs_here(tmp_path: Path) -> None:
    rented = LOCAL.replace("local", "emulated").replace("slots: 2", "instances: [g5.xlarge]")
    text = f"{rented}  max_instances: 2\n  market: spot\n"
    here = load(tmp_path, text, **{"cloud.provider": "local"}).cloud
    assert (here.instances, here.max_instances) == (("local-*",), 1)
    assert load(tmp_path, text, **{"cloud.provider": "emulated"}).cloud.market == "spot"
    said = refusal(tmp_path, text, **{"cloud.provider": "local", "cloud.market": "spot"})
    assert said.startswith("--market: is for rented instances")
    assert load(tmp_path, LOCAL, **{"cloud.provider": "emulated"}).cloud.slots is None


def test_slots_and_a_price_are_of_this_machine_alone(tmp_path: Path) -> None:
    rented = LOCAL.replace("local", "emulated")
    assert refusal(tmp_path, rented) == (
        "file:11: cloud.slots: is only for provider local or ray or slurm; leave it out"
    )
    with pytest.raises(ExperimentError, match="price"):
        Experiment(**{**MINIMAL, "cloud": {"price": 1}})
    assert "the minimum is 1" in refusal(tmp_path, LOCAL.replace("slots: 2", "slots: 0"))
    assert "write a positive amount" in refusal(tmp_path, with_cloud("price: free"))
    assert "Did you mean 'slots'?" in refusal(tmp_path, LOCAL.replace("slots", "slotz"))


MINIMAL: dict[str, Any] = {
    "name": "digits",
    "train": "train.py:train",
    "metric": {"name": "loss", "mode": "min"},
    "search": {"lr": {"loguniform": [1e-4, 1]}},
    "trials": 12,
    "epochs": {"max": 27},
}


def test_gpu_hours_are_the_local_budget(tmp_path: Path) -> None:
    text = LOCAL.replace("10m}", "10m, gpu_hours: 4}")
    experiment = load(tmp_path, text)
    again = Experiment.from_json(experiment.to_json())
    for one in (experiment, again):
        assert one.limits.budget == 4
        (offer,) = find_provider("local").catalog(one.cloud, ("on-demand",), tmp_path).offers
        assert offer.usd_per_hour == offer.gpus, "a dollar each"
    assert "gpu_hours: is for GPUs that have no price" in refusal(tmp_path, text + "  price: 1\n")
    both = text.replace("gpu_hours: 4", "gpu_hours: 4, budget: $5")
    assert "limits.budget: is there, and gpu_hours too" in refusal(tmp_path, both)


def test_a_budget_limits_nothing_without_a_price(tmp_path: Path) -> None:
    text = LOCAL.replace("10m}", "10m, budget: $4}")
    for free in (load(tmp_path, text), load(tmp_path, LOCAL, **{"limits.budget": "4"})):
        assert free.limits.budget is None
        assert free.strategy_name == load(tmp_path).strategy_name
        result = make.make_plan(problem(free), read_limits(free))
        assert result.remarks[0].startswith("the budget of $4.00 limits nothing here")
    assert not make.make_plan(problem(load(tmp_path)), Limits(600.0)).remarks
    assert load(tmp_path, text + "  price: 1\n").limits.budget == 4
    assert load(tmp_path, text + "charges: {per_hour: $0.20}\n").limits.budget == 4


def test_a_budget_alone_needs_a_price_or_charges(tmp_path: Path) -> None:
    said = "GPUs cost nothing here, so a budget limits nothing; leave it out and set a deadline"
    alone = LOCAL.replace("deadline: 10m", "budget: $4")
    assert refusal(tmp_path, alone).startswith(f"file:8: limits.budget: {said}")
    shared = LOCAL.replace("10m}", "10m, budget: $4}").replace("provider: local", "provider: ray")
    assert refusal(tmp_path, shared).startswith(f"file:8: limits.budget: {said}")


def problem(experiment: Experiment) -> staged_plans.Problem:
    """Return the problem of an experiment whose script takes a second for an epoch."""
    delays = {"launch": 0.3, "boot": 1.0, "start": 1.0, "resize": 1.0, "release": 1.0}
    return build_problem(
        experiment, [profile({1.0: 1.0, 2.0: 0.7}, name=this_machine(2).name, **delays)]
    )


@pytest.mark.parametrize("planner", PLANNERS)
def test_every_planner_goes_by_time_where_nothing_costs(tmp_path: Path, planner: str) -> None:
    result = problem(load(tmp_path))
    plans = [
        make.make_plan(result, Limits(600.0), staged_plans.PlanOptions(objective, planner)).plan
        for objective in ("cost", "time")
    ]
    assert [plan.estimate.dollars for plan in plans] == [0.0, 0.0]
    assert plans[0].estimate.seconds == pytest.approx(plans[1].estimate.seconds)
    assert plans[0].max_instances == 1


def test_a_deadline_alone_says_how_much_can_be_tried(tmp_path: Path) -> None:
    options = staged_plans.PlanOptions("trials")
    planned = make.make_plan(problem(load(tmp_path)), Limits(60.0), options)
    assert planned.problem.experiment.fixed_trials > 6
    with pytest.raises(InfeasibleError, match="no plan finishes") as caught:
        make.make_plan(problem(load(tmp_path)), Limits(14.0))
    assert "Raise --deadline, try fewer trials" in str(caught.value)
    assert "$" not in str(caught.value)  # this machine is free, and a budget is refused


def test_a_price_of_its_own_is_planned_with(tmp_path: Path) -> None:
    result = problem(load(tmp_path, with_cloud("price: $3.60/h")))
    plan = make.make_plan(result, Limits(600.0, 1.0)).plan
    assert plan.estimate.dollars == pytest.approx(plan.estimate.seconds / 1000, rel=0.3)


@pytest.mark.parametrize("strategy", ["asha", "hyperband", "pbt", "hypersched", "seer", "random"])
def test_strategies_that_decide_as_they_go_need_no_price(tmp_path: Path, strategy: str) -> None:
    experiment = load(tmp_path, f"{LOCAL}strategy: {strategy}\n")
    job = make_job(make.make_plan(problem(experiment), Limits(600.0)), 0.0, paced=False)
    assert job.plan.estimate.dollars == 0.0
    assert job.plan.estimate.seconds > 0.0


def test_what_costs_nothing_shows_no_dollars_and_no_market(tmp_path: Path) -> None:
    planned = make.make_plan(problem(load(tmp_path)), Limits(600.0))
    text = screen(lambda out: show_plan(out, propose(planned)))
    text += screen(lambda out: show_all(out, propose(planned)))
    text += screen(lambda out: show_report(out, simulate(make_job(planned, 0.0, paced=False))))
    assert "$" not in text
    assert "on-demand" not in text
    assert "checkpoint:" not in text, "nothing was saved"
    assert "nothing: this machine has no price, and no charges are named" in text
    assert "Where the time went" in text
    machine = this_machine(2)
    slots = f"{machine.name} has no GPU: what is called one here is a slot of its CPU"
    assert (slots in text) == (machine.gpu == "cpu"), "GPUs that aren't there aren't mentioned"
    priced = make.make_plan(
        problem(load(tmp_path, with_cloud("price: $3.60/h"))), Limits(600.0, 1.0)
    )
    assert "$3.60/h" in screen(lambda out: show_plan(out, propose(priced)))


def screen(show: Callable[[Console], None]) -> str:
    return "\n".join(print_lines(show, soft_wrap=False))


def test_instance_hours_are_billed(tmp_path: Path) -> None:
    text = with_cloud("price: $1/h") + "charges: {per_instance_hour: $2.60}\n"
    dear = make.make_plan(problem(load(tmp_path, text)), Limits(600.0, 1.0))
    alone = with_cloud("price: $1/h")
    cheap = make.make_plan(problem(load(tmp_path, alone)), Limits(600.0, 1.0))
    ratio = dear.plan.estimate.dollars / cheap.plan.estimate.dollars
    assert ratio == pytest.approx(3.6)
    assert "$2.6 per instance-hour" in screen(lambda out: show_all(out, propose(dear)))
    report = simulate(make_job(dear, 0.0, paced=False))
    books = report.accounting
    assert books.whole.dollars == pytest.approx(report.policy.spent(report.policy.now))
    assert books.added == pytest.approx(books.whole.dollars * 2.6 / 3.6)
    assert "per instance-hour" in screen(lambda out: show_report(out, report))
