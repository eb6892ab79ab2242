"""A profile is of what runs: from a change beside the script to what `plan` and `resume` say."""

from dataclasses import replace
from pathlib import Path

import pytest

from cloudtune.api.experiments import load_experiment
from cloudtune.engine.ledger import FileLedger
from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast import make
from cloudtune.forecast.plan_file import load_plan, make_job, save_plan
from cloudtune.forecast.problem import build_problem, stored_profiles
from cloudtune.lifecycle import dry_run
from cloudtune.lifecycle.reporter import Reporter
from cloudtune.lifecycle.resume import resume_job
from cloudtune.model.plans import Limits
from cloudtune.profiles import store
from cloudtune.runs import home, identity
from cloudtune.runs.identity import identify
from cloudtune.runs.job import Job, job_of_ledger
from tests.bench import Done, called, script_profile
from tests.builders.experiments import write_experiment

TEXT = """\
name: small
train: {train}
metric: {{name: score, mode: max}}
search: {{lr: {{loguniform: [1e-4, 1]}}, depth: {depth}}}
trials: 4
epochs: {{min: 1, max: 4}}
strategy: sha
limits: {{deadline: 2h}}
cloud: {{instances: [g4dn.12xlarge], max_instances: 2}}
"""
COMMAND = (
    "python train.py --lr {lr} --depth {depth} --layers 18\n"
    "reports: {printed: 'score (?P<score>[0-9.]+)'}"
)


class Place:
    """A folder with a script, two modules of its own, and a profile of it in the store."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        (folder / "parts").mkdir()
        (folder / "train.py").write_text(
            "def train(config):\n    from parts import model\n    model.net()\n\n"
            "def train_more(config):\n    pass\n"
        )
        (folder / "parts" / "__init__.py").write_text("")
        (folder / "parts" / "model.py").write_text("from .blocks import block as net\n")
        (folder / "parts" / "blocks.py").write_text("def block():\n    pass\n")
        (folder / "unused.py").write_text("x = 1\n")

    def experiment(self, train: str = "train.py:train", depth: object = 18) -> Path:
        return write_experiment(self.folder, TEXT.format(train=train, depth=depth))

    def measured(self, path: Path) -> None:
        """Keep a profile as a measurement of the experiment does."""
        now = identify(load_experiment(path, {}))
        known = replace(script_profile(self.folder / "train.py"), identity=now)
        store.keep(home.home() / "profiles", known)

    def plan(self, path: Path) -> Done:
        return called(self._capsys, "plan", path)


@pytest.fixture
def place(folder: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(folder, capsys)


def test_a_change_that_nothing_imports_is_planned_the_same(place: Place) -> None:
    path = place.experiment()
    place.measured(path)
    (place.folder / "unused.py").write_text("x = 2\n")
    said = place.plan(path)
    assert (said.code, said.err) == (0, "")


def test_what_differs_is_named_and_to_be_measured_again(place: Place) -> None:
    path = place.experiment()
    place.measured(path)
    (place.folder / "parts" / "blocks.py").write_text("def block():\n    return 2\n")
    said = place.plan(place.experiment("train.py:train_more", depth=50)).succeeded()
    assert "never measured" in said.out
    for words in (
        "the profile of g4dn.12xlarge of 2026-11-20 is not used: train: train -> train_more",
        "parts/blocks.py changed",
        "constant depth: 18 -> 50",
        "likely to change speed",
    ):
        assert words in said.err


def test_the_constants_of_a_command_are_part_of_it(place: Place) -> None:
    place.measured(place.experiment(COMMAND))
    assert place.plan(place.experiment(COMMAND)).code == 0
    said = place.plan(place.experiment(COMMAND.replace("18", "50")))
    assert "never measured" in said.out
    assert "command: --layers 18 -> --layers 50" in said.err


@pytest.mark.parametrize(
    ("package", "old", "new", "used"),
    [
        ("cloudtune", "0.3.0", "0.3.1", True),
        ("cloudtune", "0.3.0", "0.4.0", False),
        ("torch", "2.12.0", "2.13.0", False),
    ],
)
def test_versions(
    place: Place, monkeypatch: pytest.MonkeyPatch, package: str, old: str, new: str, *, used: bool
) -> None:
    versions = {"torch": "2.12.0", "cloudtune": "0.3.0", package: old}
    monkeypatch.setattr(identity, "_version", lambda name: versions[name])
    path = place.experiment()
    place.measured(path)
    versions[package] = new
    said = place.plan(path)
    assert ("never measured" in said.out) != used
    assert ("not likely to change speed" in said.err) == used
    shown = old if package == "torch" or used else "0.3"
    assert f"{package} {shown}" in said.err


def test_an_earlier_versions_profile_is_checked_by_the_script(place: Place) -> None:
    path = place.experiment()
    store.keep(home.home() / "profiles", script_profile(place.folder / "train.py"))
    place.plan(path).succeeded()
    wanted = load_experiment(path, {})
    notes = build_problem(wanted, stored_profiles(wanted)).notes
    only = "g4dn.12xlarge: measured by an earlier cloudtune; only the script was compared"
    assert only in notes
    (place.folder / "train.py").write_text("def train(config):\n    return 1\n")
    assert "never measured" in place.plan(path).out


def plan_place(place: Place) -> make.Planned:
    path = place.experiment()
    place.measured(path)
    wanted: Experiment = load_experiment(path, {})
    problem = build_problem(wanted, stored_profiles(wanted))
    return make.make_plan(problem, Limits(7200.0))


def test_changed_module_refuses_saved_plan(place: Place) -> None:
    path = place.folder / "plan.json"
    save_plan(path, plan_place(place))
    assert load_plan(path) is not None
    (place.folder / "parts" / "model.py").write_text("net = print\n")
    with pytest.raises(UsageError, match=r"since this was planned \(.*parts/model.py changed"):
        load_plan(path)


class _CheckedError(Exception):
    """The script is checked next."""


def test_a_changed_script_resumes_only_where_that_is_said(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home.runs() / "small-1"
    folder.mkdir(parents=True)
    job: Job = replace(make_job(plan_place(place), 1e9, paced=False), run="small-1")
    FileLedger(folder / home.LEDGER, job.to_json()).close()
    assert job_of_ledger(folder / home.LEDGER).identity == job.identity

    def checked(*_: object) -> None:
        raise _CheckedError

    monkeypatch.setattr(dry_run, "check_script", checked)
    with pytest.raises(_CheckedError):
        resume_job(folder, Reporter())
    (place.folder / "parts" / "model.py").write_text("net = print\n")
    said = called(capsys, "resume", "small-1").refused("parts/model.py changed since it began")
    assert "cloudtune resume small-1 --changed-script" in " ".join(said.err.split())
    with pytest.raises(_CheckedError):
        resume_job(folder, Reporter(), changed_script=True)
