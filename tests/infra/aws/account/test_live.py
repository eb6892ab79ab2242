"""`cloudtune aws check --live`, on the strict emulator: each answer beside what was expected."""

import json
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from cloudtune.infra.aws.account import live
from cloudtune.infra.aws.account.inventory import load_inventory
from cloudtune.infra.aws.account.stack import Clients
from cloudtune.infra.aws.ec2 import Ec2
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.provider import make_endpoint
from cloudtune.infra.emulator.service import Emulator
from tests.aws_stand_in.account import found_by_boto3, set_up_account
from tests.bench import called

BUCKET = "cloudtune-123456789012-us-east-1-an"


@pytest.fixture(scope="module")
def account(warm_emulators: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """A strict account that setup has seen."""
    home = tmp_path_factory.mktemp("emulator")
    with set_up_account(home, types=("g4dn.*",), boot_seconds=0.2) as emulator:
        yield emulator


@pytest.fixture
def emulator(
    account: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Emulator]:
    """The account as boto3 finds it, without faults once a test is over."""
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    found_by_boto3(account.access, monkeypatch)
    monkeypatch.setattr(live, "_PAUSE", 0.1)
    yield account
    EmulatorControl(account.access).replace([])


def billing(emulator: Emulator) -> list[str]:
    records = EmulatorControl(emulator.access).instances()
    return [record["id"] for record in records if record["state"] in {"pending", "running"}]


def left_in_bucket() -> int:
    return int(boto3.client("s3", "us-east-1").list_objects_v2(Bucket=BUCKET)["KeyCount"])


def test_it_asks_tries_and_tells(
    emulator: Emulator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = called(capsys, "aws", "check", "--live").refused()
    assert "(about a minute of $0.1008 an hour: $0.002, and a disk for as long)" in asked.out
    assert EmulatorControl(emulator.access).instances() == [], "there was no yes"

    path = tmp_path / "answers.json"
    tried = called(capsys, "aws", "check", "--live", "--yes", "--report", path).succeeded()
    assert "NOT AS EXPECTED" not in tried.out
    written = json.loads(path.read_text())
    assert written["ok"]
    answers = {call["call"]: call["answer"] for call in written["calls"]}
    assert len(answers) == 10
    assert answers["RunInstances, DryRun"] == "DryRunOperation"
    assert answers["RunInstances, the token, another script"] == "IdempotentParameterMismatch"
    assert "cloudtune-head-us-east-1" in answers["its metadata and role, by what it wrote"]
    assert len(EmulatorControl(emulator.access).instances()) == 1
    assert billing(emulator) == []
    assert left_in_bucket() == 0


@pytest.mark.parametrize("cut", [2, 5])
def test_an_interrupt_leaves_nothing(emulator: Emulator, cut: int) -> None:
    clients, endpoint = Clients(make_endpoint(emulator.access)), make_endpoint(emulator.access)
    account = load_inventory(clients, "us-east-1")
    calls = live.LiveCheck(clients, Ec2(endpoint), account, f"cut-{cut}").calls()
    for _ in range(cut):
        next(calls)
    assert len(billing(emulator)) == 1
    calls.close()  # as an interrupt does
    assert billing(emulator) == []
    assert left_in_bucket() == 0


def test_unanswered_launch_is_ended(emulator: Emulator) -> None:
    clients, endpoint = Clients(make_endpoint(emulator.access)), make_endpoint(emulator.access)
    fault = {"kind": "lost-answer", "action": "RunInstances", "times": 9}
    EmulatorControl(emulator.access).add(fault)
    account = load_inventory(clients, "us-east-1")
    calls = live.LiveCheck(clients, Ec2(endpoint), account, "lost").calls()
    came = [next(calls), next(calls)]
    assert not came[-1].ok
    assert len(billing(emulator)) == 1
    calls.close()
    assert billing(emulator) == []


def test_differing_answers_are_said(emulator: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    fault = {"action": "GetConsoleOutput", "code": "UnauthorizedOperation", "message": "no"}
    EmulatorControl(emulator.access).replace([{**fault, "times": 9999}])
    live._PATIENCE["console"] = 0.2
    tried = called(capsys, "aws", "check", "--live", "--yes")
    live._PATIENCE["console"] = 90.0
    assert tried.code == 1
    assert "NOT AS EXPECTED: GetConsoleOutput: nothing, in the time that it had" in tried.out
    assert "    expected: what it printed" in tried.out
    assert billing(emulator) == []
