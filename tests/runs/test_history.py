"""The records of runs: what `runs` lists of them, and what the search makes of its own results."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtune.api.experiments import load_experiment
from cloudtune.engine.ledger import FileLedger, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld
from cloudtune.experiment import Experiment
from cloudtune.forecast import make
from cloudtune.forecast.plan_file import make_job
from cloudtune.forecast.problem import build_problem, stored_profiles
from cloudtune.model.plans import Limits
from cloudtune.model.scaling import ScalingProfile
from cloudtune.model.trial import Trial
from cloudtune.profiles.store import write
from cloudtune.runs import history
from cloudtune.runs.job import Job, make_sampler
from tests.bench import Done, called, script_profile
from tests.builders.experiments import write_experiment

Command = Callable[..., Done]
Metric = Callable[[Mapping[str, object], int], float]

TRIALS = 16
SEARCH = "{lr: {loguniform: [1e-4, 1]}, layers: {randint: [1, 9]}}"
TEXT = """\
name: {name}
train: {train}
metric: {{name: score, mode: max}}
search: {search}
trials: {trials}
epochs: {{min: 1, max: 9}}
strategy: {strategy}
history: {history}
limits: {{deadline: 2h, budget: $40}}
cloud: {{provider: {provider}, instances: [{machines}], market: {market}, max_instances: 2}}
seed: {seed}
"""


def right(config: Mapping[str, object], epoch: int) -> float:
    """Return a metric that is best near a learning rate of 0.01."""
    lr = config["lr"]
    assert isinstance(lr, float)
    return math.exp(-((math.log10(lr) + 2.0) ** 2)) * (1 - 0.5**epoch)


class Place:
    """A folder with a script and experiments, and a home with runs."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        (folder / "train.py").write_text("def train(config):\n    pass\n")
        (folder / "other.py").write_text("def train(config):\n    return 1\n")
        machine = [script_profile(folder / "train.py"), script_profile(folder / "other.py")]
        for item, name in zip(machine, ("train", "other"), strict=True):
            write(folder / f"{name}.json", [item])

    def __call__(self, *arguments: object) -> Done:
        return called(self._capsys, *arguments)

    def experiment(self, **fields: object) -> Path:
        given = {
            "name": "small",
            "train": "train.py:train",
            "search": SEARCH,
            "trials": TRIALS,
            "strategy": "asha",
            "history": "off",
            "seed": 1,
            "provider": "emulated",
            "machines": "g4dn.12xlarge",
            "market": "on-demand",
        }
        return write_experiment(self.folder, TEXT.format(**{**given, **fields}))

    def job(self, script: str = "train", **fields: object) -> Job:
        wanted = load_experiment(self.experiment(**fields), {})
        profiles = stored_profiles(wanted, str(self.folder / f"{script}.json"))
        planned = make.make_plan(build_problem(wanted, profiles), Limits(7200.0, 40.0), runs=1)
        return make_job(planned, 1e9, paced=False)

    def ran(
        self,
        run_name: str,
        metric: Metric = right,
        script: str = "train",
        *,
        really: Callable[[ScalingProfile], ScalingProfile] = lambda profile: profile,
        began: float = 1e9,
        paced: bool = False,
        **fields: Any,
    ) -> Path:
        """Put an earlier run on record, and return its folder; its world is as it `really` was."""
        fields = {"seed": 7, "trials": 40, **fields}
        job = self.job(script, train=f"{script}.py:train", **fields)
        folder = self.folder / "home" / "runs" / run_name
        folder.mkdir(parents=True)
        header = {**job.to_json(), "run": run_name, "began": began, "paced": paced}
        real = [replace(rentable, profile=really(rentable.profile)) for rentable in job.rentables]
        world = SimWorld(real, "score", metric, 0)
        ledger = FileLedger(folder / "ledger.jsonl", header)
        run(Job.from_json(header).policy(), world, ledger)
        ledger.close()
        ledger_file = folder / "ledger.jsonl"
        for path in (self.folder / "home", folder.parent, folder, ledger_file):
            path.chmod(path.stat().st_mode & ~0o077)  # or a command does it, and it counts as new
        return folder


