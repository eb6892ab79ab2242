"""`cloudtune.load_run`: a run's folder in a home, to values and tables."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

import cloudtune
from cloudtune.engine.ledger import Entry
from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.model.commands import StopTrial
from cloudtune.model.events import EpochDone, Interrupted, TrialFailed
from cloudtune.model.plans import Charges, Limits
from cloudtune.planners.cost_model import price
from cloudtune.runs.job import Job
from tests.bench import called
from tests.builders import NODE_BOUNDARY, Setting, keep_run, play, profile

SETTING = Setting(12, 2, 18, 3, profile=profile(NODE_BOUNDARY), max_instances=3)
PLAN = SETTING.plan(limits=Limits(deadline=105.0))
"""12 trials on 3 instances, 4 on 2 at twice the width, and 1 on 1 at four times."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path))
    return tmp_path


def keep(home: Path, name: str, job: Job, entries: Sequence[Entry]) -> None:
    keep_run(home, replace(job, run=name), entries)


def telling(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return a run whose script reports more than the metric, and names as our columns are."""
    return tuple(
        replace(entry, event=replace(entry.event, metrics=more(entry.event)))
        if isinstance(entry.event, EpochDone)
        else entry
        for entry in entries
    )


def more(event: EpochDone) -> dict[str, float]:
    return {**event.metrics, "loss": 1.0 / event.epoch, "epoch": 10.0 * event.epoch}


def whole(home: Path, name: str = "digits-1", *trouble: Any) -> cloudtune.Result:
    keep(home, name, SETTING.job(PLAN), telling(play(SETTING.but(trouble=trouble), PLAN).entries))
    return cloudtune.load_run(name)


def report_json(capsys: pytest.CaptureFixture[str], name: str) -> dict[str, Any]:
    return dict(called(capsys, "report", name, "-o", "json").succeeded().json)


def test_its_figures_are_the_reports(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    actual, result = whole(home), report_json(capsys, "digits-1")
    assert actual.to_json().items() <= result.items()
    assert (actual.name, actual.ended, actual.exit_code) == ("digits-1", "done", 0)
    assert actual.seconds == result["seconds"]["actual"]
    assert actual.cost.dollars == result["dollars"]["actual"]
    categories = result["accounting"]["categories"]
    assert dict(actual.cost.by_category) == {
        n: categorie["dollars"] for n, categorie in categories.items()
    }
    assert sum(actual.cost.by_category.values()) == pytest.approx(actual.cost.dollars)
    assert actual.plan.seconds == result["seconds"]["planned"]
    assert actual.plan.dollars == result["dollars"]["planned"]
    assert list(actual.plan.stages["seconds"]) == [s["seconds"]["actual"] for s in result["stages"]]
    assert list(actual.plan.stages["planned_dollars"]) == [
        stage["dollars"]["planned"] for stage in result["stages"]
    ]


def test_the_best_has_all_its_metrics(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best, result = whole(home).best, report_json(capsys, "digits-1")["best"]
    assert best is not None
    assert (best.trial, best.epoch) == (result["trial"], result["epoch"])
    assert dict(best.config) == result["config"]
    assert dict(best.metrics) == {"score": result["value"], "loss": 1 / 18, "epoch": 180.0}
    assert best.checkpoint == result["checkpoint"]
    with pytest.raises(FrozenInstanceError):
        best.epoch = 3  # type: ignore[misc]


def test_a_row_a_trial(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = TrialFailed(27.0, "t03.1", "ValueError: lr", "Traceback …")
    trials = whole(home, "digits-1", failed).trials
    result = report_json(capsys, "digits-1")
    assert list(trials.columns) == [
        *("trial", "status", "epochs", "score", "best_epoch", "config/x", "seconds"),
        *("gpu_seconds", "dollars", "checkpoint", "error"),
    ]
    assert [
        tuple(row) for row in trials[["trial", "status", "epochs"]].itertuples(index=False)
    ] == [(item["trial"], item["status"], item["epoch"]) for item in result["trials"]]
    assert list(trials["config/x"]) == [item["config"]["x"] for item in result["trials"]]
    best = [max(item["history"].values(), default=None) for item in result["trials"]]
    assert list(trials["score"].dropna()) == [value for value in best if value is not None]
    by_id = trials.set_index("trial")
    assert by_id.loc["t03", "error"] == "ValueError: lr"
    spent = result["accounting"]["trials"]
    assert by_id["dollars"].to_dict() == pytest.approx(
        {name: sum(item["dollars"] for item in spent[name].values()) for name in by_id.index}
    )


def test_a_row_an_epoch_with_every_metric(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history, result = whole(home).history, report_json(capsys, "digits-1")
    assert list(history.columns) == [
        *("trial", "epoch", "score", "loss", "metric/epoch", "seconds", "took", "width"),
        *("instance", "checkpoint"),
    ]
    for trial in result["trials"]:
        own = history[history["trial"] == trial["trial"]]
        assert dict(zip(map(str, own["epoch"]), own["score"], strict=True)) == trial["history"]
    assert list(history["metric/epoch"]) == [10.0 * item for item in history["epoch"]]
    assert history["seconds"].is_monotonic_increasing
    changed = history.groupby("trial")["width"].nunique() - 1
    assert changed.sum() == len(result["width_changes"]) > 0


def test_result_page_equals_report(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = whole(home)
    assert called(capsys, "report", "digits-1", "--html", home / "r.html").code == 0
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert result.to_html(home / "own.html") == (home / "r.html").read_text()
    assert (home / "own.html").read_bytes() == (home / "r.html").read_bytes()
    data, _ = DisplayFormatter().format(result.to_html())
    assert list(map(len, data.values())) == [pytest.approx(45, abs=10)], "what a cell keeps"
    drawn = result.plot_metric(), result.plot_metric("dollars"), result.plot_gpus()
    for figure in (*drawn, result.plot_spend(), result.plot_configs()):
        assert figure.to_dict()["data"], figure
    curves = {trace["name"]: trace["y"] for trace in drawn[0].to_dict()["data"]}
    assert max(curves["best so far"]) == result.history["score"].max()
    with pytest.raises(UsageError, match="can't be written"):
        result.to_html(home / "no" / "r.html")


def test_new_run_has_no_curves(home: Path) -> None:
    keep(home, "digits-2", SETTING.job(PLAN), play(SETTING, PLAN).entries[:1])
    with pytest.raises(UsageError, match="nothing to plot yet: run digits-2"):
        cloudtune.load_run("digits-2").plot_metric()


def test_an_epoch_trained_again_is_one_row(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here each trial is lost after an epoch that it hadn't saved."""
    lost = SETTING.but(
        saves_every=2, mishap=lambda _, session, epoch: "lost" if session == epoch == 1 else ""
    )
    job = SETTING.job(PLAN)
    entries = play(lost, job.policy()).entries
    keep(home, "r", job, entries)
    history = cloudtune.load_run().history
    assert not history.duplicated(["trial", "epoch"]).any()
    assert len(history) < sum(isinstance(entry.event, EpochDone) for entry in entries)
    for trial in report_json(capsys, "r")["trials"]:
        own = history[history["trial"] == trial["trial"]]
        assert set(map(str, own["epoch"])) == set(trial["history"])


def test_the_best_may_be_a_late_epoch(home: Path) -> None:
    entries = play(SETTING, PLAN).entries
    n, stop = next(
        (n, command)
        for n, entry in enumerate(entries)
        for command in entry.commands
        if isinstance(command, StopTrial)
    )
    result = {"score": 9.0, "loss": 0.5}
    late = EpochDone(entries[n].event.at, stop.session, 3, result, "sim://late", 1.0)
    keep(home, "r", SETTING.job(PLAN), [*entries[: n + 1], Entry(late, ())])
    actual = cloudtune.load_run()
    assert actual.best is not None
    assert (actual.best.epoch, actual.best.metrics) == (3, result)
    assert (actual.history["score"] == 9.0).sum() == 1


def test_a_row_an_instance(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timeline, result = whole(home).timeline, report_json(capsys, "digits-1")
    instances = result["accounting"]["instances"]
    assert list(timeline["intent"]) == [instance["intent"] for instance in instances]
    assert list(timeline["dollars"]) == [instance["total"]["dollars"] for instance in instances]
    assert list(timeline["launched"]) == [instance["begin"] for instance in instances]
    assert list(timeline["gone"]) == [instance["end"] for instance in instances]
    assert (timeline["launched"] < timeline["joined"]).all()
    assert set(timeline["type"]) == {"g.4x"}
    assert set(timeline["market"]) == {"on-demand"}


def test_hourly_charges_are_no_instances(home: Path) -> None:
    charged = SETTING.but(charges=Charges(usd_per_launch=1.0, usd_per_second=0.1))
    plan = price(charged.request(), PLAN.choices, "by hand")
    keep(home, "r", charged.job(plan), play(charged, plan).entries)
    result = cloudtune.load_run()
    assert result.cost.by_category["launches"] == pytest.approx(3.0)
    hourly = result.cost.by_category["hourly"]
    assert hourly == pytest.approx(0.1 * result.seconds)
    assert result.timeline["dollars"].sum() == pytest.approx(result.cost.dollars - hourly)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6])
