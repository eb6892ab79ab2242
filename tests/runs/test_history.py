"""From `history` in an experiment file to the configurations that a simulated run tries."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from cloudtune.api.experiments import load_experiment
from cloudtune.engine.ledger import FileLedger, MemoryLedger, read_entries
from cloudtune.engine.loop import run
from cloudtune.engine.resume import replayed
from cloudtune.engine.simulator import SimWorld
from cloudtune.model.plans import Limits
from cloudtune.planning import make
from cloudtune.planning.plan_file import job_of
from cloudtune.planning.problem import problem_of, stored_profiles
from cloudtune.profiles.store import write
from cloudtune.runs import history
from cloudtune.runs.job import Job, job_of_ledger
from cloudtune.runs.report import simulate as simulate_job
from cloudtune.strategies.samplers.past_runs import AT_FIRST
from tests.bench import Done, called
from tests.cli.test_plan import profile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from cloudtune.model.scaling import ScalingProfile
    from cloudtune.model.trial import Trial

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
cloud: {{provider: {provider}, instances: [{machines}], max_instances: 2}}
seed: {seed}
"""


def right(config: Mapping[str, object], epoch: int) -> float:
    """Return a metric that is best near a learning rate of 0.01."""
    lr = config["lr"]
    assert isinstance(lr, float)
    return math.exp(-((math.log10(lr) + 2.0) ** 2)) * (1 - 0.5**epoch)


def wrong(config: Mapping[str, object], epoch: int) -> float:
    return -right(config, epoch)


