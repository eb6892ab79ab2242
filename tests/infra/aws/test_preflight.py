"""What would refuse a launch is found before anything is billed; what is added to launches."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from cloudtune.errors import ExperimentError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast import prediction
from cloudtune.forecast.plan_file import load_plan
from cloudtune.infra.aws import preflight
from cloudtune.infra.aws.account.inventory import lines, load_inventory
from cloudtune.infra.aws.account.policies import Place, head
from cloudtune.infra.aws.account.stack import Clients
from cloudtune.infra.aws.ec2 import Ec2
from cloudtune.infra.aws.provider import AWS, Aws
from cloudtune.infra.cluster.base import Rental
from cloudtune.infra.cluster.head import RayHead
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.provider import make_endpoint
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.provider import Endpoint
from cloudtune.lifecycle import runner
from cloudtune.model.commands import Launch
from cloudtune.runs.job import Job
from tests.aws_stand_in.account import found_by_boto3, set_up_account
from tests.bench import called
from tests.builders.experiments import FIELDS, experiment_on_aws


@pytest.fixture(scope="module")
def access(warm_emulators: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """A strict account that setup has seen."""
    with set_up_account(tmp_path_factory.mktemp("emulator"), types=("g4dn.*",)) as emulator:
        yield emulator.access


@pytest.fixture(autouse=True)
def account(access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    found_by_boto3(access, monkeypatch)
    (tmp_path / "train.py").write_text("def train(config): ...\n")


def experiment(tmp_path: Path, **cloud: Any) -> Experiment:
    return experiment_on_aws(tmp_path, {"instances": ["g4dn.xlarge", "g4dn.2xlarge"], **cloud})


def refusal_text(wanted: Experiment) -> str:
    with pytest.raises(UsageError) as error:
        runner.preflight(wanted)
    result = boto3.client("ec2", "us-east-1").describe_instances()["Reservations"]
    assert result == []
    assert str(error.value).endswith("\nnothing was launched")
    return str(error.value)


def test_what_setup_made_passes(tmp_path: Path) -> None:
    runner.preflight(experiment(tmp_path, market="any"))


@pytest.mark.parametrize(
    ("cloud", "words"),
    [
        (
            {"image": "ami-0123456789abcdef0"},
            r"g4dn.xlarge on-demand would be refused: .*InvalidAMIID.*\(cloud\.image isn't in this",
        ),
        ({"security_group": "sg-0123456789abcdef0"}, r"InvalidGroup\.NotFound"),
        ({"subnet": "subnet-0123456789abcdef0"}, r"InvalidSubnetID\.NotFound"),
        ({"instance_profile": "nobody"}, "Invalid IAM Instance Profile name"),
    ],
)
def test_each_mistake_is_a_line(tmp_path: Path, cloud: dict[str, str], words: str) -> None:
    result = refusal_text(experiment(tmp_path, **cloud))
    assert re.search(words, result), result
    assert result.count("\n") == 1, "once, not for each type"


def test_types_without_driver_are_not_offered(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'p3\.\*': AWS's base image has no driver for GPUs"):
        experiment(tmp_path, instances=["g4dn.xlarge", "p3.*"])
    role = {"instance_profile": "cloudtune-node-us-east-1"}
    offered = experiment(tmp_path, instances=["g4dn.*", "p*"], **role).cloud.instances
    assert "p4d.*" in offered
    assert "g4dn.*" in offered
    assert not [name for name in offered if name.startswith(("p*", "p2.", "p3."))]
    own = {"image": "ami-0123456789abcdef0"}
    assert experiment(tmp_path, instances=["p*"], **own).cloud.instances == ("p*",)


def test_closed_security_group_is_named(tmp_path: Path) -> None:
    ec2 = boto3.client("ec2", "us-east-1")
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = ec2.create_security_group(GroupName="closed", Description="x", VpcId=vpc)["GroupId"]
    result = refusal_text(experiment(tmp_path, security_group=group))
    assert f"{group} doesn't let its own members in, so no instance would join" in result


def test_a_type_that_the_role_may_not_rent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    iam = boto3.client("iam", "us-east-1")
    iam.create_user(UserName="head")
    document = head(Place("123456789012", "us-east-1", ("p3.*",)))
    iam.put_user_policy(UserName="head", PolicyName="p", PolicyDocument=json.dumps(document))
    key = iam.create_access_key(UserName="head")["AccessKey"]
    wanted = experiment(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with pytest.raises(UsageError, match=r"UnauthorizedOperation.*cloudtune aws setup"):
        runner.preflight(wanted)


def test_a_small_quota(access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regions = ("eu-west-1", "us-east-1", "us-west-2")
    monkeypatch.setattr(Aws, "regions", lambda _: regions)
    control = EmulatorControl(access)
    control.add({"kind": "quota", "market": "on-demand", "vcpus": 2})
    on_demand = experiment(tmp_path, market="on-demand")
    result = refusal_text(on_demand)
    assert "quota on-demand g: 2 vCPUs, and a g4dn.xlarge has 4: ask for more" in result
    assert "Running On-Demand G and VT instances" in result
    assert result.count("\n") == 1, "no region has more"
    prices = {"us-west-2": 0.6}
    monkeypatch.setattr(preflight, "read_price", lambda place, _: prices.get(place.region))
    control.replace([{"kind": "quota", "market": "on-demand", "zone": "us-east-1*", "vcpus": 2}])
    assert (
        "; us-west-2 has 768, and a g4dn.xlarge for $0.6 an hour on demand: "
        "`cloudtune aws setup --region us-west-2`" in refusal_text(on_demand)
    )
    control.replace([])


# The stack's own roles may only rent g4dn; the caller of these tests may rent anything.
ANY: dict[str, Any] = {"instances": ["*"], "instance_profile": "cloudtune-node-us-east-1"}


@pytest.fixture
def control(access: Access) -> Iterator[EmulatorControl]:
    control = EmulatorControl(access)
    yield control
    control.replace([])


def no_quota(kind: str, market: str) -> dict[str, Any]:
    return {"kind": "quota", "type": kind, "market": market, "vcpus": 0}


def refusal(kind: str, code: str) -> dict[str, Any]:
    match = {"InstanceType": kind} if kind else {}
    call = {"action": "RunInstances", "match": match, "times": None}
    return {"kind": "error", **call, "code": code}


@pytest.fixture(autouse=True)
def one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play one run for a forecast, not 31."""
    monkeypatch.setattr(prediction, "FORECAST_EVENTS", 1)


