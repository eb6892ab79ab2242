import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtune.api.results import Result
from cloudtune.display.report_screen import show_report
from cloudtune.engine.ledger import Entry
from cloudtune.experiment.schema import StrategySettings
from cloudtune.model.commands import Launch, StartTrial
from cloudtune.model.events import EpochDone, Event, Interrupted, RebalanceRecommended
from cloudtune.model.plans import Charges, Limits
from cloudtune.model.units import format_dollars, format_seconds
from cloudtune.planners.cost_model import price
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.runs.figures import figures
from cloudtune.runs.job import Job
from cloudtune.runs.report import Report, WidthChange, build, load, to_json
from tests.builders import NODE_BOUNDARY, Setting, epoch, play, profile, shapes, write_ledger
from tests.builders.values import present
from tests.display.test_run_screen import print_lines

SETTING = Setting(12, 2, 18, 3, profile=profile(NODE_BOUNDARY), max_instances=3)
PLAN = SETTING.plan(limits=Limits(deadline=105.0))
"""12 trials on 3 instances, 4 on 2 at twice the width, and 1 on 1 at four times."""


def report(*trouble: Event) -> Report:
    return build(SETTING.job(PLAN), play(SETTING.but(trouble=trouble), PLAN).entries)


def test_planned_against_actual() -> None:
    result = report()
    assert shapes(PLAN) == [(3, 1.0), (2, 2.0), (1, 4.0)]
    assert result.seconds == pytest.approx(result.job.plan.estimate.seconds)
    assert result.dollars == pytest.approx(PLAN.estimate.dollars)
    assert [stage.plan for stage in result.stages] == list(PLAN.stages)


def test_rb11_what_was_predicted_stands_beside_what_was_realised(tmp_path: Path) -> None:
    """By RubberBand's plan in a world where epochs take a quarter longer, stage by stage."""
    plan = SETTING.plan(GreedyPlanner(), Limits(deadline=200.0))
    slower = SETTING.but(pace=lambda _config, _epoch: 1.25, limits=Limits(deadline=300.0))
    job = slower.job(plan)
    named = job.experiment.model_copy(update={"strategy": StrategySettings(name="rubberband")})
    job = replace(job, experiment=named)
    result = load_report(tmp_path / "run", job, play(slower, job.policy()).entries)
    assert result.stages
    for stage, actual in zip(plan.stages, to_json(result)["stages"], strict=True):
        (group,) = stage.groups
        trained = group.waves * stage.stage.epochs * SETTING.profile.epoch_seconds(group.width)
        late = actual["seconds"]["actual"] - actual["seconds"]["planned"]
        assert actual["seconds"]["planned"] == pytest.approx(stage.seconds)
        assert late == pytest.approx(0.25 * trained + 2.0 * (stage is plan.stages[-1]))
        assert actual["dollars"]["planned"] == pytest.approx(stage.dollars)
        assert actual["dollars"]["actual"] > stage.dollars
    took = f"{format_seconds(plan.estimate.seconds)} / {format_seconds(result.seconds)}"
    assert took in screen(result)


def test_trials_that_changed_their_width_lost_no_epoch() -> None:
    changes = report().width_changes
    moves = [(c.before, c.after, c.last_epoch, c.next_epoch) for c in changes]
    assert moves == [*[(1.0, 2.0, 2, 3)] * 4, (2.0, 4.0, 6, 7)]
    assert isinstance(changes[0], WidthChange)
    assert changes[-1].trial == report().policy.ranking()[0].id


def test_ranks_in_sync_are_counted_where_there_are_several() -> None:
    """Of a simulated run nothing is said: nothing was trained."""
    result = report()
    assert result.timeline.sync_counts() == {}
    wide = {
        c.session
        for entry in result.entries
        for c in entry.commands
        if isinstance(c, StartTrial) and c.width > 1
    }
    entries = tuple(
        replace(entry, event=replace(entry.event, in_sync=True))
        if isinstance(entry.event, EpochDone) and entry.event.session in wide
        else entry
        for entry in result.entries
    )
    synced = build(SETTING.job(PLAN), entries).timeline.sync_counts()
    assert sorted(synced.values()) == [(4, 4), (4, 4), (4, 4), (16, 16)]


def test_interrupted_run_has_unbegun_stages() -> None:
    result = report(Interrupted(30.0))
    assert [stage.seconds for stage in result.stages] == [32.0, None, None]
    assert [stage.dollars for stage in result.stages] == [pytest.approx(1.80), None, None]
    data = to_json(result)
    assert (data["ended"], data["exit_code"], data["best"]) == ("interrupted", 130, None)


def test_a_rebalance_recommendation_is_one_line_of_the_report() -> None:
    result = report(RebalanceRecommended(30.0, "i001"))
    (line,) = [line for line in screen(result).splitlines() if "take back" in line]
    assert line == "The cloud warned that it might take back sim-i001 (at 30s)"


def test_reports_during_a_persons_stop_count() -> None:
    result = report(Interrupted(30.0))
    last = Entry(EpochDone(30.0, "t00.1", 1, {"score": 0.5}, "sim://t00/1", 8.0), ())
    asked = next(
        n for n, entry in enumerate(result.entries) if isinstance(entry.event, Interrupted)
    )
    result = build(result.job, (*result.entries[: asked + 1], last, *result.entries[asked + 1 :]))
    assert figures(result.policy).epochs == 1
    data = to_json(result)
    assert (data["best"]["trial"], data["best"]["epoch"], data["best"]["value"]) == ("t00", 1, 0.5)
    assert data["trials"][0]["history"] == {"1": 0.5}
    assert Result(result).trials.loc[0, "best_epoch"] == 1
    assert "Best: score 0.5" in screen(result)

    result.policy.trials["t00"].history.clear()  # as where its session was only moved, not the last
    assert figures(result.policy).epochs == 1


