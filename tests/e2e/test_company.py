"""From an empty laptop to a model and back to nothing, in an account as companies have them.

Its people assume a role, and reach AWS through a proxy with certificates of its own. It has no
default VPC but private subnets, which lead out by a NAT gateway once somebody has made one, and
rules of the organization demand a tag and IMDSv2 of all that is launched, and disks that the
company's key encrypts. The laptop's network goes away twice, and the head boots
again.
"""

import json
import re
import shutil
import time
from collections.abc import Iterator
from typing import IO

import pytest

from tests.aws_stand_in.company_proxy import BUNDLE
from tests.outside import Outside, isolated_account

pytestmark = [pytest.mark.cluster, pytest.mark.walk("five minutes in an account of its own")]

ACCOUNT = """
import boto3, json
iam = boto3.client("iam", region_name="us-east-1")
ec2 = boto3.client("ec2", region_name="us-east-1")
for subnet in ec2.describe_subnets()["Subnets"]:
    ec2.delete_subnet(SubnetId=subnet["SubnetId"])
for vpc in ec2.describe_vpcs()["Vpcs"]:
    ec2.delete_vpc(VpcId=vpc["VpcId"])
vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
subnets = [
    ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.1.{{at}}.0/24", AvailabilityZone=zone)
    for at, zone in enumerate(["us-east-1a", "us-east-1b"])
]
arn = "arn:aws:ec2:*:*"
denied = {{"Effect": "Deny", "Action": "ec2:RunInstances"}}
tagged = {{
    **denied,
    "Resource": [f"{{arn}}:instance/*", f"{{arn}}:volume/*"],
    "Condition": {{"Null": {{"aws:RequestTag/team": "true"}}}},
}}
tokens = {{
    **denied,
    "Resource": f"{{arn}}:instance/*",
    "Condition": {{"StringNotEquals": {{"ec2:MetadataHttpTokens": "required"}}}},
}}
encrypted = {{
    **denied,
    "Resource": f"{{arn}}:volume/*",
    "Condition": {{"Bool": {{"ec2:Encrypted": "false"}}}},
}}
demanded = {{"Version": "2012-10-17", "Statement": [tagged, tokens, encrypted]}}
iam.create_policy(PolicyName="demands", Path="/scp/", PolicyDocument=json.dumps(demanded))
trust = {{"Effect": "Allow", "Principal": {{"AWS": "*"}}, "Action": "sts:AssumeRole"}}
trusted = {{"Version": "2012-10-17", "Statement": [trust]}}
role = iam.create_role(RoleName="tuner", AssumeRolePolicyDocument=json.dumps(trusted))["Role"]
for name, document in {documents!r}.items():
    iam.put_role_policy(RoleName="tuner", PolicyName=name, PolicyDocument=document)
iam.create_user(UserName="carl")
assume = {{"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": "*"}}
only = {{"Version": "2012-10-17", "Statement": [assume]}}
iam.put_user_policy(UserName="carl", PolicyName="only", PolicyDocument=json.dumps(only))
key = iam.create_access_key(UserName="carl")["AccessKey"]
print(json.dumps([
    vpc,
    ",".join(answer["Subnet"]["SubnetId"] for answer in subnets),
    role["Arn"],
    key["AccessKeyId"],
    key["SecretAccessKey"],
]))
"""

KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"

NAT = """
import boto3
ec2 = boto3.client("ec2", region_name="us-east-1")
gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId="{vpc}")
public = ec2.create_subnet(
    VpcId="{vpc}", CidrBlock="10.1.9.0/24", AvailabilityZone="us-east-1a"
)["Subnet"]["SubnetId"]
table = ec2.create_route_table(VpcId="{vpc}")["RouteTable"]["RouteTableId"]
ec2.associate_route_table(RouteTableId=table, SubnetId=public)
everywhere = {{"DestinationCidrBlock": "0.0.0.0/0"}}
ec2.create_route(RouteTableId=table, GatewayId=gateway, **everywhere)
address = ec2.allocate_address(Domain="vpc")["AllocationId"]
nat = ec2.create_nat_gateway(SubnetId=public, AllocationId=address)["NatGateway"]["NatGatewayId"]
asked = {{"vpc-id": "{vpc}", "association.main": "true"}}
filters = [{{"Name": name, "Values": [value]}} for name, value in asked.items()]
main = ec2.describe_route_tables(Filters=filters)["RouteTables"][0]["RouteTableId"]
ec2.create_route(RouteTableId=main, NatGatewayId=nat, **everywhere)
"""
"""Gives the VPC's main route table a way out."""

