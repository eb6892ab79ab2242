"""`cloudtune.plan` and `cloudtune.run`: the same figures and the same refusals as the commands."""

import json
import os
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cloudtune
from cloudtune.errors import CleanupError, ExperimentError, UsageError
from cloudtune.lifecycle import outcomes, runner
from cloudtune.lifecycle.runner import Ended
from cloudtune.model.events import EpochDone, RunStarted
from cloudtune.runs import control, home
from cloudtune.runs.job import Job
from cloudtune.train.checkpoint import CheckpointStore
from cloudtune.train.user_script import load_function
from tests.bench import Bench
from tests.builders.values import present

LIMITS: dict[str, Any] = {"deadline": "10m", "budget": "$3"}
FIELDS: dict[str, Any] = {
    "name": "small",
    "metric": {"name": "loss", "mode": "min"},
    "search": {"lr": {"uniform": [0.01, 0.1]}, "n": {"randint": [0, 1000]}},
    "trials": 4,
    "epochs": {"min": 2, "max": 4},
    "eta": 2,
    "strategy": "sha",
    "cloud": {
        "instances": ["g7.12xlarge"],
        "market": "on-demand",
        "max_instances": 2,
        "avoid": "2s",
    },
}


@pytest.fixture(autouse=True)
def in_its_folder(bench: Bench, at_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bench.folder)