def test_a_run_that_goes_on_or_died(home: Path, share: float) -> None:
    entries = telling(play(SETTING, PLAN).entries)
    keep(home, "digits-1", SETTING.job(PLAN), entries[: int(len(entries) * share)])
    with (home / "runs" / "digits-1" / "ledger.jsonl").open("a") as file:
        file.write('{"event": {"kind"')  # it is being written, or the writer died
    result = cloudtune.load_run()
    assert (result.ended, result.exit_code) == (None, None)
    assert (result.best is None) == result.history.empty == (share < 0.2)
    assert result.cost.dollars == pytest.approx(sum(result.cost.by_category.values()))
    assert len(result.plan.stages) == 3
    assert result.plan.stages["seconds"].isna().sum() > 0
    assert "not yet" in repr(result)
    assert "not yet" in result._repr_html_()
    if share:
        assert result.timeline["gone"].isna().any()


def test_how_it_ended(home: Path) -> None:
    result = whole(home, "digits-1", Interrupted(30.0))
    assert (result.ended, result.exit_code, result.best) == ("interrupted", 130, None)
    assert "nothing was reported" in repr(result)


def test_what_a_notebook_and_a_prompt_show(home: Path) -> None:
    keep(home, "r<b>", SETTING.job(PLAN), telling(play(SETTING, PLAN).entries))
    result = cloudtune.load_run()
    shown = repr(result)
    assert result.best is not None
    assert f"score {result.best.metrics['score']} ({result.best.trial}, epoch 18)" in shown
    assert str(result.best.checkpoint) in shown
    assert len(shown.splitlines()) <= 10
    page = result._repr_html_()
    assert "r&lt;b&gt;" in page
    assert "r<b>" not in page
    assert page.count("<tr") >= 16
    assert "2 more in <code>.trials</code>" in page


