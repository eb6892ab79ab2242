"""Each cloud keeps the contract; and one more is a module and a line."""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from cloudtune.cli.options import experiment_options
from cloudtune.cli.profile import confirm_rental
from cloudtune.errors import ExperimentError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast import make
from cloudtune.forecast.problem import build_problem
from cloudtune.infra.emulator.service import Emulator
from cloudtune.infra.provider import find_provider
from cloudtune.lifecycle import cleanup, runner
from cloudtune.model.events import RefusalKind
from cloudtune.model.plans import Limits
from cloudtune.model.providers import PROVIDERS, Registered
from tests import made_up_cloud
from tests.aws_stand_in.account import found_by_boto3
from tests.builders import profile
from tests.builders.experiments import write_experiment
from tests.contracts.provider import ProviderContract

ROOT = Path(__file__).parents[2]
EC2_REFUSALS: dict[str, RefusalKind] = {
    "InsufficientInstanceCapacity": "capacity",
    "VcpuLimitExceeded": "quota",
    "RequestLimitExceeded": "busy",
    "UnauthorizedOperation": "denied",
    "InvalidAMIID.NotFound": "unknown",
}


class TestEmulated(ProviderContract):
    name = "emulated"
    refusals = EC2_REFUSALS


class TestLocal(ProviderContract):
    name = "local"
    cloud: ClassVar = {"slots": 2}
    refusals = EC2_REFUSALS


class TestAws(ProviderContract):
    """EC2's calls go to an emulator; live prices can't be had there, so they are the table's."""

    name = "aws"
    cloud: ClassVar = {"image": "ami-0c1000000000emul8"}
    more: ClassVar = {"storage": "s3://bucket/prefix"}
    incomplete = ({"cloud": {"provider": "aws"}}, {"storage": "~/here"})
    refusals = EC2_REFUSALS

    @pytest.fixture(autouse=True)
    def _answered_by_an_emulator(self, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
        found_by_boto3(emulator.access, monkeypatch)


@pytest.fixture
def moon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    line = Registered("tests.made_up_cloud:MOON", defaults={"instances": ("rover",)})
    monkeypatch.setitem(PROVIDERS.core, "moon", line)
    yield
    made_up_cloud.MOON.rented.clear()


@pytest.mark.usefixtures("moon")
class TestMoon(ProviderContract):
    name = "moon"
    cloud: ClassVar = {"region": "tranquility"}
    incomplete = ({"cloud": {"provider": "moon", "image": "cheese"}},)
    refusals: ClassVar = {"NewMoon": "capacity", "FullMoon": "quota"}


def list_types(name: str) -> Collection[str]:
    return find_provider(name).known_types()


EXPERIMENT = """\
name: digits
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {loguniform: [1e-4, 1]}}
trials: 4
epochs: {min: 1, max: 4}
cloud: {provider: moon, region: tranquility, max_instances: 2}
"""


@pytest.mark.usefixtures("moon")
def test_an_added_cloud_is_a_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    path = write_experiment(tmp_path, EXPERIMENT)
    experiment = Experiment.load(path, known_instances=list_types)
    problem = build_problem(experiment, [profile({1.0: 10.0}, name="rover")])
    planned = make.make_plan(problem, Limits(3600.0, None))
    assert [offer.instance_type.name for offer in planned.plan.offers] == ["rover"]
    with pytest.raises(UsageError, match="renting from the Moon needs confirmation"):
        confirm_rental(experiment, None, yes=False)
    assert runner.open_cloud(experiment, pace=True).endpoint.region == "tranquility"
    assert "tranquility" in {cloud.endpoint.region for cloud in cleanup.open_clouds("tranquility")}
    with pytest.raises(ExperimentError, match="'lander' is not an instance type known here"):
        Experiment.load(path, {"cloud.instances": ["lander"]}, known_instances=list_types)
    with pytest.raises(ExperimentError, match="is only for provider local"):
        Experiment.load(path.rename(tmp_path / "it.yaml"), {"cloud.slots": 2, "cloud.price": None})


def test_the_option_offers_every_cloud_there_is() -> None:
    command = experiment_options(lambda: None)
    (option,) = [item for item in command.__click_params__ if item.name == "provider"]  # type: ignore[attr-defined]
    assert list(option.type.choices) == list(PROVIDERS)


def test_only_a_cloud_itself_looks_at_its_name() -> None:
    files = [
        path
        for folder in ("cloudtune", "planners", "infra", "profiles", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(part.is_symlink() for part in path.parents)
    ]
    own = {line.implementation.partition(":")[0].replace(".", "/") for line in PROVIDERS.values()}
    others = {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for path in files
        if f"cloudtune/{path.relative_to(ROOT).with_suffix('')}" not in own
    }
    assert len(files) - len(others) == len(PROVIDERS)
    result = {name for name, tree in others.items() if any(map(looks_at_a_name, ast.walk(tree)))}
    packages = {"infra/environments/spec.py", "benchmarks/gpu/resizing.py"}  # ray is one
    file_systems = {"cloudtune/train/storage.py"}  # pyarrow calls one local
    assert result == packages | file_systems


def looks_at_a_name(node: ast.AST) -> bool:
    """Whether an expression compares with a cloud's name, or a `provider` with anything."""
    match node:
        case ast.Compare():
            sides = [item for side in (node.left, *node.comparators) for item in ast.walk(side)]
        case ast.MatchValue():
            sides = [node.value]
        case ast.Match():
            sides = [node.subject]
        case _:
            return False
    return any(
        (isinstance(item, ast.Constant) and item.value in list(PROVIDERS))
        or (isinstance(item, ast.Attribute) and item.attr == "provider")
        for item in sides
    )
