"""What pip makes of the tree: a wheel, an sdist, an editable install; each with all that there is.

Everything is built from a copy, outside the repository, and without the network.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.architecture.test_pins import find_dependencies
from tests.builders.experiments import write_experiment

pytestmark = pytest.mark.walk("it builds wheels, and checks types without a cache")

ROOT = Path(__file__).parents[2]
LINKED = ("docs", "infra", "planners", "profiles")
TREE = (".package", "cloudtune", *LINKED, "pyproject.toml", "README.md", "LICENSE")
BUILD = "import setuptools.build_meta as b; b.build_{kind}({where!r})"


def run(*command: object, at: Path, home: Path | None = None, path: Path | None = None) -> str:
    """Run a command that must end well, and return what it printed; `path` is for its imports."""
    environment = {**os.environ, "CLOUDTUNE_HOME": str(home or at / "home"), "COLUMNS": "100"}
    environment.pop("PYTHONPATH", None)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=at,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind: str, tree: Path, where: Path) -> Path:
    """Return what setuptools builds of a tree: an sdist, a wheel, an editable wheel."""
    where.mkdir()
    run(sys.executable, "-c", BUILD.format(kind=kind, where=str(where)), at=tree)
    [made] = where.iterdir()
    return made


def read_files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@dataclass
class Built:
    folder: Path
    sdist: Path
    wheel: Path
    editable: Path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """An sdist, a wheel and an editable wheel of a copy of the tree, which stays where it is."""
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"
    tree.mkdir()
    for name in TREE:
        source = ROOT / name
        if source.is_file():
            shutil.copy(source, tree)
            continue
        left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(source, tree / name, symlinks=True, ignore=left_out)
    return Built(
        folder,
        build("sdist", tree, folder / "sdist"),
        build("wheel", tree, folder / "wheel"),
        build("editable", tree, folder / "editable"),
    )


def sources() -> set[str]:
    """Return every file of the package, by its place in it; seen through the links.

    Of docs/ the pages alone: pictures and the programs that write pages stay in the repository.
    """
    files = {
        Path(folder, file).relative_to(ROOT)
        for folder, _, files in os.walk(ROOT / "cloudtune", followlinks=True)
        for file in files
        if not file.endswith(".pyc")
    }
    return {str(file) for file in files if file.parts[1] != "docs" or file.suffix == ".md"}


def test_the_wheel_has_every_file_and_nothing_else(wheels: Built) -> None:
    names = {name for name in read_files(wheels.wheel) if ".dist-info/" not in name}
    assert names == sources()
    assert {"cloudtune/py.typed", "cloudtune/infra/aws/ec2_prices.csv"} <= names
    assert "cloudtune/infra/environments/hashes.txt" in names
    assert {"cloudtune/docs/aws.md", "cloudtune/agent/SKILL.md"} <= names


def test_sdist_makes_the_same_wheel(wheels: Built) -> None:
    with tarfile.open(wheels.sdist) as archive:
        archive.extractall(wheels.folder / "unpacked", filter="data")
    [tree] = (wheels.folder / "unpacked").iterdir()
    package = tree / ".package"
    result = {str(path.relative_to(package)) for path in (package / "cloudtune").rglob("*.*")}
    assert result == sources()
    assert (tree / "LICENSE").exists()
    again = build("wheel", tree, wheels.folder / "again")
    assert read_files(again) == read_files(wheels.wheel)


def test_an_installed_wheel_plans_outside_the_repository(wheels: Built) -> None:
    """The other packages are those of the tests' own environment."""
    site, elsewhere = wheels.folder / "site", wheels.folder / "elsewhere"
    offline = ("--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    pip = (sys.executable, "-m", "pip", "-q", "install", *offline)
    run(*pip, "--target", site, wheels.wheel, at=wheels.folder)
    shutil.copytree(ROOT / "examples" / "digits", elsewhere)
    (elsewhere / "profile.json").unlink()
    where = "import cloudtune.infra.aws as it; print(it.__file__)"
    assert str(site) in run(sys.executable, "-c", where, at=elsewhere, path=site)
    command = site / "bin" / "cloudtune"
    assert "cloudtune, version 0." in run(command, "--version", at=elsewhere, path=site)
    assert "p3.16xlarge" in run(command, "catalog", "--gpu", "v100", at=elsewhere, path=site)
    published = ("--profile", "resnet50-cifar10@v100", "--instances", "p3.8xlarge")
    wide = ("--deadline", "10h", "--budget", "$500")
    planned = run(command, "plan", "experiment.yaml", *published, *wide, at=elsewhere, path=site)
    assert "Plan of digits" in planned
    assert "proven cheapest" in planned


def test_the_wheel_alone_runs_without_extras(wheels: Built) -> None:
    """On the default provider and on this machine's; of other packages it has those it asks for."""
    site, elsewhere = wheels.folder / "base", wheels.folder / "bare"
    python = venv_with(wheels.wheel, site)
    link_requirements(next(site.glob("lib/python*/site-packages")))
    shutil.copytree(ROOT / "examples" / "digits", elsewhere)
    extras = "import importlib.util as u; print([u.find_spec(n) for n in ('plotly', 'uv', 'mypy')])"
    assert run(python, "-c", extras, at=elsewhere) == "[None, None, None]\n"
    write_experiment(elsewhere, QUICK_EXPERIMENT, QUICK)
    command = (python, "-m", "cloudtune")
    assert "Plan of" in run(*command, "plan", "experiment.yaml", at=elsewhere)
    assert "# cloudtune on AWS" in run(*command, "docs", "aws", at=elsewhere)
    for provider in ("emulated", "local"):
        one = ("--instances", "g4dn.xlarge") if provider == "emulated" else ()
        ran = run(
            *command, "run", "experiment.yaml", "--provider", provider, *one, "-q", at=elsewhere
        )
        assert "0 instances left" in ran
    run(*command, "emulator", "stop", at=elsewhere)


QUICK = """
import cloudtune

def train(config):
    for epoch in cloudtune.epochs():
        cloudtune.report({"loss": config["lr"] / epoch})
"""
QUICK_EXPERIMENT = """
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {uniform: [0.1, 1]}}
trials: 2
epochs: {max: 2}
limits: {deadline: 3m}
"""


def link_requirements(site: Path) -> None:
    """Link into an environment what the wheel asks for without extras, as it is installed here."""
    base = [Requirement(line) for line in requires("cloudtune") or ()]
    for name in find_dependencies([line for line in base if line.marker is None]):
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or ()} - {".."}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(installed.locate_file(top))))


