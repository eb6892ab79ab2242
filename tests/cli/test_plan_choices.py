"""`cloudtune plan` by strategies, points of the front and billing, in this process."""

import json
import math
import re
from pathlib import Path

import pytest

from cloudtune.forecast.plan_file import load_plan
from cloudtune.forecast.proposal import plan_json
from cloudtune.model.plans import Plan
from cloudtune.model.serialization import decode
from tests.bench import Command
from tests.builders.values import present

STAGED = ("sha", "rubberband", "rubberband-exact", "sha-static")


DECIDING = ("seer-barrier", "halving", "asha", "hyperband", "bohb", "pbt", "hypersched", "seer")


LIMITED = ("--deadline", "20m", "--budget", "$5")


@pytest.mark.parametrize("strategy", [*STAGED, *DECIDING])
def test_every_strategy_is_planned(command: Command, tmp_path: Path, strategy: str) -> None:
    base = ["experiment.yaml", "--strategy", strategy, "--trials", "8", *LIMITED]
    said = command("plan", *base, "--save", "plan.json", "-o", "json").succeeded()
    proven = said.json["proof"]
    assert (proven == "forecast, not proven") == (strategy in DECIDING)
    assert said.json["strategy"] == said.json["plan"]["strategy"] == strategy
    assert said.json["plan"]["forecast"]["within"] == 1.0
    saved = present(load_plan(tmp_path / "plan.json"))
    assert plan_json(saved.plan) == said.json["plan"]
    played = command("simulate", *base, "-o", "json").succeeded()
    result = played.json
    assert result["strategy"] == strategy
    for name in ("allocator", "fleet_rule"):
        assert result[name] == said.json[name]
    assert result["seconds"]["actual"] <= 1200
    assert result["dollars"]["actual"] <= 5
    assert bool(result["stages"]) == (strategy in {*STAGED, "seer-barrier"})


def test_only_a_static_plan_keeps_its_fleet(command: Command) -> None:
    cloud = ("--instances", "g4dn.xlarge", "--max-instances", "32")
    job = ("--trials", "32", "--deadline", "5m", "--budget", "$20", *cloud)
    fleets = {}
    for strategy in ("sha", "sha-static"):
        options = ("--strategy", strategy, *job, "-o", "json")
        plan = command("plan", "experiment.yaml", *options).succeeded().json["plan"]
        fleets[strategy] = [stage["groups"][0]["instances"] for stage in plan["staged"]["stages"]]
    assert len({*fleets["sha-static"]}) == 1
    assert len({*fleets["sha"]}) > 1


