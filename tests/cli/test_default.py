"""What a person gets who names limits and no strategy, from the experiment file to the screen."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cloudtune
from cloudtune.forecast import prediction
from cloudtune.forecast.plan_file import load_plan
from cloudtune.infra.node import this_machine
from cloudtune.model.scaling import ScalingProfile
from cloudtune.profiles.store import script_hash, write
from tests.bench import TRAIN, Command, called
from tests.builders import machines
from tests.builders.experiments import write_experiment

SCRIPT = TRAIN.format(trouble='config["shift"]')
EXPERIMENT = """
name: small
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {uniform: [0.01, 0.1]}, shift: {choice: [0, 1]}}
epochs: {max: 16}
cloud: {instances: [g4dn.xlarge, g4dn.12xlarge], market: on-demand, max_instances: 2}
"""
BOTH = ("--deadline", "30m", "--budget", "$2")
EVENTS = prediction.FORECAST_EVENTS


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Return a command line in a folder with a script, its profiles and an experiment."""
    write_experiment(tmp_path, EXPERIMENT, SCRIPT)
    profiles = [profile(tmp_path / "train.py", name) for name in ("g4dn.xlarge", "g4dn.12xlarge")]
    write(tmp_path / "profile.json", profiles)
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    # A plan is forecast by one run, where a person's is by up to 31.
    monkeypatch.setattr(prediction, "FORECAST_EVENTS", 1)
    monkeypatch.chdir(tmp_path)

    return partial(called, capsys)


def profile(script: Path, instance_type: str, start: float = 2.0) -> ScalingProfile:
    gpus = 1 if instance_type == "g4dn.xlarge" else 4
    curve = {float(w): 20.0 / w**0.8 for w in (1, 2, 4) if w <= gpus}
    delays = {"start": start, "resize": 2.0, "release": 1.0}
    measured = machines.profile(curve, name=instance_type, spread=0.03, **delays)
    return replace(measured, script_hash=script_hash(script))


def plan_json(command: Command, *options: str) -> dict[str, Any]:
    return dict(command("plan", "experiment.yaml", *options, "-o", "json").succeeded().json)


@pytest.mark.parametrize(
    ("options", "strategy", "why"),
    [
        (BOTH, "best", "the best model that 30m and $2.00 can buy"),
        (("--budget", "$2"), "best", "the best model that $2.00 can buy"),
        ((*BOTH, "--trials", "9"), "best", "from at most 9 configurations (--objective cost"),
        ((*BOTH, "--objective", "cost"), "sha", "the cheapest plan"),
        ((*BOTH, "--objective", "time"), "sha", "the fastest plan"),
        ((*BOTH, "--objective", "best", "--trials", "9"), "best", "as --objective best asks"),
        (("--deadline", "30m"), "sha", "only a deadline is set"),
        (("--trials", "9"), "sha", "no limit is set"),
        ((*BOTH, "--strategy", "asha"), "asha", ""),
    ],
)
def test_limits_decide(command: Command, options: tuple[str, ...], strategy: str, why: str) -> None:
    plan = plan_json(command, *options)
    assert plan["strategy"] == strategy
    assert why in plan["chosen"]
    assert bool(plan["chosen"]) == bool(why)


COMMAND = """
train: python train.py --lr {lr} --shift {shift} --epochs {epochs}
reports: {printed: 'loss (?P<loss>[0-9.]+)'}
"""


@pytest.fixture
def read(command: Command, tmp_path: Path) -> Command:
    """The same with a command whose output is read, and that names no checkpoints."""
    text = EXPERIMENT.replace("train: train.py:train\n", COMMAND.lstrip())
    (tmp_path / "experiment.yaml").write_text(text)
    return command


