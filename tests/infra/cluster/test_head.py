"""What the head tells Ray's autoscaler and the node provider; nothing is started."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from ruamel.yaml import YAML

from cloudtune.errors import CloudtuneError
from cloudtune.infra.cluster.base import Rental
from cloudtune.infra.cluster.head import RayHead, health_checks
from cloudtune.infra.cluster.head_process import HeadProcess
from cloudtune.infra.emulator.provider import make_endpoint
from cloudtune.infra.emulator.service import Emulator
from cloudtune.infra.node.lease import FIRST_MINUTES
from cloudtune.infra.processes import is_running
from cloudtune.infra.provider import Endpoint, find_provider, launch_token
from cloudtune.model.commands import Launch
from tests.bench import python, wait_for
from tests.builders.values import present

SPOT = Launch("i000", "p3.8xlarge", "spot", "us-east-1b")
PLAIN = Launch("i001", "g4dn.xlarge", "on-demand")


@pytest.fixture
def head(tmp_path: Path) -> Iterator[RayHead]:
    rental = Rental(
        run="r1",
        endpoint=Endpoint("us-east-1"),
        gpus={"p3.8xlarge": 4, "g4dn.xlarge": 1},
        lease_seconds=3600.0,
        lease_end=time.time() + 1800.0,
        request={"ImageId": "ami-1", "SubnetId": "subnet-1"},
        tags={"team": "a"},
    )
    made = RayHead(tmp_path, rental)
    yield made
    made.stop()


def read_config(head: RayHead) -> dict[str, Any]:
    return dict(json.loads((head.folder / "autoscaler.json").read_text()))


def test_intents_have_type_market_zone(head: RayHead) -> None:
    head.want(SPOT)
    head.want(PLAIN)
    types = read_config(head)["available_node_types"]
    spot, plain = types["i000"], types["i001"]
    assert (spot["resources"]["GPU"], plain["resources"]["GPU"]) == (4, 1)
    assert spot["node_config"]["InstanceType"] == "p3.8xlarge"
    assert spot["node_config"]["InstanceMarketOptions"]["MarketType"] == "spot"
    assert spot["node_config"]["Placement"] == {"AvailabilityZone": "us-east-1b"}
    assert set(plain["node_config"]) == {"ImageId", "SubnetId", "InstanceType", "UserData"}
    assert "--gpus 4" in spot["node_config"]["UserData"]
    assert f"shutdown -P +{FIRST_MINUTES}\n" in plain["node_config"]["UserData"], "until renewed"
    intents = read_config(head)["provider"]["intents"]
    assert (intents["i000"]["market"], intents["i000"]["zone"]) == ("spot", "us-east-1b")
    assert (intents["i001"]["market"], intents["i001"]["zone"]) == ("on-demand", "")


def test_what_is_given_back_is_wanted_no_more(head: RayHead) -> None:
    head.want(SPOT)
    head.give_back("i000")
    assert read_config(head)["available_node_types"]["i000"]["max_workers"] == 0
    head.want(SPOT)
    assert read_config(head)["available_node_types"]["i000"]["max_workers"] == 0, (
        "an intent is spent"
    )


def test_asked_again_an_intent_is_the_same(head: RayHead, monkeypatch: pytest.MonkeyPatch) -> None:
    head.rental = replace(head.rental, boot_logs="s3://b/r1/boot")
    signed = f"https://b.s3.amazonaws.com/r1/boot/i000.log?{os.urandom(4).hex()}"
    addresses = iter([signed])  # signed again, it differs
    monkeypatch.setattr("cloudtune.infra.cluster.head.upload_address", lambda *_: next(addresses))
    head.want(SPOT)
    before = read_config(head)
    script = before["available_node_types"]["i000"]["node_config"]["UserData"]
    assert f"-T \"$boot_log\" '{signed}'" in script
    later = time.time() + 500.0
    monkeypatch.setattr(time, "time", lambda: later)
    for controller in (head, RayHead(head.folder, head.rental)):
        controller.want(SPOT)
        assert read_config(controller) == before


def test_spot_launch_has_no_maximum_price() -> None:
    launch = Launch("i000", "p3.8xlarge", "spot", "us-east-1b", 0.0123)
    request = find_provider("aws").launch_request(launch, "#!/bin/sh")
    assert "MaxPrice" not in request["InstanceMarketOptions"]["SpotOptions"]
    assert request["Placement"] == {"AvailabilityZone": "us-east-1b"}


def test_tokens_differ_by_all_that_is_asked_for() -> None:
    asked = [
        ("r1", "i000", "p3.8xlarge", "spot", "us-east-1b"),
        ("r1", "i000", "p3.8xlarge", "spot", ""),
        ("r1", "i000", "p3.8xlarge", "on-demand", ""),
        ("r1", "i001", "p3.8xlarge", "on-demand", ""),
    ]
    assert len({launch_token(*item) for item in asked}) == 4
    assert launch_token(*asked[0]) == launch_token(*asked[0])


def test_what_never_joins_is_gone_by_the_deadline(tmp_path: Path) -> None:
    now = time.time()
    rental = Rental("r1", Endpoint("us-east-1"), {}, 3600.0, now + 3600.0, {}, {}, 130.0, now + 125)
    assert rental.leases(now, now + 20.0)[1] == 125.0
    assert rental.leases(now + 120.0, now + 125.0)[1] == 5.0, "to the second"
    assert rental.leases(now - 900.0, now - 700.0)[1] == 200.0, "what the budget pays for"
    assert rental.leases(now - 900.0, now - 880.0)[1] == 130.0, "in any case"
    assert rental.leases(now + 130.0, now + 125.0)[1] == 0.0


def test_ray_reads_paths_literally(tmp_path: Path) -> None:
    """It reads the config as YAML, which doesn't put JSON's two halves of a letter together."""
    folder = tmp_path / "\N{ROCKET}"
    folder.mkdir()
    rental = Rental("r1", Endpoint("us-east-1"), {"g4dn.xlarge": 1}, 60.0, time.time(), {}, {})
    head = RayHead(folder, rental)
    head.want(PLAIN)
    with (folder / "autoscaler.json").open(encoding="utf-8") as file:
        read = YAML(typ="safe", pure=True).load(file)
    assert read["provider"]["journal"] == str(folder / "provider.jsonl")
    head.stop()


def test_damaged_intents_are_reported_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "intents.json").write_text("null")
    rental = Rental("r1", Endpoint("us-east-1"), {}, 60.0, time.time(), {}, {})
    with pytest.raises(CloudtuneError, match=r"intents\.json is damaged.*`cloudtune gc` gives"):
        RayHead(tmp_path, rental)


ASKING_A_DEAD_HEAD = """
import threading, time
from pathlib import Path
import ray
from cloudtune.infra.cluster.base import Rental
from cloudtune.infra.cluster.head import RayHead
from cloudtune.infra.provider import Endpoint
from cloudtune.infra.processes import ProcessGroup

