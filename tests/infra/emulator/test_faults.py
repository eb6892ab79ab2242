"""Every fault of the emulated EC2, seen as a client sees it: real server, real boto3."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from mypy_boto3_ec2 import EC2Client
from mypy_boto3_ec2.type_defs import InstanceTypeDef

from cloudtune.infra.aws.ec2 import market_request
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.service import Emulator
from cloudtune.infra.processes import is_running

Eventually = Callable[[Callable[[], object]], None]

KIND = "g4dn.xlarge"  # 4 vCPUs
SLEEPER = "#!/bin/bash\nsetsid sleep 600 & echo $!\necho cloudtune-node ready\nwait\n"
LEASED = "#!/bin/bash\nshutdown -P +30\necho cloudtune-node ready\nsleep 600\n"


@pytest.fixture
def control(
    emulator: Emulator, ec2: EC2Client, eventually: Eventually
) -> Iterator[EmulatorControl]:
    """The emulator's control, given back as it was: no fault, no instance, the right time."""
    control = EmulatorControl(emulator.access)
    yield control
    control.replace([])
    control.move_clock(3600)  # what is hidden shows, and what ends slowly is over
    for instance in control.instances():
        if instance["state"] in ("pending", "running"):
            ec2.terminate_instances(InstanceIds=[instance["id"]])
    eventually(lambda: control.ping()["live"] == 0)
    control.move_clock(-control.ping()["clock"])


def launch(ec2: EC2Client, count: int = 1, least: int = 1, **more: Any) -> list[str]:
    request = {"ImageId": "ami-1", "InstanceType": KIND, "UserData": SLEEPER, **more}
    answer = ec2.run_instances(MinCount=least, MaxCount=count, **request)
    return [instance["InstanceId"] for instance in answer["Instances"]]


def describe(ec2: EC2Client, instance: str) -> InstanceTypeDef:
    return ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]


def state(ec2: EC2Client, instance: str) -> str:
    return describe(ec2, instance)["State"]["Name"]


def zone(ec2: EC2Client, instance: str) -> str:
    return describe(ec2, instance)["Placement"]["AvailabilityZone"]


def list_instances(ec2: EC2Client) -> set[str]:
    answer = ec2.describe_instances()
    return {item["InstanceId"] for result in answer["Reservations"] for item in result["Instances"]}


def refusal_code(call: Callable[[], object]) -> tuple[str, int]:
    """Return the code and the HTTP status of a refusal."""
    with pytest.raises(ClientError) as caught:
        call()
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def console(emulator: Emulator, instance: str) -> str:
    path = emulator.home / "instances" / instance / "console.log"
    return path.read_text() if path.exists() else ""


def is_ready(emulator: Emulator, instance: str) -> bool:
    """Whether a machine has booted; it may say so before the emulator has written down its pid."""
    return "ready" in console(emulator, instance) and first_pid(emulator, instance) is not None


def first_pid(emulator: Emulator, instance: str) -> Any:
    return json.loads((emulator.home / "instances" / instance / "process.json").read_text())["pid"]


def processes(emulator: Emulator, instance: str) -> list[psutil.Process]:
    """Return the first process of a machine that runs SLEEPER, and its daemon."""
    pids = [first_pid(emulator, instance), int(console(emulator, instance).split()[0])]
    return [psutil.Process(pid) for pid in pids]


def alive(result: list[psutil.Process]) -> list[psutil.Process]:
    return [item for item in result if is_running(item)]


def test_pool_limit_spares_other_zones(
    ec2: EC2Client, control: EmulatorControl, eventually: Eventually
) -> None:
    spot = {"kind": "capacity", "type": KIND, "market": "spot"}
    for letters, instances in {"a": 1, "b": 1, "[c-f]": 0}.items():
        control.add({**spot, "zone": f"us-east-1{letters}", "instances": instances})
    (first,) = launch(ec2, **market_request("spot", ""))
    (second,) = launch(ec2, **market_request("spot", ""))
    assert [zone(ec2, first), zone(ec2, second)] == ["us-east-1a", "us-east-1b"]

    before = list_instances(ec2)
    dry = ("InsufficientInstanceCapacity", 500)
    assert refusal_code(lambda: launch(ec2, **market_request("spot", ""))) == dry
    assert refusal_code(lambda: launch(ec2, **market_request("spot", "us-east-1a"))) == dry
    assert list_instances(ec2) == before
    launch(ec2, **market_request("on-demand", "us-east-1a"))  # another pool
    launch(ec2, InstanceType="g5.xlarge", **market_request("spot", "us-east-1a"))

    ec2.terminate_instances(InstanceIds=[second])
    eventually(lambda: state(ec2, second) == "terminated")
    (third,) = launch(ec2, **market_request("spot", ""))
    assert zone(ec2, third) == "us-east-1b"


