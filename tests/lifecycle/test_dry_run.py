"""A script is tried on this machine before anything is rented, as a worker trains it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.infra.node.messages import Body, Done, Failure, Lost
from cloudtune.lifecycle import dry_run
from cloudtune.lifecycle.dry_run import Tried, try_script
from cloudtune.runs import home
from cloudtune.runs.job import Job
from tests.bench import Bench, wait_for
from tests.guard import is_alive, watched

AWS = ("--provider", "aws", "--instances", "g4dn.xlarge", "--here", "--yes")
MODULE = "def rate(config):\n    return config['{key}']\n"
COMMAND = """
name: small
train: python main.py {lr} {epochs}
metric: {name: loss, mode: min}
reports: {printed: 'loss (?P<loss>[0-9.]+)'}
search: {lr: {uniform: [0.01, 0.1]}}
trials: 2
epochs: {min: 1, max: 4}
"""


@pytest.fixture(autouse=True)
def nothing_left(temp: Path) -> Iterator[None]:
    yield from watched()
    assert not list(temp.glob("cloudtune-*"))


def with_module(bench: Bench, key: str) -> Path:
    """Write a script that reads its configuration in a module of its own; return the experiment."""
    path = bench.experiment("import rates; rates.rate(config)")
    (bench.folder / "rates.py").write_text(MODULE.format(key=key))
    return path


def test_a_misspelled_key_in_a_module_rents_nothing(bench: Bench) -> None:
    done = bench.here("run", with_module(bench, "learning_rate"), *AWS)
    assert done.code == 2, done.out + done.err
    assert f"error: {bench.folder}/rates.py:2: KeyError: 'learning_rate'\n" in done.err
    assert f'File "{bench.folder}/train.py", line ' in done.err
    assert "tried on this machine, with lr=0.0" in done.err
    assert "--no-try-first" in done.err
    assert bench.nothing_launched()
    assert {path.name for path in bench.folder.iterdir()} == {
        *("experiment.yaml", "train.py", "rates.py")
    }


def test_what_instances_alone_may_have_is_a_line(bench: Bench) -> None:
    path = bench.experiment()
    script = bench.folder / "train.py"
    script.write_text(f"import brought_by_the_image\n{script.read_text()}")
    done = bench.here("run", path, *AWS)
    assert (
        "note: the script can't be tried on this machine: ModuleNotFoundError: No module named "
        "'brought_by_the_image'; the run goes on"
    ) in done.err
    assert "measuring it first" in done.out


def test_script_is_run(bench: Bench, simulated: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has started ends with it."""
    monkeypatch.setattr(dry_run, "try_script", try_script)
    path, started = with_module(bench, "lr"), bench.home.parent / "pid"
    with (bench.folder / "rates.py").open("a") as module:
        module.write(f"import subprocess\nopen({str(started)!r}, 'w').write(")
        module.write("str(subprocess.Popen(['sleep', '600']).pid))\n")
    bench.profile()
    done = bench.here("run", path, "--try-first").succeeded()
    assert "tried on this machine: one trial reported after " in done.err
    assert len(simulated) == 1
    wait_for(lambda: not is_alive(int(started.read_text())))


def test_a_command_is_tried_as_a_function_is(bench: Bench) -> None:
    path = bench.folder / "command.yaml"
    path.write_text(COMMAND)
    (bench.folder / "main.py").write_text("print('los: 0.5')\n")
    bench.here("try", path).refused("no line of what it printed has loss")
    (bench.folder / "main.py").write_text("print('loss 0.5', flush=True)\ninput()\n")
    bench.here("try", path).succeeded("one trial reported after ")


SAVES = "open('out/model', 'w').write('x')\n"


@pytest.mark.parametrize("saves", [True, False])
def test_unsaved_models(bench: Bench, saves: bool) -> None:
    """A script that names a folder and saves nothing in it is noticed when it is tried."""
    path = bench.folder / "command.yaml"
    path.write_text(f"{COMMAND}checkpoints: {{folder: out}}\n")
    script = "print('loss 0.5', flush=True)\nimport time\ntime.sleep(60)\n"
    (bench.folder / "main.py").write_text(f"{SAVES}{script}" if saves else script)
    said = "may not be kept: with its first epoch the script saved nothing in out"
    done = bench.here("try", path).succeeded()
    assert (said in done.out) != saves


def test_plans_say_that_models_are_not_saved(
    bench: Bench, simulated: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "try_script", try_script)
    path = bench.experiment()
    script = bench.folder / "train.py"
    saved = ", cloudtune.Checkpoint.from_directory(folder))"
    script.write_text(script.read_text().replace(saved, ")"))
    bench.profile()
    done = bench.here("run", path, "--try-first").succeeded()
    assert simulated
    plan = " ".join(done.out.split())
    said = "model the best model may not be kept: with its first epoch the script reported no"
    assert said in plan


def experiment(bench: Bench, **fields: Any) -> Experiment:
    fields = {"cloud": {"provider": "aws"}, "limits": {"deadline": "1h"}, **fields}
    path = bench.experiment("import nothing.of.that.name")
    data = Experiment.load(path).to_json()
    return Experiment(**{**data, **fields})