def test_a_plan_is_that_of_the_command(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bench.ready()
    plan = cloudtune.plan(path, **LIMITS)
    result = bench.here("plan", path, "--deadline", "10m", "--budget", "$3", "-o", "json").json
    assert plan.seconds == result["plan"]["estimate"]["seconds"]
    assert plan.dollars == result["plan"]["estimate"]["dollars"]
    assert plan.within == result["plan"]["forecast"]["within"]
    assert plan.forecast.loc["dollars", "p95"] == result["plan"]["forecast"]["dollars"]["p95"]
    assert list(plan.stages["end_epoch"].unique()) == [
        stage["stage"]["end_epoch"] for stage in result["plan"]["staged"]["stages"]
    ]
    assert plan.stages.groupby("begin")["dollars"].first().sum() == pytest.approx(plan.dollars)
    assert len(plan.front) == len(result["front"])
    assert set(plan.alternatives["name"]) == {item["name"] for item in result["alternatives"]}
    assert json.loads(json.dumps(plan.to_json()))["plan"] == result["plan"]
    shown = bench.here("plan", path, "--deadline", "10m", "--budget", "$3").out
    bench.here("plan", path, "--deadline", "10m", "--budget", "$3", "--html", "own.html")
    assert plan.to_html("it.html") == Path("it.html").read_text() == Path("own.html").read_text()
    assert str(plan).split() == shown.split("run it")[0].split()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert str(plan).split() == shown.split("run it")[0].split(), "a notebook prints it as well"
    assert re.fullmatch(r"<a page of \d+\.\d MB; to_html\(path\) writes it>", repr(plan.to_html()))
    assert bench.nothing_launched()


def test_experiment_is_file_mapping_or_itself(bench: Bench) -> None:
    path = bench.ready()
    fields = {**FIELDS, "train": "train.py:train"}
    by_file = cloudtune.plan(path, **LIMITS)
    by_fields = cloudtune.plan(fields, deadline=600, budget=3)
    by_object = cloudtune.plan(cloudtune.Experiment(**fields), **LIMITS)
    assert by_file.planned.plan == by_fields.planned.plan == by_object.planned.plan
    assert cloudtune.plan({**fields, "directory": str(bench.folder)}, **LIMITS).experiment == (
        by_file.experiment
    )


@pytest.mark.parametrize(
    ("fields", "given", "message"),
    [
        ({"trails": 4}, {}, "the experiment: trails: .*Did you mean 'trials'"),
        ({"cloud": {"instances": ["g7.99xlarge"]}}, {}, "the experiment: cloud.instances.*g7.99x"),
        ({"strategy": "shaa"}, {}, "the experiment: strategy: .*Did you mean 'sha'"),
        ({"train": "train.py:trian"}, {}, "Did you mean 'train'"),
        ({}, {"deadline": "soon"}, "--deadline: "),
        ({}, {"deadlin": "1h"}, "unknown option 'deadlin'; .*Did you mean 'deadline'"),
    ],
)
def test_mistake(bench: Bench, fields: dict[str, Any], given: dict[str, Any], message: str) -> None:
    bench.experiment()
    bench.profile()
    with pytest.raises(UsageError, match=message):
        cloudtune.plan({**FIELDS, "train": "train.py:train", **fields}, **{**LIMITS, **given})
    assert issubclass(ExperimentError, UsageError)


def test_train_is_a_function_of_a_file(bench: Bench) -> None:
    path = bench.ready()
    train = load_function(bench.folder, "train.py:train")
    plan = cloudtune.plan({**FIELDS, "train": train}, **LIMITS)
    assert plan.planned.plan == cloudtune.plan(path, **LIMITS).planned.plan
    assert plan.experiment.train_file == bench.folder / "train.py"

    with pytest.raises(UsageError, match="not in directory /"):
        cloudtune.plan({**FIELDS, "train": train, "directory": "/"}, **LIMITS)


@pytest.mark.parametrize("call", ["run", "plan", "resume"])
def test_top_level_tune_starts_no_chain(bench: Bench, call: str) -> None:
    bench.experiment()
    script = bench.folder / "train.py"
    with script.open("a") as file:
        file.write(f"\ncloudtune.{call}('experiment.yaml')\n")
    with pytest.raises(UsageError, match="move it under if __name__"):
        load_function(bench.folder, "train.py:train")
    assert bench.nothing_launched()
    text = script.read_text()
    script.write_text(text.replace("\ncloudtune.", "\nif __name__ == '__main__': cloudtune."))
    load_function(bench.folder, "train.py:train")


def test_a_run(bench: Bench, simulated: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    path = bench.ready()
    events: list[Any] = []
    result = cloudtune.run(path, **LIMITS, on_event=lambda event, _: events.append(event))
    assert isinstance(events[0], RunStarted)
    reported = [event for event in events if isinstance(event, EpochDone)]
    assert len(reported) >= len(result.history) > 0
    assert result.ended == "done"
    assert result.name == cloudtune.load_run().name
    assert result.best is not None
    assert (home.runs() / result.name / "record.json").exists(), "runs to come know of it"
    out = capsys.readouterr().out
    assert f"Run {result.name}" in out
    assert "starts t00" in out
    assert cloudtune.run(path, **LIMITS, progress=False).ended == "done"
    assert capsys.readouterr().out == ""


def test_a_plan_is_carried_out_as_it_is(bench: Bench, simulated: list[Job]) -> None:
    path = bench.ready()
    plan = cloudtune.plan(path, **LIMITS)
    plan.save("plan.json")
    cloudtune.run(plan, progress=False)
    cloudtune.run("plan.json", progress=False)
    assert [job.plan for job in simulated] == [plan.planned.plan] * 2
    with pytest.raises(UsageError, match="a plan can't be changed"):
        cloudtune.run(plan, trials=8)
    with pytest.raises(UsageError, match="a plan can't be changed"):
        cloudtune.run("plan.json", objective="time")
    assert len(simulated) == 2


def test_a_plan_is_refused_beyond_the_price_tolerance(bench: Bench, simulated: list[Job]) -> None:
    cloudtune.plan(bench.ready(), **LIMITS).save("plan.json")
    plan = Path("plan.json")
    text = plan.read_text()
    price = re.search(r'"usd_per_hour": ([\d.]+)', text)
    assert price is not None
    plan.write_text(text.replace(price[0], f'"usd_per_hour": {1.25 * float(price[1])}'))
    refused = "moved by more than 10%"
    with pytest.raises(UsageError, match=refused):
        cloudtune.run(plan, price_tolerance=0.1, progress=False)
    bench.here("run", plan, "--price-tolerance", "0.1").refused(refused)
    assert cloudtune.run(plan, price_tolerance=0.3, progress=False).ended == "done"
    bench.here("run", plan, "--price-tolerance", "0.3").succeeded()
    assert len(simulated) == 2


def test_a_script_and_its_options_are_enough(bench: Bench, simulated: list[Job]) -> None:
    script = bench.ready().with_name("train.py")
    bench.folder.joinpath("experiment.yaml").unlink()
    with pytest.raises(UsageError, match=r"(?s)lacks information that a run needs.*--epochs N"):
        cloudtune.plan(script, **LIMITS)
    options: dict[str, Any] = {
        "search": {"lr": {"uniform": [0.01, 0.1]}},
        "metric": "loss:min",
        "epochs": 4,
        "trials": 4,
        "instances": "g7.12xlarge",
        "strategy": "sha",
    }
    result = cloudtune.run(script, **LIMITS, **options, progress=False)
    assert result.metric == "loss"
    assert list(simulated[0].experiment.search) == ["lr"]


def test_reporter_errors_end_no_run(bench: Bench, simulated: list[Job]) -> None:
    path = bench.ready()

    def breaks(event: object, _: object) -> None:
        raise KeyError(type(event).__name__)

    with pytest.warns(RuntimeWarning, match="on_event failed, first with KeyError: 'RunStarted'"):
        result = cloudtune.run(path, **LIMITS, on_event=breaks, progress=False)
    assert result.ended == "done"


def test_asks_first(bench: Bench, simulated: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    path = bench.ready()
    asking = SimpleNamespace(asks_first="AWS")
    monkeypatch.setattr("cloudtune.lifecycle.reporter.find_provider", lambda _: asking)
    with pytest.raises(UsageError, match="renting from AWS needs confirmation: pass yes=True"):
        cloudtune.run(path, **LIMITS)
    assert simulated == []
    assert cloudtune.run(path, **LIMITS, yes=True, progress=False).ended == "done"


def test_unconfirmed_clean_up_keeps_the_result(
    bench: Bench, simulated: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bench.ready()
    really = runner.run_job

    def left(job: Job, reporter: Any) -> Ended:
        ended = really(job, reporter)
        return replace(ended, swept=outcomes.Swept(0.0, CleanupError("i-1 may bill", ("i-1",))))

    monkeypatch.setattr(runner, "run_job", left)
    with pytest.raises(CleanupError, match="i-1 may bill"):
        cloudtune.run(path, **LIMITS, progress=False)
    assert cloudtune.load_run().best is not None


def test_a_run_goes_in_another_thread(bench: Bench, simulated: list[Job]) -> None:
    path = bench.ready()
    result: list[Any] = []

    def work() -> None:
        with control.interruptible():
            result.append(cloudtune.run(path, **LIMITS, progress=False).ended)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert result == ["done"]


def test_a_run_that_has_ended_is_not_resumed(bench: Bench, simulated: list[Job]) -> None:
    path = bench.ready()
    result = cloudtune.run(path, **LIMITS, progress=False)
    with pytest.raises(UsageError, match="has ended"):
        cloudtune.resume(result.name)
    with pytest.raises(UsageError, match="no run nothing"):
        cloudtune.resume("nothing")


def test_best_is_kept(bench: Bench, simulated: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual epochs have no files: every checkpoint of theirs is this one."""
    path = bench.ready()
    made = bench.folder / "made"
    made.mkdir()
    (made / "state.pt").write_text("weights")
    stored = CheckpointStore(str(bench.home / "storage" / "made")).save("t00", 4, {}, made)
    monkeypatch.setattr("cloudtune.runs.report.standing", lambda _path: stored)
    before, variables = os.umask(0o022), dict(os.environ)
    result = cloudtune.run(path, **LIMITS, progress=False)
    assert os.umask(before) == 0o022, "what the calling program writes is its own affair"
    assert dict(os.environ) == variables
    assert result.best is not None
    assert result.best.checkpoint == str(bench.home / "storage" / result.name / "best")
    assert Path(result.best.checkpoint, "state.pt").read_text() == "weights"
    note = json.loads(Path(result.best.checkpoint, "cloudtune.json").read_text())
    assert (note["run"], note["config"]) == (result.name, dict(result.best.config))
    assert result.to_json()["best"]["checkpoint"] == stored
    again = present(cloudtune.load_run(result.name).best)
    assert again.checkpoint == result.best.checkpoint
    shown = bench.here("report", result.name).out
    assert f"checkpoint: {result.best.checkpoint}" in shown
    shutil.rmtree(result.best.checkpoint)
    gone = present(cloudtune.load_run(result.name).best)
    assert gone.checkpoint == stored, "what is not there is not named"


def test_unreadable_checkpoints_are_reported(
    bench: Bench,
    simulated: list[Job],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = bench.ready()
    monkeypatch.setattr("cloudtune.runs.report.standing", lambda _path: str(bench.folder / "gone"))
    result = cloudtune.run(path, **LIMITS, progress=False)
    assert result.exit_code == cloudtune.load_run(result.name).exit_code == 8
    shown = bench.here("report", result.name).out
    gone = present(result.report.policy.best).checkpoint
    assert f"no checkpoint of the run can be read: {gone} is gone" in shown


@pytest.mark.parametrize("damaged", [1, 100], ids=["the best epoch", "the best trial"])
def test_unreadable_best_model_gives_way(
    bench: Bench,
    simulated: list[Job],
    monkeypatch: pytest.MonkeyPatch,
    damaged: int,
) -> None:
    """Virtual epochs have no files, so they are saved here as their events come."""
    made = bench.folder / "made"
    made.mkdir()
    (made / "state.pt").write_text("weights")

    def store() -> CheckpointStore:
        [run] = (bench.home / "runs").iterdir()
        return CheckpointStore(str(bench.home / "storage" / run.name))

    def save(event: object, _commands: object) -> None:
        if isinstance(event, EpochDone):
            trial = event.session.rpartition(".")[0]
            store().save(trial, event.epoch, event.metrics, made)

    def standing(path: str) -> str:
        _, _, trial, epoch = path.split("/")
        saved = [
            name for name, it in store().list_checkpoints(trial).items() if it.epoch <= int(epoch)
        ]
        for checkpoint in saved[-damaged:]:
            [file] = Path(checkpoint).rglob("state.pt")
            file.write_text("Weights")
        return saved[-1]

    monkeypatch.setattr("cloudtune.runs.report.standing", standing)
    result = cloudtune.run(bench.ready(), **LIMITS, on_event=save)
    best = present(result.report.policy.best)
    instead = present(result.best)
    assert result.exit_code == 8
    assert (instead.trial == best.trial) == (damaged == 1)
    assert instead.epoch < best.epoch or instead.trial != best.trial
    assert instead.config == result.report.policy.trials[instead.trial].trial.config
    assert Path(present(instead.checkpoint), "state.pt").read_text() == "weights"
    assert present(cloudtune.load_run(result.name).best) == instead
    shown = " ".join(bench.here("report", result.name).out.split())
    assert f"its checkpoint can't be read: {best.checkpoint} is gone" in shown
    assert f"delivered instead: {instead.trial} at epoch {instead.epoch}, loss " in shown
