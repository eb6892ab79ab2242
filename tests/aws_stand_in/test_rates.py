"""The stand-in throttles as EC2's page says and sees new instances late; our client copes."""

from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from cloudtune.infra.aws.ec2 import BUSY_WAITS, Ec2
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.provider import RUN_TAG, Endpoint
from tests.aws_stand_in.account import Account
from tests.aws_stand_in.images import IMAGES


def test_launches_wait_out_a_throttle(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    access, control = account.access, EmulatorControl(account.access)
    control.move_clock(60.0)
    control.add({"kind": "throttle", "action": "RunInstances", "burst": 1, "per_second": 1 / 1000})
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            control.move_clock(1000.0)

    monkeypatch.setattr("cloudtune.infra.aws.ec2.time", SimpleNamespace(sleep=sleep))
    ours = Ec2(Endpoint("us-east-1", access.endpoint, access.key, access.secret))
    request = {"ImageId": IMAGES["x86_64"], "InstanceType": "g4dn.xlarge"}
    instances = [
        ours.run_instance(f"busy-{number}", {RUN_TAG: "busy"}, request) for number in range(2)
    ]
    assert len(set(instances)) == 2
    assert [0.25 <= waits[0] <= 0.5, 0.5 <= waits[1] <= 1.0, len(waits)] == [True, True, 2]
    with pytest.raises(ClientError, match="RequestLimitExceeded"):
        ours.run_instance("busy-3", {RUN_TAG: "busy"}, request)
    assert len(waits) == 2 + len(BUSY_WAITS)
    control.move_clock(1000.0)
    with pytest.raises(ClientError, match=r"InvalidAMIID\.NotFound"):
        ours.run_instance("b", {RUN_TAG: "busy"}, {**request, "ImageId": "ami-0123456789abcdef0"})
