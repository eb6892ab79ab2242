"""Each right of cloudtune's policies taken away: which call fails then, and with which message.

    python -m benchmarks.rights [--policies FILE]

The policies are those that setup writes, or of a JSON file {"controller": …, "instance": …}. The
calls are those that a run makes, by the code that makes them, against a strict emulator of its own;
the table is printed in Markdown, as it stands in docs/aws.md.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from pyarrow.fs import FileSelector

from benchmarks.runner import parser, print_table
from cloudtune.infra.aws import price_refresh
from cloudtune.infra.aws.account import policies
from cloudtune.infra.aws.ec2 import Ec2, market_request
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.service import ensure_emulator, stop_emulator
from cloudtune.infra.emulator.strict.images import IMAGES
from cloudtune.infra.provider import INTENT_TAG, LEASE_TAG, RUN_TAG, Endpoint
from cloudtune.train.storage import filesystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cloudtune.infra.emulator.requests import Access

Policy = dict[str, Any]
ACCOUNT, REGION = "123456789012", "us-east-1"
PLACE = policies.Place(ACCOUNT, REGION, ("g4dn.*",))
BUCKET, NODE_ROLE = PLACE.bucket, PLACE.node
_ONCE = Config(retries={"total_max_attempts": 1}, proxies={}, s3={"addressing_style": "path"})
_DENIED = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
_TAGS = {RUN_TAG: "rights", INTENT_TAG: "1", LEASE_TAG: "2026-01-01T00:00:00Z"}
_PART = 6 << 20  # more than the 5 MiB of a part


class Failure(NamedTuple):
    """A call that is refused, and what is said then."""

    call: str
    message: str


def documented() -> dict[str, Policy]:
    """Return the policies that setup writes: a head's, its bucket aside, and a node's."""
    head, node = dict(policies.head(PLACE)), dict(policies.node(PLACE))
    kept = {one["Sid"] for one in node["Statement"]}
    head["Statement"] = [one for one in head["Statement"] if one["Sid"] not in kept]
    return {"controller": head, "instance": node}


def rights(policy: Policy) -> Iterator[tuple[str, Policy]]:
    """Give each right of a policy by name, and the policy without it.

    A right is an action of a statement; where that names several resources, one of them.
    """
    for number, statement in enumerate(policy["Statement"]):
        if statement["Effect"] != "Allow":
            continue
        name = statement.get("Sid", f"statement {number + 1}")
        actions = _listed(statement["Action"])
        resources = _listed(statement["Resource"])
        # The one action on several resources is left out resource by resource.
        if len(actions) > 1 or len(resources) == 1:
            for action in actions:
                yield f"{name}: {action}", _without(policy, number, "Action", action)
        if len(resources) > 1:
            for resource in resources:
                yield f"{name}: {resource}", _without(policy, number, "Resource", resource)


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _without(policy: Policy, number: int, field: str, value: str) -> Policy:
    less = copy.deepcopy(policy)
    statement = less["Statement"][number]
    statement[field] = [other for other in _listed(statement[field]) if other != value]
    if not statement[field]:
        del less["Statement"][number]
    return less


class World:
    """A strict emulator with what a run finds: a role for its nodes, subnet, group, bucket."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.control = EmulatorControl(access)
        self.control.add({"kind": "throttle", "burst": 1e6, "per_second": 1e6})
        self._clients: list[Any] = []
        ec2, iam = self.client("ec2"), self.client("iam")
        trusted = {"Service": "ec2.amazonaws.com"}
        trust = {"Effect": "Allow", "Principal": trusted, "Action": "sts:AssumeRole"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        iam.create_role(RoleName=NODE_ROLE, AssumeRolePolicyDocument=document)
        iam.create_instance_profile(InstanceProfileName=NODE_ROLE)
        iam.add_role_to_instance_profile(InstanceProfileName=NODE_ROLE, RoleName=NODE_ROLE)
        self.client("s3").create_bucket(Bucket=BUCKET)
        subnet = ec2.describe_subnets()["Subnets"][0]
        group = ec2.create_security_group(
            GroupName="cloudtune", Description="cloudtune's", VpcId=subnet["VpcId"]
        )
        self.request = {
            "ImageId": IMAGES["x86_64"],
            "InstanceType": "g4dn.xlarge",
            "SubnetId": subnet["SubnetId"],
            "SecurityGroupIds": [group["GroupId"]],
            "IamInstanceProfile": {"Name": NODE_ROLE},
        }
        self._number = 0

    def client(self, service: str, who: Endpoint | None = None) -> Any:
        """Return a client of a service, the account's own without `who`."""
        key, secret = (
            (self.access.key, self.access.secret) if who is None else (who.key, who.secret)
        )
        client: Any = boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=self.access.endpoint,
            region_name=REGION,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            config=_ONCE,
        )
        self._clients.append(client)
        return client

    def person(self, policy: Policy) -> Endpoint:
        """Return EC2 as somebody new sees it who has this policy alone."""
        iam, name = self.client("iam"), f"somebody-{self._number}"
        self._number += 1
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=json.dumps(policy))
        access_key = iam.create_access_key(UserName=name)["AccessKey"]
        key, secret = access_key["AccessKeyId"], access_key["SecretAccessKey"]
        return Endpoint(REGION, self.access.endpoint, key, secret)

    def launch(self, who: Endpoint, market: str = "on-demand") -> str:
        """Launch an instance as a run does."""
        self._number += 1
        request = {**self.request, **market_request(market, "")}
        return Ec2(who).run_instance(f"rights-{self._number}", _TAGS, request)

    def node(self) -> str:
        """Return an instance that everybody sees by now."""
        own = Endpoint(REGION, self.access.endpoint, self.access.key, self.access.secret)
        instance = self.launch(own)
        self.control.move_clock(2.0)
        return instance

    def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            client.close()