def test_choices_that_do_not_go_together(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    text = path.read_text()
    text = text.replace("strategy: sha\n", "")
    for strategy, why in (
        ("{name: asha, allocator: planned}", "planned goes with sha, rubberband"),
        ("{name: sha, fleet: seer}", "fleet seer is a part of the strategies best"),
        ("{name: sha, sampler: gp}", "sampler gp: a plan of stages asks for all its trials"),
        ("{name: bohb, sampler: qmc}", "bohb with the sampler qmc is Hyperband"),
    ):
        path.write_text(f"{text}strategy: {strategy}\n")
        for verb in ("plan", "run", "simulate"):
            command(verb, path).refused(why)


@pytest.mark.parametrize("options", [["--planner", "greedy"], ["--objective", "time"]])
def test_options_for_stages_where_there_are_none(command: Command, options: list[str]) -> None:
    refused = command("plan", "experiment.yaml", "--strategy", "asha", *options)
    assert refused.code == 2
    assert f"{options[0]}: asha decides as results come in" in refused.err


def test_a_plan_of_another_strategy_is_damaged(command: Command, tmp_path: Path) -> None:
    base = ["plan", "experiment.yaml", "--strategy", "asha", "--save", "plan.json"]
    assert command(*base, *LIMITED).code == 0
    path = tmp_path / "plan.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "plan": {**data["plan"], "allocator": "ilp"}}))
    refused = command("run", "plan.json")
    assert refused.code == 2
    assert "its strategy, allocator and fleet aren't those of its experiment" in refused.err
    path.write_text(json.dumps({**data, "limits": {"deadline": math.nan, "budget": 5.0}}))
    assert "isn't a number" in command("run", "plan.json").err


def test_r6_front_points_can_be_saved(command: Command, tmp_path: Path) -> None:
    asked = ("plan", "experiment.yaml", "--deadline", "2h", "--budget", "$9", "-o", "json")
    result = command(*asked).json
    points = result["front"]
    assert [point["point"] for point in points] == [*range(1, len(points) + 1)]
    assert len(points) <= 15
    faster = next(point for point in points if not point["breaks"])
    saved = tmp_path / "faster.json"
    said = command(*asked, "--point", faster["point"], "--save", saved)
    staged = decode(Plan, said.json["plan"]["staged"])
    shown = said.json["plan"]["estimate"]
    assert shown["seconds"] == pytest.approx(faster["seconds"], rel=0.02)
    assert shown["dollars"] == pytest.approx(faster["dollars"], rel=0.02)
    assert present(staged.gap) > 0, "not the cheapest"
    job = present(load_plan(saved))
    assert job.plan.staged is not None
    assert job.plan.staged.stages == staged.stages
    assert job.plan.staged.wished == staged.estimate.seconds


def test_missing_and_breaking_points_are_refused(command: Command) -> None:
    points = command("plan", "experiment.yaml", "-o", "json").json["front"]
    for number in (0, len(points) + 1):
        said = command("plan", "experiment.yaml", "--point", number)
        assert (said.code, said.out) == (2, "")
        assert f"the front has points 1 to {len(points)}" in said.err
    soon = 1.15 * points[0]["seconds"] + 40
    assert points[-1]["seconds"] > soon
    said = command("plan", "experiment.yaml", "--point", len(points), "--deadline", f"{soon:.0f}s")
    assert said.code == 2
    assert "raise --deadline or --budget" in said.err
    said = command("plan", "experiment.yaml", "--strategy", "asha", "--point", 1)
    assert said.code == 2
    assert "there is no front" in said.err


def test_a_forecast_says_what_none_has_measured(command: Command) -> None:
    asked = ("plan", "experiment.yaml", "--budget", "$5")
    result = command(*asked, "-o", "json").json
    assert any("1 configuration was measured, on one machine" in item for item in result["unsure"])
    seconds = result["plan"]["forecast"]["seconds"]
    assert seconds["p95"] > 1.05 * seconds["p5"], "one measurement is no certainty"
    assert "not in it:" in command(*asked, "--verbose").out


BILLED = {
    "second": "by the second",
    "{unit: second, minimum: 2m}": "by the second, for 120 s at least",
    "minute": "by the minute",
    "hour": "by the hour",
    "function": "by the GPU-second that trials use, not by the instance",
}


def billed_by(tmp_path: Path, billing: str) -> None:
    path = tmp_path / "experiment.yaml"
    text = path.read_text()
    path.write_text(text.replace("max_instances:", f"billing: {billing}, max_instances:"))


@pytest.mark.parametrize(
    ("strategy", "billing"), [*(("sha", item) for item in BILLED), ("seer", "function")]
)
def test_billing_of_a_file(command: Command, tmp_path: Path, strategy: str, billing: str) -> None:
    billed_by(tmp_path, billing)
    base = ["experiment.yaml", "--strategy", strategy, "--trials", "8", "--budget", "$40"]
    shown = command("plan", *base, "--verbose").succeeded()
    (line,) = (item for item in shown.out.splitlines() if item.strip().startswith("billed"))
    assert line.split(maxsplit=1)[1].strip() == BILLED[billing]
    played = command("simulate", *base, "-o", "json").json
    books = played["accounting"]
    assert books["total"]["dollars"] == pytest.approx(played["dollars"]["actual"])
    if billing == "function":
        parts = books["categories"]
        held = ("idle", "returning", "minimum", "rounding", "barrier")
        assert sum(parts[name]["dollars"] for name in held) == 0
        assert parts["training"]["dollars"] > 0.7 * books["total"]["dollars"]


def test_billing_by_function_makes_the_last_trial_narrow(command: Command, tmp_path: Path) -> None:
    base = ["plan", "experiment.yaml", "--trials", "1", "--deadline", "1h", "-o", "json"]

    def widths() -> set[float]:
        plan = decode(Plan, command(*base).json["plan"]["staged"])
        return {group.width for stage in plan.stages for group in stage.groups}

    assert widths() == {4.0}
    billed_by(tmp_path, "function")
    assert widths() == {0.5}


@pytest.mark.parametrize(
    ("billing", "said"),
    [
        ("day", "cloud.billing.*second.*minute.*hour.*function"),
        ("{unit: function, minimum: 1m}", "cloud.billing.minimum.*bills none; leave it out"),
        ("{minimum: 1m}", "is missing: write second, minute or hour"),
    ],
)
def test_an_unknown_billing(command: Command, tmp_path: Path, billing: str, said: str) -> None:
    billed_by(tmp_path, billing)
    refused = command("plan", "experiment.yaml").refused()
    assert re.search(rf"experiment.yaml:\d+.*{said}", refused.err, re.DOTALL), refused.err


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("seer-barrier", "our reconstruction of SEER from its abstract, not the paper's algorithm"),
        ("seer", "a method of our own with SEER's aim"),
        ("rubberband", "our reconstruction of RubberBand's planner"),
        ("asha", None),
    ],
)
def test_a_reconstruction_says_so(command: Command, strategy: str, said: str | None) -> None:
    base = ["experiment.yaml", "--strategy", strategy, "--trials", "4", *LIMITED]
    for verb in ("plan", "simulate"):
        result = " ".join(command(verb, *base).out.split())
        assert (said or "our reconstruction") in result if said else "our recon" not in result
        assert said or "of our own" not in result
