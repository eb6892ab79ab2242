"""Each right of cloudtune's policies taken away: which call fails then, and with which message.

    python benchmarks/rights.py [--policies FILE]

The policies are those that setup writes, or of a JSON file {"controller": …, "instance": …}. The
calls are those that a run makes, by the code that makes them, against a stand-in for AWS
(`tests/aws_stand_in`); the table is printed in Markdown, as it stands in docs/aws.md.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))

from botocore.exceptions import BotoCoreError, ClientError
from pyarrow.fs import FileSelector

from cloudtune.infra.aws import price_refresh
from cloudtune.infra.aws.account import policies
from cloudtune.infra.aws.ec2 import Ec2, market_request
from cloudtune.infra.aws.networks import read_subnets
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.service import Emulator, stop_emulator
from cloudtune.infra.provider import INTENT_TAG, LEASE_TAG, RUN_TAG, Endpoint
from cloudtune.train.storage import filesystem
from tests.aws_stand_in.account import Account, start
from tests.aws_stand_in.images import IMAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Policy = dict[str, Any]
ACCOUNT, REGION = "123456789012", "us-east-1"
PLACE = policies.Place(ACCOUNT, REGION, ("g4dn.*",))
BUCKET, NODE_ROLE = PLACE.bucket, PLACE.node
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
    kept = {statement["Sid"] for statement in node["Statement"]}
    head["Statement"] = [item for item in head["Statement"] if item["Sid"] not in kept]
    return {"controller": head, "instance": node}


def rights(policy: Policy) -> Iterator[tuple[str, Policy]]:
    """Give each right of a policy by name, and the policy without it.

    A right is an action of a statement; where that names several resources, one of them.
    """
    for number, statement in enumerate(policy["Statement"]):
        name = statement.get("Sid", f"statement {number + 1}")
        if statement["Effect"] != "Allow":
            continue
        for field in ("Action", "Resource"):
            listed = statement[field]
            if isinstance(listed, str):
                listed = [listed]
            if field == "Resource" and len(listed) == 1:
                continue
            for item in listed:
                if field == "Action" and len(listed) == 1 and _several(statement["Resource"]):
                    continue  # asked resource by resource
                yield f"{name}: {item}", _without(policy, number, field, item)


def _several(resources: Any) -> bool:
    return isinstance(resources, list) and len(resources) > 1


def _without(policy: Policy, number: int, field: str, value: str) -> Policy:
    less = copy.deepcopy(policy)
    statement = less["Statement"][number]
    left = [item for item in statement[field] if item != value]
    if isinstance(statement[field], str) or not left:
        del less["Statement"][number]
    else:
        statement[field] = left
    return less


class World:
    """A stand-in with what a run finds: a role for its nodes, subnet, group, bucket."""

    def __init__(self, emulator: Emulator) -> None:
        self.access = emulator.access
        self.account = Account(emulator)
        self.account.unhurried("*")
        self.account.role(NODE_ROLE)
        self.control = EmulatorControl(self.access)
        ec2 = self.client("ec2")
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
            "KeyName": ec2.create_key_pair(KeyName="mine")["KeyName"],
            "Placement": {"GroupName": "near"},
            "CapacityReservationSpecification": {
                "CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}
            },
        }
        self._number = 0

    def client(self, service: str, who: Endpoint | None = None) -> Any:
        """Return a client of a service, the account's own without `who`."""
        key, secret = ("", "") if who is None else (str(who.key), str(who.secret))
        return self.account.client(service, key, secret)

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
        self._number += 1
        request = {**self.request, **market_request(market, "")}
        return Ec2(who).run_instance(f"rights-{self._number}", _TAGS, request)

    def node(self) -> str:
        """Return an instance that everybody sees by now."""
        own = Endpoint(REGION, self.access.endpoint, self.access.key, self.access.secret)
        made = self.launch(own)
        self.control.move_clock(2.0)
        return made

    def close(self) -> None:
        self.account.close()


# ---- the calls of a run --------------------------------------------------------------------


def _console(world: World, who: Endpoint, node: str) -> None:
    world.client("ec2", who).get_console_output(InstanceId=node)  # `Ec2.console` does without


CONTROLLER: Mapping[str, Callable[[World, Endpoint, str], Any]] = {
    "launch, on demand": lambda world, who, node: world.launch(who),  # noqa: ARG005
    "launch, spot": lambda world, who, node: world.launch(who, "spot"),  # noqa: ARG005
    "see what is rented": lambda world, who, node: Ec2(who).ours("rights"),  # noqa: ARG005
    "see the zones": lambda world, who, node: Ec2(who).zones(),  # noqa: ARG005
    "see where subnets lead": lambda world, who, node: list(read_subnets(Ec2(who).look, [])),  # noqa: ARG005
    "give back": lambda world, who, node: Ec2(who).terminate([node]),  # noqa: ARG005
    "read a console": _console,
    "prices on demand": lambda world, who, node: price_refresh._on_demand(who),  # noqa: ARG005, SLF001
    "prices on the spot market": lambda world, who, node: price_refresh._spot(who, time.time()),  # noqa: ARG005, SLF001
}


@contextlib.contextmanager
def _environment(who: Endpoint) -> Iterator[None]:
    """Have pyarrow, which knows no other way, call as somebody."""
    assert who.url is not None
    ours = {
        "AWS_ENDPOINT_URL": who.url,
        "AWS_ACCESS_KEY_ID": str(who.key),
        "AWS_SECRET_ACCESS_KEY": str(who.secret),
        "AWS_DEFAULT_REGION": REGION,
    }
    before = {name: os.environ.get(name) for name in (*ours, "AWS_SESSION_TOKEN")}
    os.environ.update(ours)
    os.environ.pop("AWS_SESSION_TOKEN", None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


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
    result = []
    node = world.node() if role == "controller" else ""
    for name, call in CALLS[role].items():
        world.client("s3").put_object(Bucket=BUCKET, Key="run/there", Body=b"a checkpoint")
        message = _refusal(lambda call=call: call(world, who, node))  # type: ignore[misc]
        if message:
            result.append(Failure(name, message))
    return result


def _refusal(call: Callable[[], Any]) -> str:
    """Return what IAM says to a call; "" where it has nothing against it, whatever else fails."""
    try:
        call()
    except ClientError as error:
        result = error.response["Error"]
        return f"{result['Code']}: {result['Message']}" if result["Code"] in _DENIED else ""
    except BotoCoreError:
        return ""
    except OSError as error:
        if not any(word in str(error) for word in ("ACCESS_DENIED", *_DENIED)):
            raise
        return str(error)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policies", type=Path, help="a JSON file in place of setup's")
    given = parser.parse_args()
    result = documented() if given.policies is None else json.loads(given.policies.read_text())
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        world = World(start(home, boot_seconds=0.2))
        try:
            print("| without | fails | message |\n|---|---|---|")
            for role, policy in result.items():
                assert not failures(world, policy, role), "the whole policy must do"
                for name, less in rights(policy):
                    for message, calls in _by_message(failures(world, less, role)).items():
                        print(f"| {name} | {calls} | {message} |", flush=True)
        finally:
            world.close()
            stop_emulator(home, only_if_idle=False)


def _by_message(value: Sequence[Failure]) -> dict[str, str]:
    """Return the calls that fail with each message, or that none does."""
    result: dict[str, str] = {}
    for call, message in value:
        short = _short(message)
        result[short] = f"{result[short]}; {call}" if short in result else call
    return result or {"": "nothing"}


def _short(message: str) -> str:
    return re.sub(r"User: \S+ is", "User: … is", message).replace("\n", " ")


if __name__ == "__main__":
    main()
