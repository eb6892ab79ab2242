"""Mistakes, through the command line: one message, its exit code, and nothing launched."""

import os
from pathlib import Path

import pytest

from cloudtune.errors import CleanupError
from cloudtune.lifecycle import dry_run, runner
from cloudtune.model.plans import Plan
from cloudtune.model.serialization import decode
from tests.bench import Bench


def check_refusal(bench: Bench, arguments: list[object], *words: str, code: int = 2) -> None:
    bench.here(*arguments).refused(*words, code=code)
    assert bench.nothing_launched()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("name: small", "name: [", ["experiment.yaml:4:7: malformed YAML"]),
        ("trials: 4", "trails: 4", ["experiment.yaml:6: trails: unknown field", "'trials'"]),
        ("g7.12xlarge", "g7.13xlarge", ["experiment.yaml:10", "g7.12xlarge"]),
        ("train.py:train", "train.py:trian", ["train.py: no function 'trian'", "train"]),
        ("train.py:train", "tarin.py:train", ["tarin.py", "no such file"]),
    ],
)
def test_a_bad_experiment(bench: Bench, old: str, new: str, words: list[str]) -> None:
    path = bench.experiment()
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    check_refusal(bench, ["run", path], *words)


def test_a_missing_file(bench: Bench) -> None:
    check_refusal(bench, ["run", "nowhere.yaml"], "nowhere.yaml")


@pytest.mark.parametrize(
    ("option", "value"), [("--deadline", "soon"), ("--budget", "-1"), ("--trials", "0")]
)
def test_a_bad_option_is_named(bench: Bench, option: str, value: str) -> None:
    check_refusal(bench, ["plan", bench.experiment(), option, value], option)


def test_an_unknown_option(bench: Bench) -> None:
    check_refusal(bench, ["run", bench.experiment(), "--budgett", "$3"], "--budgett")


def test_a_script_that_does_not_import(bench: Bench) -> None:
    path = bench.ready()
    script = bench.folder / "train.py"
    script.write_text("import nosuchmodule\n" + script.read_text())
    done = bench.here("run", path)
    assert done.code == 2
    assert f"error: {script}:1: ModuleNotFoundError: No module named 'nosuchmodule'" in done.err
    assert done.err.endswith("nothing was launched\n")
    assert bench.nothing_launched()


def test_a_file_that_ray_cannot_name_is_refused(bench: Bench) -> None:
    path = bench.ready()
    (bench.folder / os.fsdecode(b"n\xff.txt")).touch()
    done = bench.here("run", path)
    assert done.code == 2
    assert "n\\udcff.txt': rename it: the name isn't UTF-8\nnothing was launched" in done.err
    assert not bench.machines()


def test_plan_without_profile_names_assumptions(bench: Bench) -> None:
    said = " ".join(bench.here("plan", bench.experiment()).succeeded().out.split())
    assert (
        "never measured: an epoch is assumed to take 7.5s on a V100, off by a factor of 4" in said
    )


def test_infeasible_plan_names_nearest_plans(bench: Bench) -> None:
    path = bench.ready(trials=4, first=100, last=400)
    check_refusal(bench, ["run", path, "--deadline", "30s"], "infeasible: no plan", code=3)
    done = bench.here("plan", path, "--deadline", "30s", "-o", "json")
    result = done.json
    assert done.code == 3
    assert result["fastest"]["estimate"]["seconds"] < result["cheapest"]["estimate"]["seconds"]
    assert result["fastest"]["estimate"]["dollars"] > result["cheapest"]["estimate"]["dollars"]


def test_saved_plan_must_fit_its_script(bench: Bench) -> None:
    path = bench.ready()
    done = bench.here("plan", path, "--save", "p.json", "-o", "json").succeeded()
    assert done.json["plan"]["staged"]["gap"] == 0
    check_refusal(bench, ["run", "p.json", "--trials", "3"], "plan can't be changed", "--trials")
    script = bench.folder / "train.py"
    script.write_text(script.read_text() + "\n# changed\n")
    check_refusal(bench, ["run", "p.json"], "has changed since this was planned")


def test_simulate_plays_the_same_policy(bench: Bench) -> None:
    path = bench.ready(trials=2)
    done = bench.here("simulate", path, "-o", "json")
    result = done.json
    assert done.code == 0, done.err
    # But for what is drawn of the spread that no measurement shows.
    assert result["seconds"]["actual"] == pytest.approx(result["seconds"]["planned"], rel=0.1)
    assert result["dollars"]["actual"] == pytest.approx(result["dollars"]["planned"], rel=0.1)
    assert bench.nothing_launched()


def test_aws_is_never_rented_unasked(bench: Bench) -> None:
    path = bench.ready()
    limits = ("--deadline", "1h", "--budget", "$2")  # a head begins after minutes
    check_refusal(bench, ["run", path, "--provider", "aws", *limits], "--yes")


def test_aws_needs_an_image_and_a_shared_storage(bench: Bench) -> None:
    path = bench.ready()
    check_refusal(bench, ["run", path, "--provider", "aws", "--yes"], "aws sso login")
    text = path.read_text().replace("max_instances: 2", "max_instances: 2, image: ami-1")
    path.write_text(text)
    check_refusal(bench, ["run", path, "--provider", "aws", "--yes"], "s3://bucket/prefix")


def test_an_unconfirmed_clean_up_is_named(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    path = bench.ready()

    def leak(*_: object) -> None:
        raise CleanupError("EC2 did not confirm the end of i-1, i-2", ["i-1", "i-2"])

    monkeypatch.setattr(runner, "run_job", leak)
    monkeypatch.setattr(dry_run, "check_script", lambda *_, **__: dry_run.Tried())
    bench.here("run", path).refused("i-1, i-2", code=7)


def test_example_ships_its_profile(bench: Bench) -> None:
    example = Path(__file__).parents[2] / "examples/digits/experiment.yaml"
    done = bench.here("plan", example, "--deadline", "5m", "--budget", "$2", "-o", "json")
    assert done.code == 0, done.err
    plan = decode(Plan, done.json["plan"]["staged"])
    assert plan.stages[-1].instances < plan.stages[0].instances, "the fleet shrinks"
    (first,), (last,) = plan.stages[0].groups, plan.stages[-1].groups
    assert last.width > first.width, "the winner grows"
