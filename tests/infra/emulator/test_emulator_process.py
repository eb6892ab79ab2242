"""The emulator's own life: one per home, ended when idle, cleaned up after a crash."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from mypy_boto3_ec2 import EC2Client

from cloudtune.errors import CloudtuneError
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.emulator.service import Emulator, ensure_emulator, find_emulator, stop_emulator
from cloudtune.infra.processes import birth, same_process

Eventually = Callable[[Callable[[], object]], None]
MakeClient = Callable[[Access], EC2Client]

DAEMON = "#!/bin/bash\nsetsid sleep 600 & echo $! > daemon\necho cloudtune-node ready\nwait\n"


def launch(ec2: EC2Client) -> str:
    answer = ec2.run_instances(
        ImageId="ami-1", InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1, UserData=DAEMON
    )
    return answer["Instances"][0]["InstanceId"]


WARM = pytest.mark.usefixtures("warm_emulators")  # from then on for the others of the module too


def wait_for_machine(emulator: Emulator, instance: str, eventually: Eventually) -> list[int]:
    """Return the pids of the machine's first process and of its daemon."""
    folder = emulator.home / "instances" / instance
    console = folder / "console.log"
    eventually(lambda: console.exists() and "ready" in console.read_text())
    # The machine may print before the emulator has recorded the pid: a null until then.
    eventually(lambda: recorded_pid(folder) is not None)
    return [recorded_pid(folder), int((folder / "daemon").read_text())]


def recorded_pid(folder: Path) -> int:
    pid: int = json.loads((folder / "process.json").read_text())["pid"]
    return pid


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_callers_share_one_emulator(tmp_path: Path) -> None:
    assert find_emulator(tmp_path) is None
    assert stop_emulator(tmp_path / "nowhere", only_if_idle=True)
    with ThreadPoolExecutor(3) as pool:
        result = list(pool.map(ensure_emulator, [tmp_path] * 3))
    assert result[0] == result[1] == result[2] == find_emulator(tmp_path)
    assert psutil.Process(result[0].pid).ppid() != os.getpid(), "it outlives its starter"

    assert stop_emulator(tmp_path, only_if_idle=True)
    assert not runs(result[0].pid)
    assert find_emulator(tmp_path) is None
    assert not (tmp_path / "emulator.json").exists()


def test_it_ends_by_itself_when_idle(tmp_path: Path, eventually: Eventually) -> None:
    command = [sys.executable, "-m", "cloudtune.infra.emulator.service", "--home", str(tmp_path)]
    with subprocess.Popen([*command, "--idle-exit", "0.5"], stderr=subprocess.DEVNULL) as process:
        eventually((tmp_path / "emulator.json").exists)
        assert process.wait(timeout=60) == 0
    assert not (tmp_path / "emulator.json").exists()


def test_one_that_can_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(CloudtuneError, match=r"(?s)emulator\.log:.*no/such/python"):
        ensure_emulator(tmp_path)


@WARM
def test_sigterm_ends_them(tmp_path: Path, ec2_client: MakeClient, eventually: Eventually) -> None:
    emulator = ensure_emulator(tmp_path, boot_seconds=0.1)
    instance = launch(ec2_client(emulator.access))
    assert not stop_emulator(tmp_path, only_if_idle=True)
    pids = wait_for_machine(emulator, instance, eventually)

    os.kill(emulator.pid, signal.SIGTERM)
    eventually(lambda: find_emulator(tmp_path) is None)
    again = ensure_emulator(tmp_path)  # waits for the end of the old one
    assert again.pid != emulator.pid
    assert not runs(emulator.pid)
    assert not any(map(runs, pids))
    assert (tmp_path / "instances" / instance / "console.log").exists()
    assert stop_emulator(tmp_path, only_if_idle=True)


@WARM
def test_it_ends_leftovers(tmp_path: Path, ec2_client: MakeClient, eventually: Eventually) -> None:
    first = ensure_emulator(tmp_path, boot_seconds=0.1)
    instance = launch(ec2_client(first.access))
    pids = wait_for_machine(first, instance, eventually)
    # A machine whose number belongs to somebody else by now: this test.
    stranger = tmp_path / "instances" / "i-0" / "process.json"
    stranger.parent.mkdir()
    record = {"pid": os.getpid(), "create_time": 1.0}
    stranger.write_text(json.dumps(record))

    EmulatorControl(first.access).freeze(instance)
    assert {psutil.Process(pid).status() for pid in pids} == {psutil.STATUS_STOPPED}
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: not runs(first.pid))
    assert all(map(runs, pids)), "not cleaned up yet"
    assert find_emulator(tmp_path) is None

    second = ensure_emulator(tmp_path, boot_seconds=0.1)
    assert second.pid != first.pid
    assert not any(map(runs, pids))
    assert list((tmp_path / "instances").glob("*/process.json")) == []
    assert stop_emulator(tmp_path, only_if_idle=False)


@WARM
def test_a_set_clock_changes_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = ensure_emulator(tmp_path)
    time_of = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda each: time_of(each) + 1.0)
    assert find_emulator(tmp_path) == emulator
    assert stop_emulator(tmp_path, only_if_idle=True)
    assert not runs(emulator.pid)


def test_a_process_is_known_by_birth_and_number() -> None:
    born = birth(os.getpid())
    assert same_process(os.getpid(), born)
    assert not same_process(os.getpid(), born - 60)
