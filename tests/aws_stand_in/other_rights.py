"""What a call to a service other than EC2 wants to do, for IAM.

From the Service Authorization Reference ("Actions, resources, and condition keys for Amazon S3",
"… for AWS Identity and Access Management", "… for AWS Systems Manager"), and "Required permissions
for Amazon S3 API operations" (S3 user guide), as known to us. A service that isn't here is asked
for by the name of its action alone, on "*".
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import unescape

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends
from moto.s3.models import s3_backends
from moto.secretsmanager.models import secretsmanager_backends
from werkzeug.wrappers import Request

from tests.aws_stand_in.policies import Asked

OWN_BUCKETS = {"s3:ResourceAccount": [DEFAULT_ACCOUNT_ID]}
_DELETED = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)
_BUCKET = {
    ("GET", ""): "ListBucket",
    ("HEAD", ""): "ListBucket",
    ("PUT", ""): "CreateBucket",
    ("DELETE", ""): "DeleteBucket",
    ("GET", "lifecycle"): "GetLifecycleConfiguration",
    ("PUT", "lifecycle"): "PutLifecycleConfiguration",
    ("GET", "tagging"): "GetBucketTagging",
    ("PUT", "tagging"): "PutBucketTagging",
    ("PUT", "publicAccessBlock"): "PutBucketPublicAccessBlock",
    ("GET", "encryption"): "GetEncryptionConfiguration",
    ("PUT", "encryption"): "PutEncryptionConfiguration",
}
_OBJECT = {
    ("GET", ""): "GetObject",
    ("HEAD", ""): "GetObject",
    ("PUT", ""): "PutObject",
    ("DELETE", ""): "DeleteObject",
    ("POST", "uploads"): "PutObject",
    ("POST", "uploadId"): "PutObject",
    ("PUT", "uploadId"): "PutObject",
    ("GET", "uploadId"): "ListMultipartUploadParts",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
}
# Calls of these that aren't above are asked for by a name that no policy has.
_SUBRESOURCES = {name for _, name in (*_BUCKET, *_OBJECT) if name} | {
    *("encryption", "location", "ownershipControls", "policy", "versioning", "versions")
}


def list_s3_wishes(request: Request) -> list[Asked]:
    """Return what a call to S3 wants to do; its bucket is in its path, not in its host."""
    bucket, _, key = unquote(request.path).lstrip("/").partition("/")
    if not bucket:
        return [Asked("s3:ListAllMyBuckets")]
    if not key and request.method == "POST" and "delete" in request.args:
        return [_of_object("DeleteObject", bucket, deleted) for deleted in deleted_keys(request)]
    subresource = next((name for name in request.args if name in _SUBRESOURCES), "")
    call = (request.method, subresource)
    unknown = f"{request.method}{subresource}"
    if not key:
        action = f"s3:{_BUCKET.get(call, unknown)}"
        listed = {"s3:prefix": [request.args["prefix"]]} if "prefix" in request.args else {}
        return [Asked(action, f"arn:aws:s3:::{bucket}", {**OWN_BUCKETS, **listed})]
    asked = [_of_object(_OBJECT.get(call, unknown), bucket, key)]
    if data_key := _bucket_key(bucket):
        of_key = {"GetObject": "kms:Decrypt", "PutObject": "kms:GenerateDataKey"}
        asked += [
            Asked(of_key[one.action.removeprefix("s3:")], data_key)
            for one in asked
            if one.action.removeprefix("s3:") in of_key
        ]
    if source := request.headers.get("X-Amz-Copy-Source"):
        there, _, copied = unquote(source).lstrip("/").partition("/")
        asked.append(_of_object("GetObject", there, copied.partition("?")[0]))
    return asked


def _bucket_key(bucket: str) -> str | None:
    """Return the key that encrypts a bucket's objects by default; None for AWS's own."""
    known = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets.get(bucket)
    encryption = None if known is None else known.encryption
    rule = (encryption or {}).get("Rule", {}).get("ApplyServerSideEncryptionByDefault", {})
    key: str | None = rule.get("KMSMasterKeyID")
    return key


def deleted_keys(request: Request) -> list[str]:
    quotes = {"&quot;": '"', "&apos;": "'"}
    return [unescape(key.decode(), quotes) for key in _DELETED.findall(request.get_data())]


def _of_object(action: str, bucket: str, key: str) -> Asked:
    return Asked(f"s3:{action}", f"arn:aws:s3:::{bucket}/{key}", OWN_BUCKETS)


def list_other_wishes(service: str, region: str, request: Request) -> list[Asked]:
    """Return what a call to a service other than EC2 and S3 wants to do."""
    context = {"aws:RequestedRegion": [region]}
    target = request.headers.get("X-Amz-Target", "")
    if target:
        action = f"{service}:{target.rpartition('.')[2]}"
        given = json.loads(request.get_data() or b"{}")
        if action in {"ssm:SendCommand", "ssm:StartSession"}:
            return list(_entering(action, region, given, context))
        resources = ["*"]
        if service == "secretsmanager" and "SecretId" in given:
            resources = [_secret(region, given["SecretId"])]
        elif "Name" in given:
            resources = [_parameter(region, given["Name"])]
        return [Asked(action, resource, context) for resource in resources]
    parameters = dict(parse_qsl(request.get_data(as_text=True), keep_blank_values=True))
    if service == "iam":
        return list(_iam(parameters, context))
    action = f"{service}:{parameters.get('Action', '')}"
    if stack := parameters.get("StackName"):
        arn = f"arn:aws:cloudformation:{region}:{DEFAULT_ACCOUNT_ID}:stack/{stack}/*"
        return [Asked(action, arn, context)]
    if action == "sts:GetCallerIdentity":  # which needs no right (STS API reference)
        return []
    return [Asked(action, "*", context)]


def _entering(
    action: str, region: str, given: Mapping[str, Any], context: Mapping[str, list[str]]
) -> Iterator[Asked]:
    """Yield what a command or a terminal on instances needs: a document, and each instance."""
    yield Asked(action, f"arn:aws:ssm:{region}::document/{given['DocumentName']}", context)
    ec2 = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    for instance in given.get("InstanceIds") or [given["Target"]]:
        tags = ec2.describe_tags(filters={"resource-id": [instance]})
        own = {f"ssm:resourceTag/{tag['key']}": [str(tag["value"])] for tag in tags}
        arn = f"arn:aws:ec2:{region}:{DEFAULT_ACCOUNT_ID}:instance/{instance}"
        yield Asked(action, arn, {**context, **own})


def _parameter(region: str, name: str) -> str:
    """Return the ARN of a parameter of Systems Manager; AWS's public ones have no account."""
    account = "" if name.startswith("/aws/") else DEFAULT_ACCOUNT_ID
    return f"arn:aws:ssm:{region}:{account}:parameter/{name.lstrip('/')}"


