"""Which resources for cloudtune an account has; nothing here changes anything."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from botocore.exceptions import ClientError

from cloudtune import aws_session
from cloudtune.clock import unix_time
from cloudtune.errors import UsageError
from cloudtune.experiment.variables import PARAMETER_STORE, SecretSource
from cloudtune.infra.aws import pricing
from cloudtune.infra.aws.account import policies, stack
from cloudtune.infra.aws.account.policies import SPOT_SERVICE, STACK, Document, Place
from cloudtune.infra.aws.account.stack import Clients, Stack
from cloudtune.infra.aws.account.template import TAG, Settings, template
from cloudtune.infra.aws.errors import CALL_ERRORS
from cloudtune.infra.aws.networks import HEAD, INSTANCES, Network, Subnet, read_subnets
from cloudtune.infra.provider import Endpoint

# Where AWS publishes the id of its newest base image with NVIDIA's driver for a version of Ubuntu
# (Deep Learning AMI developer guide); several public scripts of 2026 use the same name.
IMAGE_PARAMETER = (
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-{}/latest/ami-id"
)
# Ubuntu publishes a version with long support every other April, and supports it for five years.
_UBUNTU_YEARS = 5
_ABSENT = {
    *("404", "NoSuchBucket", "NoSuchResourceException", "NoSuchTagSet", "ParameterNotFound"),
    "ServerSideEncryptionConfigurationNotFoundError",
}
_NO_SECRET = {"ParameterNotFound", "ResourceNotFoundException"}

# The vCPU quotas by market and class: code and name in Service Quotas (EC2 user guide, EC2 instance
# type quotas); the codes are those of several public scripts of 2026. One whose code is "" is found
# by its name.
QUOTAS: Mapping[str, tuple[str, str]] = {
    "on-demand g": ("L-DB2E81BA", "Running On-Demand G and VT instances"),
    "spot g": ("L-3819A6DF", "All G and VT Spot Instance Requests"),
    "on-demand p": ("L-417A185B", "Running On-Demand P instances"),
    "spot p": ("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
    "spot p5": ("L-C4BD4855", "All P5 Spot Instance Requests"),
    "spot p6": ("", "All P6 Spot Instance Requests"),
    "on-demand standard": (
        "L-1216C47A",
        "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    ),
}


@dataclass(frozen=True)
class Inventory:
    """The resources in a region. `vpc`, `group` and `image` are ids, None if there is none.

    `settings` are those of the stack, or of a first setup; `is_current` says whether the stack is
    what setup would create today. `system` is the image's. `visitors` are address ranges and groups
    that can reach instances from outside. `bucket_key` is the key that encrypts the bucket's
    objects, None for AWS's own. `quotas` are vCPUs. `unknown` has the reasons for whatever couldn't
    be read.
    """

    caller: str
    settings: Settings
    stack: Stack | None = None
    is_current: bool = False
    has_own_bucket: bool = False
    vpc: str | None = None
    subnets: tuple[Subnet, ...] = ()
    group: str | None = None
    open_within: bool = False
    visitors: tuple[str, ...] = ()
    bucket: bool = False
    bucket_key: str | None = None
    image: str | None = None
    system: str = ""
    spot_role: bool = False
    quotas: Mapping[str, float] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        return self.settings.place

    def make_template(self, named: Mapping[str, Any]) -> Document:
        """Return the template that setup deploys; fields of the place that aren't given stay."""
        place = replace(self.place, **named)
        return template(place, with_bucket=self.has_own_bucket or not self.bucket)

    def make_parameters(
        self, clients: Clients, vpc: str | None, subnets: Sequence[str]
    ) -> dict[str, str]:
        """Return the template's parameters; what isn't given stays as in the last setup.

        Raises:
            UsageError: there is no VPC; a subnet isn't in it, several are in one zone, or it has
                none.
        """
        network = vpc or self.vpc
        if self.settings.vpc not in ("", network):
            raise UsageError(
                f"--vpc {vpc}: setup uses {self.settings.vpc}; to change it, run "
                "`cloudtune aws teardown` first (it keeps a bucket that isn't empty)"
            )
        if network is None:
            raise UsageError(
                f"{self.place.region} has no default VPC: name one (--vpc vpc-…), or create the "
                "default one (`aws ec2 create-default-vpc`)"
            )
        by_zone = self.settings.subnets
        if subnets or not self.settings.vpc:
            by_zone = _subnets_by_zone(clients, network, subnets)
        return {"Vpc": network, "Subnets": json.dumps(by_zone)}