class Place:
    """A folder with a script and experiments, and a home with runs."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        (folder / "train.py").write_text("def train(config):\n    pass\n")
        (folder / "other.py").write_text("def train(config):\n    return 1\n")
        machine = [profile(folder / "train.py"), profile(folder / "other.py")]
        for each, name in zip(machine, ("train", "other"), strict=True):
            write(folder / f"{name}.json", [each])

    def __call__(self, *arguments: object) -> Done:
        return called(self._capsys, *arguments)

    def experiment(self, **fields: object) -> Path:
        given = {
            "name": "small",
            "train": "train.py:train",
            "search": SEARCH,
            "trials": TRIALS,
            "strategy": "asha",
            "history": "auto",
            "seed": 1,
            "provider": "emulated",
            "machines": "g4dn.12xlarge",
        }
        path = self.folder / "experiment.yaml"
        path.write_text(TEXT.format(**{**given, **fields}))
        return path

    def job(self, script: str = "train", **fields: object) -> Job:
        wanted = load_experiment(self.experiment(**fields), {})
        profiles = stored_profiles(wanted, str(self.folder / f"{script}.json"))
        planned = make.make_plan(problem_of(wanted, profiles), Limits(7200.0, 40.0), runs=1)
        return job_of(planned, 1e9, paced=False)

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
        fields = {"seed": 7, "history": "off", "trials": 40, **fields}
        job = self.job(script, train=f"{script}.py:train", **fields)
        folder = self.folder / "home" / "runs" / run_name
        folder.mkdir(parents=True)
        header = {**job.to_json(), "run": run_name, "began": began, "paced": paced}
        real = [replace(each, profile=really(each.profile)) for each in job.rentables]
        world = SimWorld(real, "score", metric, 0)
        ledger = FileLedger(folder / "ledger.jsonl", header)
        run(Job.from_json(header).policy(), world, ledger)
        ledger.close()
        ledger_file = folder / "ledger.jsonl"
        for path in (self.folder / "home", folder.parent, folder, ledger_file):
            path.chmod(path.stat().st_mode & ~0o077)  # or a command does it, and it counts as new
        return folder

    def tried(self, *options: object, **fields: object) -> list[dict[str, Any]]:
        """Return the trials of a simulated run, in the order of their names."""
        path = self.experiment(**fields)
        done = self("simulate", path, "--profile", "train.json", "-o", "json", *options)
        assert done.code == 0, done.err
        found: list[dict[str, Any]] = json.loads(done.out)["trials"]
        return sorted(found, key=lambda trial: trial["trial"])


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Place:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path, capsys)


def named(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [trial for trial in trials if trial["origin"] and trial["origin"]["run"]]


@pytest.mark.parametrize("strategy", ["asha", "sha", "random", "bohb", "seer", "pbt"])
def test_an_earlier_run_names_configurations(place: Place, strategy: str) -> None:
    cold = trials_played(place, right, strategy=strategy, trials=40)
    assert all(trial.origin is None for trial in cold)
    place.ran("first-run")
    warm = trials_played(place, right, strategy=strategy, trials=40, history="[first-run]")
    found = [trial for trial in warm if trial.origin is not None and trial.origin.run]
    assert {trial.origin.run for trial in found if trial.origin} == {"first-run"}
    assert len(found) >= len(warm) // 8
    good = [math.log10(float(str(trial.config["lr"]))) for trial in found]
    assert all(-3.0 < lr < -1.0 for lr in good), "the best of there is tried here"
    plain = [trial.config for trial in warm if trial not in found]
    if strategy not in {"bohb", "pbt", "seer"}:  # they go by results, and by whom they clone
        assert plain == [trial.config for trial in cold[: len(plain)]], "the rest is as ever"


def test_auto_takes_what_fits_and_off_takes_nothing(place: Place) -> None:
    cold = place.tried(strategy="sha")
    place.ran("first-run")
    assert named(place.tried(strategy="sha"))
    assert place.tried(strategy="sha", history="off") == cold
    assert place.tried("--history", "off", strategy="sha") == cold
    assert named(place.tried("--history", "first-run", strategy="sha", history="off"))


def test_grids_are_gone_through_in_another_order(place: Place) -> None:
    """None of their values is left out, whoever is asked."""
    grid = "{lr: {grid: [0.0001, 0.001, 0.01, 0.1, 1]}, layers: {grid: [1, 2, 3]}}"
    cold = place.tried(search=grid, strategy="grid")
    place.ran("first-run")
    warm = place.tried(search=grid, strategy="grid")
    assert named(warm)

    def key(trial: dict[str, Any]) -> tuple[float, int]:
        return (trial["config"]["lr"], trial["config"]["layers"])

    assert sorted(map(key, warm)) == sorted(map(key, cold))
    assert [key(trial) for trial in warm] != [key(trial) for trial in cold]


def test_no_configuration_is_named_twice(place: Place) -> None:
    few = "{lr: {choice: [0.0001, 0.001, 0.01, 0.1]}, layers: {choice: [1, 2, 3]}}"
    place.ran("first-run")
    found = [
        tuple(trial["config"].values()) for trial in named(place.tried(search=few, strategy="sha"))
    ]
    assert len(set(found)) == len(found) > 1


def trials_played(place: Place, metric: Metric, **fields: Any) -> list[Trial]:
    """Return the trials of an experiment that was played with such a metric."""
    job = place.job(**fields)
    world, policy = SimWorld(job.rentables, "score", metric, 0), job.policy()
    run(policy, world, MemoryLedger())
    return [trial.trial for trial in policy.trials.values()]


def played(place: Place, metric: Metric, **fields: Any) -> list[tuple[str, float]]:
    """Return who named each trial, and the trust at that time, in a world of such a metric."""
    origins = [trial.origin for trial in trials_played(place, metric, **fields)]
    return [(each.run, each.trust) for each in origins if each is not None]


def chance(config: Mapping[str, object], epoch: int) -> float:
    """Return a metric that no hyperparameter says anything of."""
    return Random(f"{config['lr']}").random() * (1 - 0.5**epoch)


def near_the_best(trials: Sequence[Trial]) -> float:
    """Return the share of learning rates within half a decade of the best."""
    lrs = [math.log10(float(str(trial.config["lr"]))) for trial in trials]
    return sum(abs(lr + 2.0) < 0.5 for lr in lrs) / len(lrs)


def test_the_search_learns_where_configurations_are_good(place: Place) -> None:
    """Of an experiment that names no sampler, in a space where near configurations do alike."""
    trials = trials_played(place, right, strategy="best", trials=80, history="off")
    assert near_the_best(trials[:10]) < 0.5
    assert near_the_best(trials[40:]) > 0.6


def test_without_skill_configurations_are_drawn_at_random(place: Place) -> None:
    fields = {"trials": 80, "history": "off"}
    trials = trials_played(place, chance, strategy="best", **fields)
    at_random = trials_played(place, chance, strategy="{name: best, sampler: random}", **fields)
    same = {str(trial.config) for trial in trials} & {str(trial.config) for trial in at_random}
    assert len(same) > 0.9 * len(trials)


def test_trust_follows_what_comes_of_it(place: Place) -> None:
    place.ran("first-run")
    good = played(place, right, trials=60)
    bad = played(place, wrong, trials=60)
    assert good[0][1] == bad[0][1] == AT_FIRST
    assert good[-1][1] > 0.7
    assert bad[-1][1] == 0.0
    count = {name: sum(run == "first-run" for run, _ in of) for name, of in
             (("good", good), ("bad", bad))}  # fmt: skip
    assert count["good"] > 30
    assert count["bad"] < 12


def test_the_run_that_foretells_best_is_asked(place: Place) -> None:
    place.ran("misled", wrong)
    place.ran("sound", right)
    found = played(place, right, trials=60, history="[misled, sound]")
    later = [name for name, _ in found[30:] if name]
    assert later.count("sound") > 0.8 * len(later) > 0


def test_a_run_is_done_again_equally_when_the_earlier_one_is_gone(place: Place) -> None:
    earlier = place.ran("first-run")
    folder = place.ran("second-run", seed=3, history="[first-run]", strategy="asha")
    ledger = folder / "ledger.jsonl"
    shutil.rmtree(earlier)
    job, entries = job_of_ledger(ledger), list(read_entries(ledger))
    assert [past.run for past in job.past] == ["first-run"]
    replayed(job.policy(), entries)
    assert named(json.loads(place("report", "second-run", "-o", "json").out)["trials"])


def test_a_saved_plan_carries_it_too(place: Place) -> None:
    place.ran("first-run")
    path = place.experiment(strategy="sha")
    assert place("plan", path, "--profile", "train.json", "--save", "plan.json").code == 0
    shutil.rmtree(place.folder / "home" / "runs")
    saved = json.loads((place.folder / "plan.json").read_text())
    found = simulate_job(Job.from_json(saved))
    origins = [trial.trial.origin for trial in found.policy.trials.values()]
    assert any(origin is not None and origin.run == "first-run" for origin in origins)


def test_another_script_counts_if_it_has_half_of_the_parameters(place: Place) -> None:
    place.ran(
        "cousin", script="other", search="{lr: {loguniform: [1e-3, 3]}, wd: {uniform: [0, 1]}}"
    )
    assert named(place.tried(strategy="sha"))
    shutil.rmtree(place.folder / "home" / "runs")
    place.ran(
        "stranger",
        script="other",
        search="{layers: {randint: [90, 99]}, b: {uniform: [0, 1]}, lr: {uniform: [20, 30]}}",
    )
    assert not named(place.tried())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"name": "x", "search": "{lr: {loguniform: [50, 90]}}"}, "none of the parameters"),
        ({"trials": 2}, "fewer than 4 of its trials"),
    ],
)
def test_a_run_that_is_named_in_vain(place: Place, fields: dict[str, Any], why: str) -> None:
    place.ran("first-run", **fields)
    done = place("plan", place.experiment(history="[first-run]"), "--profile", "train.json")
    assert done.code == 2
    assert "experiment.yaml:8: history[0]: run first-run has nothing to tell" in done.err
    assert why in done.err
    done = place("plan", place.experiment(), "--history", "first-run", "--profile", "train.json")
    assert "--history: run first-run has nothing to tell" in done.err


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
    ],
)
def test_mistakes_have_their_line(place: Place, given: str, words: str) -> None:
    done = place("plan", place.experiment(history=given), "--profile", "train.json")
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_another_metric_is_another_question(place: Place) -> None:
    place.ran("first-run")
    path = place.experiment(history="[first-run]")
    path.write_text(path.read_text().replace("mode: max", "mode: min"))
    done = place("plan", path, "--profile", "train.json")
    assert "its metric is score (max), not score (min)" in done.err
    path.write_text(path.read_text().replace("[first-run]", "auto"))
    assert place("plan", path, "--profile", "train.json").code == 0


def test_plan_and_report_say_who_had_a_say(place: Place) -> None:
    place.ran("first-run")
    path = place.experiment(strategy="sha")
    said = place("plan", path, "--profile", "train.json").out
    assert "first-run (40 trials)" in said
    assert "(--history off)" in said
    told = place("simulate", path, "--profile", "train.json").out
    assert f"of {TRIALS} configurations came from first-run (trust 0.3)" in told


def test_runs_lists_what_there_is(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No run on this machine yet" in place("runs").out
    place.ran("first-run")
    place.ran("tiny", trials=2)
    broken = place.folder / "home" / "runs" / "broken"
    broken.mkdir()
    (broken / "ledger.jsonl").write_text("{")
    for path in (broken, broken / "ledger.jsonl"):
        path.chmod(path.stat().st_mode & ~0o077)
    told = {each["run"]: each for each in json.loads(place("runs", "-o", "json").out)}
    assert list(told) == ["broken", "tiny", "first-run"]
    first = told["first-run"]
    assert (first["metric"], first["mode"], first["trials"]) == ("score", "max", 40)
    assert (first["state"], first["strategy"]) == ("done", "asha")
    assert 0.9 < first["best"] <= 1.0
    assert first["dollars"] > 0
    assert first["history"] == first["times"] == {"usable": True, "why_not": None}
    assert told["tiny"]["times"]["usable"]
    assert not told["tiny"]["history"]["usable"]
    assert "not a ledger" in told["broken"]["history"]["why_not"]
    table = place("runs").out
    for words in ("first-run", "score", "done", "history: times, fewer than 4"):
        assert words in table
    long_name = "a-name-of-forty-letters-0417-153012-ab12"
    place.ran(long_name)
    monkeypatch.setattr("cloudtune.display.terminal._WIDTH", 80)
    lines = place("runs").out.partition("history:")[0].splitlines()
    assert max(map(len, lines)) <= 80
    for whole in ("first-run", "score", "emulated", "done"):
        assert any(whole in line for line in lines)
    assert "a-name-of-forty-" in lines[-5]
    assert "letters-0417-153012-ab12" in lines[-4], "no letter of a name is lost"
    path = place.experiment(search="{other: {uniform: [0, 1]}}")
    told = {each["run"]: each for each in json.loads(place("runs", path, "-o", "json").out)}
    assert "none of the parameters" in told["first-run"]["history"]["why_not"]


def test_a_record_follows_its_ledger(place: Place) -> None:
    folder = place.ran("first-run")
    before = history.recorded(folder)
    assert (folder / history.RECORD).exists()
    ledger = folder / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[: len(lines) // 2]))
    after = history.recorded(folder)
    assert after.ended is None
    assert len(after.trials) <= len(before.trials)
    (folder / history.RECORD).write_text("{")
    assert history.recorded(folder) == after
    [listed] = history.listed()
    assert (listed.state, listed.why) == ("died", "it has not ended")


def test_what_is_kept_of_a_run_is_small() -> None:
    trials = tuple(
        history.TrialRecord({"lr": 1.0 / n}, {1: float(n % 997)}) for n in range(1, 2001)
    )
    record = history.RunRecord(
        "r",
        0.0,
        "t.py",
        "train",
        "",
        "asha",
        "score",
        "max",
        1.0,
        1.0,
        1.0,
        "done",
        False,
        0,
        trials,
    )
    kept = record.past().trials
    assert len(kept) == history.MOST_TRIALS
    found = [trial.score for trial in kept]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.99 > 0.02 > found[-1], "from the best to the worst"
