"""The emulated EC2 as its clients see it: real server, real boto3, real machines."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import pytest
from botocore.exceptions import ClientError
from mypy_boto3_ec2 import EC2Client
from mypy_boto3_ec2.type_defs import InstanceTypeDef

from cloudtune.infra.aws.ec2 import market_request
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.service import Emulator
from cloudtune.infra.processes import is_running
from tests.infra.emulator.test_faults import Eventually, console

SLEEPER = "#!/bin/bash\necho cloudtune-node ready\nexec sleep 600\n"


@pytest.fixture(autouse=True)
def _leave_nothing(emulator: Emulator, ec2: EC2Client) -> Iterator[None]:
    yield
    ids = [instance["InstanceId"] for instance in describe(ec2) if is_live(instance)]
    if ids:
        ec2.terminate_instances(InstanceIds=ids)
    EmulatorControl(emulator.access).replace([])


def launch(ec2: EC2Client, count: int = 1, script: str = SLEEPER, **more: Any) -> list[str]:
    request = {"ImageId": "ami-1", "InstanceType": "g4dn.xlarge", "MinCount": 1, **more}
    answer = ec2.run_instances(MaxCount=count, UserData=script, **request)
    return [instance["InstanceId"] for instance in answer["Instances"]]


def describe(ec2: EC2Client, *ids: str) -> list[InstanceTypeDef]:
    answer = ec2.describe_instances(InstanceIds=ids)
    return [instance for item in answer["Reservations"] for instance in item["Instances"]]


def states(ec2: EC2Client, ids: Sequence[str]) -> set[str]:
    return {instance["State"]["Name"] for instance in describe(ec2, *ids)}


def is_live(instance: InstanceTypeDef) -> bool:
    return instance["State"]["Name"] in ("pending", "running")


def record(emulator: Emulator, instance_id: str) -> dict[str, Any]:
    return EmulatorControl(emulator.access).instance(instance_id)


def error_code(caught: pytest.ExceptionInfo[ClientError]) -> str:
    return caught.value.response["Error"]["Code"]


def test_it_starts_max_count_and_boots_late(ec2: EC2Client, eventually: Eventually) -> None:
    before = time.time()
    answer = ec2.run_instances(
        ImageId="ami-1", InstanceType="g4dn.xlarge", MinCount=1, MaxCount=3, UserData=SLEEPER
    )
    after = time.time()
    ids = [instance["InstanceId"] for instance in answer["Instances"]]
    assert len(ids) == 3
    assert {instance["State"]["Name"] for instance in answer["Instances"]} == {"pending"}
    eventually(lambda: states(ec2, ids) == {"running"})
    first = describe(ec2, *ids)[0]
    assert time.time() - before >= 0.4
    assert before - 1 < first["LaunchTime"].timestamp() < after + 1
    assert first["PrivateIpAddress"] == "127.0.0.1"


def test_filters_by_tag_state_and_token(ec2: EC2Client, eventually: Eventually) -> None:
    tags: Any = [{"ResourceType": "instance", "Tags": [{"Key": "cloudtune:run", "Value": "r1"}]}]
    mine = launch(ec2, TagSpecifications=tags, ClientToken="mine")
    launch(ec2)
    eventually(lambda: states(ec2, mine) == {"running"})

    def found(name: str, value: str) -> list[str]:
        by_tag: Any = {"Name": "tag:cloudtune:run", "Values": ["r1"]}
        answer = ec2.describe_instances(Filters=[by_tag, {"Name": name, "Values": [value]}])
        return [i["InstanceId"] for item in answer["Reservations"] for i in item["Instances"]]

    assert found("instance-state-name", "running") == mine
    assert found("instance-state-name", "pending") == []
    assert found("client-token", "mine") == mine


def test_token_is_replayed_until_termination(ec2: EC2Client) -> None:
    first = launch(ec2, count=2, ClientToken="intent-1")
    assert launch(ec2, count=2, ClientToken="intent-1") == first
    with pytest.raises(ClientError) as caught:
        launch(ec2, count=3, ClientToken="intent-1")
    assert error_code(caught) == "IdempotentParameterMismatch"

    ec2.terminate_instances(InstanceIds=first[:1])
    with pytest.raises(ClientError) as caught:
        launch(ec2, count=2, ClientToken="intent-1")
    assert error_code(caught) == "IdempotentInstanceTerminated"
    assert launch(ec2, ClientToken="intent-2") != first


def test_clean_environment(emulator: Emulator, ec2: EC2Client, eventually: Eventually) -> None:
    script = "#!/bin/bash\nenv\npwd\necho TEMP ${#TMPDIR} $(stat -c %a $TMPDIR)\necho the end\n"
    (instance,) = launch(ec2, script=script)
    eventually(lambda: "the end" in console(emulator, instance))
    said = console(emulator, instance)
    assert f"HOME={emulator.home}/instances/{instance}\n" in said
    assert f"AWS_ENDPOINT_URL={emulator.access.endpoint}\n" in said
    assert "AWS_DEFAULT_REGION=us-east-1\n" in said
    assert "CLOUDTUNE_EPOCH_HOOK=cloudtune.infra.emulator.pacing:pacer_from_env\n" in said
    assert "PYTEST_CURRENT_TEST" not in said
    assert "CLOUDTUNE_HOME" not in said
    length, mode = said.split("TEMP ")[1].split()[:2]
    assert int(length) <= 40, "Ray's sockets need short paths"
    assert mode == "700"
    # Its processes are over; the instance is not, as on EC2.
    assert states(ec2, [instance]) == {"running"}


def test_all_of_it_is_killed(emulator: Emulator, ec2: EC2Client, eventually: Eventually) -> None:
    script = """#!/bin/bash