def identity(clients: Clients) -> Mapping[str, str]:
    """Return the caller's identity: `Account` and `Arn`.

    Raises:
        UsageError: no credentials, or no network.
    """
    try:
        caller: Mapping[str, str] = clients["sts"].get_caller_identity()
    except CALL_ERRORS as error:
        if why := aws_session.unreachable(error):
            raise UsageError(f"AWS can't be reached: {why}") from None
        raise UsageError(
            f"AWS doesn't accept this machine's credentials: {error}; {aws_session.LOG_IN}"
        ) from None
    return caller


def load_inventory(clients: Clients, region: str) -> Inventory:
    """Return the inventory of an account in a region.

    Raises:
        UsageError: no credentials, or no network.
    """
    caller = identity(clients)
    reader = _Reader(clients)
    its_stack = reader(f"stack {STACK}", partial(stack.read, clients))
    outputs = {} if its_stack is None else its_stack.outputs
    settings = Settings.of_outputs(Place(caller["Account"], region, all_types()), outputs)
    shared = replace(settings.place, shared_namespace=True)
    if settings.storage:
        named_before = settings.storage.startswith(f"s3://{shared.bucket}/")
    else:  # a deleted stack may have left its bucket
        named_before = reader(f"bucket {shared.bucket}", partial(reader.has_left, shared))
    if named_before:  # by a set-up before 0.3: it stays with its contents
        settings = replace(settings, place=shared)
    place = settings.place
    written = reader("its template", partial(stack.body, clients)) if outputs else None
    has_own_bucket = "Bucket" in (written or {}).get("Resources", {})
    vpc = settings.vpc or reader("the VPC", reader.default_vpc)
    image = reader("the image", reader.image)
    group = reader("the security group", partial(reader.group, settings.security_group)) or {}
    quotas = {name: reader(f"quota {name}", partial(reader.quota, name)) for name in QUOTAS}
    return Inventory(
        caller=caller["Arn"],
        settings=settings,
        stack=its_stack,
        is_current=written == template(place, with_bucket=has_own_bucket),
        has_own_bucket=has_own_bucket,
        vpc=vpc,
        subnets=reader("subnets", partial(reader.subnets, settings, vpc)) or (),
        group=group.get("GroupId"),
        open_within=lets_itself_in(group),
        visitors=tuple(_visitors(group)),
        bucket=bool(reader(f"bucket {place.bucket}", partial(reader.has_bucket, place))),
        bucket_key=reader("the bucket's key", partial(reader.bucket_key, place.bucket)),
        image=None if image is None else image.id,
        system="" if image is None else image.system,
        spot_role=bool(reader("the spot role", reader.spot_role)),
        quotas={name: vcpus for name, vcpus in quotas.items() if vcpus is not None},
        unknown=reader.unknown,
    )


def _subnets_by_zone(clients: Clients, vpc: str, wanted: Sequence[str]) -> dict[str, str]:
    """Return the subnets that runs in a VPC use; {} in a default VPC, where EC2 chooses them."""
    ec2 = clients["ec2"]
    try:
        subnets = ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["Subnets"]
        (network,) = ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"]
    except CALL_ERRORS as error:
        raise UsageError(f"--vpc {vpc}: {error}") from None
    if network["IsDefault"] and not wanted:
        return {}
    zones = {subnet["SubnetId"]: subnet["AvailabilityZone"] for subnet in subnets}
    strange = [name for name in wanted if name not in zones]
    if strange:
        raise UsageError(f"--subnets: {strange[0]} isn't a subnet of {vpc}")
    by_zone: dict[str, str] = {}
    for name in wanted or zones:
        other = by_zone.setdefault(zones[name], name)
        if other != name:
            both = f"{other} and {name} are both in {zones[name]}"
            raise UsageError(f"{both}: name one subnet a zone (--subnets)")
    if not by_zone:
        raise UsageError(f"--vpc {vpc}: it has no subnets")
    return by_zone


def all_types() -> tuple[str, ...]:
    """Return the patterns of all types that cloudtune offers."""
    return tuple(sorted({f"{name.partition('.')[0]}.*" for name in pricing.instance_types()}))


