"""`cloudtune emulator`: what it does to a running emulator, and how it says what is wrong."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mypy_boto3_ec2 import EC2Client

from cloudtune.cli.emulator import emulator as command
from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.emulator.service import (
    FAULTS_VARIABLE,
    Emulator,
    ensure_emulator,
    find_emulator,
    stop_emulator,
)

Eventually = Callable[[Callable[[], object]], None]
Launch = Callable[..., str]

AT_START = [{"kind": "slow-boot", "type": "p3.8xlarge", "seconds": 500}]


@pytest.fixture(scope="module")
def running(warm_emulators: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator at the place of a user's, started with faults of a file."""
    home = tmp_path_factory.mktemp("home")
    (home / "faults.json").write_text(json.dumps(AT_START))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FAULTS_VARIABLE, str(home / "faults.json"))
        yield ensure_emulator(home / "emulator", boot_seconds=0.1)
    assert stop_emulator(home / "emulator", only_if_idle=False)


@pytest.fixture
def control(running: Emulator, monkeypatch: pytest.MonkeyPatch) -> EmulatorControl:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(running.home.parent))
    return EmulatorControl(running.access)


@pytest.fixture
def launch(running: Emulator, ec2_client: Callable[[Access], EC2Client]) -> Iterator[Launch]:
    ec2, made = ec2_client(running.access), list[str]()

    def one(market: str = "spot") -> str:
        request: Any = {"ImageId": "ami-1", "InstanceType": "g4dn.xlarge", "UserData": "sleep 600"}
        if market == "spot":
            request["InstanceMarketOptions"] = {"MarketType": "spot"}
        answer = ec2.run_instances(MinCount=1, MaxCount=1, **request)
        made.append(answer["Instances"][0]["InstanceId"])
        return made[-1]

    yield one
    if made:
        ec2.terminate_instances(InstanceIds=made)


def ask(*words: object) -> str:
    answer = CliRunner().invoke(command, [*map(str, words)], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def refusal(*words: object) -> str:
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(command, [*map(str, words)], catch_exceptions=False)
    return str(caught.value)


def test_it_starts_with_the_faults_of_a_file(control: EmulatorControl) -> None:
    (fault,) = control.faults()
    assert fault.items() >= AT_START[0].items()
    said = ask("status")
    assert f"{control.endpoint}, pid " in said
    assert "instances: 0 alive, 0 ended" in said
    assert '{"kind": "slow-boot", ' in said


def test_a_mistake_in_that_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.json").write_text('[{"kind": "slowboot"}]')
    monkeypatch.setenv(FAULTS_VARIABLE, str(tmp_path / "bad.json"))
    with pytest.raises(UsageError, match=r"CLOUDTUNE_EMULATOR_FAULTS: .*fault 1: kind: no fault"):
        ensure_emulator(tmp_path / "emulator")
    assert not (tmp_path / "emulator" / "emulator.log").exists()


def test_without_one_every_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path))
    for words in [("status",), ("faults",), ("kill", "i-1")]:
        assert refusal(*words).startswith(f"no emulator is running in {tmp_path}/emulator; ")
    assert ask("stop") == "stopped the emulator\n"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CloudtuneError, match=r"no emulator answers at http://127\.0\.0\.1:9"):
        EmulatorControl(Access.create("http://127.0.0.1:9")).ping()


def test_dying_emulator_answers_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def half() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[")
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass  # closed with a part of the request unread, it would be reset

        thread = threading.Thread(target=half)
        thread.start()
        with pytest.raises(CloudtuneError, match=r"no emulator answers at .*: IncompleteRead"):
            EmulatorControl(Access.create(f"http://127.0.0.1:{port}")).instances()
        thread.join()


def test_one_is_started_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path))
    assert ask("start", "--boot", "1s").startswith("the emulator serves http://127.0.0.1:")
    try:
        assert refusal("start", "--boot", "2s").startswith("the emulator is already running")
        assert ask("start").startswith("the emulator serves")
    finally:
        assert ask("stop") == "stopped the emulator\n"
    assert find_emulator(tmp_path / "emulator") is None


def test_faults_replace_others_or_are_added(control: EmulatorControl, tmp_path: Path) -> None:
    path = tmp_path / "more.json"
    path.write_text('[{"kind": "no-boot", "times": 3}]')
    assert [fault["kind"] for fault in control.faults()] == ["slow-boot"]
    ask("faults", path, "--add")
    assert [fault["kind"] for fault in control.faults()] == ["slow-boot", "no-boot"]
    assert '"times": 3' in ask("faults", path)
    assert [fault["kind"] for fault in control.faults()] == ["no-boot"]
    assert ask("faults", "--clear") == "pending faults: none\n"
    assert refusal("faults", path, "--clear").startswith(
        "--clear can't be combined with FILE or --add"
    )
    assert refusal("faults", "--add").startswith("--add needs a FILE")
    path.write_text('[{"kind": "no-boot", "time": 3}]')
    assert "more.json: fault 1: no-boot has no field 'time'" in refusal("faults", path)
    with pytest.raises(UsageError, match=r"^fault 1: kind: no fault is called 'x'"):
        control.replace([{"kind": "x"}])


def test_command_line_takes_faults(control: EmulatorControl) -> None:
    ask("faults", '{"kind": "capacity", "type": "g4dn.*", "market": "spot", "instances": 2}')
    ask("faults", "--add", '[{"kind": "quota", "market": "spot", "vcpus": 64}]')
    capacity, quota = control.faults()
    assert list(capacity.values()) == ["capacity", "g4dn.*", "spot", "*", 2]
    assert list(quota.values()) == ["quota", "*", "spot", "*", 64]
    lifted = '{"kind": "quota", "market": "spot", "vcpus": null}'
    assert "quota" not in ask("faults", "--add", lifted)
    assert "Did you mean 'g5.xlarge'?" in refusal("faults", '{"kind": "kill", "type": "g5.xlrge"}')
    assert refusal("faults", '{"kind": ').startswith("not JSON: ")
    ask("faults", "--clear")


def test_spot_reclaimed(control: EmulatorControl, launch: Launch, eventually: Eventually) -> None:
    first, second, third = launch(), launch(), launch("on-demand")
    eventually(lambda: {instance["state"] for instance in control.instances()} >= {"running"})
    assert ask("reclaim", first) == f"{first} will be reclaimed in 2m\n"
    assert "reclaimed in" in ask("status")
    ask("reclaim", first, "--notice", "50m")
    ask("reclaim", second, "--no-notice")
    eventually(lambda: control.instance(second)["state"] == "terminated")
    assert control.instance(first)["state"] in ("pending", "running")
    assert refusal("reclaim", third) == f"{third} is on demand: AWS takes back only spot instances"
    assert refusal("reclaim", second) == f"instance {second} is already terminated"
    assert refusal("reclaim", first, "--no-notice", "--notice", "2m").startswith("--notice and")
    assert "has no unit" in refusal("reclaim", first, "--notice", "120")


def test_a_node_is_killed(control: EmulatorControl, launch: Launch, eventually: Eventually) -> None:
    dead, well = launch(), launch()
    eventually(lambda: control.instance(well)["pid"] and control.instance(dead)["pid"])
    ask("kill", dead[:12])
    assert "running  dead" in ask("status")
    assert control.instance(well)["health"] == "well"
    wrong = well[:-1] + ("0" if well[-1] != "0" else "1")
    assert f"Did you mean '{well}'?" in refusal("kill", wrong)
    assert "write more of the id" in refusal("kill", "i-")