sleep 600 & echo child $!
setsid sh -c 'echo daemon $$; exec sleep 600' &
setsid env -i sh -c 'echo stripped $$; exec sleep 600' &
env -i sh -c 'echo session $$; exec sleep 600' & disown
wait
"""
    (instance,) = launch(ec2, script=script)
    eventually(lambda: console(emulator, instance).count("\n") == 4)
    pids = [int(line.split()[1]) for line in console(emulator, instance).splitlines()]
    pids.append(record(emulator, instance)["pid"])
    processes = [psutil.Process(pid) for pid in pids]
    temp = (emulator.home / "instances" / instance / "tmp").resolve()
    assert temp.is_dir()

    answer = ec2.terminate_instances(InstanceIds=[instance])
    assert answer["TerminatingInstances"][0]["CurrentState"]["Name"] == "shutting-down"
    eventually(lambda: states(ec2, [instance]) == {"terminated"})

    assert list(filter(is_running, processes)) == []
    assert not temp.exists()
    gone = describe(ec2, instance)[0]
    assert gone["StateTransitionReason"].startswith("User initiated (2")
    assert gone["StateTransitionReason"].endswith(" GMT)")
    kept = record(emulator, instance)
    assert kept["state"] == "terminated"
    times = [kept[f"{what}_at"] for what in ("launched", "booted", "shutting_down", "terminated")]
    assert times == sorted(times)
    ec2.terminate_instances(InstanceIds=[instance])  # again: no error, and it stays as it is
    assert record(emulator, instance) == kept


def test_four_boot_at_a_time(emulator: Emulator, ec2: EC2Client, eventually: Eventually) -> None:
    script = "#!/bin/bash\nread -t 600 < <(sleep 600) & while ! [ -e go ]; do sleep 0.05; done\n"
    ids = launch(ec2, count=6, script=script + "echo cloudtune-node ready\nwait\n")

    def booted() -> list[str]:
        return [i for i in ids if record(emulator, i)["booted_at"] is not None]

    eventually(lambda: len(booted()) == 4)
    assert states(ec2, ids) == {"running"}
    (emulator.home / "instances" / booted()[0] / "go").touch()
    eventually(lambda: len(booted()) == 5)
    ec2.terminate_instances(InstanceIds=booted()[:1] + booted()[1:2])
    eventually(lambda: len(booted()) == 6)


def test_shutdown_terminates_it(emulator: Emulator, ec2: EC2Client, eventually: Eventually) -> None:
    script = """#!/bin/bash
