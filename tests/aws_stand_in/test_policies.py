"""The evaluator of IAM policies, where those of cloudtune would not show that it is lax."""

from typing import Any

import pytest

from tests.aws_stand_in.policies import Asked, verdict

HERE = "arn:aws:ec2:us-east-1:123456789012:instance/i-1"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "allowed"),
        ({"Action": "EC2:terminate*"}, "allowed"),
        ({"Resource": "arn:aws:ec2:*:*:instance/*"}, "allowed"),
        ({"Resource": "arn:aws:ec2:*:instance/*"}, "not allowed"),  # within its colons
        ({"Condition": {"StringLike": {"ec2:InstanceType": "*"}}}, "not allowed"),  # no such key
    ],
)
def test_what_a_statement_is_about(changed: dict[str, Any], expected: str) -> None:
    statement = {"Effect": "Allow", "Action": "ec2:TerminateInstances", "Resource": "*", **changed}
    asked = Asked("ec2:TerminateInstances", HERE)
    assert verdict([{"Version": "2012-10-17", "Statement": statement}], asked) == expected


def test_an_unknown_element_is_no_silent_no() -> None:
    policy = {"Statement": {"Effect": "Allow", "Action": "*", "NotResource": "*"}}
    with pytest.raises(ValueError, match="NotResource"):
        verdict([policy], Asked("ec2:RunInstances", HERE))
