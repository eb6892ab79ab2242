"""What another package adds is found by its entry points, as the papers are."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits"

MODULE = """
from cloudtune.model.providers import Registered
from cloudtune.policy.entries import AllocatorEntry, StrategyEntry
from cloudtune.strategies.allocators.same import SameWidth
from cloudtune.strategies.random_search import RandomSearch
from cloudtune.strategies.samplers.sampler import SpaceSampler


class Brief(RandomSearch):
    name = "brief"


def sampler(space, *, mode, seed, most):
    print("sampled by ours")
    return SpaceSampler(space, mode=mode, seed=seed, most=most)


BRIEF = StrategyEntry(lambda _context, sampler: Brief(sampler, max_epochs=8), origin="ours alone")
PAIRS = AllocatorEntry(lambda _context: SameWidth(2.0, "pairs"))
MOON = Registered("brief_package:MOON")
"""
ENTRY_POINTS = """
[cloudtune.strategies]
brief = brief_package:BRIEF
sha = brief_package:BRIEF
broken = no_such_package:BRIEF
odd = brief_package:PAIRS

[cloudtune.allocators]
pairs = brief_package:PAIRS

[cloudtune.samplers]
ours = brief_package:sampler

[cloudtune.providers]
moon = brief_package:MOON
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a package, as pip would leave it."""
    about = tmp_path / "site" / "brief_package-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: brief-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    (about.parent / "brief_package.py").write_text(MODULE)
    return about.parent


def run_command(site: Path, *words: str, strategy: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that finds the package, on an experiment with a strategy."""
    folder = site.parent
    for name in ("train.py", "profile.json"):
        (folder / name).write_bytes((DIGITS / name).read_bytes())
    text = (DIGITS / "experiment.yaml").read_text("utf-8")
    (folder / "experiment.yaml").write_text(text.replace("strategy: sha", f"strategy: {strategy}"))
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "cloudtune", *words],
        cwd=folder,
        env={**os.environ, "CLOUDTUNE_HOME": str(folder / "home"), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_package_strategy_and_allocator_are_planned(site: Path) -> None:
    chosen = "{name: brief, allocator: pairs, sampler: ours}"
    done = run_command(site, "plan", "experiment.yaml", "-o", "json", strategy=chosen)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plan"]
    assert (plan["strategy"], plan["allocator"]) == ("brief", "pairs")


def test_package_strategy_works_on_command_line(site: Path) -> None:
    words = ("plan", "experiment.yaml", "--strategy", "brief")
    done = run_command(site, *words, strategy="asha")
    assert done.returncode == 0, done.stderr
    assert "ours alone" in done.stdout


def test_a_sampler_of_a_package_gives_the_trials(site: Path) -> None:
    code = (
        "from cloudtune.experiment import Experiment\n"
        "from cloudtune.runs.job import make_sampler\n"
        "sampler = make_sampler(Experiment.load('experiment.yaml'))\n"
        "print(sampler.ask().id)\n"
    )
    run_command(site, "--version", strategy="{name: brief, sampler: ours}")
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n")[:2] == ["sampled by ours", "t00"], done.stderr


def test_a_provider_of_a_package_is_an_option(site: Path) -> None:
    done = run_command(site, "plan", "experiment.yaml", "--provider", "venus", strategy="asha")
    assert "'venus' is not one of" in done.stderr
    done = run_command(site, "plan", "experiment.yaml", "--provider", "moon", strategy="asha")
    assert "is not one of" not in done.stderr


def test_a_package_that_cant_be_imported_is_named(site: Path) -> None:
    done = run_command(site, "plan", "experiment.yaml", strategy="broken")
    assert done.returncode == 2
    assert "brief-package adds 'broken' to cloudtune.strategies" in done.stderr
    assert "no_such_package" in done.stderr


def test_a_name_of_another_kind_is_named(site: Path) -> None:
    done = run_command(site, "plan", "experiment.yaml", strategy="odd")
    assert done.returncode == 2
    assert "but brief_package:PAIRS is of type AllocatorEntry, not StrategyEntry" in done.stderr


def test_a_name_of_the_core_stays_the_cores(site: Path) -> None:
    done = run_command(site, "plan", "experiment.yaml", strategy="sha")
    assert done.returncode == 0, done.stderr
    assert "ours alone" not in done.stdout


def test_the_metadata_are_those_of_this_checkout() -> None:
    """An install, or what `make metadata` writes, knows all names that pyproject.toml adds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for group, names in project["entry-points"].items():
        known = {point.name: point.value for point in entry_points(group=group)}
        assert names.items() <= known.items(), "run `make setup`, or `make metadata` in a worktree"