REBOOT = """
import boto3
boto3.client("ec2", region_name="us-east-1").terminate_instances(InstanceIds=["{head}"])
"""
"""A head that boots again powers off, which ends it (`test_a_machine_that_boots_again…`)."""

KEYS = """
import boto3, json
sts = boto3.client("sts", region_name="us-east-1")
made = sts.assume_role(RoleArn="{role}", RoleSessionName="dora")["Credentials"]
names = ("AccessKeyId", "SecretAccessKey", "SessionToken")
ends = made["Expiration"].isoformat()
print(json.dumps({{"Version": 1, "Expiration": ends, **{{name: made[name] for name in names}}}}))
"""

LEFT = """
import boto3, json
iam, s3 = (boto3.client(name, region_name="us-east-1") for name in ("iam", "s3"))
ec2 = boto3.client("ec2", region_name="us-east-1")
roles = [role["RoleName"] for role in iam.list_roles()["Roles"]]
groups = [group["GroupName"] for group in ec2.describe_security_groups()["SecurityGroups"]]
volumes = [volume["VolumeId"] for volume in ec2.describe_volumes()["Volumes"]]
buckets = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
ours = [name for name in [*roles, *groups, *buckets] if "cloudtune" in name]
print(json.dumps([*ours, *volumes]))
"""