def test_several_get_as_many_as_there_is_room(ec2: EC2Client, control: EmulatorControl) -> None:
    control.add({"kind": "capacity", "type": KIND, "instances": 3})
    assert refusal_code(lambda: launch(ec2, count=5, least=4))[0] == "InsufficientInstanceCapacity"
    assert len(launch(ec2, count=5, least=2)) == 3
    control.add({"kind": "capacity", "type": KIND, "instances": None})
    assert control.faults() == []
    assert len(launch(ec2, count=2)) == 2


@pytest.mark.parametrize(
    ("market", "code"),
    [("on-demand", "VcpuLimitExceeded"), ("spot", "MaxSpotInstanceCountExceeded")],
)
def test_vcpu_quotas(ec2: EC2Client, control: EmulatorControl, market: str, code: str) -> None:
    control.add({"kind": "quota", "market": market, "vcpus": 11})
    other = "spot" if market == "on-demand" else "on-demand"
    launch(ec2, count=4, **market_request(other, ""))
    first, _ = launch(ec2, count=2, **market_request(market, ""))
    assert refusal_code(lambda: launch(ec2, **market_request(market, ""))) == (code, 400)
    ec2.terminate_instances(InstanceIds=[first])
    launch(ec2, **market_request(market, ""))


def test_slow_boot_pends(ec2: EC2Client, control: EmulatorControl, eventually: Eventually) -> None:
    control.add({"kind": "slow-boot", "type": "g4dn.*", "seconds": 300, "times": 1})
    slow, usual = launch(ec2, count=2)
    eventually(lambda: state(ec2, usual) == "running")
    assert state(ec2, slow) == "pending"
    control.move_clock(300)
    eventually(lambda: state(ec2, slow) == "running")


def test_instance_may_skip_user_data(
    emulator: Emulator, ec2: EC2Client, control: EmulatorControl, eventually: Eventually
) -> None:
    control.add({"kind": "no-boot", "times": 1})
    mute, usual = launch(ec2, count=2)
    eventually(lambda: is_ready(emulator, usual))
    assert state(ec2, mute) == "running"
    assert control.instance(mute)["booted_at"] is None
    assert console(emulator, mute) == ""


def test_a_failed_boot(ec2: EC2Client, control: EmulatorControl, eventually: Eventually) -> None:
    control.add({"kind": "failed-boot"})
    request: Any = {"ImageId": "ami-1", "InstanceType": KIND, "MinCount": 1, "MaxCount": 1}
    (answer,) = ec2.run_instances(**request)["Instances"]
    assert answer["State"]["Name"] == "pending"  # the boot takes a tenth of a second
    instance = answer["InstanceId"]
    eventually(lambda: state(ec2, instance) == "terminated")
    result = describe(ec2, instance)
    assert result["StateReason"]["Code"] == "Server.InternalError"
    assert "Server.InternalError" in result["StateTransitionReason"]
    assert control.instance(instance)["running_at"] is None


def test_slow_end_is_not_billed(
    emulator: Emulator, ec2: EC2Client, control: EmulatorControl, eventually: Eventually
) -> None:
    control.replace([{"kind": "slow-end", "seconds": 60}])
    control.add({"kind": "capacity", "type": KIND, "instances": 1})
    (instance,) = launch(ec2)
    eventually(lambda: is_ready(emulator, instance))
    running = processes(emulator, instance)
    ec2.terminate_instances(InstanceIds=[instance])
    eventually(lambda: alive(running) == [])
    assert state(ec2, instance) == "shutting-down"
    assert refusal_code(lambda: launch(ec2))[0] == "InsufficientInstanceCapacity"
    result = control.instance(instance)
    assert result["terminated_at"] is None

    control.move_clock(60)
    eventually(lambda: state(ec2, instance) == "terminated")
    ended = control.instance(instance)
    assert ended["shutting_down_at"] == result["shutting_down_at"]
    assert ended["terminated_at"] - ended["shutting_down_at"] >= 60


def test_a_token_finds_what_a_lost_answer_made(ec2: EC2Client, control: EmulatorControl) -> None:
    before = list_instances(ec2)
    control.add({"kind": "lost-answer", "action": "RunInstances"})
    with pytest.raises(ConnectionClosedError):
        launch(ec2, ClientToken="lost-1")
    (made,) = list_instances(ec2) - before
    assert launch(ec2, ClientToken="lost-1") == [made]
    assert list_instances(ec2) - before == {made}

    control.add({"kind": "lost-answer", "action": "Terminate*", "answer": "InternalError"})
    end: Callable[[], object] = lambda: ec2.terminate_instances(InstanceIds=[made])  # noqa: E731
    assert refusal_code(end) == ("InternalError", 500)
    assert state(ec2, made) in ("shutting-down", "terminated")
    lost = [call["action"] for call in control.calls() if call["fault"] == "lost-answer"]
    assert lost[-2:] == ["RunInstances", "TerminateInstances"]


