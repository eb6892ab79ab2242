"""`-o json`: every command has it, with a version, errors and an end."""

import json
from pathlib import Path
from typing import Any

import click
import pytest

from cloudtune.runs.job import Job
from docs.reference import commands
from tests.bench import Bench, called

pytestmark = pytest.mark.usefixtures("at_home")

# What prints no facts of a run: pages, scripts for shells, documents that are JSON themselves, and
# what changes one thing of the emulator or of an account, and other programs on instances.
OTHERS = {"completion", "docs", "aws", "emulator", "exec", "shell"}


def test_every_command_takes_it() -> None:
    without = set()
    for typed, command in commands().items():
        for option in command.params:
            if "--output" in option.opts and isinstance(option.type, click.Choice):
                assert "-o" in option.opts, typed
                assert "json" in option.type.choices, typed
                break
        else:
            without.add(typed.split()[1])
    assert without == OTHERS


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_mistake_is_an_object_with_its_place(bench: Bench) -> None:
    path = bench.experiment()
    path.write_text(path.read_text().replace("eta: 2", "eta: none"))
    [error] = lines(bench.here("plan", path, "-o", "json").refused().out)
    assert (error["schema"], error["type"], error["exit_code"]) == (1, "error", 2)
    assert error["error"] == "ExperimentMistakesError"
    number = path.read_text().splitlines().index("eta: none") + 1
    assert error["where"].endswith(f"experiment.yaml:{number}")
    assert "eta" in error["what"]


def test_a_mistake_says_what_to_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    [error] = lines(called(capsys, "report", "--figure", "a.png", "-o", "json").refused().out)
    assert "name a file that ends in .svg" in error["message"]
    [error] = lines(called(capsys, "plan", "--nonsense", "-ojson").refused().out)
    assert (error["error"], error["where"]) == ("NoSuchOption", None)


def test_a_stream_ends_with_an_end_whatever_happens(bench: Bench) -> None:
    error, end = lines(bench.here("run", "nosuch.yaml", "-o", "json").refused().out)
    assert (error["type"], end) == ("error", {"schema": 1, "type": "end", "exit_code": 2})


def test_even_a_bug_ends_a_stream(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("cloudtune.api.runs.run", broken)
    done = bench.here("run", bench.ready(), "--provider", "emulated", "-o", "json")
    error, end = lines(done.out)
    assert (error["error"], error["message"]) == ("ZeroDivisionError", "a bug")
    assert end == {"schema": 1, "type": "end", "exit_code": 1}
    assert "Traceback" in done.err


def test_what_is_done_to_runs_is_an_object(bench: Bench, simulated: list[Job]) -> None:
    run = bench.ran().name
    assert bench.here("runs", "-o", "json").json["runs"][0]["run"] == run
    *logs, end = lines(bench.here("logs", run, "-o", "json").out)
    assert {line["type"] for line in logs} <= {"log"}
    assert end["type"] == "end"
    exported = bench.here("export", run, "--to", "csv", "-o", "json").succeeded().json
    assert (exported["run"], exported["to"]) == (run, "csv")
    [error] = lines(bench.here("stop", run, "-o", "json").refused().out)
    assert (error["what"], error["do"]) == (f"run {run} isn't running", "nothing to stop")
    found = bench.here("gc", "-o", "json").succeeded().json
    assert (found["returned"], found["unconfirmed"], found["unreachable"]) == ([], [], [])
    removed = bench.here("rm", run, "--yes", "-o", "json").succeeded().json
    assert removed["removed"] == [run]


def test_an_experiment_that_was_written_names_its_gaps(bench: Bench) -> None:
    script = bench.folder / "s.py"
    script.write_text("import cloudtune\n\ndef train(config):\n    cloudtune.report({'loss': 1})\n")
    wrote = bench.here("init", script, "-o", "json").succeeded().json
    assert wrote["wrote"].endswith("experiment.yaml")
    assert {"what", "question"} == set(wrote["gaps"][0])