@pytest.fixture(scope="module")
def company(leaves_nothing: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with isolated_account(tmp_path_factory.mktemp("company")) as account:
        yield account


def test_empty_laptop_gets_a_model(company: Outside) -> None:
    began = time.monotonic()

    def passed(what: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {what}")  # noqa: T201

    vpc, subnets, role = account_for_carl(company)
    passed("carl has a profile that assumes a role")
    network = ("--vpc", vpc, "--subnets", subnets)
    missing = company("carl", "cloudtune", "aws", "setup", "--yes")
    assert missing.code == 2
    assert "us-east-1 has no default VPC: name one (--vpc vpc-…)" in missing.err
    done = company("carl", "cloudtune", "aws", "setup", "--yes", *network).succeeded()
    company.script_on("carl", "import time; time.sleep(5)")
    untagged = company("carl", "cloudtune", "run", "experiment.yaml", "--yes")
    assert untagged.code == 2, untagged.out + untagged.err
    assert "explicit deny in a service control policy" in untagged.err
    assert "nothing was launched" in untagged.err
    assert f"the head would never come up: {subnets.split(',')[0]} " in untagged.err
    assert company("carl", "cloudtune", "aws", "check").code == 1
    company.python("owner", NAT.format(vpc=vpc))
    ours = ("--tag", "team=vision", "--kms", KEY, "--head-type", "m6i.large")
    done = company("carl", "cloudtune", "aws", "setup", "--yes", *ours).succeeded()
    checked = company("carl", "cloudtune", "aws", "check").succeeded()
    assert "private, out by nat-" in checked.out
    passed("setup, with the VPC, its subnets, the tag and the key that the organization demands")

    company("carl", "cloudtune", "plan", "experiment.yaml", "--profile", "speeds.json").succeeded()
    words = ("experiment.yaml", "--profile", "speeds.json", "--yes")
    both = ("sh", "-c", 'exec "$@" 2>&1', "sh")
    running = company.start("carl", *both, "cloudtune", "run", *words)
    assert running.stdout is not None
    head = until(running.stdout, r"(i-\w+) \(m6i.large, \$[\d.]+ an hour\) controls run ")
    passed("the head is launched")
    for part in (
        "^(head: .*)",  # its first line
        "^(head: carries .*)",
        "(asks for .*)",
        r"(i-\w+ launched)",
        # Its boot line is shown only if joining takes longer than from one look to the next.
        r"(i-\w+: joins the cluster at .*|i-\w+ joined the cluster)",
    ):
        line = until(running.stdout, part)
        passed(line)
    if not line.endswith("joined the cluster"):
        until(running.stdout, "(joined the cluster)")
    passed("the first GPU instance has joined")
    for number in (1, 2):
        company.world.network("carl", "down")
        until(running.stdout, "(lost contact with run )")
        company.world.network("carl", "up")
        until(running.stdout, "(contact with run .* again, after)")
        passed(f"the network was away, and is back ({number})")
    company.python("owner", REBOOT.format(head=head))
    errors, _ = running.communicate(timeout=300)
    assert running.returncode == 1, errors
    assert f"head {head} of run " in errors
    run = find(errors, r"Resume the run with `cloudtune resume (\S+)`")
    passed("the head is gone, and the laptop says how to go on")

    done = company("carl", "cloudtune", "resume", run, "--yes", timeout=400).succeeded()
    assert "0 instances left (checked " in done.out
    passed("another head has ended the run")
    report = company("carl", "cloudtune", "report", run, "-o", "json").json
    assert (report["ended"], report["best"]["epoch"]) == ("done", 8)
    dora = account_for_dora(company, role)
    looked = company("dora", "cloudtune", "report", f"s3://{dora}/cloudtune/{run}", "-o", "json")
    assert looked.json["best"] == report["best"], "with keys of a credential_process"
    instances = company.instances()
    assert {instance["team"] for instance in instances} == {"vision"}
    assert {instance["state"] for instance in instances} == {"terminated"}
    done = company("carl", "cloudtune", "aws", "teardown", "--yes", "--bucket").succeeded()
    assert json.loads(company.python("owner", LEFT)) == []
    paid = report["dollars"]["actual"]
    passed(f"nothing is left of {len(instances)} instances; the run cost ${paid:.4f}")


def account_for_carl(company: Outside) -> tuple[str, str, str]:
    """Make a company's account, and a profile for carl; return its VPC, subnets and role."""
    heads = ("--kms", KEY, "--head-type", "m6i.large")
    documents = {
        name: company("owner", "cloudtune", "aws", "policy", name, *heads).out
        for name in ("person", "maker")
    }
    made = json.loads(company.python("owner", ACCOUNT.format(documents=documents)))
    vpc, subnets, role, key, secret = made
    folder = company.world.home / "computers" / "carl" / ".aws"
    folder.mkdir(parents=True)
    shutil.copy(company.world.home / BUNDLE, folder.parent)
    (folder / "credentials").write_text(
        f"[base]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    )
    (folder / "config").write_text(
        f"[default]\nrole_arn = {role}\nsource_profile = base\nregion = us-east-1\n"
    )
    return vpc, subnets, role


def account_for_dora(company: Outside, role: str) -> str:
    """Give dora's computer a credential_process; return the name of the bucket."""
    folder = company.world.home / "computers" / "dora" / ".aws"
    folder.mkdir(parents=True)
    (folder / "credentials").write_text("")
    (folder / "keys").write_text(company.python("owner", KEYS.format(role=role)))
    process = "credential_process = cat /home/me/.aws/keys"
    (folder / "config").write_text(f"[default]\n{process}\nregion = us-east-1\n")
    return "cloudtune-123456789012-us-east-1-an"


def until(stream: IO[str], pattern: str) -> str:
    seen = []
    for line in stream:
        seen.append(line)
        if match := re.search(pattern, line):
            return str(match[1])
    raise AssertionError(f"no {pattern} in:\n{''.join(seen)}")


def find(text: str, pattern: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return str(match[1])