IN_PARTS = """
for part in (1, 2, 3, 4):
    print(f"epoch {part / 4:.2f} loss {1 / part}", flush=True)
"""


@pytest.mark.parametrize(("every", "noted"), [("1", True), ("1/4", False)])
def test_reports_within_an_epoch_are_noted(
    bench: Bench, every: str, noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (bench.folder / "main.py").write_text(IN_PARTS)
    path = bench.folder / "experiment.yaml"
    path.write_text(
        COMMAND.replace("min: 1, max: 4", "max: 1")
        + f"progress: {{every: {every}}}\ncloud: {{provider: aws, instances: [g4dn.xlarge]}}\n"
    )
    dry_run.check_script(Experiment.load(path), has_run=False)
    said = capsys.readouterr().err
    assert ("note: 4 reports an epoch: with progress: {every: 1/4}" in said) == noted


def test_a_minute_without_an_error_is_enough(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "SECONDS", 0.0)
    tried = try_script(experiment(bench))
    assert not tried.reported
    assert not tried.reason
    assert str(tried).endswith("without an error")


@pytest.mark.parametrize(
    ("cloud", "try_first", "has_run", "on_head", "tries"),
    [
        ("aws", None, False, False, True),
        ("aws", None, True, False, False),
        ("aws", False, False, False, False),
        ("aws", None, False, True, False),
        ("slurm", None, False, False, False),
        ("emulated", None, False, False, False),
        ("emulated", True, True, False, True),
    ],
)
def test_when_a_script_is_tried(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    cloud: str,
    try_first: bool | None,
    *,
    has_run: bool,
    on_head: bool,
    tries: bool,
) -> None:
    called: list[bool] = []

    def tried(*_: object, trains: bool, **__: object) -> Tried:
        called.append(trains)
        return Tried()

    monkeypatch.setattr(dry_run, "try_script", tried)
    if on_head:
        monkeypatch.setenv(home.BEGAN_VARIABLE, "1.0")
    fields = {"cloud": {"provider": cloud}, "trial": {"try_first": try_first}}
    dry_run.check_script(experiment(bench, **fields), has_run=has_run)
    assert called == [tries]


NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: "
ELSEWHERE: dict[str, Body] = {
    "package": Failure("ModuleNotFoundError: No module named 'x'", ""),
    "program": Failure("CommandFailedError: `x y`: x can't be started: No such file", ""),
    "no GPU": Failure("RuntimeError: No CUDA GPUs are available", ""),
    "asserted GPU": Failure(
        "AssertionError", '  File "train.py", line 3, in f\n    assert torch.cuda.is_available()\n'
    ),
    "data": Failure(f"{NO_FILE}'/mnt/imagenet/train'", ""),
    "memory": Failure("RuntimeError: DefaultCPUAllocator", "", out_of_memory=True),
    "killed": Lost("was killed by SIGKILL"),
    "network": Failure("requests.exceptions.ConnectionError: Max retries exceeded", ""),
}
OURS: dict[str, Body] = {
    "name": Failure("NameError: name 'x' is not defined", ""),
    "relative data": Failure(f"{NO_FILE}'train.csv'", ""),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_may_differ(bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(dry_run, "_last_message", lambda *_, **__: ELSEWHERE[name])
    assert try_script(experiment(bench)).reason


@pytest.mark.parametrize("name", OURS)
def test_what_is_the_same_is_one(bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(dry_run, "_last_message", lambda *_, **__: OURS[name])
    with pytest.raises(UsageError):
        try_script(experiment(bench))


def test_a_script_that_ends_by_itself_passes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "_last_message", lambda *_, **__: Done())
    tried = try_script(experiment(bench))
    assert tried.reported
    assert not tried.reason


def test_a_package_missing_here_is_missing_on_local_instances(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = experiment(bench, cloud={"provider": "emulated"})
    monkeypatch.setattr(dry_run, "_last_message", lambda *_, **__: ELSEWHERE["package"])
    with pytest.raises(UsageError, match="No module named 'x'"):
        try_script(wanted)


def test_a_file_that_is_not_sent_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = experiment(bench)
    (bench.folder / "train.csv").touch()
    (bench.folder / ".gitignore").write_text("*.csv\n")
    monkeypatch.setattr(dry_run, "_last_message", lambda *_, **__: OURS["relative data"])
    with pytest.raises(UsageError, match=r"train.csv'; it is there, but isn't sent"):
        try_script(wanted)


def test_a_missing_file_is_named_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = experiment(bench)
    (bench.folder / "train.csv").touch()
    missing = Failure(f"{NO_FILE}'train.csv'", "")
    hinted = f"{missing.error}; what .gitignore names isn't copied to trials: write !train.csv"
    failure = dataclasses.replace(missing, error=hinted)
    monkeypatch.setattr(dry_run, "_last_message", lambda *_, **__: failure)
    with pytest.raises(UsageError) as raised:
        try_script(wanted)
    assert str(raised.value).count(".gitignore") == 1


def test_a_trial_of_several_gpus_is_not_tried(bench: Bench) -> None:
    assert (
        try_script(experiment(bench, trial={"gpus": {"min": 2}})).reason == "a trial needs 2 GPUs"
    )
