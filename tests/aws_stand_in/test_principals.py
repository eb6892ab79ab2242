"""Keys of people and of roles: an instance finds its role's at its metadata service."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cloudtune.infra.emulator.requests import Access, Ec2Error
from tests.aws_stand_in.account import IMAGE, Account

EVERYTHING = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}


@pytest.fixture(scope="module")
def node(account: Account) -> str:
    """An instance that was launched with a role's profile."""
    account.role("cloudtune-node", EVERYTHING)
    return account.instance("cloudtune-node")


def metadata(account: Account, node: str, path: str, *, token: bool = True) -> str:
    """Return what an instance's metadata service answers, asked as IMDSv2 is."""
    root = account.access.metadata(node)
    headers = {}
    if token:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        asked = urllib.request.Request(f"{root}/latest/api/token", headers=ttl, method="PUT")
        with urllib.request.urlopen(asked, timeout=60) as answer:
            headers = {"X-aws-ec2-metadata-token": answer.read().decode()}
    asked = urllib.request.Request(f"{root}/latest/meta-data/{path}", headers=headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return str(answer.read().decode())


def role_keys(account: Account, node: str) -> dict[str, Any]:
    role = metadata(account, node, "iam/security-credentials/")
    credentials = json.loads(metadata(account, node, f"iam/security-credentials/{role}"))
    assert isinstance(credentials, dict)
    return credentials


def test_an_instance_finds_its_roles_keys_and_calls_with_them(account: Account, node: str) -> None:
    keys = role_keys(account, node)
    assert {"Code", "LastUpdated", "Type", "Expiration"} <= keys.keys()
    sts = account.client("sts", keys["AccessKeyId"], keys["SecretAccessKey"], keys["Token"])
    who = sts.get_caller_identity()
    assert who["Arn"] == f"arn:aws:sts::123456789012:assumed-role/cloudtune-node/{node}"
    assert role_keys(account, node) == keys  # the same until they near their end
    info = json.loads(metadata(account, node, "iam/info"))
    assert info["InstanceProfileArn"].endswith(":instance-profile/cloudtune-node")
    assert metadata(account, node, "placement/region") == "us-east-1"


def test_the_metadata_of_a_strict_cloud_want_a_token(account: Account, node: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        metadata(account, node, "instance-id", token=False)
    refused.value.close()
    assert refused.value.code == 401


def test_without_a_profile_there_are_no_keys(account: Account) -> None:
    answer = account.client("ec2").run_instances(
        ImageId=IMAGE, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1
    )
    bare = answer["Instances"][0]["InstanceId"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        metadata(account, bare, "iam/security-credentials/")
    refused.value.close()
    assert refused.value.code == 404


@pytest.mark.parametrize("change", ["no token", "another's token", "another secret"])
def test_a_roles_key_needs_its_token_and_secret(account: Account, node: str, change: str) -> None:
    keys = role_keys(account, node)
    token = {"no token": "", "another's token": "x" * 40}.get(change, keys["Token"])
    secret = "x" * 40 if change == "another secret" else keys["SecretAccessKey"]
    with pytest.raises(ClientError) as refused:
        account.client("ec2", keys["AccessKeyId"], secret, token).describe_instances()
    assert refused.value.response["Error"]["Code"] == "AuthFailure"


def test_a_roles_keys_are_renewed_before_they_end() -> None:
    from moto.iam.models import iam_backends

    from tests.aws_stand_in.principals import (
        ACCOUNT,
        CREDENTIAL_SECONDS,
        PARTITION,
        RENEWED_BEFORE_S,
        Principals,
    )

    now = [1_000_000.0]
    principals = Principals(Access.create("http://127.0.0.1:1"), lambda: now[0])
    iam = iam_backends[ACCOUNT][PARTITION]
    role = iam.create_role("short-lived", "{}", "/", None, "", [], None)
    try:
        first = principals.role_credentials("short-lived", "i-1")
        assert first is not None
        assert principals.secret_of(first.key, first.token) == first.secret
        now[0] = first.expires - RENEWED_BEFORE_S
        second = principals.role_credentials("short-lived", "i-1")
        assert second is not None
        assert (second.key, second.expires) != (first.key, first.expires)
        assert principals.role_credentials("short-lived", "i-2") not in (None, second)
        now[0] = first.issued_at + CREDENTIAL_SECONDS
        with pytest.raises(Ec2Error, match="expired"):
            principals.secret_of(first.key, first.token)
        assert principals.secret_of(second.key, second.token) == second.secret
    finally:
        iam.delete_role(role.name)
    assert principals.role_credentials("short-lived", "i-9") is None