def _secret(region: str, name: str) -> str:
    """Return the ARN of a secret, which ends with six characters of AWS's own."""
    stored = secretsmanager_backends[DEFAULT_ACCOUNT_ID][region].secrets.get(name)
    arn = f"arn:aws:secretsmanager:{region}:{DEFAULT_ACCOUNT_ID}:secret:{name}-AbCdEf"
    return arn if stored is None else str(stored.arn)


def _iam(parameters: Mapping[str, str], context: Mapping[str, list[str]]) -> Iterator[Asked]:
    action = f"iam:{parameters.get('Action', '')}"
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    role = parameters.get("RoleName", "")
    if action == "iam:CreateServiceLinkedRole":
        path = f"role/aws-service-role/{parameters.get('AWSServiceName', '')}"
        yield Asked(action, _arn(path, "*"), context)
    elif profile := parameters.get("InstanceProfileName", ""):
        if action == "iam:AddRoleToInstanceProfile":
            passed = {**context, "iam:PassedToService": ["ec2.amazonaws.com"]}
            yield Asked("iam:PassRole", _arn("role", role, iam.roles.values()), passed)
        arn = _arn("instance-profile", profile, iam.instance_profiles.values())
        yield Asked(action, arn, context)
    elif role:
        yield Asked(action, _arn("role", role, iam.roles.values()), context)
    else:
        yield Asked(action, "*", context)


def _arn(kind: str, name: str, existing: Any = ()) -> str:
    arn = next((owner.arn for owner in existing if owner.name == name), None)
    return str(arn or f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:{kind}/{name}")