def test_calls_are_throttled_above_a_rate(ec2: EC2Client, control: EmulatorControl) -> None:
    throttled = ("RequestLimitExceeded", 503)
    control.add({"kind": "throttle", "action": "DescribeInstances", "burst": 3, "per_second": 0.01})
    for _ in range(3):
        list_instances(ec2)
    assert refusal_code(lambda: list_instances(ec2)) == throttled
    launch(ec2)  # each action has a bucket of its own
    control.move_clock(200)
    list_instances(ec2)
    list_instances(ec2)
    assert refusal_code(lambda: list_instances(ec2)) == throttled


def test_by_default_the_rates_are_those_of_aws(ec2: EC2Client, control: EmulatorControl) -> None:
    control.add({"kind": "throttle"})
    control.add({"kind": "capacity", "type": KIND, "instances": 0})
    codes = [refusal_code(lambda: launch(ec2))[0] for _ in range(12)]
    assert codes[:5] == ["InsufficientInstanceCapacity"] * 5
    assert "RequestLimitExceeded" in codes, "5 at once, then 2 a second"
    list_instances(ec2)


def test_some_calls_fail_by_chance_and_seed(ec2: EC2Client, control: EmulatorControl) -> None:
    def hits(seed: int) -> list[bool]:
        fault = {"action": "DescribeInstances", "code": "InternalError", "rate": 0.3, "seed": seed}
        control.replace([fault])
        result = []
        for _ in range(20):
            try:
                list_instances(ec2)
            except ClientError:
                result.append(True)
            else:
                result.append(False)
        return result

    first = hits(7)
    assert hits(7) == first != hits(8)
    assert 2 <= sum(first) <= 12


def test_new_instances_are_not_known_for_calls(ec2: EC2Client, control: EmulatorControl) -> None:
    control.add({"kind": "hidden", "calls": 3, "times": 1})
    (instance,) = launch(ec2)
    unknown = ("InvalidInstanceID.NotFound", 400)
    assert instance not in list_instances(ec2)
    assert refusal_code(lambda: describe(ec2, instance)) == unknown
    assert refusal_code(lambda: ec2.terminate_instances(InstanceIds=[instance])) == unknown
    assert state(ec2, instance) in ("pending", "running")
    assert instance in list_instances(ec2)


def test_new_instances_are_not_known_at_first(ec2: EC2Client, control: EmulatorControl) -> None:
    tags: Any = [{"ResourceType": "instance", "Tags": [{"Key": "hide", "Value": "and seek"}]}]
    control.add({"kind": "hidden", "seconds": 20, "times": 1})
    hidden, seen = launch(ec2, count=2, TagSpecifications=tags)

    def tagged() -> list[str]:
        answer = ec2.describe_instances(Filters=[{"Name": "tag:hide", "Values": ["and*"]}])
        return [item["InstanceId"] for r in answer["Reservations"] for item in r["Instances"]]

    assert tagged() == [seen]
    control.move_clock(20)
    assert tagged() == [hidden, seen]
    assert ec2.terminate_instances(InstanceIds=[hidden])["TerminatingInstances"]


def notice(emulator: Emulator, instance: str) -> str:
    """Return what the machine's metadata service says of an interruption; empty for nothing."""
    url = f"{emulator.access.metadata(instance)}/latest/meta-data/spot/instance-action"
    try:
        with urllib.request.urlopen(url) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as refusal:
        refusal.close()
        return ""


def test_spot_is_reclaimed_despite_leases(
    emulator: Emulator, ec2: EC2Client, control: EmulatorControl, eventually: Eventually
) -> None:
    (instance,) = launch(ec2, UserData=LEASED, **market_request("spot", ""))
    eventually(lambda: is_ready(emulator, instance))
    due = control.reclaim(instance, notice=120)
    assert '"action": "terminate"' in notice(emulator, instance)
    shutdown = emulator.home / "instances" / instance / "bin" / "shutdown"
    subprocess.run([shutdown, "-P", "+60"], check=True)
    assert control.instance(instance)["ends_at"] == due
    assert state(ec2, instance) == "running"
    control.move_clock(120)
    eventually(lambda: state(ec2, instance) == "terminated")
    reason = describe(ec2, instance)["StateReason"]["Code"]
    assert reason == "Server.SpotInstanceTermination"


def test_a_dead_node_goes_on_running_and_billing(
    emulator: Emulator, ec2: EC2Client, control: EmulatorControl, eventually: Eventually
) -> None:
    (instance,) = launch(ec2, InstanceInitiatedShutdownBehavior="terminate")
    eventually(lambda: is_ready(emulator, instance))
    running = processes(emulator, instance)
    control.kill(instance)
    assert alive(running) == []
    control.move_clock(3600)
    assert state(ec2, instance) == "running"
    assert control.instance(instance)["health"] == "dead"
    ec2.terminate_instances(InstanceIds=[instance])
    eventually(lambda: state(ec2, instance) == "terminated")