def plan_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cloud: Mapping[str, Any], *options: str
) -> str:
    """Return what `plan` prints of an experiment on AWS, and save the plan."""
    limits = {"budget": "$20", "deadline": "2h"}
    fields = {**FIELDS, "limits": limits, "cloud": {"provider": "aws", **cloud}}
    del fields["trials"]
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(fields))
    words = ("--profile", "resnet50-cifar10@v100", "--save", tmp_path / "saved.plan", *options)
    return called(capsys, "plan", file, *words).succeeded().out


def rentable_types(job: Job) -> set[tuple[str, str]]:
    """Return the types and markets that the policy of a job may rent."""
    offers = [rentable.offer for rentable in (*job.rentables, *job.standins)]
    return {(offer.instance_type.name, offer.market) for offer in offers}


def test_quotas_of_the_account_bound_an_open_choice(
    control: EmulatorControl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    control.replace([no_quota("p*", "*"), no_quota("g*", "spot")])
    quotas = experiment(tmp_path, **ANY).cloud.vcpu_quotas
    assert quotas == {
        "on-demand g": 768, "on-demand p": 0,
        "spot g": 0, "spot p": 0, "spot p5": 0, "spot p6": 0,
    }  # fmt: skip
    own = {"vcpu_quotas": {"spot g": 64}}
    assert experiment(tmp_path, **ANY, **own).cloud.vcpu_quotas == {**quotas, "spot g": 64}
    assert not experiment(tmp_path).cloud.vcpu_quotas, "named types aren't bounded"
    out = plan_text(tmp_path, capsys, ANY)
    assert re.search(r"\d+ offers left out: the quota spot g has no room for one", out), out
    assert re.search(r"with \d+ more vCPUs of the quota [a-z-]+ [gp][56]? \(", out), out
    saved = load_plan(tmp_path / "saved.plan")
    assert saved is not None
    assert {offer.quota for offer in saved.offers} == {"on-demand g"}


def record_tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the types that dry runs try from now on, in their order."""
    tried = []
    try_launch = Ec2.try_launch

    def try_and_record(ec2: Ec2, tags: Mapping[str, str], request: Mapping[str, Any]) -> Any:
        tried.append(request["InstanceType"])
        return try_launch(ec2, tags, request)

    monkeypatch.setattr(Ec2, "try_launch", try_and_record)
    return tried


def test_open_run_drops_refused_types(
    control: EmulatorControl,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_text(tmp_path, capsys, ANY)
    job = load_plan(tmp_path / "saved.plan")
    assert job is not None
    tried = record_tries(monkeypatch)
    runner.launchable(job)
    best = tried[0]
    assert len(tried) <= 6, "not each of them"
    for code in ("Unsupported", "UnauthorizedOperation", "VcpuLimitExceeded"):
        control.replace([refusal(best, code)])
        capsys.readouterr()
        remaining = rentable_types(runner.launchable(job))
        assert f"left out: {best} " in capsys.readouterr().err
        refused_offers = rentable_types(job) - remaining
        assert refused_offers
        assert {name for name, _ in refused_offers} == {best}


def test_open_run_without_types_is_refused(
    control: EmulatorControl,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_text(tmp_path, capsys, ANY)
    job = load_plan(tmp_path / "saved.plan")
    assert job is not None
    tried = record_tries(monkeypatch)
    types = {offer.instance_type.name for offer in job.offers}
    # Of families that aren't among the best, one is tried: rights are often by family.
    runner.launchable(job)
    best = {name.partition(".")[0] for name in tried}
    others = types - {name for name in types if name.partition(".")[0] in best}
    assert others
    control.replace([refusal(name, "Unsupported") for name in types - others])
    assert {name for name, _ in rentable_types(runner.launchable(job))} >= others
    control.replace([refusal("", "UnauthorizedOperation")])
    tried.clear()
    with pytest.raises(UsageError, match=r"UnauthorizedOperation.*cloudtune aws setup.*\nnothing"):
        runner.launchable(job)
    assert len(tried) <= 6 + len({name.partition(".")[0] for name in types})
    control.replace([no_quota("*", "*")])
    with pytest.raises(UsageError, match="quota on-demand g: 0 vCPUs") as error:
        runner.launchable(job)
    assert "quota spot p5: 0 vCPUs" in str(error.value)


def test_named_type_needs_one_market(control: EmulatorControl, tmp_path: Path) -> None:
    control.replace([no_quota("g*", "spot")])
    both = experiment(tmp_path)
    assert {market for _, market in runner.preflight(both).refused} == {"spot"}
    assert "quota spot g: 0 vCPUs" in refusal_text(experiment(tmp_path, market="spot"))
    control.replace([refusal("g4dn.xlarge", "UnauthorizedOperation")])
    assert "g4dn.xlarge on-demand would be refused" in refusal_text(both), "it was named"


def test_open_choice_keeps_permitted_types(tmp_path: Path) -> None:
    wanted = experiment(tmp_path, instances=["*"])
    assert wanted.cloud.instances == ("g4dn.*",)
    assert wanted.cloud.is_open
    assert set(wanted.cloud.vcpu_quotas) == {"on-demand g", "spot g"}
    runner.preflight(wanted)


def test_a_disk_without_room_is_reported_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=100 * 2**20)
    monkeypatch.setattr("cloudtune.lifecycle.runner.shutil.disk_usage", lambda _folder: usage)
    assert "100 MiB of disk are free" in refusal_text(experiment(tmp_path))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"KeyNam": "mine"}, 'Unknown parameter in input: "KeyNam"'),
        ({"KeyName": 3}, "Invalid type for parameter KeyName"),
        ({"BlockDeviceMappings": [{"Ebs": {"Size": 3}}]}, "BlockDeviceMappings"),
        ({"UserData": "x"}, "cloud.request.UserData is cloudtune's own: it makes instances join"),
        ({"ImageId": "x"}, "write cloud.image"),
        ({"Placement": {"AvailabilityZone": "us-east-1a"}}, "write cloud.zones"),
        ({"InstanceMarketOptions": {"MarketType": "spot"}}, "write cloud.market: spot"),
    ],
)
def test_a_field_not_of_requests(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        experiment(tmp_path, request=given)
    assert words in str(error.value)


def make_request(wanted: Experiment, zone: str) -> dict[str, Any]:
    cloud = AWS.open(wanted, Path(), pace=False)
    gpus = {"g4dn.xlarge": 1}
    rental = Rental("r", Endpoint("us-east-1"), gpus, 60.0, 0.0, cloud.request, {})
    with TemporaryDirectory() as folder:
        head = RayHead(Path(folder), replace(rental, places=cloud.places))
        head.want(Launch("i", "g4dn.xlarge", "on-demand", zone))
        head.stop()
        config = json.loads(Path(folder, "autoscaler.json").read_text())
    return dict(config["available_node_types"]["i"]["node_config"])


def test_additions_go_into_each_launch_and_replace_nothing(tmp_path: Path) -> None:
    disk: dict[str, Any] = {
        "DeviceName": "/dev/sda1",
        "Ebs": {"VolumeSize": 200, "VolumeType": "gp3"},
    }
    stays = {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 9, "DeleteOnTermination": False}}
    added = {
        "BlockDeviceMappings": [disk, stays],
        "Placement": {"GroupName": "near"},
        "KeyName": "mine",
    }
    wanted = experiment(tmp_path, request=added)
    sent = make_request(wanted, "us-east-1b")
    ends = {**disk["Ebs"], "DeleteOnTermination": True}
    assert sent["BlockDeviceMappings"] == [{**disk, "Ebs": ends}, stays]
    assert sent["KeyName"] == "mine"
    assert sent["Placement"] == {"GroupName": "near", "AvailabilityZone": "us-east-1b"}
    assert sent["IamInstanceProfile"] == {"Name": "cloudtune-node-us-east-1"}
    assert sent["InstanceType"] == "g4dn.xlarge"
    assert base64.b64encode(sent["UserData"].encode())


def test_each_zone_has_its_subnet(tmp_path: Path) -> None:
    subnets = {"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"}
    wanted = experiment(tmp_path, subnets=subnets)
    assert make_request(wanted, "us-east-1b")["SubnetId"] == "subnet-b"
    assert make_request(wanted, "us-east-1a")["SubnetId"] == "subnet-a"
    assert make_request(wanted, "")["SubnetId"] == "subnet-a", "any: the first"
    zones = runner._zones(wanted, AWS.open(wanted, Path(), pace=False))
    assert zones == ("us-east-1b", "us-east-1a"), "the first is tried without a zone"
    with pytest.raises(ExperimentError, match=r"us-east-1c.* has no subnet in subnets"):
        experiment(tmp_path, subnets=subnets, zones=["us-east-1c"])
    with pytest.raises(ExperimentError, match="keep one of the two"):
        experiment(tmp_path, subnets=subnets, subnet="subnet-a")
    assert not experiment(tmp_path).cloud.subnets


def test_missing_quotas_say_what_to_ask_for(access: Access) -> None:
    now = load_inventory(Clients(make_endpoint(access)), "us-east-1")
    account = replace(now, quotas={"on-demand g": 0.0, "spot g": 64.0})
    by_name = {line.what: line for line in lines(account)}
    assert by_name["quota spot g"].note == "64 vCPUs"
    assert by_name["quota on-demand g"].state == "missing"
    assert "Running On-Demand G and VT instances (L-DB2E81BA)" in by_name["quota on-demand g"].note


@pytest.mark.usefixtures("no_aws")
def test_without_credentials_one_line_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    done = called(capsys, "aws", "check").refused("log in as for the aws command")
    assert done.err.count("\n") == 1


def test_missing_type_tries_next_zone(control: EmulatorControl, tmp_path: Path) -> None:
    wanted = experiment(tmp_path, zones=["us-east-1a", "us-east-1b"])
    lacks = {"Placement.AvailabilityZone": "us-east-1a"}
    control.replace([{**refusal("", "Unsupported"), "match": lacks}])
    assert not runner.preflight(wanted).refused
    control.replace([refusal("", "Unsupported")])
    assert "g4dn.xlarge on-demand would be refused" in refusal_text(wanted)
