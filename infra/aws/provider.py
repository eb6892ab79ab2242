# ruff: noqa: ARG002  AWS needs few of the arguments
"""EC2 on AWS as a cloud to rent from."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from cloudtune import aws_session
from cloudtune.errors import UsageError
from cloudtune.infra.aws import pricing
from cloudtune.infra.aws.account.policies import head_role
from cloudtune.infra.aws.requests import check_request, ending_its_disks
from cloudtune.infra.aws.this_instance import this_instance
from cloudtune.infra.environments.index import index_variables
from cloudtune.infra.node.boot import metadata
from cloudtune.infra.provider import RUN_TAG, Cloud, Endpoint, HeadOffer, Preflight, Provider
from cloudtune.model.catalog import quota_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from cloudtune.experiment.cloud import CloudSettings as Settings
    from cloudtune.experiment.schema import Experiment
    from cloudtune.infra.aws.ec2 import Ec2
    from cloudtune.infra.aws.networks import Network
    from cloudtune.model.catalog import Catalog, InstanceType, Market, Offer
    from cloudtune.model.commands import Launch
    from cloudtune.model.scaling import ScalingProfile


# The fields of `cloud.request` that also apply to heads: placement and reservations are for GPUs.
_FOR_HEADS_TOO = {"BlockDeviceMappings", "KeyName", "MetadataOptions", "Monitoring"}


class Ec2Speaking(Provider):
    """The common base of clouds that understand EC2's calls."""

    def zones(self, cloud: Cloud) -> tuple[str, ...]:
        """Return the region's zones; none if the account has no permission."""
        try:
            return self.calls(cloud.endpoint).zones()
        except self.errors():
            return ()

    def calls(self, endpoint: Endpoint) -> Ec2:
        from cloudtune.infra.aws.ec2 import Ec2  # noqa: PLC0415  boto3 takes long

        return Ec2(endpoint)

    def errors(self) -> tuple[type[Exception], ...]:
        from cloudtune.infra.aws.errors import CALL_ERRORS  # noqa: PLC0415  botocore takes long

        return CALL_ERRORS

    def launch_request(self, launch: Launch, user_data: str) -> dict[str, Any]:
        from cloudtune.infra.aws.ec2 import market_request  # noqa: PLC0415  boto3 takes long

        return {
            **market_request(launch.market, launch.zone),
            "InstanceType": launch.instance_type,
            "UserData": user_data,
        }