# ---- the calls of a run --------------------------------------------------------------------


def _console(world: World, who: Endpoint, node: str) -> None:
    world.client("ec2", who).get_console_output(InstanceId=node)  # `Ec2.console` does without


def _scores(world: World, who: Endpoint, node: str) -> None:  # noqa: ARG001
    world.client("ec2", who).get_spot_placement_scores(TargetCapacity=1, RegionNames=[REGION])


CONTROLLER: Mapping[str, Callable[[World, Endpoint, str], Any]] = {
    "launch, on demand": lambda world, who, node: world.launch(who),  # noqa: ARG005
    "launch, spot": lambda world, who, node: world.launch(who, "spot"),  # noqa: ARG005
    "see what is rented": lambda world, who, node: Ec2(who).ours("rights"),  # noqa: ARG005
    "see the zones": lambda world, who, node: Ec2(who).zones(),  # noqa: ARG005
    "give back": lambda world, who, node: Ec2(who).terminate([node]),  # noqa: ARG005
    "read a console": _console,
    "prices on demand": lambda world, who, node: price_refresh._on_demand(who),  # noqa: ARG005, SLF001
    "prices on the spot market": lambda world, who, node: price_refresh._spot(who, time.time()),  # noqa: ARG005, SLF001
    "placement scores": _scores,
}


@contextlib.contextmanager
def _environment(who: Endpoint) -> Iterator[None]:
    """Have pyarrow, which knows no other way, call as somebody."""
    assert who.url is not None
    names = {
        "AWS_ENDPOINT_URL": who.url,
        "AWS_ACCESS_KEY_ID": str(who.key),
        "AWS_SECRET_ACCESS_KEY": str(who.secret),
        "AWS_DEFAULT_REGION": REGION,
    }
    with mock.patch.dict(os.environ, names):
        os.environ.pop("AWS_SESSION_TOKEN", None)
        yield


@contextlib.contextmanager
def _storage(who: Endpoint) -> Iterator[tuple[Any, str]]:
    with _environment(who):  # pyarrow looks there at each call
        yield filesystem(f"s3://{BUCKET}/run")