def test_frozen_node_thaws(
    emulator: Emulator, ec2: EC2Client, control: EmulatorControl, eventually: Eventually
) -> None:
    thawed, frozen = launch(ec2, count=2)
    eventually(lambda: all(is_ready(emulator, item) for item in (thawed, frozen)))
    running = processes(emulator, thawed) + processes(emulator, frozen)
    control.freeze(thawed)
    control.freeze(frozen)
    assert {item.status() for item in running} == {psutil.STATUS_STOPPED}
    assert state(ec2, frozen) == "running"
    control.thaw(thawed)
    eventually(lambda: psutil.STATUS_STOPPED not in {item.status() for item in running[:2]})
    ec2.terminate_instances(InstanceIds=[thawed, frozen])
    eventually(lambda: alive(running) == [])


def test_blows_fall_some_time_after_an_instance_runs(
    emulator: Emulator, ec2: EC2Client, control: EmulatorControl, eventually: Eventually
) -> None:
    control.replace(
        [
            {"kind": "reclaim", "after": 100, "notice": 60},
            {"kind": "kill", "after": 100, "market": "on-demand", "times": 1},
            {"kind": "freeze", "after": 200, "market": "on-demand", "times": 1},
        ]
    )
    (spot,) = launch(ec2, **market_request("spot", ""))
    (killed,) = launch(ec2)
    assert control.instance(killed)["faults"] == ["kill", "freeze"]
    assert [fault["kind"] for fault in control.faults()] == ["reclaim"]
    eventually(lambda: all(is_ready(emulator, item) for item in (spot, killed)))
    control.move_clock(100)
    eventually(lambda: notice(emulator, spot))
    eventually(lambda: control.instance(killed)["health"] == "dead")
    assert state(ec2, spot) == "running"
    control.move_clock(60)
    eventually(lambda: state(ec2, spot) == "terminated")


def test_lease_end_terminates_instance(
    emulator: Emulator, ec2: EC2Client, control: EmulatorControl, eventually: Eventually
) -> None:
    behaviour: Any = {"InstanceInitiatedShutdownBehavior": "terminate", "UserData": LEASED}
    script = "#!/bin/bash\nshutdown -P +30\nshutdown -P +90\necho ready\nsleep 600\n"
    (leased,) = launch(ec2, **behaviour)
    (renewed,) = launch(ec2, **{**behaviour, "UserData": script})
    eventually(lambda: all(is_ready(emulator, item) for item in (leased, renewed)))
    result = {item: control.instance(item)["power_off_at"] for item in (leased, renewed)}
    assert 59 * 60 < result[renewed] - result[leased] < 61 * 60

    control.move_clock(31 * 60)
    eventually(lambda: state(ec2, leased) == "terminated")
    reason = describe(ec2, leased)["StateReason"]["Code"]
    assert reason == "Client.InstanceInitiatedShutdown"
    assert state(ec2, renewed) == "running"
    control.move_clock(60 * 60)
    eventually(lambda: state(ec2, renewed) == "terminated")


def test_halted_node_misses_its_lease_end(
    emulator: Emulator, ec2: EC2Client, control: EmulatorControl, eventually: Eventually
) -> None:
    behaviour: Any = {"InstanceInitiatedShutdownBehavior": "terminate", "UserData": LEASED}
    frozen, dead = launch(ec2, count=2, **behaviour)
    eventually(lambda: all(is_ready(emulator, item) for item in (frozen, dead)))
    control.freeze(frozen)
    control.kill(dead)
    control.move_clock(3600)
    (other,) = launch(ec2)
    eventually(lambda: state(ec2, other) == "running")  # the emulator has moved on
    assert state(ec2, frozen) == state(ec2, dead) == "running"
    control.thaw(frozen)
    eventually(lambda: state(ec2, frozen) == "terminated")
    assert state(ec2, dead) == "running"


def test_a_moved_clock(ec2: EC2Client, control: EmulatorControl, eventually: Eventually) -> None:
    (before,) = launch(ec2)
    assert control.move_clock(7200) == pytest.approx(7200)
    (after,) = launch(ec2)
    apart = describe(ec2, after)["LaunchTime"] - describe(ec2, before)["LaunchTime"]
    assert 7200 <= apart.total_seconds() < 7220
    result = control.instance(after)
    assert abs(describe(ec2, after)["LaunchTime"].timestamp() - result["launched_at"]) < 2
    control.move_clock(-7200)
    ec2.terminate_instances(InstanceIds=[before, after])
    eventually(lambda: {state(ec2, before), state(ec2, after)} == {"terminated"})
