"""What a node does about its own end: it hears of it, and puts it off while somebody wants it."""

import contextlib
import math
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from mypy_boto3_ec2 import EC2Client

from cloudtune.clock import unix_time
from cloudtune.errors import CloudtuneError
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.service import Emulator
from cloudtune.infra.node import boot, lease
from cloudtune.infra.node.agent import Agent
from cloudtune.infra.node.boot import Join, metadata, node_environment, user_data
from cloudtune.infra.node.messages import Training
from cloudtune.infra.node.ray_access import TOKEN_VARIABLE
from cloudtune.infra.node.spot_notice import interruption, watch_notices
from cloudtune.train.programs.program import Program
from tests.infra.mps_stand_in import write_script

Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture
def control(emulator: Emulator) -> EmulatorControl:
    return EmulatorControl(emulator.access)


@pytest.fixture
def node(
    emulator: Emulator, ec2: EC2Client, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], str]]:
    """Rent an instance, on demand or spot, and see the world as it does; returns its id."""
    rented: list[str] = []

    def rent(market: str) -> str:
        options: Any = {"InstanceMarketOptions": {"MarketType": "spot"}} if market == "spot" else {}
        rented.append(launch(ec2, "#!/bin/bash\nshutdown -P +15\nsleep 600\n", **options))
        address = emulator.access.metadata(rented[-1])
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
        return rented[-1]

    yield rent
    ec2.terminate_instances(InstanceIds=rented)


def launch(ec2: EC2Client, user_data: str, **more: Any) -> str:
    (instance,) = ec2.run_instances(
        ImageId="ami-12c6146b",
        InstanceType="g5.xlarge",
        MinCount=1,
        MaxCount=1,
        UserData=user_data,
        InstanceInitiatedShutdownBehavior="terminate",
        **more,
    )["Instances"]
    return instance["InstanceId"]


def watching(
    tell: Callable[[float], None], warn: Callable[[], object] = lambda: None
) -> threading.Thread:
    watch = threading.Thread(target=lambda: watch_notices(tell, warn, seconds=0.05), daemon=True)
    watch.start()
    return watch


def test_spot_notices_come_once(
    node: Callable[[str], str], control: EmulatorControl, eventually: Eventually
) -> None:
    control.replace([{"kind": "rebalance", "times": 1}])
    instance = node("spot")
    result: queue.SimpleQueue[float] = queue.SimpleQueue()
    watch = watching(result.put, lambda: result.put(-1.0))
    assert interruption() is None
    eventually(lambda: control.instance(instance)["state"] == "running")
    assert result.get(timeout=60) == -1.0, "it is at risk, and stays"
    time.sleep(0.2)
    due = control.reclaim(instance, notice=120)
    assert result.get(timeout=60) == pytest.approx(due, abs=1.0)
    eventually(lambda: not watch.is_alive())
    assert result.empty()


def test_on_demand_is_not_watched(node: Callable[[str], str], eventually: Eventually) -> None:
    node("on-demand")
    result: list[float] = []
    watch = watching(result.append)
    eventually(lambda: not watch.is_alive())
    assert not result


def test_metadata_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    result: list[float] = []
    tries: list[None] = []

    def look() -> float | None:
        tries.append(None)
        return interruption() if len(tries) < 3 else 17.0

    watch_notices(result.append, lambda: None, look, seconds=0.01)
    assert (result, len(tries)) == ([17.0], 3)