def _write(world: World, who: Endpoint, node: str) -> None:  # noqa: ARG001
    with _storage(who) as (fs, root), fs.open_output_stream(f"{root}/written") as out:
        out.write(b"x" * _PART * 2)  # in parts


def _read(world: World, who: Endpoint, node: str) -> None:  # noqa: ARG001
    with _storage(who) as (fs, root), fs.open_input_stream(f"{root}/there") as reader:
        reader.read()


def _list(world: World, who: Endpoint, node: str) -> None:  # noqa: ARG001
    with _storage(who) as (fs, root):
        fs.get_file_info(FileSelector(root, allow_not_found=True))


def _delete(world: World, who: Endpoint, node: str) -> None:  # noqa: ARG001
    with _storage(who) as (fs, root):
        fs.delete_file(f"{root}/there")


def _abort(world: World, who: Endpoint, node: str) -> None:  # noqa: ARG001
    upload = world.client("s3").create_multipart_upload(Bucket=BUCKET, Key="run/parts")
    world.client("s3", who).abort_multipart_upload(
        Bucket=BUCKET, Key="run/parts", UploadId=upload["UploadId"]
    )


INSTANCE: Mapping[str, Callable[[World, Endpoint, str], Any]] = {
    "write a checkpoint": _write,
    "read a checkpoint": _read,
    "list checkpoints": _list,
    "delete an old one": _delete,
    "give an upload up": _abort,
}
CALLS = {"controller": CONTROLLER, "instance": INSTANCE}


def failures(world: World, policy: Policy, role: str) -> list[Failure]:
    """Return the calls of a run that IAM refuses somebody with this policy."""
    who = world.person(policy)
    refused = []
    node = world.node() if role == "controller" else ""
    for name, call in CALLS[role].items():
        world.client("s3").put_object(Bucket=BUCKET, Key="run/there", Body=b"a checkpoint")
        message = _refusal(lambda call=call: call(world, who, node))  # type: ignore[misc]
        if message:
            refused.append(Failure(name, message))
    return refused


def _refusal(call: Callable[[], Any]) -> str:
    """Return what IAM says to a call; "" where it has nothing against it, whatever else fails."""
    try:
        call()
    except ClientError as error:
        told = error.response["Error"]
        return f"{told['Code']}: {told['Message']}" if told["Code"] in _DENIED else ""
    except BotoCoreError:
        return ""
    except OSError as error:
        if not any(word in str(error) for word in ("ACCESS_DENIED", *_DENIED)):
            raise
        return str(error)
    return ""


def main() -> None:
    """Print the table."""
    options = parser(__doc__)
    options.add_argument("--policies", type=Path, help="a JSON file in place of setup's")
    given = options.parse_args()
    policies_of = documented()
    if given.policies is not None:
        policies_of = json.loads(given.policies.read_text())
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        world = World(ensure_emulator(home, boot_seconds=0.2, strict=True).access)
        try:
            print_table(table(world, policies_of))
        finally:
            world.close()
            stop_emulator(home, only_if_idle=False)


def table(world: World, policies_of: Mapping[str, Policy]) -> Iterator[dict[str, str]]:
    """Yield what fails without each right."""
    for role, policy in policies_of.items():
        assert not failures(world, policy, role), "the whole policy must do"
        for name, less in rights(policy):
            for message, calls in _by_message(failures(world, less, role)).items():
                yield {"without": name, "fails": calls, "message": message}


def _by_message(refused: Sequence[Failure]) -> dict[str, str]:
    """Return the calls that fail with each message, or that none does."""
    calls: dict[str, str] = {}
    for call, message in refused:
        short = _short(message)
        calls[short] = f"{calls[short]}; {call}" if short in calls else call
    return calls or {"": "nothing"}


def _short(message: str) -> str:
    """Leave out who called."""
    return re.sub(r"User: \S+ is", "User: … is", message).replace("\n", " ")


if __name__ == "__main__":
    main()