folder = Path("run")
folder.mkdir()
head = RayHead(folder, Rental("r1", Endpoint("us-east-1"), {}, 60.0, time.time(), {}, {}))
head.connect(Path("code"))
ProcessGroup.recorded(folder / "head.json")[0].stop()
asking = threading.Thread(target=lambda: print("nodes", head.nodes(), flush=True))
asking.start()
with head.stand_in() as answers:
    print("answers", answers, flush=True)
    asking.join()
    print("nodes", head.nodes(), flush=True)
    ray.shutdown()  # as a run does: later, it would wait for the head for ten minutes
head.stop()
print("goes on", flush=True)
"""


@pytest.mark.walk("it starts two Ray heads")
def test_listing_nodes_survives_dead_head(tmp_path: Path) -> None:
    """`ray.nodes()` ends its process where another server answers at the head's address."""
    (tmp_path / "code").mkdir()
    done = python(ASKING_A_DEAD_HEAD, cwd=tmp_path, PYTHONPATH=os.pathsep.join(sys.path))
    lines = ["answers True", "goes on", "nodes []", "nodes []"]
    assert sorted(done.stdout.splitlines()) == lines, done.stderr


KILLED_BESIDE_ITS_STAND_IN = """
import os, signal, time
from pathlib import Path
import psutil
from cloudtune.infra.cluster.base import Rental
from cloudtune.infra.cluster.head import RayHead
from cloudtune.infra.provider import Endpoint

folder = Path("run")
folder.mkdir()
head = RayHead(folder, Rental("r1", Endpoint("us-east-1"), {}, 60.0, time.time(), {}, {}))
head.start()
with head.stand_in():
    servers = [child.pid for child in psutil.Process().children() if child.name() == "gcs_server"]
    head.stop()
    print(*servers, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.walk("it starts a Ray head")
def test_replacement_server_ends_with_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_BESIDE_ITS_STAND_IN],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    [server] = map(int, done.stdout.split())
    wait_for(lambda: not is_alive(server), seconds=30)


A_CONTROLLER = """
import json, sys, time
from pathlib import Path
from cloudtune.infra.cluster.base import Rental
from cloudtune.infra.cluster.head import RayHead
from cloudtune.infra.provider import Endpoint

endpoint = Endpoint(**json.loads(sys.argv[1]))
RayHead(Path("."), Rental("r1", endpoint, {}, 60.0, time.time(), {}, {})).start()
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.walk("it starts a Ray head")
def test_a_head_without_controller_and_instances_ends_itself(
    emulator: Emulator, tmp_path: Path
) -> None:
    endpoint = json.dumps(asdict(make_endpoint(emulator.access)))
    with subprocess.Popen(
        [sys.executable, "-c", A_CONTROLLER, endpoint],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == "started\n"
        head = present(HeadProcess.recorded(tmp_path))
        assert head.group.alive()
        controller.kill()
    wait_for(lambda: not (tmp_path / "head.json").exists(), seconds=60)
    assert not head.group.members_alive()
    assert not head.temp.exists()


def is_alive(pid: int) -> bool:
    try:
        return is_running(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def test_ray_declares_silent_machines_lost() -> None:
    from ray._raylet import Config  # type: ignore[attr-defined]

    Config.initialize("")
    own = {
        f"RAY_{name}": str(getattr(Config, name)())
        for name in (
            "health_check_initial_delay_ms",
            "health_check_period_ms",
            "health_check_timeout_ms",
            "health_check_failure_threshold",
        )
    }
    assert health_checks(Endpoint("us-east-1").silent_seconds) == own
    assert health_checks(10.0)["RAY_health_check_timeout_ms"] == "2000"
