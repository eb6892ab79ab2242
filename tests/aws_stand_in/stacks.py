"""CloudFormation, as far as `cloudtune aws setup` uses it.

moto's needs a dozen packages, and lacks outputs of change sets, a bucket's public access block and
lifecycle, and rollback. Here, as on AWS, each resource is created and deleted by calls that the
caller must have the rights for; what was created is undone if one of them fails. A change is made
within the call that asks for it, so no caller sees a stack that is IN_PROGRESS.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

from botocore.exceptions import ClientError

from cloudtune.infra.emulator.requests import Ec2Error

Clients = Callable[[str], Any]
"""Returns a client of a service, with the credentials of the caller."""

_TIME = "2026-01-01T00:00:00Z"
_ATTRIBUTE_OF = {"AWS::EC2::SecurityGroup": "GroupId"}


@dataclass
class Stack:
    """A stack: its template, the parameters, and the id of each resource by logical id."""

    name: str
    status: str = "REVIEW_IN_PROGRESS"
    template: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    events: list[tuple[str, str, str]] = field(default_factory=list)

    def described(self) -> dict[str, Any]:
        outputs = {}
        if self.status.endswith("_COMPLETE") and self.status != "ROLLBACK_COMPLETE":
            outputs = _resolve(self.template["Outputs"], self)
        return {
            "StackName": self.name,
            "StackStatus": self.status,
            "CreationTime": _TIME,
            "Outputs": [
                {"OutputKey": name, "OutputValue": output["Value"]}
                for name, output in outputs.items()
            ],
        }

    def described_events(self) -> list[dict[str, str]]:
        return [
            {
                "EventId": "1",
                "StackId": self.name,
                "StackName": self.name,
                "Timestamp": _TIME,
                "LogicalResourceId": logical,
                "ResourceStatus": status,
                "ResourceStatusReason": reason,
            }
            for logical, status, reason in reversed(self.events)
        ]


class Stacks:
    def __init__(self) -> None:
        self._stacks: dict[tuple[str, str], Stack] = {}
        self._change_sets: dict[str, tuple[dict[str, Any], dict[str, str]]] = {}

    def answer(self, region: str, given: Mapping[str, str], clients: Clients) -> str:
        """Return the XML that answers a call.

        Raises:
            Ec2Error: with CloudFormation's code.
        """
        action, place = given["Action"], (region, given["StackName"])
        if action == "CreateChangeSet":
            self._propose(self._stacks.setdefault(place, Stack(place[1])), given)
            return _xml(action, {"Id": given["ChangeSetName"], "StackId": place[1]})
        stack = self._stacks.get(place)
        if action == "DeleteStack":
            if stack is not None and _Change(stack, clients).delete_all():
                del self._stacks[place]
            return _xml(action, {})
        if stack is None:
            raise _invalid(f"Stack with id {place[1]} does not exist")
        return _xml(action, self._about(stack, action, given, clients))

    def _propose(self, stack: Stack, given: Mapping[str, str]) -> None:
        wanted = "CREATE" if stack.status == "REVIEW_IN_PROGRESS" else "UPDATE"
        if given["ChangeSetType"] != wanted or stack.status == "ROLLBACK_COMPLETE":
            raise _invalid(f"Stack:{stack.name} is in {stack.status} state and can not be updated.")
        parameters = {}
        for number in itertools.count(1):
            prefix = f"Parameters.member.{number}.Parameter"
            if f"{prefix}Key" not in given:
                break
            parameters[given[f"{prefix}Key"]] = given[f"{prefix}Value"]
        template = json.loads(given["TemplateBody"])
        self._change_sets[given["ChangeSetName"]] = template, parameters

    def _about(
        self, stack: Stack, action: str, given: Mapping[str, str], clients: Clients
    ) -> dict[str, Any]:
        if action == "GetTemplate":
            return {"TemplateBody": json.dumps(stack.template)}
        if action == "DescribeStackEvents":
            return {"StackEvents": stack.described_events()}
        if action == "DescribeStacks":
            return {"Stacks": [stack.described()]}
        template, parameters = self._change_sets[given["ChangeSetName"]]
        if action == "DescribeChangeSet":
            return _change_set(stack, template, parameters)
        if action == "ExecuteChangeSet":
            _Change(stack, clients).make(template, parameters)
        del self._change_sets[given["ChangeSetName"]]
        return {}


def _change_set(stack: Stack, template: Any, parameters: Mapping[str, str]) -> dict[str, Any]:
    old, new = stack.template.get("Resources", {}), template["Resources"]
    changes = [
        *(("Add", name) for name in new if name not in old),
        *(("Modify", name) for name in new if name in old and new[name] != old[name]),
        *(("Remove", name) for name in old if name not in new),
    ]
    if not changes and template == stack.template and parameters == stack.parameters:
        reason = "The submitted information didn't contain changes."
        return {"Status": "FAILED", "StatusReason": reason}
    described = [
        {"Type": "Resource", "ResourceChange": {"Action": action, "LogicalResourceId": name}}
        for action, name in changes
    ]
    return {"Status": "CREATE_COMPLETE", "Changes": described}


class _Change:
    def __init__(self, stack: Stack, clients: Clients) -> None:
        self._stack = stack
        self._clients = clients

    def make(self, template: dict[str, Any], parameters: dict[str, str]) -> None:
        stack = self._stack
        word = "CREATE" if not stack.template else "UPDATE"
        before = Stack(stack.name, stack.status, stack.template, stack.parameters, dict(stack.ids))
        stack.events.append((stack.name, f"{word}_IN_PROGRESS", "User Initiated"))
        stack.template, stack.parameters = template, parameters
        for name, resource in template["Resources"].items():
            if before.template.get("Resources", {}).get(name) == resource:
                continue
            try:
                self._create_or_update(name, resource, is_new=name not in stack.ids)
            except ClientError as error:
                stack.events.append((name, f"{word}_FAILED", str(error)))
                for other in reversed([name for name in stack.ids if name not in before.ids]):
                    with contextlib.suppress(ClientError):
                        self._delete(other)
                stack.ids, stack.parameters = before.ids, before.parameters
                stack.template = before.template or template
                stack.status = (
                    "ROLLBACK_COMPLETE" if word == "CREATE" else "UPDATE_ROLLBACK_COMPLETE"
                )
                return
        stack.status = f"{word}_COMPLETE"

    def delete_all(self) -> bool:
        """Delete what isn't retained; return whether all of it went."""
        stack = self._stack
        stack.events.append((stack.name, "DELETE_IN_PROGRESS", "User Initiated"))
        for name in [*stack.ids][::-1]:
            if "DeletionPolicy" in stack.template["Resources"][name]:
                continue
            try:
                self._delete(name)
            except ClientError as error:
                stack.events.append((name, "DELETE_FAILED", str(error)))
                stack.status = "DELETE_FAILED"
                return False
            del stack.ids[name]
        return True

    def _create_or_update(self, name: str, resource: Any, *, is_new: bool) -> None:
        given = {key: _resolve(value, self._stack) for key, value in resource["Properties"].items()}
        ids = self._stack.ids
        if resource["Type"] == "AWS::EC2::SecurityGroup":
            if not is_new:
                return
            ec2 = self._clients("ec2")
            group = ec2.create_security_group(
                GroupName=given["GroupName"],
                Description=given["GroupDescription"],
                VpcId=given["VpcId"],
            )["GroupId"]
            ids[name] = group
            ec2.create_tags(Resources=[group], Tags=given["Tags"])
        elif resource["Type"] == "AWS::EC2::SecurityGroupIngress":
            ids[name] = given["GroupId"]
            pair = {"GroupId": given["SourceSecurityGroupId"], "Description": given["Description"]}
            rule = {"IpProtocol": given["IpProtocol"], "UserIdGroupPairs": [pair]}
            self._clients("ec2").authorize_security_group_ingress(
                GroupId=given["GroupId"], IpPermissions=[rule]
            )
        elif resource["Type"] == "AWS::IAM::Role":
            self._role(name, given, is_new=is_new)
        elif resource["Type"] == "AWS::IAM::InstanceProfile":
            iam, profile = self._clients("iam"), given["InstanceProfileName"]
            iam.create_instance_profile(InstanceProfileName=profile, Path=given.get("Path", "/"))
            ids[name] = profile
            (role,) = given["Roles"]
            iam.add_role_to_instance_profile(InstanceProfileName=profile, RoleName=role)
        else:
            assert resource["Type"] == "AWS::S3::Bucket", resource
            self._bucket(name, given, is_new=is_new)

    def _role(self, name: str, given: Any, *, is_new: bool) -> None:
        iam, role = self._clients("iam"), given["RoleName"]
        if is_new:
            iam.create_role(
                RoleName=role,
                Description=given["Description"],
                AssumeRolePolicyDocument=json.dumps(given["AssumeRolePolicyDocument"]),
                **{name: given[name] for name in ("Path", "PermissionsBoundary") if name in given},
            )
            self._stack.ids[name] = role
        iam.tag_role(RoleName=role, Tags=given["Tags"])
        for policy in given["Policies"]:
            document = json.dumps(policy["PolicyDocument"])
            iam.put_role_policy(
                RoleName=role, PolicyName=policy["PolicyName"], PolicyDocument=document
            )

    def _bucket(self, name: str, given: Any, *, is_new: bool) -> None:
        s3, bucket = self._clients("s3"), given["BucketName"]
        if is_new:
            region = s3.meta.region_name
            where = {} if region == "us-east-1" else {"LocationConstraint": region}
            s3.create_bucket(
                Bucket=bucket, **({"CreateBucketConfiguration": where} if where else {})
            )
            self._stack.ids[name] = bucket
        s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": given["Tags"]})
        block = given["PublicAccessBlockConfiguration"]
        s3.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=block)
        if "BucketEncryption" in given:
            (rule,) = given["BucketEncryption"]["ServerSideEncryptionConfiguration"]
            by_default = rule.pop("ServerSideEncryptionByDefault")
            rule = {"ApplyServerSideEncryptionByDefault": by_default, **rule}
            s3.put_bucket_encryption(
                Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]}
            )
        rules = []
        for rule in given["LifecycleConfiguration"]["Rules"]:
            same = {"ID": rule["Id"], "Status": rule["Status"], "Filter": {"Prefix": ""}}
            if "Prefix" in rule:
                same |= {"Filter": {"Prefix": rule["Prefix"]}}
                same |= {"Expiration": {"Days": rule["ExpirationInDays"]}}
            else:
                same["AbortIncompleteMultipartUpload"] = rule["AbortIncompleteMultipartUpload"]
            rules.append(same)
        s3.put_bucket_lifecycle_configuration(
            Bucket=bucket, LifecycleConfiguration={"Rules": rules}
        )

    def _delete(self, name: str) -> None:
        resource = self._stack.template["Resources"][name]
        kind, its_id = resource["Type"], self._stack.ids[name]
        if kind == "AWS::EC2::SecurityGroup":
            self._clients("ec2").delete_security_group(GroupId=its_id)
        elif kind == "AWS::EC2::SecurityGroupIngress":
            pair = {"GroupId": its_id, "Description": resource["Properties"]["Description"]}
            self._clients("ec2").revoke_security_group_ingress(
                GroupId=its_id, IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": [pair]}]
            )
        elif kind == "AWS::IAM::InstanceProfile":
            iam = self._clients("iam")
            profile = iam.get_instance_profile(InstanceProfileName=its_id)["InstanceProfile"]
            for role in profile["Roles"]:
                iam.remove_role_from_instance_profile(
                    InstanceProfileName=its_id, RoleName=role["RoleName"]
                )
            iam.delete_instance_profile(InstanceProfileName=its_id)
        elif kind == "AWS::IAM::Role":
            iam = self._clients("iam")
            for policy in iam.list_role_policies(RoleName=its_id)["PolicyNames"]:
                iam.delete_role_policy(RoleName=its_id, PolicyName=policy)
            iam.delete_role(RoleName=its_id)
        else:
            self._clients("s3").delete_bucket(Bucket=its_id)