def test_unresumable_trials_stay_in_place(read: Command, tmp_path: Path) -> None:
    plan = plan_json(read, *BOTH)
    assert plan["strategy"] == "asha-stopping"
    assert "resume from no checkpoints" in plan["chosen"]
    assert "isn't kept: the script saves nothing we see" in plan["unsaved"]
    shown = repr(cloudtune.plan("experiment.yaml", deadline="30m", budget="$2"))
    assert f"model: {plan['unsaved']}" in shown, "what a notebook's run shows"
    assert moves(read) == 0
    assert plan_json(read, "--trials", "9")["strategy"] == "asha-stopping"
    path = tmp_path / "experiment.yaml"
    path.write_text(path.read_text() + "checkpoints: {folder: out}\n")
    plan = plan_json(read, *BOTH)
    assert plan["strategy"] == "best"
    assert not plan["unsaved"]
    assert moves(read) > 0


def test_a_function_without_checkpoints_is_never_paused(command: Command, tmp_path: Path) -> None:
    """Each pause would begin it again at its first epoch."""
    assert plan_json(command, *BOTH)["strategy"] == "best"
    (tmp_path / "train.py").write_text(
        "import cloudtune\n\ndef train(config):\n    for epoch in cloudtune.epochs():\n"
        "        cloudtune.report({'loss': config['lr'] / epoch})\n"
    )
    plan = plan_json(command, *BOTH)
    assert plan["strategy"] == "asha-stopping"
    assert "names a cloudtune.Checkpoint" in plan["unsaved"]
    assert moves(command) == 0
    path = tmp_path / "experiment.yaml"
    path.write_text(path.read_text() + "checkpoints: {resumes: true}\n")
    assert plan_json(command, *BOTH)["strategy"] == "best"
    path.write_text(path.read_text().replace("resumes: true", "folder: out"))
    command("plan", "experiment.yaml", *BOTH).refused("is for commands, and train names a function")


def moves(read: Command) -> int:
    """Return how often a trial of a simulated run was paused, moved or widened."""
    account = read("simulate", "experiment.yaml", *BOTH, "-o", "json").json["accounting"]
    return int(account["restarts"]) + int(account["resizes"])


def test_plan_warns_of_restarted_trials(read: Command) -> None:
    paused = read("plan", "experiment.yaml", *BOTH, "--strategy", "asha")
    assert "asha pauses trials: each begins again" in " ".join(paused.out.split())
    stays = read("plan", "experiment.yaml", *BOTH)
    assert "begins again" not in stays.out


