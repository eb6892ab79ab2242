"""A run's Ray lets in no caller without the run's token, and is heard on the loopback only.

One head with a node and a driver, all as in a run on the emulated cloud, but for the instance.
"""

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from cloudtune.infra.cluster.base import Rental
from cloudtune.infra.cluster.head import RayHead
from cloudtune.infra.emulator.provider import make_endpoint
from cloudtune.infra.emulator.service import Emulator
from cloudtune.infra.node.boot import Join, node_environment, ray_command
from cloudtune.infra.node.ray_access import TOKEN_FILE, TOKEN_VARIABLE, read_token
from cloudtune.infra.processes import ProcessGroup, is_running
from tests.bench import python
from tests.builders.values import present
from tests.strangers import answers, as_another_user, other_addresses

pytestmark = pytest.mark.usefixtures("leaves_nothing")  # of a cluster that is up meanwhile

LOOPBACK = "127.0.0.1"

DRIVER = """
import sys
from cloudtune.infra.node.ray_access import join_as_driver
address, token = sys.argv[1:]
join_as_driver("127.0.0.1", token)
import ray
ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
print(ray.get(ray.remote(num_cpus=0, num_gpus=1)(lambda: "it works").remote()), flush=True)
sys.stdin.read()
"""

STRANGER = """
import os, sys
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
os.environ |= {"RAY_NUM_REDIS_GET_RETRIES": "1", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
if sys.argv[2] == "without":
    os.environ["RAY_AUTH_MODE"] = "disabled"
import ray
try:
    ray.init(address=sys.argv[1], configure_logging=False)
    print("let in")
except ConnectionError as error:
    print("refused")
"""

# One call of each of Ray's services, to each port that listens; what they answer to.
CALLS = """
import sys, grpc
calls = ["NodeInfoGcsService/GetAllNodeInfo", "InternalKVGcsService/InternalKVKeys",
         "NodeManagerService/GetNodeStats", "ObjectManagerService/Pull",
         "CoreWorkerService/GetCoreWorkerStats", "ReporterService/ReportOCMetrics"]
token, *ports = sys.argv[1:]
for port in ports:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for call in calls:
            given = [("authorization", "Bearer " + token)] if token else []
            try:
                channel.unary_unary("/ray.rpc." + call)(b"", timeout=60, metadata=given)
                code = "OK"
            except grpc.RpcError as error:
                code = error.code().name
            if code == "UNAVAILABLE":  # it doesn't speak gRPC
                break
            if code != "UNIMPLEMENTED":
                print(call, code)
"""


@dataclass
class Cluster:
    """A head, and a node and a driver that have joined it."""

    head: RayHead
    sessions: set[int]

    def processes(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getsid(process.pid) in self.sessions and is_running(process):
                    yield process

    def listening(self) -> dict[int, str]:
        result = {}
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                for net_connection in process.net_connections("inet"):
                    if net_connection.status == psutil.CONN_LISTEN:
                        result[net_connection.laddr.port] = net_connection.laddr.ip.removeprefix(
                            "::ffff:"
                        )
        return result

    def commands(self) -> list[str]:
        result = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                result.append(" ".join(process.cmdline()))
        return result


@pytest.fixture(scope="module")
def cluster(
    leaves_nothing: None, emulator: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("run")
    rental = Rental("r1", make_endpoint(emulator.access), {}, 3600.0, time.time() + 3600.0, {}, {})
    with contextlib.ExitStack() as stack:
        head = RayHead(folder, rental)
        stack.callback(head.stop)
        head.start()
        node = start_node(head, stack)
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, head.address, head.token],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        stack.enter_context(driver)
        stack.callback(driver.kill)
        assert driver.stdout is not None
        assert "it works\n" in driver.stdout, (folder / "node.log").read_text()
        recorded, *_ = present(ProcessGroup.recorded(folder / "head.json"))
        yield Cluster(head, {recorded.pid, node.pid, driver.pid})


def start_node(head: RayHead, stack: contextlib.ExitStack) -> ProcessGroup:
    join = Join(head.address, "i000", 1)
    with pytest.MonkeyPatch.context() as patch:
        temp = stack.enter_context(tempfile.TemporaryDirectory(prefix="ct-"))
        patch.setenv("TMPDIR", temp)
        patch.setenv(TOKEN_VARIABLE, head.token)
        environment = node_environment(join, "i-1", LOOPBACK)
        command = ray_command(join, "i-1", LOOPBACK)
        log = head.folder / "node.log"
        node = ProcessGroup.start(command, log=log, environment=environment)
    stack.callback(node.stop)
    return node


def call_services(token: str, ports: dict[int, str]) -> set[str]:
    """Return what Ray's services answer, each with its call; for who has the token, or none."""
    return set(python(CALLS, token, *map(str, ports)).stdout.splitlines())


def test_all_of_it_listens_on_the_loopback_only(cluster: Cluster) -> None:
    result = cluster.listening()
    assert len(result) >= 6, "a GCS, and on head and node a raylet and its agent; the driver"
    assert set(result.values()) == {LOOPBACK}


def test_none_reaches_it_by_another_address(cluster: Cluster) -> None:
    ports = cluster.listening()
    assert answers(LOOPBACK, next(iter(ports)))
    for address in other_addresses():
        assert [port for port in ports if answers(address, port)] == []


def test_no_service_answers_without_the_token(cluster: Cluster) -> None:
    ports = cluster.listening()
    refused = call_services("", ports)
    assert {line.split()[1] for line in refused} == {"UNAUTHENTICATED"}
    assert len(refused) == 5, "each service was found, but the dashboard agent's, which isn't there"
    assert "NodeInfoGcsService/GetAllNodeInfo OK" in call_services(cluster.head.token, ports)


@pytest.mark.parametrize("token", ["without", "another"])
def test_a_ray_client_without_the_token_is_refused(cluster: Cluster, token: str) -> None:
    assert python(STRANGER, cluster.head.address, token).stdout == "refused\n"


@pytest.mark.parametrize(
    ("started", "absent"),
    [("gcs_server", "ray.util.client"), ("RuntimeEnvAgent", "DashboardAgent")],
)
def test_ray_starts_no_open_servers(cluster: Cluster, started: str, absent: str) -> None:
    commands = cluster.commands()
    assert any(started in command for command in commands)
    assert not [command for command in commands if absent in command]


def test_another_user_gets_neither_token_nor_sockets(cluster: Cluster) -> None:
    folder, temp = cluster.head.folder, cluster.head.temp
    folder.parent.chmod(0o755)  # of pytest, which is closed
    token, sessions = folder / TOKEN_FILE, temp / "r"
    assert token.exists()
    assert sessions.exists()
    readable = as_another_user(lambda: [os.access(item, os.R_OK) for item in (token, sessions)])
    assert readable == [False, False]


def test_run_token_is_stable(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        first = read_token(tmp_path)
    finally:
        os.umask(before)
    assert read_token(tmp_path) == first
    assert len(first) == 64
    assert stat.S_IMODE((tmp_path / TOKEN_FILE).stat().st_mode) == 0o600
    (tmp_path / "another").mkdir()
    assert read_token(tmp_path / "another") != first