def _resolve(value: Any, stack: Stack) -> Any:
    if isinstance(value, list):
        return [_resolve(item, stack) for item in value]
    if not isinstance(value, dict):
        return value
    if "Ref" in value:
        return {**_defaults(stack), **stack.parameters, **stack.ids}[value["Ref"]]
    if "Fn::GetAtt" in value:
        name, attribute = value["Fn::GetAtt"]
        assert _ATTRIBUTE_OF[stack.template["Resources"][name]["Type"]] == attribute
        return stack.ids[name]
    return {key: _resolve(item, stack) for key, item in value.items()}


def _defaults(stack: Stack) -> dict[str, str]:
    parameters = stack.template.get("Parameters", {})
    return {name: its["Default"] for name, its in parameters.items() if "Default" in its}


def _invalid(message: str) -> Ec2Error:
    return Ec2Error("ValidationError", message)


def _xml(action: str, result: Any) -> str:
    body = _element(f"{action}Result", result)
    return f"<{action}Response>{body}</{action}Response>"


def _element(name: str, value: Any) -> str:
    if isinstance(value, dict):
        inner = "".join(_element(key, item) for key, item in value.items())
    elif isinstance(value, list):
        inner = "".join(_element("member", item) for item in value)
    else:
        inner = escape(str(value))
    return f"<{name}>{inner}</{name}>"