def test_by_name_by_a_beginning_and_the_last(home: Path) -> None:
    for name in ("digits-1", "digits-2", "mnist-1"):
        whole(home, name)
    assert cloudtune.load_run("digits-2").name == "digits-2"
    assert cloudtune.load_run("mn").name == "mnist-1"
    assert cloudtune.load_run().name == "mnist-1"
    with pytest.raises(UsageError, match="'digits' fits digits-1, digits-2"):
        cloudtune.load_run("digits")
    with pytest.raises(CloudtuneError, match="no run nothing"):
        cloudtune.load_run("nothing")


def test_a_damaged_ledger_is_a_message(home: Path) -> None:
    (home / "runs" / "r").mkdir(parents=True)
    (home / "runs" / "r" / "ledger.jsonl").write_text("{}\n")
    with pytest.raises(CloudtuneError, match="not a ledger"):
        cloudtune.load_run("r")


def test_version_is_installed_and_import_cheap() -> None:
    assert cloudtune.__version__ == version("cloudtune")
    code = (
        "import sys, cloudtune; cloudtune.__version__; "
        "late = {'pandas', 'cloudtune.forecast', 'cloudtune.lifecycle', 'torch', 'ray'}; "
        "sys.exit(bool(late & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_best_config_is_the_scripts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = whole(home)
    best = result.report.policy.best
    assert best is not None
    trial = result.report.policy.trials[best.trial]
    monkeypatch.setattr(trial, "trial", replace(trial.trial, config={"opt/lr": 0.5}))
    assert result.best is not None
    assert result.best.config == {"opt": {"lr": 0.5}}
    assert "opt/lr=0.5" in str(dict(result._lines()))