class Aws(Ec2Speaking):
    """Rents from EC2, at its live prices, with the credentials that boto3 finds."""

    name = "aws"
    asks_first = "AWS"
    paced = False
    has_gpus = True
    has_roles = True

    def known_types(self) -> Mapping[str, InstanceType]:
        return pricing.instance_types()

    def instance_types(self, settings: Settings) -> list[InstanceType]:
        offers = pricing.catalog(settings.region).matching(settings.instances, ("on-demand",))
        return [offer.instance_type for offer in offers]

    def catalog(self, settings: Settings, markets: Sequence[Market], home: Path) -> Catalog:
        """Return live prices, or the table's if they are for the region.

        Raises:
            UsageError: the region's prices are unknown, so a budget could not be kept.
        """
        from cloudtune.infra.aws.price_refresh import live_prices  # noqa: PLC0415  boto3 takes long

        region = settings.region
        prices = live_prices(
            Endpoint(region), home / "prices", time.time(), markets, settings.zones
        )
        if region != pricing.PRICED_REGION and prices.as_of == pricing.AS_OF:
            why = "; ".join(prices.warnings)
            raise UsageError(
                f"cloud.region: the prices of {region} could not be had, and without them a "
                f"budget can't be kept; use {pricing.PRICED_REGION}, or try again ({why})"
            )
        return prices

    def regions(self) -> tuple[str, ...]:
        """Return the regions that are enabled for the account."""
        answer = self.calls(Endpoint(aws_session.region())).look("describe_regions")
        return tuple(region["RegionName"] for region in answer["Regions"])

    def with_account_defaults(self, experiment: Experiment) -> Experiment:
        """Return an experiment with the resources of `cloudtune aws setup` as defaults."""
        from cloudtune.infra.aws.account.inventory import run_defaults  # noqa: PLC0415  boto3
        from cloudtune.infra.aws.price_refresh import disk_price  # noqa: PLC0415

        settings = experiment.cloud
        if "region" not in settings.model_fields_set:
            settings = settings.model_copy(update={"region": aws_session.region()})
            experiment = experiment.model_copy(update={"cloud": settings})
        check_request(settings.request)
        if experiment.data:
            from cloudtune.infra.aws.data import with_data_charges  # noqa: PLC0415  boto3

            experiment = with_data_charges(experiment)
        stored = experiment.storage.startswith("s3://")
        if stored and settings.image and settings.instance_profile and settings.security_group:
            return _with_quotas(experiment)
        defaults = run_defaults(Endpoint(settings.region), settings.image)
        fields = {
            name: value
            for name, value in defaults.cloud.items()
            if not getattr(settings, name) and value
        }
        if settings.subnet or not set(settings.zones) <= set(fields.get("subnets", ())):
            fields.pop("subnets", None)
        fields["request"] = {**defaults.request, **settings.request}
        if "image" in fields:
            fields["instances"] = pricing.without_old_gpus(settings.instances)
        if settings.is_open and "instance_profile" in fields:
            named = fields.get("instances", settings.instances)
            fields["instances"] = _keep_permitted_types(named, defaults.types)
        cloud = settings.model_copy(update=fields)
        storage = experiment.storage if stored or not defaults.storage else defaults.storage
        charges = experiment.charges
        if charges.per_instance_hour is None and "image" in fields and defaults.disk_gb is not None:
            gb_month = pricing.DISK_USD_PER_GB_MONTH
            if settings.region != pricing.PRICED_REGION:
                gb_month = disk_price(Endpoint(settings.region)) or gb_month
            added = pricing.added_usd_per_hour(defaults.disk_gb, gb_month)
            charges = charges.model_copy(update={"per_instance_hour": added})
        changed = {"cloud": cloud, "storage": storage, "charges": charges}
        return _with_quotas(experiment.model_copy(update=changed))

    def check(self, experiment: Experiment) -> None:
        """Check that there are an image to boot and a storage that every instance can reach.

        Raises:
            UsageError: one of them is missing.
        """
        if experiment.cloud.image is None:
            from cloudtune.infra.aws.account.inventory import identity  # noqa: PLC0415  boto3
            from cloudtune.infra.aws.account.stack import Clients  # noqa: PLC0415

            identity(Clients(Endpoint(experiment.cloud.region)))  # raises with the reason
            raise UsageError(
                "cloud.image is missing, and AWS names none: write the AMI to boot "
                "(cloudtune docs aws)"
            )
        if not experiment.storage.startswith("s3://"):
            raise UsageError(
                "storage: instances on AWS need a shared one: `cloudtune aws setup --region "
                f"{experiment.cloud.region}` makes it, or write s3://bucket/prefix"
            )

    def open(
        self,
        experiment: Experiment,
        home: Path,
        *,
        pace: bool,
        profiles: Sequence[ScalingProfile] = (),
        adopt: bool = False,
    ) -> Cloud:
        from cloudtune.infra.aws import networks  # noqa: PLC0415  boto3 takes long

        settings = experiment.cloud
        network = networks.read_network(self.calls(Endpoint(settings.region)), settings)
        return _make_cloud(settings, network)

    def preflight(
        self, experiment: Experiment, head: HeadOffer | None, offers: Sequence[Offer] = ()
    ) -> Preflight:
        """Return what EC2 would refuse, by dry runs and by look-ups as far as permitted."""
        from cloudtune.infra.aws import networks  # noqa: PLC0415  boto3 takes long
        from cloudtune.infra.aws.preflight import Preflights  # noqa: PLC0415
        from cloudtune.infra.aws.rights import lacking_rights  # noqa: PLC0415

        settings = experiment.cloud
        calls = self.calls(Endpoint(settings.region))
        network = networks.read_network(calls, settings)
        cloud = _make_cloud(settings, network)
        tags = {**settings.tags, RUN_TAG: "preflight"}
        checks = Preflights(calls, cloud, tags, self.regions)
        launches = dict.fromkeys((offer.instance_type, offer.market) for offer in offers)
        if not launches:
            types = self.instance_types(settings)
            launches = dict.fromkeys(
                (kind, market) for kind in types for market in _markets(settings)
            )
        lacking = list(lacking_rights(experiment, has_head=head is not None))
        kinds = [networks.instances_of(settings)]
        if head is not None:
            kinds.insert(0, networks.HEAD)
            lacking += _missing_packages(experiment, network)
            checked = checks.of_head(head, list(launches), is_open=settings.is_open)
        else:
            here = this_instance()
            lacking += here.obstacles(settings) if here else ()
            checked = checks.of_launches(list(launches), settings.zones, is_open=settings.is_open)
        lacking += filter(None, map(network.find_problem, kinds))
        notes = dict.fromkeys(line for needs in kinds for line in network.notes(needs))
        return replace(
            checked,
            problems=(*lacking, *checked.problems),
            notes=(*checked.notes, *notes),
        )

    def clouds_in_use(self, home: Path, regions: Collection[str], asked: str | None) -> list[Cloud]:
        """Return EC2 in each region that a run of this machine used, or that is requested."""
        named = {asked} if asked else set()
        return [Cloud(Endpoint(region), {}, {}) for region in sorted(named | set(regions))]

    def head(self, experiment: Experiment, home: Path, *, force: bool = False) -> HeadOffer | None:
        """Return a small instance in the VPC; None if this machine can control the run itself.

        Raises:
            UsageError: its price is unknown.
        """
        from cloudtune.infra.aws import networks  # noqa: PLC0415  boto3 takes long
        from cloudtune.infra.aws.price_refresh import latest_quotes, read_price  # noqa: PLC0415

        here = None if force else this_instance()
        if here is not None and not list(here.obstacles(experiment.cloud)):
            return None
        endpoint = Endpoint(experiment.cloud.region)
        own_type = experiment.cloud.head_type
        kind = own_type or pricing.HEAD_TYPE
        if own_type is not None:
            price = read_price(endpoint, own_type)
        else:
            price = latest_quotes(endpoint, home / "prices", time.time()).on_demand.get(kind)
        if price is None and endpoint.region == pricing.PRICED_REGION:
            price = pricing.HEAD_USD_PER_HOUR.get(kind)
        if price is None:
            raise UsageError(
                f"the price of the head, a {kind} in {endpoint.region}, could not be had; try "
                "again, or run it on a machine of yours within the VPC (--here)"
            )
        settings = experiment.cloud
        network = networks.read_network(self.calls(endpoint), settings)
        places = networks.find_places(network, settings, networks.HEAD)
        theirs = settings.request.keys() - _FOR_HEADS_TOO
        request = {name: value for name, value in _request(settings).items() if name not in theirs}
        request["IamInstanceProfile"] = {"Name": head_role(endpoint.region)}
        # It boots from the same image as the others: with a disk of that size, and an address.
        price += experiment.charges.per_instance_hour or 0.0
        second = "" if own_type else pricing.SECOND_HEAD_TYPE
        return HeadOffer(kind, price, request, settings.tags, second, places)

    def enter(self, endpoint: Endpoint, home: Path, instance: str, words: Sequence[str]) -> int:
        from cloudtune.infra.aws import entering  # noqa: PLC0415  boto3 takes long
        from cloudtune.infra.node.entering import SHELL  # noqa: PLC0415

        if not words:
            return entering.open_terminal(endpoint, instance, SHELL)
        return entering.run_command(endpoint, instance, words)

    def own_address(self) -> str:
        """Return this machine's address within its VPC.

        Raises:
            UsageError: it isn't an EC2 instance.
        """
        try:
            return metadata("local-ipv4")
        except OSError as error:
            raise UsageError(
                "instances must reach this machine, so it must be one inside the VPC; "
                "`cloudtune run` measures a script itself, on a head that it rents "
                "(cloudtune docs aws); "
                f"this one has no instance metadata ({error})"
            ) from None