USER = """
import cloudtune
from cloudtune.infra.aws.pricing import catalog
from cloudtune.planners.base import PlanRequest
from cloudtune.profiles.store import script_hash

def train(config: dict[str, float]) -> None:
    for epoch in cloudtune.epochs():
        cloudtune.report({"loss": config["lr"] / epoch})

offers = catalog("us-east-1").offers
reveal_type(offers[0].usd_per_hour)
"""
MISTAKES = """
cloudtune.report("loss")
script_hash(1)
catalog(2.0)
PlanRequest()
"""


def test_type_checkers_see_an_editable_install(wheels: Built) -> None:
    """U14: in a user's project, mypy strict knows our types, also through the links."""
    python = venv_with(wheels.editable, wheels.folder / "venv")
    project = wheels.folder / "project"
    (project / "infra").mkdir(parents=True)
    (project / "infra" / "own.py").write_text("SPEED = 1.0\n")
    script = project / "train.py"
    script.write_text(USER + MISTAKES)
    result = types(python, script)
    assert result[0] == 'note: Revealed type is "float"'
    codes = [line.rpartition("[")[2] for line in result[1:]]
    assert codes == ["arg-type]", "arg-type]", "arg-type]", "call-arg]"]


def test_an_editable_install_takes_no_other_name(wheels: Built) -> None:
    """A user's own infra/ or tests/ is found, whatever our repository has beside the package."""
    python = venv_with(wheels.editable, wheels.folder / "plain")
    project = wheels.folder / "own"
    for name in ("infra", "planners", "tests"):
        (project / name).mkdir(parents=True)
        (project / name / "own.py").touch()
    code = "import cloudtune, infra.own, planners.own, tests.own; print(cloudtune.__file__)"
    result = Path(run(python, "-c", code, at=project).strip())
    assert result.resolve() == wheels.folder / "tree" / "cloudtune" / "__init__.py"
    absent = "import importlib.util as u; print([u.find_spec(n) for n in ('profiles', 'examples')])"
    assert run(python, "-c", absent, at=project) == "[None, None]\n"


def venv_with(wheel: Path, folder: Path) -> Path:
    """Return the Python of a new environment that has this wheel alone, without what it needs."""
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return folder / "bin" / "python"


def types(python: Path, script: Path) -> list[str]:
    """Return what mypy strict says of a script in an environment, without places and hints."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-pretty"]
    options = ["--config-file=", f"--python-executable={python}", f"--cache-dir={python.parent}/c"]
    done = subprocess.run(
        [*command, *options, script.name],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (line for line in done.stdout.splitlines() if line.startswith(script.name))
    return [line.split(" ", 1)[1] for line in lines if "See https" not in line]
