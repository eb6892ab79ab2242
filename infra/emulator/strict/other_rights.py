"""What a call to another service than EC2 wants to do, for IAM.

Tables from the Service Authorization Reference ("Actions, resources, and condition keys for Amazon
S3", "… for AWS Identity and Access Management", "… for AWS Systems Manager"), and "Required
permissions for Amazon S3 API operations" (S3 user guide), as known to us: not opened here. A
service that isn't here is asked for by the name of its action alone, on "*".
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends

from cloudtune.infra.emulator.strict.policies import Asked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from werkzeug.wrappers import Request

FREE = frozenset({"sts:GetCallerIdentity"})
"""What nobody needs a right for (STS API reference, GetCallerIdentity)."""
_DELETED = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)
_BUCKET: dict[tuple[str, str], str] = {
    ("GET", ""): "ListBucket",
    ("HEAD", ""): "ListBucket",
    ("PUT", ""): "CreateBucket",
    ("DELETE", ""): "DeleteBucket",
    ("GET", "list-type"): "ListBucket",
    ("GET", "versions"): "ListBucketVersions",
    ("GET", "uploads"): "ListBucketMultipartUploads",
    ("GET", "location"): "GetBucketLocation",
    ("GET", "lifecycle"): "GetLifecycleConfiguration",
    ("PUT", "lifecycle"): "PutLifecycleConfiguration",
    ("DELETE", "lifecycle"): "PutLifecycleConfiguration",
    ("GET", "tagging"): "GetBucketTagging",
    ("PUT", "tagging"): "PutBucketTagging",
    ("GET", "encryption"): "GetEncryptionConfiguration",
    ("PUT", "encryption"): "PutEncryptionConfiguration",
    ("GET", "publicAccessBlock"): "GetBucketPublicAccessBlock",
    ("PUT", "publicAccessBlock"): "PutBucketPublicAccessBlock",
    ("GET", "policy"): "GetBucketPolicy",
    ("PUT", "policy"): "PutBucketPolicy",
    ("DELETE", "policy"): "DeleteBucketPolicy",
    ("GET", "versioning"): "GetBucketVersioning",
    ("PUT", "versioning"): "PutBucketVersioning",
    ("GET", "ownershipControls"): "GetBucketOwnershipControls",
    ("PUT", "ownershipControls"): "PutBucketOwnershipControls",
}
_OBJECT: dict[tuple[str, str], str] = {
    ("GET", ""): "GetObject",
    ("HEAD", ""): "GetObject",
    ("PUT", ""): "PutObject",
    ("DELETE", ""): "DeleteObject",
    ("POST", "uploads"): "PutObject",
    ("POST", "uploadId"): "PutObject",
    ("PUT", "uploadId"): "PutObject",
    ("GET", "uploadId"): "ListMultipartUploadParts",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
    ("GET", "tagging"): "GetObjectTagging",
    ("PUT", "tagging"): "PutObjectTagging",
}
_SUBRESOURCES = {name for _, name in (*_BUCKET, *_OBJECT)} - {""}


def s3_asked(request: Request) -> list[Asked]:
    """Return what a call to S3 wants to do; its bucket is in its path, not in its host."""
    bucket, _, key = unquote(request.path).lstrip("/").partition("/")
    if not bucket:
        return [Asked("s3:ListAllMyBuckets")]
    given = {name: request.args.get(name, "") for name in request.args}
    what = next((name for name in given if name in _SUBRESOURCES), "")
    if not key and request.method == "POST" and "delete" in given:
        return [_of_object("DeleteObject", bucket, each) for each in deleted_keys(request)]
    if not key:
        action = _BUCKET.get((request.method, what), f"{request.method}{what}")
        context = {
            f"s3:{name}": [given[name]]
            for name in ("prefix", "delimiter", "max-keys")
            if name in given
        }
        return [Asked(f"s3:{action}", f"arn:aws:s3:::{bucket}", context)]
    asked = [_of_object(_OBJECT.get((request.method, what), request.method), bucket, key)]
    if source := request.headers.get("X-Amz-Copy-Source"):
        there, _, copied = unquote(source).lstrip("/").partition("/")
        asked.append(_of_object("GetObject", there, copied.partition("?")[0]))
    if request.headers.get("X-Amz-Tagging"):
        asked.append(_of_object("PutObjectTagging", bucket, key))
    return asked


def deleted_keys(request: Request) -> list[str]:
    """Return the keys that a DeleteObjects names."""
    return [_unescaped(each.decode()) for each in _DELETED.findall(request.get_data())]


def _unescaped(text: str) -> str:
    for name, letter in (("lt", "<"), ("gt", ">"), ("quot", '"'), ("apos", "'"), ("amp", "&")):
        text = text.replace(f"&{name};", letter)
    return text


def _of_object(action: str, bucket: str, key: str) -> Asked:
    return Asked(f"s3:{action}", f"arn:aws:s3:::{bucket}/{key}")


# ---- IAM, STS, and those that speak JSON ---------------------------------------------------


def asked(service: str, region: str, request: Request) -> list[Asked]:
    """Return what a call to a service other than EC2 wants to do."""
    if service == "s3":
        return s3_asked(request)
    context = {"aws:RequestedRegion": [region]}
    target = request.headers.get("X-Amz-Target", "")
    if target:
        action = f"{service}:{target.rpartition('.')[2]}"
        given = json.loads(request.get_data() or b"{}")
        return [Asked(action, each, context) for each in _json_resources(service, region, given)]
    parameters = dict(parse_qsl(request.get_data(as_text=True), keep_blank_values=True))
    if service == "iam":
        return list(_iam(parameters, context))
    return [Asked(f"{service}:{parameters.get('Action', '')}", "*", context)]


def action_of(service: str, request: Request) -> str:
    """Return the name of the action of a call to a service other than S3: `iam:GetRole`."""
    target = request.headers.get("X-Amz-Target", "")
    parameters = dict(parse_qsl(request.get_data(as_text=True))) if not target else {}
    return f"{service}:{target.rpartition('.')[2] or parameters.get('Action', '')}"


def _json_resources(service: str, region: str, given: Mapping[str, Any]) -> list[str]:
    """Return the parameters of Systems Manager by their ARN; AWS's public ones have no account."""
    if service != "ssm":
        return ["*"]
    names = [*given.get("Names", ()), *(given[each] for each in ("Name", "Path") if each in given)]
    return [
        f"arn:aws:ssm:{region}:{'' if name.startswith('/aws/') else DEFAULT_ACCOUNT_ID}"
        f":parameter/{name.lstrip('/')}"
        for name in names
    ] or ["*"]


