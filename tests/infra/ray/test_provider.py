"""A real Ray cluster as a cloud: what it offers, what is reserved on it, and what ends that."""

import io
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console

from cloudtune.display.plan_screen import show_head
from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast.make import make_plan
from cloudtune.forecast.problem import build_problem
from cloudtune.forecast.proposal import propose
from cloudtune.infra.provider import INTENT_TAG, LEASE_TAG, RUN_TAG, Calls, calls_to
from cloudtune.infra.ray import calls as ray_calls
from cloudtune.infra.ray.provider import RAY
from cloudtune.model.commands import Launch
from cloudtune.model.plans import Limits
from cloudtune.runs import control, home
from tests.bench import called, wait_for
from tests.builders.experiments import FIELDS
from tests.builders.proposals import speed
from tests.contracts.provider import ProviderContract
from tests.ray_cluster import NOTHING, SomebodysCluster, cluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def somebodys(leaves_nothing: None) -> Iterator[SomebodysCluster]:
    with (
        tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as folder,
        cluster(Path(folder), nodes=1) as started,
    ):
        yield started


@pytest.fixture(autouse=True)
def _found(somebodys: SomebodysCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in somebodys.environment.items():
        monkeypatch.setenv(name, value)
    yield
    assert somebodys.left() == NOTHING


class TestRay(ProviderContract):
    name = "ray"
    refusals: ClassVar = {"NoRoomError": "capacity", "NoStartError": "unknown"}


def experiment(**cloud: object) -> Experiment:
    return Experiment(**{**FIELDS, "cloud": {"provider": "ray", **cloud}})


def reserve(tmp_path: Path, **request: object) -> tuple[Calls, str]:
    """Reserve the node for a run; returns what asks its cloud, and the instance."""
    cloud = RAY.open(experiment(), tmp_path, pace=False)
    asked = RAY.launch_request(Launch("i000", "2x-gpu", "on-demand"), "")
    calls = calls_to(cloud.endpoint)
    run = f"a-run-{time.monotonic_ns()}"
    tags = {RUN_TAG: run, INTENT_TAG: "i000", LEASE_TAG: "2050-01-01T00:00:00Z"}
    return calls, calls.run_instance("", tags, {**cloud.request, **asked, **request})


def test_standing_fleet_is_planned_with_its_count() -> None:
    whole = RAY.with_account_defaults(experiment(prices={"2x-gpu": "$12/h"}))
    assert whole.cloud.address == whole.cloud.region == os.environ["RAY_ADDRESS"]
    assert whole.cloud.max_instances == 1
    half = RAY.with_account_defaults(experiment(prices={"2x-gpu": 12}, slots=1, max_instances=9))
    assert half.cloud.max_instances == 2
    (offer,) = RAY.catalog(half.cloud, ("on-demand",), Path()).offers
    assert (offer.gpus, offer.usd_per_hour) == (1, 6.0)


def test_a_plan_says_how_many_gpus_are_free(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(config, epochs):\n    yield {'loss': 0.0}\n")
    asked = RAY.with_account_defaults(experiment()).model_copy(update={"directory": tmp_path})
    assert RAY.capacity(asked.cloud) == {"2x-gpu": 1}
    wait_for(lambda: not RAY.occupancy(asked.cloud), 30)  # earlier tests gave theirs back
    calls, instance = reserve(tmp_path)
    wait_for(lambda: bool(RAY.occupancy(asked.cloud)), 30)
    planned = make_plan(build_problem(asked, [speed("2x-gpu", 10.0)]), Limits(3600.0))
    file = io.StringIO()
    show_head(Console(file=file, width=100, highlight=False), propose(planned, others="none"))
    calls.terminate([instance])
    assert "kept in 100 %" in file.getvalue()
    assert "0 of the cluster's 2 GPUs free now: the plan counts on all" in file.getvalue()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ray://127.0.0.1:10001", "run cloudtune on a node of the cluster"),
        ("127.0.0.1:1", "no Ray cluster answers at"),
    ],
)
def test_an_address_without_a_cluster_is_refused(address: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        RAY.with_account_defaults(experiment(address=address))


def test_another_python_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    real = platform.python_version()
    monkeypatch.setattr(platform, "python_version", lambda: "3.9.1")
    with pytest.raises(UsageError, match=f"has Ray .* and Python {real}, and .* Python 3.9.1;"):
        RAY.with_account_defaults(experiment())


def test_what_is_not_renewed_gives_its_gpus_back(tmp_path: Path) -> None:
    calls, instance = reserve(tmp_path, first=time.time() + 1.0)
    assert [it.id for it in calls.ours(ended=False)] == [instance]
    wait_for(lambda: not calls.ours(ended=False), 30)


def test_the_named_type_is_reserved(somebodys: SomebodysCluster, tmp_path: Path) -> None:
    labels = (f"--labels=ray.io/node-group={group}" for group in ("large", "small"))
    own = [somebodys.start(f"--address={somebodys.address}", "--num-gpus=2", it) for it in labels]
    somebodys.wait_for_nodes(3)
    calls, instance = reserve(tmp_path, instance_type="large")
    (large,) = calls.ours(ended=False)
    assert (large.id, large.instance_type) == (instance, "large")
    with pytest.raises(ray_calls.NoRoomError):
        reserve(tmp_path, instance_type="large")
    _, small = reserve(tmp_path, instance_type="small")
    calls.terminate([instance, small])
    assert somebodys.left() == NOTHING
    for node in own:
        node.stop(grace=0.1)
    somebodys.wait_for_nodes(1)


def test_gc_gives_back_what_a_dead_controller_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path))
    calls, instance = reserve(tmp_path)
    (left,) = calls.ours(ended=False)
    where = {"provider": "ray", "region": os.environ["RAY_ADDRESS"]}
    (home.runs() / left.run).mkdir(parents=True)
    with control.driving(home.runs() / left.run, where):
        pass
    assert instance in called(capsys, "status").out
    called(capsys, "gc").succeeded(instance)
    assert not calls.ours(ended=False)


def test_missing_python_is_one_sentence(
    somebodys: SomebodysCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test: Ray holds the GPUs for another minute, for the process that doesn't come."""
    monkeypatch.setattr(ray_calls, "_START_SECONDS", 1.0)
    code = {"py_executable": "/no/such/python"}
    with (
        ray_calls.driver(somebodys.address, code),
        pytest.raises(ray_calls.NoStartError, match="has it /no/such/python, with Ray"),
    ):
        reserve(tmp_path, code=code)
