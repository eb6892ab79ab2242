"""A stand-in started, clients for it, and people and roles with rights."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from cloudtune.infra.aws.account.inventory import load_inventory
from cloudtune.infra.aws.account.stack import ChangeSet, Clients
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.emulator.service import Emulator, ensure_emulator, stop_emulator
from cloudtune.infra.provider import Endpoint

IMAGE = "ami-12c6146b"
ONCE = Config(retries={"total_max_attempts": 1}, proxies={}, s3={"addressing_style": "path"})


_PROGRAM = (sys.executable, str(Path(__file__).with_name("__main__.py")), "emulator")


def found_by_boto3(access: Access, patch: pytest.MonkeyPatch) -> None:
    """Let boto3 find an emulated account as it finds AWS."""
    patch.setattr(boto3, "DEFAULT_SESSION", None)  # it has the keys of a test before
    patch.setenv("AWS_ENDPOINT_URL", access.endpoint)
    patch.setenv("AWS_ACCESS_KEY_ID", access.key)
    patch.setenv("AWS_SECRET_ACCESS_KEY", access.secret)


def start(home: Path, boot_seconds: float = 4.0) -> Emulator:
    """Start the stand-in of a home; `stop_emulator` ends it like the product's emulator."""
    return ensure_emulator(home, boot_seconds, program=_PROGRAM)


def set_up(clients: Clients, region: str = "us-east-1", types: tuple[str, ...] = ()) -> None:
    """Deploy the stack of `cloudtune aws setup`."""
    account = load_inventory(clients, region)
    parameters = account.make_parameters(clients, None, ())
    template = account.make_template({"types": types} if types else {})
    with ChangeSet(clients, template, parameters) as change_set:
        change_set.execute()


@contextmanager
def set_up_account(
    home: Path, *regions: str, types: tuple[str, ...] = (), boot_seconds: float = 4.0
) -> Iterator[Emulator]:
    """Yield a stand-in that `cloudtune aws setup` has been used on, in these regions."""
    emulator = start(home, boot_seconds)
    with pytest.MonkeyPatch.context() as patch:
        found_by_boto3(emulator.access, patch)
        for region in regions or ("us-east-1",):
            set_up(Clients(Endpoint(region)), region, types)
    yield emulator
    assert stop_emulator(home, only_if_idle=False)


class Account:
    """The account of a stand-in: clients by service, and who calls through them."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self._clients: list[Any] = []

    @property
    def access(self) -> Access:
        return self.emulator.access

    def client(self, service: str, key: str = "", secret: str = "", token: str = "") -> Any:
        """Return a client of a service, the emulator's own user's without a key."""
        client: Any = boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=self.access.endpoint,
            region_name="us-east-1",
            aws_access_key_id=key or self.access.key,
            aws_secret_access_key=secret or self.access.secret,
            aws_session_token=token or None,
            config=ONCE,
        )
        self._clients.append(client)
        return client

    def unhurried(self, action: str = "RunInstances") -> None:
        """Have calls of an action not be throttled: a test makes more of them than a run."""
        control = EmulatorControl(self.access)
        control.add({"kind": "throttle", "action": action, "burst": 1e6, "per_second": 1e6})

    def person(self, name: str, *policies: Mapping[str, Any]) -> Callable[[str], Any]:
        """Return what makes clients of a user with these policies alone."""
        keys = self.keys(name, *policies)
        return lambda service: self.client(service, *keys)

    def keys(self, name: str, *policies: Mapping[str, Any]) -> tuple[str, str]:
        """Return the only key of a user with these policies alone, and its secret."""
        iam = self.client("iam")
        if name not in {user["UserName"] for user in iam.list_users()["Users"]}:
            iam.create_user(UserName=name)
        for old in iam.list_user_policies(UserName=name)["PolicyNames"]:
            iam.delete_user_policy(UserName=name, PolicyName=old)
        for number, policy in enumerate(policies):
            document = json.dumps(policy)
            iam.put_user_policy(UserName=name, PolicyName=f"p{number}", PolicyDocument=document)
        for old in iam.list_access_keys(UserName=name)["AccessKeyMetadata"]:
            iam.delete_access_key(UserName=name, AccessKeyId=old["AccessKeyId"])
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return key["AccessKeyId"], key["SecretAccessKey"]

    def role(self, name: str, *policies: Mapping[str, Any]) -> None:
        """Make a role for EC2 with these policies, and the instance profile of its name."""
        iam = self.client("iam")
        trusted = {"Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
        statement = {"Effect": "Allow", **trusted}
        trust = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)
        for number, policy in enumerate(policies):
            document = json.dumps(policy)
            iam.put_role_policy(RoleName=name, PolicyName=f"p{number}", PolicyDocument=document)
        iam.create_instance_profile(InstanceProfileName=name)
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)

    def instance(self, role: str) -> str:
        answer = self.client("ec2").run_instances(
            ImageId=IMAGE,
            InstanceType="g4dn.xlarge",
            MinCount=1,
            MaxCount=1,
            IamInstanceProfile={"Name": role},
        )
        return str(answer["Instances"][0]["InstanceId"])

    def close(self) -> None:
        for client in self._clients:
            client.close()


def allow(*actions: str, resource: str | Sequence[str] = "*") -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": resource}
    return {"Version": "2012-10-17", "Statement": [statement]}