def _iam(parameters: Mapping[str, str], context: Mapping[str, list[str]]) -> Iterator[Asked]:
    action = parameters.get("Action", "")
    if action == "CreateServiceLinkedRole":
        service = parameters.get("AWSServiceName", "")
        role = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/aws-service-role/{service}/*"
        yield Asked(f"iam:{action}", role, {**context, "iam:AWSServiceName": [service]})
        return
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    kinds = (
        ("InstanceProfileName", "instance-profile", iam.instance_profiles.values()),
        ("RoleName", "role", iam.roles.values()),
        ("UserName", "user", iam.users.values()),
        ("PolicyName", "policy", ()),
    )
    named = next(((k, p, known) for p, k, known in kinds if p in parameters), None)
    if "PolicyArn" in parameters and named is None:
        yield Asked(f"iam:{action}", parameters["PolicyArn"], context)
        return
    if named is None:
        yield Asked(f"iam:{action}", "*", context)
        return
    kind, parameter, known = named
    if action == "AddRoleToInstanceProfile":
        passed = {**context, "iam:PassedToService": ["ec2.amazonaws.com"]}
        yield Asked(
            "iam:PassRole", _arn("role", parameters["RoleName"], iam.roles.values()), passed
        )
    if "PolicyArn" in parameters:
        context = {**context, "iam:PolicyARN": [parameters["PolicyArn"]]}
    tags = {
        value: parameters.get(f"{name.removesuffix('Key')}Value", "")
        for name, value in parameters.items()
        if re.fullmatch(r"Tags\.member\.\d+\.Key", name)
    }
    asked = {f"aws:RequestTag/{key}": [value] for key, value in tags.items()}
    keys = {"aws:TagKeys": list(tags)} if tags else {}
    arn = _arn(kind, parameters[parameter], known, parameters.get("Path", "/"))
    yield Asked(f"iam:{action}", arn, {**context, **asked, **keys})


def _arn(kind: str, name: str, known: Any, path: str = "/") -> str:
    found = next((each.arn for each in known if each.name == name), None)
    return str(found or f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:{kind}{path}{name}")