def test_metadata_have_our_address_where_boto3_needs_it(
    node: Callable[[str], str], emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = node("on-demand")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("CLOUDTUNE_METADATA", emulator.access.metadata(instance))
    assert metadata("instance-id") == instance


@pytest.mark.parametrize(("status", "tries"), [(503, 3), (404, 1)])
def test_a_boot_asks_its_metadata(status: int, tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One failed answer is no reason to lose an instance; an item that isn't there never comes."""
    asked: list[str] = []

    def answer(path: str, _seconds: float) -> str:
        asked.append(path)
        if len(asked) < 3:
            raise HTTPError("", status, "", Message(), None)
        return "i-1"

    monkeypatch.setattr(boot, "_metadata", answer)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with contextlib.suppress(HTTPError):
        assert metadata("instance-id", patience=60.0) == "i-1"
    assert len(asked) == tries


def test_a_renewal_replaces_the_machines_own_end(
    node: Callable[[str], str],
    emulator: Emulator,
    control: EmulatorControl,
    eventually: Eventually,
) -> None:
    instance = node("on-demand")
    eventually(lambda: control.instance(instance)["power_off_at"])
    before = control.instance(instance)["power_off_at"]
    command = emulator.home / "instances" / instance / "bin" / "shutdown"
    asked = time.time()
    end = lease.Lease(asked + 10 * 3600, str(command)).renew(math.inf)
    took = time.time() - asked  # the machine counts from when its command runs
    after = control.instance(instance)["power_off_at"]
    assert after > before
    assert after == pytest.approx(end, abs=1.0 + took)


def test_renewals_stop_at_limits(tmp_path: Path) -> None:
    assert renew(tmp_path, 3600.0, 7200.0) == f"-P +{lease.LEASE_MINUTES}"
    assert renew(tmp_path, 5 * 60 - 30.0, 7200.0) == "-P +5"
    assert renew(tmp_path, 7200.0, 5 * 60 - 30.0) == "-P +5", "rounded up"
    assert renew(tmp_path, 7200.0, 10.0) == "-P +1"
    assert renew(tmp_path, -600.0, 7200.0) == "-P +1"


def renew(folder: Path, hard_end: float, until: float) -> str:
    """Return how `shutdown` is called when the run's end and its limits are n seconds away."""
    result, now = write_shutdown(folder), time.time()
    end = lease.Lease(now + hard_end, str(folder / "shutdown")).renew(now + until)
    assert end <= now + min(hard_end, until - lease.POWER_OFF_SECONDS)
    return result.read_text().rstrip()


def test_a_machine_that_refuses_says_why(tmp_path: Path) -> None:
    command = write_script(tmp_path / "shutdown", "echo 'must be root' >&2\nexit 1")
    with pytest.raises(CloudtuneError, match="must be root"):
        lease.Lease(time.time() + 3600, str(command)).renew(math.inf)
    with pytest.raises(CloudtuneError, match="can't be renewed"):
        lease.Lease(time.time() + 3600, str(tmp_path / "none")).renew(math.inf)


def write_shutdown(folder: Path) -> Path:
    """Put a `shutdown` into a folder that notes what it is asked for; return where."""
    result = folder / "calls"
    result.write_text("")
    write_script(folder / "shutdown", f'echo "$*" >> {shlex.quote(str(result))}')
    return result


def first(folder: Path, seconds: float, after: str = "wait", before: str = "") -> list[str]:
    """Return what `shutdown` is asked for in the first lease of so long, between these lines."""
    result, now = write_shutdown(folder), time.time()
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "TMPDIR": str(folder)}
    script = before + lease.first_lease(now, now + seconds) + after
    subprocess.run(["/bin/bash", "-c", script], check=True, env=environment, timeout=60)
    return result.read_text().splitlines()


def test_the_first_lease_ends_the_machine_in_time(tmp_path: Path) -> None:
    began = time.time()
    assert first(tmp_path, lease.POWER_OFF_SECONDS + 2.0) == ["-P +1", "-P now"]
    # A shell counts whole seconds: it sleeps for half a second at least, where there are two.
    assert 0.5 < time.time() - began < lease.POWER_OFF_SECONDS + 2.0
    assert first(tmp_path, 1.0) == ["-P +1", "-P now"], "it came up too late"


# The shell's clock is set back by an hour once it was read, if it is read a second time.
SET_BACK = """
printf() {
  builtin printf "$@"
  [ -z "$read_before" ] || now=$((now - 3600))
  read_before=yes
}
"""


def test_clock_set_back_extends_no_lease(tmp_path: Path) -> None:
    assert first(tmp_path, lease.POWER_OFF_SECONDS + 3.0, before=SET_BACK) == ["-P +1", "-P now"]


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_clock_changes_move_no_lease(
    jump: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    result = write_shutdown(tmp_path)
    monkeypatch.setenv(lease.END_VARIABLE, "inf")
    monkeypatch.setenv(lease.COMMAND_VARIABLE, str(tmp_path / "shutdown"))
    program = Program(text="true", words=(("true",),), until=1)
    training = Training("true", "loss", "min", 1, str(tmp_path), 0, program=program)
    agent = Agent("127.0.0.1", 1, training, tmp_path / "logs", spares=False)
    end = unix_time() + 4.0
    try:
        agent.renew(end)
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        eventually(lambda: "-P now" in result.read_text())
        assert unix_time() >= end - lease.POWER_OFF_SECONDS
    finally:
        agent.close()


def test_renewal_replaces_first_lease(tmp_path: Path) -> None:
    renewal = (
        f"{sys.executable} -c 'import math; from cloudtune.infra.node.lease import Lease; "
        f'Lease(math.inf, "{tmp_path}/shutdown").renew(math.inf)\'; wait'
    )
    result = first(tmp_path, lease.POWER_OFF_SECONDS + 3.0, renewal)
    assert result == ["-P +1", f"-P +{lease.LEASE_MINUTES}"]


@pytest.mark.parametrize("emulated", [False, True])
def test_a_machine_that_boots_again_powers_off(emulated: bool, tmp_path: Path) -> None:
    result = write_shutdown(tmp_path)
    each_boot = tmp_path / "per-boot"
    each_boot.mkdir()
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    if emulated:
        environment["CLOUDTUNE_MACHINE"] = "i-1"
    lines = lease.first_lease(time.time(), time.time() + 3600)
    lines = lines.replace("/var/lib/cloud/scripts/per-boot", str(each_boot))
    lines += 'rm "$CLOUDTUNE_FIRST_LEASE"; kill %1'
    subprocess.run(["/bin/bash", "-c", lines], check=True, env=environment, timeout=60)
    written = list(each_boot.iterdir())
    assert bool(written) != emulated, "an emulated machine shares this one's disk"
    result.write_text("")
    for script in written:
        subprocess.run([script], check=True, env=environment, timeout=60)
    assert result.read_text().split() == ([] if emulated else ["-P", "now"])


def test_an_emulated_machine_ends_with_its_first_lease(
    ec2: EC2Client, control: EmulatorControl, eventually: Eventually
) -> None:
    now = time.time()
    end = now + 5.0
    script = user_data(Join("127.0.0.1:9", "i1", 1), lease.first_lease(now, end), "s")
    known = launch(ec2, script.replace("exec python3", "exec sleep 600 #"))
    eventually(lambda: control.instance(known)["state"] == "terminated")
    assert end - 3.0 < control.instance(known)["terminated_at"] <= end


def test_a_booting_machine_ends_without_its_emulator_too(tmp_path: Path) -> None:
    mark = f"i-{tmp_path.name}"
    write_script(tmp_path / "shutdown", "exit 1")
    path = f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin"
    with subprocess.Popen(
        ["/bin/bash", "-c", lease.first_lease(time.time(), time.time()) + "sleep 600"],
        env={"PATH": path, "TMPDIR": str(tmp_path), lease.MACHINE_VARIABLE: mark},
    ) as booting:
        assert booting.wait(timeout=60) == -signal.SIGKILL


def test_a_first_lease_is_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    join = Join("10.0.0.1:6379", "i1", 4, until=1_900_000_000.5)
    script = user_data(join, lease.first_lease(1_800_000_000.0, 1_800_007_200.0), "secret")
    assert script.startswith(f"#!/bin/bash\nshutdown -P +{lease.FIRST_MINUTES}\n")
    assert script.endswith("--until 1900000000\n")
    assert "export RAY_AUTH_TOKEN=secret\nexec " in script, "no argument, which others may list"
    assert "shutdown -P +2\n" in lease.first_lease(1_800_000_000.0, 1_800_000_061.0)

    command = write_script(tmp_path / "shutdown", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    environment = node_environment(Join("a", "i1", 4, until=1_900_000_000.0), "i-1", "10.0.0.2")
    monkeypatch.setenv("PATH", "/somewhere/else")  # a process that was given another PATH
    monkeypatch.setenv(lease.END_VARIABLE, environment[lease.END_VARIABLE])
    monkeypatch.setenv(lease.COMMAND_VARIABLE, environment[lease.COMMAND_VARIABLE])
    assert lease.Lease.of_this_node() == lease.Lease(1_900_000_000.0, str(command))


def test_node_without_end_has_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(lease.END_VARIABLE, raising=False)
    assert lease.lease_environment(None) == {}
    assert lease.Lease.of_this_node() is None
