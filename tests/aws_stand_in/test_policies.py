"""The evaluator of IAM policies: statements, wildcards, conditions; an explicit deny wins."""

from typing import Any

import pytest

from tests.aws_stand_in.policies import Asked, verdict

HERE = "arn:aws:ec2:us-east-1:123456789012:instance/i-1"


def policy(**statement: Any) -> dict[str, Any]:
    usual = {"Effect": "Allow", "Action": "ec2:TerminateInstances", "Resource": "*"}
    return {"Version": "2012-10-17", "Statement": {**usual, **statement}}


def ended(resource: str = HERE) -> Asked:
    return Asked("ec2:TerminateInstances", resource)


@pytest.mark.parametrize(
    ("statement", "fits"),
    [
        ({}, True),
        ({"Action": "EC2:terminate*"}, True),
        ({"Action": ["ec2:RunInstances", "ec2:Terminate?nstances"]}, True),
        ({"Action": "ec2:RunInstances"}, False),
        ({"Resource": "arn:aws:ec2:*:*:instance/*"}, True),
        ({"Resource": "arn:aws:ec2:*:instance/*"}, False),
        ({"Resource": "arn:aws:ec2:us-west-2:*:instance/*"}, False),
        ({"Resource": "arn:aws:ec2:*:*:volume/*"}, False),
        ({"Resource": "arn:aws:ec2:us-east-1:123456789012:instance/[i]-1"}, False),
    ],
)
def test_a_statement_is_about_actions_and_resources(statement: dict[str, Any], fits: bool) -> None:
    assert verdict([policy(**statement)], ended()) == ("allowed" if fits else "not allowed")


def test_what_is_denied_is_denied_whoever_allows_it() -> None:
    denying = policy(Effect="Deny", Resource="arn:aws:ec2:*:*:instance/*")
    assert verdict([policy(), denying], ended()) == "denied"
    assert verdict([denying, policy()], ended(HERE.replace("i-1", "i-2"))) == "denied"
    assert verdict([], ended()) == "not allowed"


@pytest.mark.parametrize(
    ("operator", "wanted", "given", "fits"),
    [
        ("StringEquals", "g5.xlarge", ["g5.xlarge"], True),
        ("StringEquals", "g5.xlarge", ["G5.xlarge"], False),
        ("StringEquals", ["a", "g5.xlarge"], ["g5.xlarge"], True),
        ("StringEquals", "g5.xlarge", None, False),
        ("StringNotEquals", "g5.xlarge", None, True),
        ("StringNotEquals", ["g5.xlarge", "p3.2xlarge"], ["p3.2xlarge"], False),
        ("StringLike", ["g4dn.*", "g5.*"], ["g5.xlarge"], True),
        ("StringLike", "g4dn.*", ["g5.xlarge"], False),
        ("StringNotLike", "g4dn.*", ["g5.xlarge"], True),
        ("Null", "false", ["anything"], True),
        ("Null", "false", None, False),
        ("Null", "true", None, True),
    ],
)
def test_conditions(operator: str, wanted: Any, given: list[str] | None, fits: bool) -> None:
    condition = {operator: {"ec2:InstanceType": wanted}}
    context = {} if given is None else {"EC2:instancetype": given}
    asked = Asked("ec2:TerminateInstances", HERE, context)
    answer = verdict([policy(Condition=condition)], asked)
    assert answer == ("allowed" if fits else "not allowed")


def test_all_conditions_of_a_statement_must_hold() -> None:
    condition = {
        "StringEquals": {"aws:RequestedRegion": "us-east-1"},
        "StringLike": {"ec2:InstanceType": "g5.*"},
    }
    both = Asked(
        "ec2:TerminateInstances",
        HERE,
        {"aws:RequestedRegion": ["us-east-1"], "ec2:InstanceType": ["g5.xlarge"]},
    )
    one = Asked("ec2:TerminateInstances", HERE, {"aws:RequestedRegion": ["us-east-1"]})
    assert verdict([policy(Condition=condition)], both) == "allowed"
    assert verdict([policy(Condition=condition)], one) == "not allowed"


@pytest.mark.parametrize(
    "element",
    [
        {"Condition": {"DateLessThan": {"aws:CurrentTime": "2030-01-01T00:00:00Z"}}},
        {"NotResource": "*"},
    ],
)
def test_an_unknown_element_or_operator_is_no_silent_no(element: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"DateLessThan|NotResource"):
        verdict([policy(**element)], ended())
