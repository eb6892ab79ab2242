"""What each call asks for: actions, resources and condition keys, as AWS documents them.

Service Authorization Reference (Actions, resources, and condition keys for Amazon EC2, Amazon S3,
AWS IAM, AWS Systems Manager, Service Quotas; read 2026-11). What isn't in here is asked for on "*".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from moto.ec2.models import ec2_backends

from cloudtune.infra.emulator.strict.evaluator import Asked
from cloudtune.infra.emulator.strict.principals import ACCOUNT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from werkzeug.wrappers import Request

_TAG = re.compile(r"TagSpecification\.(\d+)\.Tag\.(\d+)\.Key")
_ON_INSTANCES = {"TerminateInstances", "GetConsoleOutput", "StopInstances", "StartInstances"}
_S3_PARTS: Mapping[tuple[str, str], str] = {
    ("GET", "tagging"): "GetBucketTagging",
    ("PUT", "tagging"): "PutBucketTagging",
    ("GET", "lifecycle"): "GetLifecycleConfiguration",
    ("PUT", "lifecycle"): "PutLifecycleConfiguration",
    ("GET", "publicAccessBlock"): "GetBucketPublicAccessBlock",
    ("PUT", "publicAccessBlock"): "PutBucketPublicAccessBlock",
    ("GET", "location"): "GetBucketLocation",
}
_S3_BUCKET = {
    "GET": "ListBucket",
    "HEAD": "ListBucket",
    "PUT": "CreateBucket",
    "DELETE": "DeleteBucket",
}
_S3_OBJECT = {
    "GET": "GetObject",
    "HEAD": "GetObject",
    "PUT": "PutObject",
    "POST": "PutObject",
    "DELETE": "DeleteObject",
}


@dataclass(frozen=True)
class Call:
    """A request as far as rights go: its service, region, action and parameters."""

    service: str
    region: str
    action: str
    parameters: Mapping[str, str]


def call_of(request: Request, service: str, region: str) -> Call:
    """Return what a request calls; of S3, which names no action, "" and no parameters."""
    target = request.headers.get("X-Amz-Target", "")
    if target:
        body = request.get_json(force=True, silent=True) or {}
        parameters = {name: str(value) for name, value in body.items()}
        return Call(service, region, target.rpartition(".")[2], parameters)
    if service == "s3":
        return Call(service, region, "", {})
    body = dict(parse_qsl(request.get_data(as_text=True), keep_blank_values=True))
    return Call(service, region, body.get("Action", ""), body)


def asked_of(request: Request, call: Call) -> Iterator[Asked]:
    """Yield all that a call asks for; it is allowed if each of these is."""
    if call.service == "s3":
        yield from _of_s3(request)
    elif call.service == "ec2":
        yield from _of_ec2(call)
    elif call.service == "iam":
        yield from _of_iam(call)
    elif call.service == "ssm":
        name = call.parameters.get("Name", "")
        owner = "" if name.startswith("/aws/service/") else ACCOUNT
        where = f"arn:aws:ssm:{call.region}:{owner}:parameter/{name.lstrip('/')}"
        yield Asked(f"ssm:{call.action}", where, _common(call))
    elif call.service != "sts":  # GetCallerIdentity needs no right
        yield Asked(f"{call.service}:{call.action}", "*", _common(call))


def _common(call: Call) -> dict[str, list[str]]:
    return {"aws:RequestedRegion": [call.region]}


# ---- EC2 -----------------------------------------------------------------------------------


def _of_ec2(call: Call) -> Iterator[Asked]:
    if call.action == "RunInstances":
        yield from _of_launch(call)
    elif call.action in _ON_INSTANCES:
        for name in _listed(call, "InstanceId"):
            yield Asked(
                f"ec2:{call.action}", _arn(call, "instance", name), _of_instance(call, name)
            )
    elif call.action == "CreateSecurityGroup":
        context = {**_common(call), **_tags(call, "security-group")}
        yield Asked("ec2:CreateSecurityGroup", _arn(call, "security-group", "*"), context)
        vpc = call.parameters.get("VpcId", "*")
        yield Asked("ec2:CreateSecurityGroup", _arn(call, "vpc", vpc), _common(call))
        yield from _tagging(call, "security-group")
    elif call.action in {"AuthorizeSecurityGroupIngress", "DeleteSecurityGroup"}:
        group = call.parameters.get("GroupId", "*")
        yield Asked(f"ec2:{call.action}", _arn(call, "security-group", group), _common(call))
    else:
        yield Asked(f"ec2:{call.action}", "*", _common(call))


def _of_launch(call: Call) -> Iterator[Asked]:
    given, common = call.parameters, _common(call)
    context = {
        **common,
        **_tags(call, "instance"),
        "ec2:InstanceType": [given.get("InstanceType", "m1.small")],
    }
    action = "ec2:RunInstances"
    yield Asked(action, _arn(call, "instance", "*"), context)
    yield Asked(action, f"arn:aws:ec2:{call.region}::image/{given.get('ImageId', '*')}", common)
    groups = _listed(call, "SecurityGroupId") or ["*"]
    for kind, names in {
        "network-interface": ["*"],
        "security-group": groups,
        "subnet": [given.get("SubnetId", "*")],
        "volume": ["*"],
        "key-pair": [given["KeyName"]] if "KeyName" in given else [],
        "spot-instances-request": ["*"] if _is_spot(given) else [],
    }.items():
        for name in names:
            yield Asked(action, _arn(call, kind, name), {**common, **_tags(call, kind)})
    yield from _tagging(call, "instance")
    profile = given.get("IamInstanceProfile.Name")
    if profile is not None:
        service = {"iam:PassedToService": ["ec2.amazonaws.com"]}
        yield Asked("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/{profile}", service)


def _is_spot(given: Mapping[str, str]) -> bool:
    return given.get("InstanceMarketOptions.MarketType") == "spot"


def _tagging(call: Call, kind: str) -> Iterator[Asked]:
    tags = _tags(call, kind)
    if tags:
        context = {**_common(call), **tags, "ec2:CreateAction": [call.action]}
        yield Asked("ec2:CreateTags", _arn(call, kind, "*"), context)


def _tags(call: Call, kind: str) -> dict[str, list[str]]:
    """Return the condition keys of the tags that something of a kind is made with."""
    given = call.parameters
    found: dict[str, list[str]] = {}
    for name, key in given.items():
        at = _TAG.fullmatch(name)
        if at is None or given.get(f"TagSpecification.{at[1]}.ResourceType") != kind:
            continue
        found[f"aws:RequestTag/{key}"] = [given.get(f"{name.removesuffix('Key')}Value", "")]
        found.setdefault("aws:TagKeys", []).append(key)
    return found


def _of_instance(call: Call, name: str) -> dict[str, list[str]]:
    """Return the condition keys of an instance that is there."""
    backend: Any = ec2_backends[ACCOUNT][call.region]
    instance = next((each for each in backend.all_instances() if each.id == name), None)
    if instance is None:
        return _common(call)
    tags = {f"aws:ResourceTag/{tag['key']}": [tag["value"]] for tag in instance.get_tags()}
    return {**_common(call), **tags, "ec2:InstanceType": [instance.instance_type]}


def _listed(call: Call, name: str) -> list[str]:
    found = [v for k, v in call.parameters.items() if re.fullmatch(rf"{name}(\.\d+)?", k)]
    return list(dict.fromkeys(found))


def _arn(call: Call, kind: str, name: str) -> str:
    return f"arn:aws:ec2:{call.region}:{ACCOUNT}:{kind}/{name}"


# ---- IAM and S3 ----------------------------------------------------------------------------


def _of_iam(call: Call) -> Iterator[Asked]:
    role, profile = call.parameters.get("RoleName"), call.parameters.get("InstanceProfileName")
    action = f"iam:{call.action}"
    if call.action == "CreateServiceLinkedRole":
        service = call.parameters.get("AWSServiceName", "")
        where = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/{service}/*"
        yield Asked(action, where, {"iam:AWSServiceName": [service]})
    elif profile is not None:
        yield Asked(action, f"arn:aws:iam::{ACCOUNT}:instance-profile/{profile}")
        if call.action == "AddRoleToInstanceProfile":
            yield Asked("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/{role}")
    else:
        yield Asked(action, "*" if role is None else f"arn:aws:iam::{ACCOUNT}:role/{role}")
    if any(name.startswith("Tags.") for name in call.parameters):
        kind = f"role/{role}" if profile is None else f"instance-profile/{profile}"
        word = "TagRole" if profile is None else "TagInstanceProfile"
        yield Asked(f"iam:{word}", f"arn:aws:iam::{ACCOUNT}:{kind}")


def _of_s3(request: Request) -> Iterator[Asked]:
    bucket, _, key = unquote(request.path).lstrip("/").partition("/")
    method, parts = request.method, set(request.args)
    if not bucket:
        yield Asked("s3:ListAllMyBuckets", "*")
        return
    where = f"arn:aws:s3:::{bucket}"
    named = next((a for (m, part), a in _S3_PARTS.items() if m == method and part in parts), None)
    if named is not None and not key:
        yield Asked(f"s3:{named}", where)
    elif not key and method == "POST" and "delete" in parts:
        for each in _keys_in(request.get_data()):
            yield Asked("s3:DeleteObject", f"{where}/{each}")
    elif not key:
        prefix = {"s3:prefix": [request.args.get("prefix", "")]} if method == "GET" else {}
        yield Asked(f"s3:{_S3_BUCKET[method]}", where, prefix)
    else:
        aborts = method == "DELETE" and "uploadId" in parts
        action = "AbortMultipartUpload" if aborts else _S3_OBJECT[method]
        yield Asked(f"s3:{action}", f"{where}/{key}")
        source = request.headers.get("x-amz-copy-source")
        if source is not None:
            yield Asked("s3:GetObject", f"arn:aws:s3:::{unquote(source).lstrip('/')}")


def _keys_in(body: bytes) -> Sequence[str]:
    return [each.decode() for each in re.findall(rb"<Key>(.*?)</Key>", body)]