def test_json_has_every_trial() -> None:
    data = to_json(report())
    best = data["best"]
    assert (best["metric"], best["epoch"]) == ("score", 18)
    assert best["config"] == data["trials"][0]["config"]
    assert best["value"] == data["trials"][0]["history"]["18"]
    assert best["checkpoint"] == f"sim://{best['trial']}/18"
    assert [trial["epoch"] for trial in data["trials"]] == [18, 6, 6, 6, *[2] * 8]
    assert [trial["status"] for trial in data["trials"]] == ["finished", *["cut"] * 11]
    assert data["seconds"] == {"planned": pytest.approx(103.8), "actual": pytest.approx(103.8)}
    assert data["stages"][1]["epochs"] == [2, 6]
    assert data["stages"][1]["instances"] == 2
    assert data["stages"][1]["groups"] == [
        {"offer": "g.4x on-demand $36/h", "instances": 2, "width": 2.0, "trials": 4}
    ]


def test_charges_are_shown_in_the_stage_they_fall_due() -> None:
    charged = SETTING.but(charges=Charges(usd_per_launch=1.0, usd_per_second=0.1))
    plan = price(charged.request(), PLAN.choices, "by hand")
    result = build(charged.job(plan), play(charged, plan).entries)
    for number, (stage, plain) in enumerate(zip(result.stages, report().stages, strict=True)):
        launched = 3.0 if number == 0 else 0.0
        assert present(stage.dollars) == pytest.approx(
            present(plain.dollars) + launched + 0.1 * present(stage.seconds)
        )
    assert sum(s.dollars or 0.0 for s in result.stages) == pytest.approx(result.dollars)
    assert result.dollars == pytest.approx(plan.estimate.dollars)


def test_numbers_that_are_none_become_null() -> None:
    result = report()
    result.policy.trials["t00"].record(epoch(1.0, "t00.1", 1), math.nan)
    result.policy.trials["t00"].record(epoch(2.0, "t00.1", 2), math.inf)
    text = json.dumps(to_json(result), allow_nan=False)
    first = next(t for t in json.loads(text)["trials"] if t["trial"] == "t00")
    assert (first["metric"], first["history"]) == (None, {"1": None, "2": None})


def test_a_folder_is_reported_as_the_run_was(tmp_path: Path) -> None:
    whole = report()
    write_ledger(tmp_path, SETTING.job(PLAN).to_json(), whole.entries)
    data = load(tmp_path)
    assert to_json(data) == to_json(whole)
    assert any(isinstance(entry.event, EpochDone) for entry in data.entries)


def test_a_run_without_an_end_shows_the_clouds_record(tmp_path: Path) -> None:
    job, entries = SETTING.job(PLAN), play(SETTING, PLAN).entries
    write_ledger(tmp_path, job.to_json(), entries[: len(entries) // 2])
    assert "The run has no end in its ledger" in screen(load(tmp_path))
    assert "own record" not in screen(load(tmp_path))
    launches = [c for e in entries for c in e.commands if isinstance(c, Launch)][:2]
    records = [
        {"intent": launch.intent, "launched_at": 1000.0, "ended_at": 1360.0} for launch in launches
    ]
    (tmp_path / "instances.json").write_text(json.dumps(records))
    result = load(tmp_path)
    assert result.billed == pytest.approx(2 * SETTING.offer.charge(360.0))
    assert f"its instances cost {format_dollars(2 * SETTING.offer.charge(360.0))}" in screen(result)
    assert load_report(tmp_path / "whole", job, entries).billed is None


def load_report(folder: Path, job: Job, entries: Sequence[Entry]) -> Report:
    folder.mkdir()
    write_ledger(folder, job.to_json(), entries)
    return load(folder)


def screen(report: Report) -> str:
    return "\n".join(print_lines(lambda out: show_report(out, report), columns=200))


@pytest.mark.parametrize(("saves_every", "said"), [(1, False), (6, True)])
def test_a_script_that_saves_after_its_first_pauses_is_named(
    saves_every: int, *, said: bool
) -> None:
    """Its trials pause at epoch 2, and begin again."""
    setting = Setting(48, 2, 18, 2, max_instances=1, saves_every=saves_every)
    job = setting.job()
    asha = job.experiment.model_copy(update={"strategy": StrategySettings(name="asha")})
    job = replace(job, experiment=asha)
    result = build(job, play(setting, job.policy()).entries)
    lines = print_lines(lambda out: show_report(out, result), columns=200)
    named = [line for line in lines if "first saves at epoch 6" in line]
    assert bool(named) == said
    assert all("write epochs: {min: 6}, or save more often" in line for line in named)


@pytest.mark.parametrize("length", [2, 100])
def test_epochs_that_begin_again_are_named(length: int) -> None:
    """Scripts of folds, or of phases, name epoch 1 again after their second."""
    entries = []
    for entry in play(SETTING, PLAN).entries:
        event = entry.event
        if isinstance(event, EpochDone):
            named = {**event.metrics, "epoch": float((event.epoch - 1) % length + 1)}
            event = replace(event, metrics=named)
        entries.append(replace(entry, event=event))
    said = screen(build(SETTING.job(PLAN), tuple(entries)))
    assert ("they were counted on, and trials end at epoch 18 of all" in said) == (length == 2)
