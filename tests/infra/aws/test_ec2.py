"""What is read from EC2's answers and errors."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError
from botocore.stub import ANY, Stubber

from cloudtune.infra.aws.ec2 import Ec2
from cloudtune.infra.provider import Endpoint

KMS = " (often a KMS key of its disk that this account may not use)"
WHEN = "(2026-11-26 01:02:03 GMT)"


@pytest.fixture
def ec2() -> Ec2:
    return Ec2(Endpoint("us-east-1", None, "key", "secret"))


@pytest.fixture
def answers(ec2: Ec2) -> Iterator[Stubber]:
    with Stubber(ec2._client) as stub:
        yield stub


@pytest.mark.parametrize(
    ("code", "message", "transition", "reason"),
    [
        ("", "", f"User initiated {WHEN}", f"User initiated {WHEN}"),
        (
            "Client.UserInitiatedShutdown",
            "Client.UserInitiatedShutdown: User initiated shutdown",
            f"User initiated {WHEN}",
            f"User initiated {WHEN}",
        ),
        (
            "Server.SpotInstanceTermination",
            "Server.SpotInstanceTermination: Instance terminated by EC2",
            f"Server.SpotInstanceTermination {WHEN}",
            f"Server.SpotInstanceTermination: Instance terminated by EC2 {WHEN}",
        ),
        (
            "Client.InternalError",
            "Client.InternalError: Client error on launch",
            "",
            f"Client.InternalError: Client error on launch{KMS}",
        ),
    ],
)
def test_the_reason_of_an_end_is_ec2s_own(
    code: str, message: str, transition: str, reason: str, ec2: Ec2, answers: Stubber
) -> None:
    described = {
        "InstanceId": "i-1",
        "InstanceType": "p3.2xlarge",
        "LaunchTime": datetime(2026, 11, 26, tzinfo=UTC),
        "State": {"Name": "terminated"},
        "StateTransitionReason": transition,
        "StateReason": {"Code": code, "Message": message},
        "Tags": [{"Key": "cloudtune:run", "Value": "r"}],
    }
    answer = {"Reservations": [{"Instances": [described]}]}
    answers.add_response("describe_instances", answer, {"Filters": ANY})
    (instance,) = ec2.ours("r")
    assert instance.reason == reason
    assert (instance.ended_at is None) == (transition == "")


def test_ec2_error_has_request_id(ec2: Ec2, answers: Stubber) -> None:
    answers.add_client_error(
        "terminate_instances",
        "UnauthorizedOperation",
        "You are not authorized",
        response_meta={"RequestId": "1a2b-3c"},
    )
    with pytest.raises(ClientError, match=r"not authorized \(request 1a2b-3c\)$") as caught:
        ec2.terminate(["i-1"])
    assert caught.value.response["Error"]["Code"] == "UnauthorizedOperation"


def test_console_output_is_the_latest(ec2: Ec2, answers: Stubber) -> None:
    latest = {"InstanceId": "i-1", "Latest": True}
    answers.add_response("get_console_output", {"Output": "now"}, latest)
    assert ec2.console("i-1") == "now"
    answers.add_client_error("get_console_output", "UnsupportedOperation", expected_params=latest)
    answers.add_response(
        "get_console_output", {"Output": "at boot"}, {"InstanceId": "i-1", "Latest": False}
    )
    assert ec2.console("i-1") == "at boot"