@dataclass(frozen=True)
class RunDefaults:
    """The defaults of runs from the account: fields of `cloud`, and a storage.

    `storage` is "" without a stack, `disk_gb` the size of the image's root disk, if AWS says it,
    `request` the part of launches that makes the stack's key encrypt that disk. `types` are
    patterns of the instance types that the stack's roles may rent.
    """

    cloud: Mapping[str, Any]
    storage: str
    disk_gb: int | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    types: tuple[str, ...] = ("*",)


def run_defaults(endpoint: Endpoint, own_image: str | None = None) -> RunDefaults:
    """Return the defaults from setup in a region; none if the caller may not read them.

    `own_image` is the experiment's, if it names one.

    Raises:
        UsageError: disks must be encrypted, and the image's can't be read.
    """
    clients = Clients(endpoint)
    reader = _Reader(clients)
    its_stack = reader("", partial(stack.read, clients))
    outputs = {} if its_stack is None else its_stack.outputs
    settings = Settings.of_outputs(Place("", endpoint.region), outputs)
    found = reader("", reader.image)
    image = None if found is None else found.id
    cloud = {
        "image": image,
        "security_group": settings.security_group or None,
        "instance_profile": settings.instance_profile or None,
        "subnets": settings.subnets,
        "tags": settings.place.tags,
        "head_type": settings.place.head_type or None,
    }
    name = own_image or image
    disk = None if name is None else root_disk(clients, name)
    return RunDefaults(
        cloud=cloud,
        storage=settings.storage,
        disk_gb=None if disk is None else disk.gb,
        request={} if disk is None else disk_request(disk, settings.place.kms),
        types=settings.place.types,
    )


def settings_of_setup(endpoint: Endpoint) -> Settings | None:
    """Return the settings of a region's stack; None without one, or if they are unknown."""
    clients = Clients(endpoint)
    outputs = getattr(_Reader(clients)("", partial(stack.read, clients)), "outputs", None)
    if not outputs:
        return None
    return Settings.of_outputs(Place("", endpoint.region), outputs)


def absent_secrets(endpoint: Endpoint, secrets: Iterable[SecretSource]) -> list[SecretSource]:
    """Return the secrets that a region certainly doesn't have; a caller may lack the rights."""
    clients = Clients(endpoint)

    def look(source: SecretSource) -> None:
        if source.store == PARAMETER_STORE:
            clients["ssm"].get_parameter(Name=source.name)
        else:
            clients["secretsmanager"].describe_secret(SecretId=source.name)

    absent = []
    for source in secrets:
        try:
            look(source)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in _NO_SECRET:
                absent.append(source)
        except CALL_ERRORS:
            continue
    return absent


def disk_request(disk: "Disk", kms: str) -> dict[str, Any]:
    """Return the part of a launch that makes a key encrypt its root disk; {} without a key.

    Raises:
        UsageError: AWS doesn't say what the image's root disk is.
    """
    if not kms:
        return {}
    if not disk.device:
        raise UsageError(f"the root disk of {disk.image}, which {kms} is to encrypt: {disk.why}")
    volume: dict[str, Any] = {"Encrypted": True, "KmsKeyId": kms, "DeleteOnTermination": True}
    if disk.gb is not None:
        volume["VolumeSize"] = disk.gb
    return {"BlockDeviceMappings": [{"DeviceName": disk.device, "Ebs": volume}]}


def quota(endpoint: Endpoint, name: str) -> float | None:
    """Return the vCPUs of a quota ("on-demand g"); None if it is unknown, or may not be read."""
    return read_quotas(endpoint, [name]).get(name)


def read_quotas(endpoint: Endpoint, names: Iterable[str]) -> dict[str, float]:
    """Return the vCPUs of quotas by name, as far as they are known and may be read."""
    reader = _Reader(Clients(endpoint))
    quotas: dict[str, float] = {}
    for name in names:
        vcpus = None
        if name in QUOTAS:
            vcpus = reader(name, partial(reader.quota, name))
        if vcpus is not None:
            quotas[name] = vcpus
        if reader.unknown:  # no rights, or no network: the next call would wait for the same
            break
    return quotas


class Disk(NamedTuple):
    """The root disk of an image: its device, or "" and `why` not; its size if AWS says it."""

    image: str
    device: str
    gb: int | None = None
    why: str = ""


def root_disk(clients: Clients, image: str) -> Disk:
    """Return the root disk of an image, as far as the caller may see it."""
    reader = _Reader(clients)
    asked = partial(clients["ec2"].describe_images, ImageIds=[image])
    (described,) = (reader(image, asked) or {}).get("Images") or [{}]
    for disk in described.get("BlockDeviceMappings", ()):
        if disk.get("DeviceName") == described.get("RootDeviceName"):
            size = disk.get("Ebs", {}).get("VolumeSize")
            gb = None if size is None else int(size)
            return Disk(image, disk["DeviceName"], gb)
    return Disk(image, "", why=reader.unknown.get(image, "it has none"))


