"""What a program's own reporter hears of a run."""

import inspect
from typing import Any

import pytest

import cloudtune
from cloudtune.lifecycle.reporter import Reporter, Reporters
from cloudtune.runs.job import Job
from tests.bench import Bench

METHODS = [name for name in vars(Reporter) if name.startswith("on_")]
LIMITS: dict[str, Any] = {"deadline": "10m", "budget": "$3"}


class Recorder(Reporter):
    """Writes down the methods that are called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        return lambda *_: self.calls.append(name)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "on_confirm"])
def test_each_of_several_reporters_hears_everything(name: str) -> None:
    first, second = Recorder(), Recorder()
    parameters = inspect.signature(getattr(Reporter, name)).parameters
    getattr(Reporters(first, second), name)(*[None] * (len(parameters) - 1))
    assert first.calls == second.calls == [name]


@pytest.mark.usefixtures("at_home")
def test_a_run_is_reported_in_order(
    bench: Bench, simulated: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder()
    path = bench.ready()
    cloudtune.run(path, **LIMITS, reporter=recorder)
    assert list(dict.fromkeys(recorder.calls)) == [
        *("on_local_start", "on_planned", "on_start", "on_run_start", "on_event", "on_run_end"),
        "on_result",
    ]
    assert capsys.readouterr().out == ""
    recorder = Recorder()
    with pytest.raises(cloudtune.InfeasibleError):
        cloudtune.run(path, deadline="1s", reporter=recorder)
    assert recorder.calls == ["on_local_start", "on_infeasible"]
    recorder = Recorder()
    with pytest.raises(cloudtune.InfeasibleError):
        cloudtune.plan(path, deadline="1s", reporter=recorder)
    assert recorder.calls == ["on_infeasible"]