def test_emulated_commands_share_cores(
    read: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = profile(tmp_path / "train.py", "g4dn.12xlarge", start=60.0)
    write(tmp_path / "profile.json", [slow])

    def tried(cores: int) -> float:
        monkeypatch.setattr(this_machine, "cores", lambda: cores)
        plan = plan_json(read, *BOTH, "--instances", "g4dn.12xlarge")["plan"]
        return float(plan["forecast"]["trials"]["p50"])

    gpus = 2 * 4
    one_after_another = 30 * 60 / 60
    assert tried(1) <= one_after_another + gpus < tried(64)


def test_nothing_says_when_to_stop(command: Command) -> None:
    for verb in ("plan", "run", "simulate"):
        command(verb, "experiment.yaml").refused("give --deadline and --budget for the best model")


def test_trials_are_a_cap_of_the_search(command: Command) -> None:
    options = ("--deadline", "1h", "--budget", "$9")
    assert plan_json(command, *options)["plan"]["forecast"]["trials"]["p50"] > 20
    capped = plan_json(command, *options, "--trials", "5")
    assert capped["plan"]["forecast"]["trials"]["p95"] == 5
    played = command("simulate", "experiment.yaml", *options, "--trials", "5", "-o", "json").json
    assert len(played["trials"]) == 5


def test_fixed_work_without_trials_is_a_bracket(command: Command) -> None:
    # 1, 3, 9 and 16 epochs: a third goes on three times, so 9 trials bring one to the end.
    assert plan_json(command, "--deadline", "2h")["trials"] == 9


def test_a_budget_alone_gets_a_deadline(command: Command, tmp_path: Path) -> None:
    plan = plan_json(command, "--budget", "$4", "--save", "plan.json")
    training = 16 * 20.0
    assert plan["limits"]["deadline"] >= 3 * training
    assert plan["plan"]["forecast"]["within"] == 1.0
    screen = " ".join(command("plan", "experiment.yaml", "--budget", "$4").out.split())
    assert plan["derived_deadline"] in screen
    assert "set another with --deadline" in screen
    saved = load_plan(tmp_path / "plan.json")
    assert saved is not None
    assert saved.limits.deadline == plan["limits"]["deadline"]
    assert saved.experiment.strategy.name == "best", "another version's default changes nothing"


def test_larger_machines_spend_what_cheap_ones_leave(command: Command) -> None:
    """Two g4dn.xlarge cost $0.53 in half an hour: $2 buy more training on four GPUs as well."""
    fleet = plan_json(command, *BOTH)["launches"]
    assert [part["instance_type"] for part in fleet] == ["g4dn.12xlarge", "g4dn.xlarge"]
    [fleet] = plan_json(command, "--deadline", "30m", "--budget", "$0.30")["launches"]
    assert fleet["instance_type"] == "g4dn.xlarge"


def test_limits_below_a_training_say_reach(command: Command) -> None:
    options = ("--deadline", "2m", "--budget", "$2")
    plan = plan_json(command, *options)
    assert 1 <= plan["plan"]["forecast"]["epochs"]["p50"] < 16
    assert plan["short_of"].startswith("training one trial for 16 epochs takes ")
    screen = " ".join(command("plan", "experiment.yaml", *options).out.split())
    assert f"no trial can reach the end: {plan['short_of']}" in screen
    assert plan_json(command, *BOTH)["short_of"] == ""


def test_limits_below_one_epoch_say_what_it_takes(command: Command) -> None:
    said = command("plan", "experiment.yaml", "--deadline", "40s", "--budget", "$2")
    assert said.code == 3
    assert "no trial finishes its first epoch within deadline 40s, budget $2.00" in said.err
    assert "raining one trial for 1 epoch takes" in said.err
    assert "raining one trial for 16 epochs takes" in said.err
    assert "head" not in said.err


def test_deadline_within_head_start_is_refused(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(f"{path.read_text()}charges: {{head: $0.1, head_seconds: 8m}}\n")
    said = command("plan", "experiment.yaml", "--deadline", "8m30s", "--budget", "$2")
    assert said.code == 3
    assert "The head's start takes 8m of the deadline. Raise --deadline" in " ".join(
        said.err.split()
    )


def test_half_and_twice_the_budget_are_their_plans(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "FORECAST_EVENTS", EVENTS)
    plan = plan_json(command, *BOTH)
    others = {other["name"]: other["plan"]["forecast"] for other in plan["alternatives"]}
    for name, budget in (("half the budget", "$1"), ("twice the budget", "$4")):
        alone = plan_json(command, "--deadline", "30m", "--budget", budget)
        few = others[name]
        forecast = alone["plan"]["forecast"]
        assert few["samples"] < forecast["samples"]
        for figure in ("seconds", "dollars", "trials", "epochs"):
            assert few[figure]["p50"] == pytest.approx(forecast[figure]["p50"], rel=0.1)


def test_an_objective_that_contradicts_the_strategy_is_refused(command: Command) -> None:
    said = command("plan", "experiment.yaml", *BOTH, "--strategy", "sha", "--objective", "best")
    assert said.code == 2
    assert "--objective best is the strategy best, and sha is named" in said.err


def test_old_search_name_suggests_the_new(command: Command) -> None:
    screen = command("plan", "experiment.yaml", *BOTH, "--strategy", "seer").out
    assert "now called best" in screen
    mine, its = (plan_json(command, *BOTH, "--strategy", name) for name in ("best", "seer"))
    assert mine["plan"]["forecast"] == its["plan"]["forecast"]


@pytest.fixture
def alone(command: Command, tmp_path: Path) -> Command:
    """Return a command line in a folder with a script and no experiment."""
    (tmp_path / "experiment.yaml").unlink()
    return command


def test_a_script_alone_says_what_is_missing(alone: Command, tmp_path: Path) -> None:
    for verb in ("plan", "run"):
        alone(verb, "train.py", *BOTH).refused(
            "the epochs of a full training: --epochs N", "--search 'shift="
        )
    assert not (tmp_path / "train.yaml").exists()


def test_options_fill_gaps_and_are_kept(alone: Command, tmp_path: Path) -> None:
    given = ("--epochs", "16", "--search", "shift=choice(1, 2)", "--instances", "g4dn.12xlarge")
    said = alone("plan", "train.py", *BOTH, *given).succeeded()
    kept = (tmp_path / "train.yaml").read_text()
    for words in ("train: train.py:train", "shift: {choice: [1, 2]}", "epochs: {max: 16}", "loss"):
        assert words in kept
    assert "shift: {choice: [1, 2]}" in said.err, "what was read is shown"
    assert "(best)" in said.out
    again = alone("plan", "train.py", *BOTH, "--instances", "g4dn.12xlarge", "-o", "json")
    assert "Using the existing experiment" in again.err
    assert json.loads(again.out)["epochs"] == [1, 16]


def test_a_person_is_asked(alone: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answers = iter(["choice(1, 2)", "soon", "16"])

    def prompt(text: str, **_: object) -> str:
        asked.append(text)
        return next(answers)

    monkeypatch.setattr("cloudtune.cli.options.at_terminal", lambda: True)
    monkeypatch.setattr("click.prompt", prompt)
    said = alone("plan", "train.py", *BOTH, "--instances", "g4dn.12xlarge").succeeded()
    questions = [text.partition(" (")[0] for text in asked]
    assert questions == ["A space for shift", *["The epochs of a full training"] * 2]
    assert "'soon' is not a number of epochs" in said.err
    assert "epochs: {max: 16}" in (tmp_path / "train.yaml").read_text()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--search", "lr", "write NAME=SPACE"),
        ("--search", "lr=loguniform(1e-4", "invalid space"),
        ("--search", "lr=lognormal(1, 2)", "--search lr: "),
        ("--search", "lr=loguniform(0, 1)", "--search lr: "),
        ("--metric", "loss:least", "write NAME:max or NAME:min"),
    ],
)
def test_mistake(command: Command, tmp_path: Path, option: str, value: str, message: str) -> None:
    for path in ("experiment.yaml", "train.py"):
        command("plan", path, *BOTH, "--epochs", "16", option, value).refused(message)
    assert not (tmp_path / "train.yaml").exists()


def test_search_metric_and_epochs_go_before_the_file(command: Command, tmp_path: Path) -> None:
    given = ("--search", "shift=randint(1, 9)", "--epochs", "8", "--metric", "score:max")
    assert command("plan", "experiment.yaml", *BOTH, *given, "--save", "plan.json").code == 0
    saved = load_plan(tmp_path / "plan.json")
    assert saved is not None
    experiment = saved.experiment
    assert set(experiment.search) == {"lr", "shift"}
    assert (experiment.metric.name, experiment.metric.mode) == ("score", "max")
    assert experiment.epochs.max == 8


def test_a_function_that_saves_nothing_is_said_to(command: Command, tmp_path: Path) -> None:
    assert not plan_json(command, *BOTH)["unsaved"]
    script = tmp_path / "train.py"
    first = "def train(config):\n    for epoch in cloudtune.epochs():\n"
    script.write_text(f'import cloudtune\n\n{first}        cloudtune.report({{"loss": 1.0}})\n')
    unsaved = plan_json(command, *BOTH)["unsaved"]
    assert unsaved.startswith("the best model isn't kept: nothing beside the function")