class Image(NamedTuple):
    """An image of AWS's, and its operating system."""

    id: str
    system: str


def supported_ubuntus(now: time.struct_time) -> list[str]:
    """Return the versions of Ubuntu with long support at a time, the newest first."""
    versions = []
    for year in range(now.tm_year, now.tm_year - _UBUNTU_YEARS - 1, -1):
        age = (now.tm_year - year) * 12 + now.tm_mon - 4  # in months since April of that year
        if year % 2 == 0 and 0 <= age <= _UBUNTU_YEARS * 12:
            versions.append(f"{year % 100:02}.04")
    return versions


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code"))


class _Reader:
    """Reads one resource at a time; returns None if it is missing, and records failures."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.unknown: dict[str, str] = {}

    def __call__(self, what: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in _ABSENT:
                self.unknown[what] = str(error)
        except CALL_ERRORS as error:
            self.unknown[what] = aws_session.unreachable(error) or str(error)
        return None

    def default_vpc(self) -> str | None:
        filters = [{"Name": "is-default", "Values": ["true"]}]
        networks = self._clients["ec2"].describe_vpcs(Filters=filters)["Vpcs"]
        return networks[0]["VpcId"] if networks else None

    def subnets(self, settings: Settings, vpc: str | None) -> tuple[Subnet, ...]:
        """Return the subnets that runs use: setup's, or those of the default VPC."""

        def look(call: str, **given: Any) -> Any:
            return getattr(self._clients["ec2"], call)(**given)

        if vpc is None:
            return ()
        filters = [{"Name": "vpc-id", "Values": [vpc]}]
        return tuple(read_subnets(look, list(settings.subnets.values()), filters))

    def group(self, group: str) -> dict[str, Any] | None:
        if not group:
            return None
        groups = self._clients["ec2"].describe_security_groups(GroupIds=[group])["SecurityGroups"]
        return groups[0] if groups else None

    def has_left(self, shared: Place) -> bool:
        try:
            return self.has_bucket(shared)
        except ClientError:
            return False  # it is another account's, or there is none

    def has_bucket(self, place: Place) -> bool:
        """Return whether the account has its bucket; anyone could have taken the name before."""
        ours = {"Bucket": place.bucket, "ExpectedBucketOwner": place.account}
        tags = self._clients["s3"].get_bucket_tagging(**ours)["TagSet"]
        return TAG in {tag["Key"] for tag in tags}

    def image(self) -> Image | None:
        """Return AWS's newest base image, of the newest Ubuntu that there is one of."""
        for version in supported_ubuntus(time.gmtime(unix_time())):
            try:
                answer = self._clients["ssm"].get_parameter(Name=IMAGE_PARAMETER.format(version))
            except ClientError as error:
                if _code(error) not in _ABSENT:
                    raise
            else:
                return Image(str(answer["Parameter"]["Value"]), f"Ubuntu {version}")
        return None

    def bucket_key(self, bucket: str) -> str | None:
        answer = self._clients["s3"].get_bucket_encryption(Bucket=bucket)
        (rule,) = answer["ServerSideEncryptionConfiguration"]["Rules"]
        key: str | None = rule["ApplyServerSideEncryptionByDefault"].get("KMSMasterKeyID")
        return key

    def spot_role(self) -> bool:
        path = f"/aws-service-role/{SPOT_SERVICE}/"
        return bool(self._clients["iam"].list_roles(PathPrefix=path)["Roles"])

    def quota(self, name: str) -> float | None:
        code, title = QUOTAS[name]
        quotas = self._clients["service-quotas"]
        if code:
            answer = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)
            return float(answer["Quota"]["Value"])
        pages = quotas.get_paginator("list_service_quotas").paginate(ServiceCode="ec2")
        listed = (quota for page in pages for quota in page["Quotas"])
        return next((float(it["Value"]) for it in listed if it["QuotaName"] == title), None)


def lets_itself_in(group: Mapping[str, Any]) -> bool:
    """Whether a security group lets all traffic of its own members in."""
    for rule in group.get("IpPermissions", ()):
        sources = {pair.get("GroupId") for pair in rule.get("UserIdGroupPairs", ())}
        if rule.get("IpProtocol") == "-1" and group.get("GroupId") in sources:
            return True
    return False


