"""How long things took in earlier runs, and what a plan makes of it: by the command line."""

import json
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloudtune import clock
from cloudtune.engine.ledger import read_entries
from cloudtune.engine.resume import replay
from cloudtune.forecast import prediction
from cloudtune.model.scaling import Measurement, Provenance, ScalingProfile
from cloudtune.profiles.store import read, script_hash, write
from cloudtune.runs import history
from cloudtune.runs.job import Job, job_of_ledger
from tests.builders.worlds import Cramped
from tests.runs.test_history import Place, place

__all__ = ["place"]

NOW = time.time()
DAY = 86400.0
AWS: dict[str, Any] = {"provider": "aws", "history": "auto"}


@pytest.fixture(autouse=True)
def _none_is_asked(no_aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let prices be those of the table: there are no credentials, and no machine is asked for.

    Plans are forecast by a few runs, not 31; and the date doesn't change at midnight.
    """
    monkeypatch.setattr(prediction, "FORECAST_EVENTS", 300)
    monkeypatch.setattr(clock, "unix_time", lambda: NOW)


def slow(profile: ScalingProfile) -> ScalingProfile:
    """Return a world in which epochs take 1.3 times as long, and boots 80 s instead of 40."""
    return replace(profile.slow_down(1.3), boot=Measurement(80.0, 2.0, 3), error=0.0)


def plan_place(place: Place, *options: object, profile: str = "train.json", **fields: Any) -> Any:
    path = place.experiment(**{**AWS, **fields})
    return place("plan", path, "--profile", profile, "-o", "json", *options).succeeded().json


def rentables(place: Place, **fields: Any) -> tuple[ScalingProfile, ...]:
    return place.job(**{**AWS, **fields}).profiles


def first(place: Place, **fields: Any) -> Path:
    given = {**AWS, "really": slow, "began": NOW - 2 * DAY, **fields}
    return place.ran("first-run", **given)


def test_the_second_run_is_planned_by_the_firsts_observations(place: Place) -> None:
    [before] = rentables(place)
    first(place)
    [after] = rentables(place)
    cold, warm = before.epoch_seconds(1.0), after.epoch_seconds(1.0)
    assert warm == pytest.approx(1.3 * cold, rel=0.05), "40 trials count for more than one"
    assert 1.2 < after.epoch_seconds(4.0) / before.epoch_seconds(4.0) < 1.4, "no run saw it"
    assert after.boot.mean == pytest.approx(60.0, rel=0.05), "two runs, one of them measured it"
    assert after.boot.error < before.boot.error * 60 / 40
    assert after.configurations > 10 > before.configurations
    assert after.error < 0.6 * before.error
    plan_place(place, "--save", "plan.json")
    saved = Job.from_json(json.loads((place.folder / "plan.json").read_text()))
    assert saved.profiles == (after,)


def test_every_screen_says_where_it_is_from(place: Place) -> None:
    first(place)
    path = place.experiment(**AWS)
    said = " ".join(place("plan", path, "--profile", "train.json").out.split())
    assert "seen in first-run 2 days ago" in said
    assert "derived, not measured" not in said
    said = " ".join(place("plan", path, "--profile", "train.json", "--verbose").out.split())
    assert "seen in first-run: " in said
    assert "40 trials, " in said
    assert "on g4dn.12xlarge, 2 days ago; counts for " in said
    assert "configurations were measured or seen in earlier runs" in said
    result = plan_place(place)
    assert result["provenance"]["text"].endswith("on g4dn.12xlarge, seen in first-run 2 days ago")
    [note] = result["profiles"]
    [seen] = note["seen"]
    assert (seen["run"], seen["trials"], seen["instances"]) == ("first-run", 40, 2)
    assert 0.5 < seen["share"] < 1.0
    assert note["text"] in result["provenance"]["text"]
    report = place("simulate", path, "--profile", "train.json").out
    assert "seen in first-run 2 days ago" in " ".join(report.split())


def test_off_is_off(place: Place) -> None:
    cold = rentables(place, history="off")
    first(place)
    for off in ("off", "{configurations: off, times: off}"):
        assert rentables(place, history=off) == cold
        assert plan_place(place, history=off)["profiles"][0]["seen"] == []


def test_other_script_version_is_reported(place: Place) -> None:
    cold = rentables(place)
    first(place)
    script = place.folder / "train.py"
    script.write_text("def train(config):\n    pass  # and more\n")
    known = read(place.folder / "train.json")
    write(place.folder / "train.json", [replace(known[0], script_hash=script_hash(script))])
    [after] = rentables(place)
    assert after.epoch == cold[0].epoch
    assert not after.seen
    assert any("another version of the script" in text for text in plan_place(place)["assumptions"])
    place(
        "plan", place.experiment(**{**AWS, "history": "[first-run]"}), "--profile", "train.json"
    ).refused("history[0]: run first-run has nothing to tell")


@pytest.mark.parametrize(
    "fields",
    [
        {"provider": "emulated"},  # its seconds are others
        {"search": "{lr: {loguniform: [1e-9, 1e-8]}, layers: {randint: [1, 9]}}"},
    ],
)
def test_a_run_elsewhere_tells_no_epochs(place: Place, fields: dict[str, Any]) -> None:
    cold = rentables(place)
    first(place, **fields)
    assert rentables(place)[0].epoch == cold[0].epoch


def test_earlier_run_measures_a_type(place: Place) -> None:
    """It was derived when the run began, by a ratio that is off by half; then it was seen."""
    machines = "g4dn.12xlarge, p4d.24xlarge"

    def known() -> ScalingProfile:
        result = {p.instance_type: p for p in rentables(place, machines=machines)}
        assert result.keys() == {"g4dn.12xlarge", "p4d.24xlarge"}
        return result["p4d.24xlarge"]

    before, file = known(), place.folder / "train.json"
    assert before.gpu_error > 0.3
    measured = read(file)
    write(file, [replace(measured[0], instance_type="p4d.24xlarge")])
    first(place, machines="p4d.24xlarge")
    write(file, measured)
    after = known()
    assert after.epoch_seconds(1.0) == pytest.approx(1.3 * 9.0, rel=0.1)
    assert after.epoch_seconds(1.0) > 2 * before.epoch_seconds(1.0)
    assert after.gpu_error < 0.1
    assert after.speed_error < 0.2


def test_earlier_run_is_enough_to_plan(place: Place) -> None:
    path = place.experiment(**AWS)
    assert "never measured" in place("plan", path).out
    first(place)
    done = place("plan", place.experiment(**AWS), "-o", "json").succeeded()
    data = json.loads(done.out)
    assert data["provenance"]["text"] == "seen in first-run 2 days ago on g4dn.12xlarge"
    assert data["provenance"]["kinds"] == ["measured"]


def test_resume_and_replay_need_no_earlier_run(place: Place) -> None:
    earlier = first(place)
    [result] = rentables(place)
    second = place.ran("second-run", really=slow, **{**AWS, "began": NOW, "seed": 3})
    shutil.rmtree(earlier)
    job = job_of_ledger(second / "ledger.jsonl")
    assert [seen.run for profile in job.profiles for seen in profile.seen] == ["first-run"]
    assert job.profiles[0].epoch == result.epoch
    entries = list(read_entries(second / "ledger.jsonl"))
    replay(job.policy(), entries)
    text = json.loads(place("report", "second-run", "-o", "json").out)["provenance"]["text"]
    assert "seen in first-run 2 days ago" in text


def test_records_of_an_earlier_version_are_made_again(place: Place) -> None:
    folder = first(place)
    new = history.load_record(folder)
    path = folder / history.RECORD
    data = json.loads(path.read_text())
    for item in data["trials"]:
        del item["took"]
    for name in ("delays", "cloud", "paced"):
        del data[name]
    path.write_text(json.dumps({**data, "cloudtune_record": 1}))
    assert history.load_record(folder) == new
    assert new.delays


def test_emulated_runs_follow_a_pace_and_not_each_other(place: Place) -> None:
    """What a paced run took may be read where the pace is of the core, not of the very profile."""
    fields = {"provider": "emulated", "paced": True}
    cold = rentables(place, provider="emulated")
    first(place, **fields)
    [after] = rentables(place, provider="emulated")
    assert after.epoch == cold[0].epoch
    assert after.boot.mean == pytest.approx(60.0, rel=0.05)
    [known] = read(place.folder / "train.json")
    timed = replace(known.provenance, origin="emulated", core_seconds=0.5)
    write(place.folder / "train.json", [replace(known, provenance=timed)])
    [after] = rentables(place, provider="emulated")
    assert after.epoch_seconds(1.0) > 1.05 * cold[0].epoch_seconds(1.0)
    assert after.provenance.core_seconds == 0.5


def test_the_next_plan_avoids_crowded_shares(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.folder / "train.json"
    [known] = read(path)
    epoch = {width: Measurement(12 - 2 * width, 0.1, 3) for width in (0.25, 0.5, 1.0)}
    write(path, [replace(known, epoch=epoch)])
    fluid: dict[str, Any] = {"strategy": "{name: asha, allocator: fluid}"}
    assert rentables(place, **fluid)[0].widths == (0.25, 0.5, 1.0)
    cramped = partial(Cramped, cramped={"g4dn.12xlarge": 0.25})
    monkeypatch.setattr("tests.runs.test_history.SimWorld", cramped)
    folder = first(place, **fluid)
    note = "g4dn.12xlarge: no trials at 1/4 of a GPU: in first-run one ran out of memory at 1/4"
    assert note in plan_place(place, **fluid)["assumptions"]
    assert rentables(place, **fluid)[0].widths == (0.5, 1.0)
    assert rentables(place, **fluid, history="off")[0].widths == (0.25, 0.5, 1.0)
    other = "{lr: {loguniform: [1e-9, 1e-8]}, layers: {randint: [1, 9]}}"
    assert rentables(place, **fluid, search=other)[0].widths == (0.25, 0.5, 1.0), "others may fit"

    record = json.loads((folder / "record.json").read_text())
    for trial in record["trials"]:
        del trial["crowded"]  # as earlier versions wrote it
    (folder / "record.json").write_text(json.dumps(record))
    assert rentables(place, **fluid)[0].widths == (0.25, 0.5, 1.0)


def test_a_run_by_published_figures_tells_too(place: Place) -> None:
    """Its profile is of no script; the job knows which one it trained."""
    [known] = read(place.folder / "train.json")
    published = replace(known, script_hash="", provenance=Provenance("published", on="T4"))
    write(place.folder / "train.json", [published])
    first(place)
    [after] = rentables(place)
    assert after.epoch_seconds(1.0) == pytest.approx(1.3 * 9.0, rel=0.1)
    assert after.seen[0].share > 0.95