def _missing_packages(experiment: Experiment, network: Network) -> Iterator[str]:
    """Yield a line if the head couldn't install what neither its image nor the storage has."""
    from cloudtune.infra.aws.account.inventory import run_defaults  # noqa: PLC0415  boto3
    from cloudtune.infra.environments.bootstrap import is_packed  # noqa: PLC0415  pyarrow

    problem = network.find_missing_packages()
    if not problem or index_variables(os.environ):
        return
    usual = run_defaults(Endpoint(network.region)).cloud["image"]
    if experiment.cloud.image == usual and not is_packed(experiment.storage):
        yield problem


def _make_cloud(settings: Settings, network: Network) -> Cloud:
    from cloudtune.infra.aws import networks  # noqa: PLC0415  boto3 takes long

    places = networks.find_places(network, settings, networks.instances_of(settings))
    return Cloud(Endpoint(settings.region), _request(settings), settings.tags, places=places)


def _request(settings: Settings) -> dict[str, Any]:
    """Return what goes into each launch, wherever it is placed."""
    request = {**ending_its_disks(settings.request), "ImageId": settings.image}
    if settings.security_group is not None:
        request["SecurityGroupIds"] = [settings.security_group]
    if settings.instance_profile is not None:
        request["IamInstanceProfile"] = {"Name": settings.instance_profile}
    return request


def _markets(settings: Settings) -> Sequence[Market]:
    return pricing.MARKETS if settings.market == "any" else (settings.market,)


def _keep_permitted_types(patterns: Sequence[str], types: Sequence[str]) -> tuple[str, ...]:
    """Return what remains of patterns where only these types may be rented; all if that is none."""
    remaining = pricing.narrow(
        patterns, lambda name: any(fnmatchcase(name, allowed) for allowed in types)
    )
    return tuple(name for names in remaining.values() for name in names) or tuple(patterns)


def _with_quotas(experiment: Experiment) -> Experiment:
    """Return an experiment that is bounded by the account's quotas, if its choice is open.

    Quotas that it sets itself stay. Those that can't be read bound nothing: EC2 refuses what
    exceeds them, which costs nothing.
    """
    from cloudtune.infra.aws.account.inventory import read_quotas  # noqa: PLC0415  boto3

    settings = experiment.cloud
    if not settings.is_open:
        return experiment
    types = AWS.instance_types(settings)
    names = {quota_name(kind, market) for kind in types for market in _markets(settings)}
    unset = sorted(names - settings.vcpu_quotas.keys())
    read = read_quotas(Endpoint(settings.region), unset)
    quotas = {name: math.floor(vcpus) for name, vcpus in read.items()}
    cloud = settings.model_copy(update={"vcpu_quotas": {**quotas, **settings.vcpu_quotas}})
    return experiment.model_copy(update={"cloud": cloud})


AWS = Aws()
