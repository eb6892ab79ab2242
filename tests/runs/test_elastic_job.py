"""Jobs that decide as they go: remade from a ledger's header, replayed, reported."""

import json
import re
from typing import Any

import pytest
from rich.console import Console

from cloudtune.display.live.panel import RunPanel
from cloudtune.display.report_screen import show_report
from cloudtune.display.run_screen import RunScreen
from cloudtune.engine.resume import replay
from cloudtune.forecast import prediction
from cloudtune.model.commands import Command, StartTrial, StopTrial
from cloudtune.model.events import EpochDone, Event, NodeLost
from cloudtune.model.plans import Limits
from cloudtune.policy.registry import STRATEGIES
from cloudtune.policy.run import RunPolicy
from cloudtune.runs.job import Job, choices, named_sampler
from cloudtune.runs.report import Report, to_json
from cloudtune.strategies.rungs import rung_epochs
from tests.builders.live import BUDGET, DEADLINE, elastic_job, problem, report_of
from tests.display.test_run_screen import print_lines

NAMES = sorted(STRATEGIES)


@pytest.fixture(autouse=True)
def forecast_by_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "FORECAST_EVENTS", 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_keeps_its_limits_and_is_decided_equally(name: str) -> None:
    made = elastic_job(name)
    report = report_of(made, [NodeLost(60.0, "i000", "gone")])
    assert report.figures.seconds <= DEADLINE
    assert report.figures.dollars <= BUDGET
    assert report.figures.trials <= 12
    again = Job.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    entries, policy = list(report.entries), again.policy()
    replay(policy, entries)
    assert policy.ended


def test_the_policy_has_what_the_experiment_says() -> None:
    options = {"name": "asha", "max_concurrent": 2, "target": 0.9}
    charges = {"per_launch": 0.5, "per_hour": 3.6}
    policy = elastic_job(options, charges=charges, limits=Limits(400.0, 20.0)).policy()
    assert policy.target == 0.9
    charged = policy.state.charges
    assert (charged.usd_per_launch, charged.usd_per_second) == (0.5, 0.001)
    assert policy.state.max_instances == 3


def test_the_report_names_its_parts_and_the_targets_time() -> None:
    report = report_of(
        elastic_job({"name": "random", "target": 0.3, "allocator": "static-fluid:published"})
    )
    data = to_json(report)
    parts = [data[name] for name in ("strategy", "allocator", "fleet_rule")]
    assert parts == ["random", "static-fluid:published", "naive"]
    last = [e.event for e in report.entries if isinstance(e.event, EpochDone)][-1]
    trial, _, _ = last.session.partition(".")
    where = {"trial": trial, "epoch": last.epoch, "best": last.metrics["score"]}
    assert data["target"] == {"value": 0.3, "reached_at": last.at, **where}
    lines = print_lines(lambda out: show_report(out, report))
    assert lines[0] == "Simulated: random, static-fluid:published allocator, naive fleet rule"
    assert any(line.startswith("Target score 0.3: reached after ") for line in lines)


def test_elastic_report_has_rungs() -> None:
    report = report_of(elastic_job())
    data = json.loads(json.dumps(to_json(report), allow_nan=False))
    assert (data["strategy"], data["stages"], data["ended"]) == ("asha", [], "done")
    assert data["seconds"]["planned"] == data["forecast"]["seconds"]["p50"]
    assert data["seconds"]["actual"] == data["figures"]["seconds"]
    assert data["dollars"]["actual"] == pytest.approx(data["figures"]["dollars"])
    assert [rung["epoch"] for rung in data["rungs"]] == [1, 3, 9]
    assert data["rungs"][0]["trials"] == data["figures"]["trials"] == 12
    assert data["figures"]["instances"] == max(size["instances"] for size in data["fleet"])


def printed_run(made: Job, *, taken_over: int = 0) -> tuple[list[str], Report]:
    """Return what the screen says, and the report; `taken_over` as that many trials stop."""
    reports = []

    def show(out: Console) -> None:
        def watching(policy: RunPolicy) -> Any:
            screens = [RunScreen(out, RunPanel(policy), rung_epochs(1, 9, 3))]

            def watch(event: Event, commands: tuple[Command, ...]) -> None:
                screens[-1].watch(event, commands)
                stops = any(isinstance(command, StopTrial) for command in commands)
                if stops and len(screens) <= taken_over:
                    screens.append(RunScreen(out, RunPanel(policy), rung_epochs(1, 9, 3)))

            return watch

        reports.append(report_of(made, watch=watching))

    return [line[7:] for line in print_lines(show)], reports[0]


def test_the_screen_tells_starts_pauses_promotions_and_the_end() -> None:
    lines, result = printed_run(elastic_job())
    assert lines[0].startswith("asks for ")
    started = [
        name
        for line in lines
        if line.startswith("starts ")
        for name in line.split(" on ")[0][7:].split(", ")
    ]
    assert sorted(started) == sorted(result.policy.trials)
    paused = [line for line in lines if line.startswith("paused: ")]
    assert any(" at epoch 1 (score 0." in line for line in paused)
    assert any(line.startswith("promoted: ") and "on to epoch 3" in line for line in lines)
    assert any(line.startswith("resumes ") and ", on 1 GPU" in line for line in lines)
    assert any(line.startswith("finished: ") for line in lines)
    assert any(line.startswith("done; the best checkpoint") for line in lines)


def test_a_resumed_runs_screen_knows_its_trials() -> None:
    def restarts(times: int) -> list[str]:
        lines, _ = printed_run(elastic_job(), taken_over=times)
        return [line for line in lines if re.match(r"resumes|starts|\w+ moves", line)]

    assert any(line.startswith("resumes ") for line in restarts(0))
    assert restarts(0) == restarts(3) == restarts(99)


def test_a_clone_is_reported_with_where_it_begins() -> None:
    made = elastic_job()
    policy = made.policy()
    start = StartTrial("t09.1", "t09", {}, 1.0, (), "store/t01/epoch-00005", 5, 9)
    from cloudtune.model.events import TrialStopped

    file = print_lines(
        lambda out: RunScreen(out, RunPanel(policy)).watch(TrialStopped(65.0, "t01.1"), (start,))
    )
    assert file == [" 1:05  starts t09 on 1 GPU, from epoch 5 of another trial's checkpoint"]


def test_the_report_shows_planned_against_actual() -> None:
    report = report_of(elastic_job())
    lines = print_lines(lambda out: show_report(out, report))
    [title] = [line for line in lines if line.startswith("Simulated: forecast / simulated, ")]
    assert title.endswith(" on g.4x")
    time = next(line for line in lines if line.split()[:1] == ["time"])
    cost = next(line for line in lines if line.split()[:1] == ["cost"])
    assert len(cost.split()) == 5
    assert f"${report.figures.dollars:.2f}" == cost.split()[-1]
    assert time
    assert "How far the trials came" in lines
    assert any(line.startswith("Best: score") for line in lines)
    assert any(line.startswith("Fleet over time: 0 -> ") for line in lines)


def test_a_strategy_gets_the_sampler_that_suits_it() -> None:
    assert named_sampler(problem("asha").experiment)[0] == "random"
    assert named_sampler(problem("bohb").experiment)[0] == "tpe"
    assert named_sampler(problem({"name": "asha", "sampler": "qmc"}).experiment)[0] == "qmc"
    assert {"sha", "rubberband", "halving", "asha"} <= set(choices()["name"])
