"""Plans on clusters that others use, too: what they take of it, and what they say of that."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cloudtune.display.pages import fleet, plans, trials
from cloudtune.display.plan_screen import show_plan
from cloudtune.display.report_screen import show_report
from cloudtune.display.runs_table import show_runs
from cloudtune.errors import ExperimentError
from cloudtune.experiment import Experiment
from cloudtune.forecast import prediction
from cloudtune.forecast.make import Planned, make_plan
from cloudtune.forecast.plan_file import make_job
from cloudtune.forecast.problem import build_problem
from cloudtune.forecast.proposal import propose
from cloudtune.infra.slurm import nodes, provider
from cloudtune.infra.slurm.provider import SLURM
from cloudtune.model.plans import Limits
from cloudtune.planners.base import InfeasibleError
from cloudtune.runs.history import Listed, remember
from cloudtune.runs.home import LEDGER
from cloudtune.runs.report import simulate
from tests.builders.experiments import FIELDS
from tests.builders.proposals import speed
from tests.display.test_run_screen import print_lines

SEARCH = {**FIELDS, "trials": None, "epochs": {"max": 27}, "limits": {"deadline": "2h"}}
NODE = "gpu*|gpu:a100:8|96|500000|1-00:00:00|idle|n{}"


@pytest.fixture(autouse=True)
def _slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have 16 nodes of eight GPUs, by what Slurm's commands print, and no queue."""
    have_nodes(monkeypatch, 16)
    monkeypatch.setattr(provider, "foretold_start", lambda _: 0.0)
    # A plan is forecast by one run, where a person's is by 31.
    monkeypatch.setattr(prediction, "FORECAST_EVENTS", 1)


def have_nodes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    listed = "\n".join(NODE.format(number) for number in range(count))
    answers = {"scontrol": "ClusterName = lab\n", "sinfo": listed}
    monkeypatch.setattr(nodes, "ask", lambda *command: answers[command[0]])


def plan(folder: Path, **fields: Any) -> Planned:
    (folder / "train.py").write_text("def train(config, epochs):\n    yield {'loss': 0.0}\n")
    fields = {"cloud": {"provider": "slurm"}, "directory": folder, **SEARCH, **fields}
    experiment = SLURM.with_account_defaults(Experiment(**fields))
    limits = Limits(experiment.limits.deadline, experiment.limits.budget)
    return make_plan(build_problem(experiment, [speed("gpu", 120.0)]), limits)


def screen(planned: Planned) -> str:
    proposal = propose(planned, others="screen")
    lines = print_lines(lambda out: show_plan(out, proposal), soft_wrap=False)
    return " ".join(" ".join(lines).split())


def test_a_deadline_alone_takes_the_fewest_gpu_hours(tmp_path: Path) -> None:
    planned = plan(tmp_path)
    assert planned.plan.strategy == "sha"
    assert planned.plan.peak_instances < 4, "of 16"
    everything = plan(tmp_path, objective="best")
    assert everything.plan.strategy == "best"
    assert everything.plan.peak_instances == 16
    gpu_hours = planned.plan.forecast.gpu_hours.p50
    assert planned.plan.estimate.dollars == pytest.approx(gpu_hours, rel=0.1)
    assert gpu_hours < everything.plan.forecast.gpu_hours.p50 / 20


def test_a_larger_cluster_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = plan(tmp_path)
    have_nodes(monkeypatch, 64)
    assert plan(tmp_path).plan.staged.choices == before.plan.staged.choices  # type: ignore[union-attr]


def test_trials_by_a_deadline_take_what_that_needs(tmp_path: Path) -> None:
    late = plan(tmp_path, trials=64)
    soon = plan(tmp_path, trials=64, limits={"deadline": "30m"})
    assert late.plan.peak_instances < soon.plan.peak_instances < 16


def test_its_plan_says_why_and_counts_in_gpu_hours(tmp_path: Path) -> None:
    planned = plan(tmp_path)
    text = screen(planned)
    assert "only a deadline is set: the fewest GPU-hours to be done by then" in text
    assert "--objective best searches for the best model with all GPUs" in text
    assert "$" not in text
    assert f"cost {planned.plan.estimate.dollars:.2f} GPU-hours" in text


def test_gpu_hours_are_no_dollars_on_screens(tmp_path: Path) -> None:
    planned = plan(tmp_path, limits={"deadline": "2h", "gpu_hours": 10})
    assert planned.plan.strategy == "best"
    text = screen(planned)
    assert "the best model that 2h and 10.00 GPU-hours can buy" in text
    assert "half the budget, 5.00 GPU-hours" in text
    file = io.StringIO()
    out = Console(file=file, width=100, highlight=False)
    report = simulate(make_job(planned, 0.0, paced=False))
    show_report(out, report)
    (tmp_path / LEDGER).touch()
    show_runs(out, [Listed("small-1", remember(tmp_path, report), "finished", "")])
    text += file.getvalue()
    assert f"{report.dollars:.2f} GPU-hours" in text.partition("small-1")[2]
    assert "$" not in text


def test_gpu_hours_are_no_dollars_on_pages(tmp_path: Path) -> None:
    planned = plan(tmp_path, limits={"deadline": "2h", "gpu_hours": 10})
    proposal = propose(planned, others="screen")
    report = simulate(make_job(planned, 0.0, paced=False))
    drawn = [
        plans.front(proposal),
        plans.forecast(proposal),
        fleet.fleet(report),
        trials.metric_by_dollars(report),
    ]
    for figure in drawn:
        assert "GPU-hours" in str(figure)
        assert "$" not in str(figure)


def test_what_does_not_fit_is_said_in_gpu_hours(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError, match=r"The fastest takes \S+ \S+ and \S+ GPU-hours \("):
        plan(tmp_path, limits={"deadline": "6m"}, trials=64)


def test_dollars_still_buy_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="GPUs cost nothing here"):
        plan(tmp_path, limits={"deadline": "2h", "budget": 5})


def test_with_prices_a_plan_is_in_dollars(tmp_path: Path) -> None:
    priced = plan(tmp_path, cloud={"provider": "slurm", "prices": {"gpu": "$8/h"}})
    text = screen(priced)
    assert "the cheapest way to be done by then" in text
    assert "GPU-hours" not in text
    assert f"cost ${priced.plan.estimate.dollars:.2f}" in text


def test_this_machine_is_used_in_full() -> None:
    here = Experiment(**{**SEARCH, "cloud": {"provider": "local"}})
    assert here.strategy_name == "best"