shutdown -P +60; shutdown -c; shutdown --wrong || echo refused
shutdown -P now; sleep 600
"""
    (instance,) = launch(ec2, script=script, InstanceInitiatedShutdownBehavior="terminate")
    eventually(lambda: states(ec2, [instance]) == {"terminated"})
    said = console(emulator, instance)
    assert "Shutdown scheduled" in said
    assert "Shutdown cancelled" in said
    assert "refused" in said
    gone = describe(ec2, instance)[0]
    assert gone["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert "Client.InstanceInitiatedShutdown" in gone["StateTransitionReason"]


def test_its_metadata_are_read(emulator: Emulator, ec2: EC2Client, eventually: Eventually) -> None:
    script = """#!/bin/bash
python - <<'END'
import os, urllib.request
base = os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] + "/latest/"
put = urllib.request.Request(base + "api/token", method="PUT")
token = urllib.request.urlopen(put).read().decode()
for name in ["instance-id", "instance-type", "local-ipv4", "placement/availability-zone",
             "placement/region", "instance-life-cycle"]:
    get = urllib.request.Request(base + "meta-data/" + name,
                                 headers={"X-aws-ec2-metadata-token": token})
    print(urllib.request.urlopen(get).read().decode())
print("the end")
END
"""
    (instance,) = launch(ec2, script=script, **market_request("spot", "us-east-1b"))
    eventually(lambda: "the end" in console(emulator, instance))
    printed = console(emulator, instance).splitlines()[:-1]
    assert printed == [instance, "g4dn.xlarge", "127.0.0.1", "us-east-1b", "us-east-1", "spot"]


def test_faults_fail_matching_calls(emulator: Emulator, ec2: EC2Client) -> None:
    ice = {
        "action": "RunInstances",
        "match": {"InstanceType": "g4dn.12xlarge"},
        "code": "InsufficientInstanceCapacity",
        "message": "No g4dn.12xlarge <here>",
        "times": 2,
    }
    control = EmulatorControl(emulator.access)
    control.replace([ice])
    before = len(control.instances())
    for _ in range(2):
        with pytest.raises(ClientError, match=r"No g4dn\.12xlarge <here>") as caught:
            launch(ec2, InstanceType="g4dn.12xlarge")
        assert error_code(caught) == "InsufficientInstanceCapacity"
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
        launch(ec2, InstanceType="p3.8xlarge")
    assert len(control.instances()) == before + 2

    launch(ec2, InstanceType="g4dn.12xlarge")
    assert control.faults() == []
    kinds = [call["instance_type"] for call in control.calls()[-5:]]
    assert kinds == [*["g4dn.12xlarge", "p3.8xlarge"] * 2, "g4dn.12xlarge"]
    control.replace([{"action": "DescribeInstances", "code": "RequestLimitExceeded"}])
    with pytest.raises(ClientError) as caught:
        describe(ec2)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503


def tag(tags: dict[str, str]) -> dict[str, Any]:
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    return {"TagSpecifications": [{"ResourceType": "instance", "Tags": listed}]}


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        ({"script": "#" * 20_480}, "InvalidParameterValue: User data is limited to 16384 bytes"),
        ({"ClientToken": "t" * 65}, "InvalidParameterValue: Value (ttt"),
        (tag({"k" * 129: ""}), "InvalidParameterValue: Tag key exceeds the maximum"),
        (tag({"aws:mine": ""}), "InvalidParameterValue: Tag keys starting with 'aws:'"),
        (tag({str(n): "" for n in range(51)}), "TagLimitExceeded: "),
    ],
    ids=lambda each: str(each)[:40],
)
def test_long_parts_are_refused(ec2: EC2Client, request_: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ClientError) as refused:
        launch(ec2, **request_)
    error = refused.value.response["Error"]
    assert f"{error['Code']}: {error['Message']}".startswith(refusal)