def _visitors(group: Mapping[str, Any]) -> Iterator[str]:
    for rule in group.get("IpPermissions", ()):
        yield from (address["CidrIp"] for address in rule.get("IpRanges", ()))
        yield from (address["CidrIpv6"] for address in rule.get("Ipv6Ranges", ()))
        pairs = (pair.get("GroupId", "") for pair in rule.get("UserIdGroupPairs", ()))
        yield from (other for other in pairs if other != group.get("GroupId"))


_SETUP = "`cloudtune aws setup` creates it"


@dataclass(frozen=True)
class InventoryLine:
    """One resource: whether it exists, is missing, or is unknown; and a text about it."""

    state: Literal["ok", "missing", "unknown"]
    what: str
    note: str = ""


def lines(account: Inventory) -> list[InventoryLine]:
    """Return lines on all resources of an account, in the order in which runs need them."""
    all_lines = list(_resources(account))
    for name, vcpus in account.quotas.items():
        code, title = QUOTAS[name]
        ask = f"0 vCPUs; ask for more in the console: Service Quotas, EC2, {title} ({code})"
        all_lines.append(_line(vcpus, f"quota {name}", f"{vcpus:.0f} vCPUs", ask))
    unknown = dict(account.unknown)
    for name in QUOTAS:
        if name not in account.quotas:
            unknown.setdefault(f"quota {name}", "Service Quotas has no value for it")
    all_lines += [InventoryLine("unknown", what, why) for what, why in unknown.items()]
    return all_lines


def _line(exists: object, what: str, note: str = "", lacking: str = _SETUP) -> InventoryLine:
    return InventoryLine("ok", what, note) if exists else InventoryLine("missing", what, lacking)


def _network(network: Network) -> Iterator[InventoryLine]:
    """Yield a line for each subnet, and what keeps heads or instances out of all of them."""
    for subnet in network.subnets:
        saving = subnet.find_saving(network.region)
        note = f"{subnet.description}; {saving}" if saving else subnet.description
        yield _line(subnet.zone, f"{subnet.id} in {subnet.zone}", note)
    for needs in (HEAD, INSTANCES):
        if problem := network.find_problem(needs):
            yield _line(exists=False, what="a way out", lacking=problem)


def _resources(account: Inventory) -> Iterator[InventoryLine]:
    region = account.place.region
    no_vpc = "name one (--vpc), or `aws ec2 create-default-vpc`"
    yield _line(account.vpc, f"VPC {account.vpc or ''}".strip(), lacking=no_vpc)
    if account.vpc is not None:
        if not account.subnets and "subnets" not in account.unknown:
            yield _line(exists=False, what="subnets", lacking="the VPC has none")
        yield from _network(Network(region, account.subnets, are_named=True))
    is_there = account.stack is not None and account.stack.outputs
    status = "" if account.stack is None else account.stack.status
    its_status = f"it is {status}; `cloudtune aws setup` repairs it" if status else _SETUP
    yield _line(is_there, f"stack {STACK}", status, its_status)
    if is_there:
        other = "it has other roles or policies; `cloudtune aws setup` updates it"
        yield _line(account.is_current, "the stack as of this version", lacking=other)
        yield _line(account.group, f"security group {policies.GROUP}", account.group or "")
    if account.group is not None:
        yield _line(account.open_within, "its members reach each other")
        visitors = ", ".join(account.visitors)
        lets_in = f"{visitors} may reach instances, and no run needs it: delete that rule"
        yield _line(not visitors, "nothing else reaches them", lacking=lets_in)
    yield _line(account.bucket, f"bucket {account.place.bucket}")
    if account.bucket and (key := account.place.kms):
        now = account.bucket_key or "AWS's own key"
        other = f"{now} does, and the stack doesn't own the bucket: change it in S3"
        yield _line(account.bucket_key == key, f"{key} encrypts it", lacking=other)
    spot = "needed for spot only; `cloudtune aws setup` creates it"
    yield _line(account.spot_role, f"the role of {SPOT_SERVICE}", lacking=spot)
    versions = supported_ubuntus(time.gmtime(unix_time()))
    no_image = f"no {IMAGE_PARAMETER.format(versions[0])} in {region}; name one (cloud.image)"
    image = account.image and f"{account.image} ({account.system})"
    yield _line(image, "image", image or "", no_image)