@pytest.fixture
def place(folder: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(folder, capsys)


def play_trials(place: Place, metric: Metric, **fields: Any) -> list[Trial]:
    job = place.job(**fields)
    world, policy = SimWorld(job.rentables, "score", metric, 0), job.policy()
    run(policy, world, MemoryLedger())
    return [trial.trial for trial in policy.trials.values()]


def near_the_best(trials: Sequence[Trial]) -> float:
    """Return the share of learning rates within half a decade of the best."""
    lrs = [math.log10(float(str(trial.config["lr"]))) for trial in trials]
    return sum(abs(lr + 2.0) < 0.5 for lr in lrs) / len(lrs)


def test_the_search_learns_where_configurations_are_good(place: Place) -> None:
    """Of an experiment that names no sampler, in a space where near configurations do alike."""
    trials = play_trials(place, right, strategy="best", trials=80)
    assert near_the_best(trials[:10]) < 0.5
    assert near_the_best(trials[40:]) > 0.6


def test_the_search_avoids_where_trials_fail(place: Place) -> None:
    """Half of the learning rates diverge at once, and all others do alike."""

    def fails(config: Mapping[str, object]) -> bool:
        return float(str(config["lr"])) > 1e-2

    def metric(config: Mapping[str, object], epoch: int) -> float:
        return math.nan if fails(config) else 0.1 * epoch

    failing = 0
    for seed in (8, 9, 10):
        trials = play_trials(place, metric, strategy="best", trials=120, seed=seed)
        failing += sum(fails(trial.config) for trial in trials[20:60])
    assert failing < 45, "60 would by chance"


def begun_like(place: Place, metric: Metric) -> tuple[list[Trial], Experiment]:
    """Return the trials of a run like one whose best rates are near 0.01."""
    place.ran("first-run", strategy="best")
    like = load_experiment(place.experiment(strategy="best"), {"like": "first"})
    sampler = make_sampler(like)
    begun: list[Trial] = []
    while (trial := sampler.ask()) is not None:
        begun.append(trial)
        sampler.tell(trial, 1, metric(trial.config, 1))
    return begun, like


def test_a_run_like_another_begins_with_its_best(place: Place) -> None:
    begun, like = begun_like(place, right)
    assert like.initial == ()
    assert [math.log10(config["lr"]) for config in like.like] == pytest.approx([-2] * 5, abs=0.6)
    assert begun[0].config == like.first_configs[0]
    assert all(config in [trial.config for trial in begun[:10]] for config in like.first_configs)


def test_what_does_not_transfer_costs_one_trial(place: Place) -> None:
    """Where the best of the other run are the worst of this one, others are drawn instead."""
    begun, like = begun_like(place, lambda config, epoch: -right(config, epoch))
    assert len(begun) == TRIALS
    alike = [trial for trial in begun if trial.config in like.first_configs]
    assert alike == begun[:1]


def test_a_strategy_without_the_model_begins_with_all_of_them(place: Place) -> None:
    place.ran("first-run", strategy="best")
    like = load_experiment(place.experiment(strategy="asha"), {"like": "first"})
    sampler = make_sampler(like)
    asked = [trial.config for _ in range(5) if (trial := sampler.ask()) is not None]
    assert asked == list(like.first_configs)


def test_what_the_earlier_run_did_not_search_is_drawn(place: Place) -> None:
    """And what is impossible now, such as most of its rates, is left out."""
    place.ran("first-run")
    search = "{lr: {loguniform: [1e-1, 1]}, momentum: {uniform: [0, 1]}}"
    like = load_experiment(place.experiment(search=search, trials=3), {"like": "first-run"})
    assert 1 <= len(like.like) <= 3
    assert all(set(config) == {"lr"} and config["lr"] >= 0.1 for config in like.like)
    assert all(0 <= config["momentum"] <= 1 for config in like.first_configs)


@pytest.mark.parametrize(
    ("run_name", "search", "words"),
    [
        ("gone", SEARCH, "no run gone in"),
        ("first-run", "{momentum: {uniform: [0, 1]}}", "no trial with a result whose values"),
    ],
)
def test_unlike_run_says_why(place: Place, run_name: str, search: str, words: str) -> None:
    place.ran("first-run")
    path = place.experiment(search=search)
    place("plan", path, "--profile", "train.json", "--like", run_name).refused(words)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("[gone]", "experiment.yaml:8: history[0]: no run gone in"),
        (
            "some",
            "experiment.yaml:8: history: 'some' is not known; write auto, off or a list of runs",
        ),
        ("[]", "experiment.yaml:8: history: the list is empty"),
        ("[a, a]", "experiment.yaml:8: history[1]: 'a' is listed twice"),
        ("[../x]", "experiment.yaml:8: history[0]: '../x' is no name of a run"),
        (
            "{configurations: auto}",
            "experiment.yaml:8: history.configurations: configurations of earlier runs are no",
        ),
    ],
)
def test_mistakes_have_their_line(place: Place, given: str, words: str) -> None:
    place("plan", place.experiment(history=given), "--profile", "train.json").refused(words)


def test_runs_lists_what_there_is(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No run on this machine yet" in place("runs").out
    place.ran("first-run")
    place.ran("tiny", trials=2)
    broken = place.folder / "home" / "runs" / "broken"
    broken.mkdir()
    (broken / "ledger.jsonl").write_text("{")
    for path in (broken, broken / "ledger.jsonl"):
        path.chmod(path.stat().st_mode & ~0o077)
    result = {load["run"]: load for load in json.loads(place("runs", "-o", "json").out)["runs"]}
    assert list(result) == ["broken", "tiny", "first-run"]
    first = result["first-run"]
    assert (first["metric"], first["mode"], first["trials"]) == ("score", "max", 40)
    assert (first["state"], first["strategy"]) == ("done", "asha")
    assert 0.9 < first["best"] <= 1.0
    assert first["dollars"] > 0
    assert first["times"] == {"usable": True, "why_not": None}
    assert "not a ledger" in result["broken"]["times"]["why_not"]
    table = place("runs").out
    for words in ("first-run", "score", "done", "no times: unreadable"):
        assert words in table
    long_name = "a-name-of-forty-letters-0417-153012-ab12"
    place.ran(long_name)
    monkeypatch.setattr("cloudtune.display.terminal._WIDTH", 80)
    lines = place("runs").out.partition("no times:")[0].splitlines()
    assert max(map(len, lines)) <= 80
    for whole in ("first-run", "score", "emulated", "done"):
        assert any(whole in line for line in lines)
    assert "a-name-of-forty-" in lines[-5]
    assert "letters-0417-153012-ab12" in lines[-4], "no letter of a name is lost"
    path = place.experiment()
    result = {
        load["run"]: load for load in json.loads(place("runs", path, "-o", "json").out)["runs"]
    }
    assert "its training was not paced" in result["first-run"]["times"]["why_not"]


def test_a_record_follows_its_ledger(place: Place) -> None:
    folder = place.ran("first-run")
    before = history.load_record(folder)
    assert (folder / history.RECORD).exists()
    ledger = folder / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[: len(lines) // 2]))
    after = history.load_record(folder)
    assert after.ended is None
    assert len(after.trials) <= len(before.trials)
    (folder / history.RECORD).write_text("{")
    assert history.load_record(folder) == after
    [listed] = history.list_runs()
    assert (listed.state, listed.why) == ("died", "it has not ended")
