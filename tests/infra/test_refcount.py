"""A cloud on this machine that somebody uses, and machines left behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtune.errors import UsageError
from cloudtune.infra.emulator.provider import emulated_cloud
from cloudtune.infra.emulator.service import find_emulator, find_orphans, stop_emulator
from cloudtune.infra.provider import Cloud, Endpoint, calls_to
from cloudtune.infra.refcount import claim, in_use

SLEEPER = {
    "ImageId": "ami-1",
    "InstanceType": "g4dn.xlarge",
    "UserData": "#!/bin/bash\nsleep 300\n",
}


def test_cloud_is_in_use_until_closed(tmp_path: Path) -> None:
    closed: list[str] = []
    plain = Cloud(Endpoint("us-east-1"), {}, {}, lambda: closed.append("it"))
    assert not in_use(tmp_path)
    cloud, other = claim(tmp_path, lambda: plain), claim(tmp_path, lambda: plain)
    with pytest.raises(UsageError, match="another run has this machine"):
        claim(tmp_path, lambda: plain, alone=True)
    cloud.close()
    assert in_use(tmp_path)
    other.close()
    assert not in_use(tmp_path)
    assert closed == ["it", "it"]
    claim(tmp_path, lambda: plain, alone=True).close()


def test_a_killed_users_cloud_does_no_more(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from cloudtune.infra.refcount import claim\n"
        "from cloudtune.infra.provider import Cloud, Endpoint\n"
        "kept = claim(Path(sys.argv[1]), lambda: Cloud(Endpoint('x'), {}, {})); print('has it')\n"
        "sys.stdout.flush(); time.sleep(300)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert in_use(tmp_path)
        process.kill()
    assert not in_use(tmp_path)


def recorded_pids(instances: Path) -> list[int]:
    records = [json.loads(path.read_text()) for path in instances.glob("*/process.json")]
    return [record["pid"] for record in records if record["pid"] is not None]


def test_emulator_outlives_overlapping_runs(
    tmp_path: Path, eventually: Callable[[Callable[[], object]], None]
) -> None:
    def opened() -> Cloud:
        return emulated_cloud(tmp_path, "us-east-1", pace=None)

    ended, beginning = claim(tmp_path, opened), claim(tmp_path, opened)
    ended.close()
    result = find_emulator(tmp_path)
    assert result is not None, "it isn't idle: another run is beginning"
    calls_to(beginning.endpoint).run_instance("t", {"cloudtune:run": "r"}, SLEEPER)
    # Before the pid is there, the emulator may be killed ahead of the machine's first process.
    eventually(lambda: recorded_pids(tmp_path / "instances"))
    assert find_orphans(tmp_path, end=True) == [], "its emulator answers for it"
    os.kill(result.pid, signal.SIGKILL)
    eventually(lambda: find_emulator(tmp_path) is None)
    eventually(lambda: find_orphans(tmp_path, end=False))
    (machine,) = find_orphans(tmp_path, end=True)
    assert machine.startswith("i-")
    assert find_orphans(tmp_path, end=False) == []
    beginning.close()
    assert stop_emulator(tmp_path, only_if_idle=False)
