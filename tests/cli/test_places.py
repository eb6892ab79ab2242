"""Where `cloudtune run` runs if neither the file nor an option names a provider."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtune.infra.node.this_machine import this_machine
from cloudtune.runs.job import Job
from tests.bench import Bench
from tests.infra.mps_stand_in import write_script

NAMED = ("--deadline", "2h", "--budget", "$40", "--no-try-first")
FEW = ("--deadline", "20m", "--budget", "$4", "--trials", "2", "--no-try-first")
Answer = Callable[[int], list[str]]


@pytest.fixture
def path(bench: Bench) -> Path:
    """Return an experiment that names no provider, no trials and no strategy."""
    path = bench.ready(first=1, last=8)
    bench.profile(epoch=60.0)  # a run of two hours is simulated in seconds
    lines = path.read_text().splitlines()
    kept = [line for line in lines if line.partition(":")[0] not in {"trials", "strategy", "eta"}]
    path.write_text("\n".join(kept))
    return path


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Answer the question at a terminal by a number; returns what was asked."""

    def answered(number: int) -> list[str]:
        asked: list[str] = []

        def prompt(text: str, **_: object) -> int:
            asked.append(text)
            return number

        monkeypatch.setattr("cloudtune.cli.places.at_terminal", lambda: True)
        monkeypatch.setattr("click.prompt", prompt)
        return asked

    return answered


def test_emulated_first_look_takes_ten_minutes(
    path: Path, bench: Bench, simulated: list[Job], answer: Answer
) -> None:
    asked = answer(1)
    done = bench.here("run", path, *NAMED)
    assert asked == ["Number"]
    [job] = simulated
    assert job.experiment.cloud.provider == "emulated"
    assert job.limits.deadline == 600
    assert job.limits.budget == pytest.approx(40 / 12, rel=1e-4)
    said = "A first look: 10m and $3.33 of the 2h and $40.00; --provider emulated takes all of it."
    assert said in done.err


def test_a_number_of_trials_is_emulated_as_named(
    path: Path, bench: Bench, simulated: list[Job], answer: Answer
) -> None:
    answer(1)
    bench.here("run", path, *NAMED, "--trials", "4")
    assert simulated[0].limits.deadline == 7200


def test_this_machine_is_an_answer(
    path: Path, bench: Bench, simulated: list[Job], answer: Answer
) -> None:
    answer(2)
    done = bench.here("run", path, *FEW)
    assert simulated[0].experiment.cloud.provider == "local", done.err
    assert simulated[0].limits.deadline == 1200
    assert "nothing is paid; up to 20m (--provider local)" in done.err
    assert "the budget of $4.00 limits nothing here" in " ".join(done.out.split())


def test_aws_names_its_two_commands(path: Path, bench: Bench, no_aws: None, answer: Answer) -> None:
    answer(3)
    done = bench.here("run", path, *NAMED).refused("cloudtune aws setup", "--provider aws")
    assert "aws configure" in done.err
    assert bench.nothing_launched()


def test_a_named_provider_isnt_asked_for(
    path: Path, bench: Bench, simulated: list[Job], answer: Answer
) -> None:
    asked = answer(3)
    bench.here("run", path, *FEW, "--provider", "emulated")
    path.write_text(path.read_text().replace("cloud: {", "cloud: {provider: emulated, "))
    bench.here("run", path, *FEW)
    assert len(simulated) == 2
    assert not asked


def test_a_program_is_told_which_provider_it_gets(
    path: Path, bench: Bench, simulated: list[Job], answer: Answer
) -> None:
    said = "No provider is named, so this run is emulated here; name another by --provider local"
    assert said in bench.here("run", path, *FEW).err
    asked = answer(3)
    assert said in bench.here("run", path, *FEW, "--yes").err
    done = bench.here("run", path, *FEW, "-o", "json")
    assert json.loads(done.out.splitlines()[0])["provider"] == "emulated"
    assert not done.err, "lines of JSON, and nothing else"
    assert not asked
    assert {job.limits.deadline for job in simulated} == {1200}


def test_plan_names_its_provider(path: Path, bench: Bench) -> None:
    """Without it `run` would ask, and an answer might take other limits."""
    shown = bench.here("plan", path, *FEW[:-1]).out
    assert "--provider emulated" in " ".join(shown.partition("run it")[2].split())


def test_a_machine_that_cannot_train_says_why(
    path: Path, bench: Bench, answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(tmp_path / "bin/nvidia-smi", "echo no running driver; exit 9")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    this_machine.cache_clear()
    answer(2)
    why = "nvidia-smi fails: no running driver"
    done = bench.here("run", path, *FEW).refused(why)
    assert f"2  this machine, once it can: {why}" in done.err
    assert bench.nothing_launched()
    this_machine.cache_clear()
