"""The `cloud:` section of an experiment: where to rent instances, and how its pools behave."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from cloudtune.errors import allowed_names, quote
from cloudtune.experiment.field_types import Dollars, Seconds, Text, Whole
from cloudtune.experiment.sections import Section
from cloudtune.experiment.validation import refuse
from cloudtune.model.catalog import THIS_MACHINE
from cloudtune.model.providers import PROVIDERS, Registered, owners

_PER_HOUR = re.compile(r"\s*(/|per|an)\s*(h|hour)\s*$")
_QUOTA = re.compile(rf"(on-demand|spot) [a-z]+\d*|{THIS_MACHINE}")


def _quota_names(quotas: dict[str, int]) -> dict[str, int]:
    for name in quotas:
        if not _QUOTA.fullmatch(name):
            raise refuse(
                f"{quote(name)} is no quota; write the market and the class of the instance type, "
                'such as "on-demand g" or "spot p"',
                name,
            )
    return quotas


def _different(values: tuple[str, ...]) -> tuple[str, ...]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise refuse(f"{quote(value)} is listed twice; keep one", index)
    return values


def _or_any(value: object) -> object:
    return [value] if value == "any" else value


def _own_tags(tags: dict[str, str]) -> dict[str, str]:
    for name in tags:
        if name.startswith(("aws:", "cloudtune:")):
            raise refuse(f"{quote(name)} is reserved; choose another name", name)
    return tags


def _per_hour(value: object) -> object:
    return _PER_HOUR.sub("", value) if isinstance(value, str) else value


def _known_provider(value: object) -> object:
    if not isinstance(value, str) or value not in PROVIDERS:
        raise refuse(f"{quote(value)} is not known; {allowed_names(value, tuple(PROVIDERS))}")
    return value


def read_provider(cloud: Mapping[str, object]) -> str:
    """Return the written provider, or the default if it is missing or unknown."""
    name = cloud.get("provider")
    return name if isinstance(name, str) and name in PROVIDERS else next(iter(PROVIDERS))


def find_line(cloud: Mapping[str, object]) -> Registered:
    """Return the registered line of the written provider."""
    return PROVIDERS[read_provider(cloud)]


HourlyPrice = Annotated[Dollars, BeforeValidator(_per_hour)]
Vcpus = Annotated[Whole, Field(ge=0)]


class Spot(Section):
    """How spot pools behave, where that is known; unset, as those of public traces did.

    `losses_per_hour` is how often an instance is taken back, for an hour that it is held;
    `availability` the share of the time in which there are any to be had.
    """

    losses_per_hour: float | None = Field(
        default=None, ge=0.0, le=60.0, allow_inf_nan=False, examples=["0.3"]
    )
    availability: float | None = Field(
        default=None, ge=0.001, le=1.0, allow_inf_nan=False, examples=["0.8"]
    )

    @model_validator(mode="after")
    def _both_or_none(self) -> Spot:
        fields = {"losses_per_hour": self.losses_per_hour, "availability": self.availability}
        missing = [name for name, value in fields.items() if value is None]
        if len(missing) == 1:
            raise refuse("is missing: say both losses_per_hour and availability", missing[0])
        if self.losses_per_hour == 0 and self.availability not in {None, 1.0}:
            raise refuse(
                "a pool that is empty at times loses its instances then; write a number above 0",
                "losses_per_hour",
            )
        return self


class Billing(Section):
    """By what instances are billed; without a unit, as their provider bills them.

    `unit` is what bills are rounded up to, each instance's by itself, or `function`: not instances
    are billed then, but the GPU-seconds of trials. An instance costs `minimum` seconds at least.
    """

    unit: Literal["second", "minute", "hour", "function"] | None = Field(
        default=None, examples=["minute"]
    )
    minimum: Seconds = Field(default=None, examples=["10m"])

    @model_validator(mode="after")
    def _a_minimum_of_instances(self) -> Billing:
        if self.unit is None and self.minimum is not None:
            raise refuse("is missing: write second, minute or hour", "unit")
        if self.unit == "function" and self.minimum is not None:
            raise refuse(
                "is a charge for instances, and `function` bills none; leave it out", "minimum"
            )
        return self


def _named_billing(value: object) -> object:
    return {"unit": value} if isinstance(value, str) else value


class CloudSettings(Section):
    """Where instances are rented; `image` and the seven after it are for AWS alone.

    Of `regions` a run takes one: that of the best plan, or the next where the first has no room;
    "any" is each that the account has enabled. What isn't said of them is what `cloudtune aws
    setup` made. `subnets` are by zone, where each has its own; `tags` go onto instances and
    volumes; `request` has further fields of EC2's RunInstances, as EC2 calls them.
    `instances` are types, or patterns such as g5.*; by default plan and run choose among all types.
    At most `max_instances` are rented at once; unset, as many as the limits pay for. `vcpu_quotas`
    bounds the vCPUs rented at once by the account's quotas: market and class, as in "on-demand g"
    or "spot p". Provider local is this machine alone, of which `slots` GPUs are used, or CPU slots
    where it has no GPU; an hour of it costs `price` dollars; unset, all slots are used, and they
    cost nothing. Provider ray is the Ray cluster at `address`: an instance is a node of it, or
    `slots` GPUs of one, and an hour of a node of a type costs what `prices` says. Provider slurm
    submits jobs to partitions: `slots` and `prices` are as with ray, and `request` has options of
    sbatch. A pool that is out of instances isn't asked again for `avoid` seconds.
    """

    provider: Annotated[str, BeforeValidator(_known_provider)] = next(iter(PROVIDERS))
    region: Text = Field(default="us-east-1", examples=["us-east-1"])
    regions: Annotated[tuple[Text, ...], BeforeValidator(_or_any), AfterValidator(_different)] = (
        Field(default=(), examples=["[us-east-1, us-east-2]", "any"])
    )
    instances: Annotated[tuple[Text, ...], AfterValidator(_different)] = Field(
        default=("*",), min_length=1, examples=["[g4dn.12xlarge]"]
    )
    market: Literal["on-demand", "spot", "any"] = "any"
    zones: Annotated[tuple[Text, ...], AfterValidator(_different)] = Field(
        default=(), examples=["[us-east-1a, us-east-1b]"]
    )
    max_instances: Whole | None = Field(default=None, ge=1, le=10_000, examples=["4"])
    avoid: Seconds = Field(default=180.0, examples=["3m"])
    billing: Annotated[Billing, BeforeValidator(_named_billing)] = Field(
        default=Billing(), examples=["function"]
    )
    spot: Spot = Field(default=Spot(), examples=["{losses_per_hour: 0.3, availability: 0.8}"])
    vcpu_quotas: Annotated[dict[Text, Vcpus], AfterValidator(_quota_names)] = Field(
        default={}, examples=['{"on-demand g": 96}']
    )
    image: Text | None = Field(default=None, examples=["ami-0123456789abcdef0"])
    subnet: Text | None = Field(default=None, examples=["subnet-0123456789abcdef0"])
    subnets: dict[Text, Text] = Field(
        default={}, examples=["{us-east-1a: subnet-0123456789abcdef0}"]
    )
    security_group: Text | None = Field(default=None, examples=["sg-0123456789abcdef0"])
    instance_profile: Text | None = Field(default=None, examples=["cloudtune-node"])
    head_type: Text | None = Field(default=None, examples=["m6i.large"])
    tags: Annotated[dict[Text, Text], AfterValidator(_own_tags)] = Field(
        default={}, examples=["{team: vision}"]
    )
    request: dict[Text, Any] = Field(default={}, examples=["{KeyName: mine}"])
    slots: Whole | None = Field(default=None, ge=1, le=1024, examples=["2"])
    price: HourlyPrice = Field(default=None, examples=["$0.50/h"])
    address: Text | None = Field(default=None, examples=["auto"])
    _counted: bool = PrivateAttr(default=False)
    prices: dict[Text, HourlyPrice] = Field(default={}, examples=["{a100-node: $12/h}"])

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_its_provider(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        line = find_line(value)
        fields = {**line.defaults, **value}
        return {"region": fields[line.place], **fields} if line.place in fields else fields

    @model_validator(mode="after")
    def _for_its_provider(self) -> CloudSettings:
        line = PROVIDERS[self.provider]
        for name, field in type(self).model_fields.items():
            its = owners(name)
            if its and name not in line.own and getattr(self, name) != field.default:
                raise refuse(f"is only for provider {' or '.join(its)}; leave it out", name)
        for name in line.fixed:
            default = line.defaults.get(name, type(self).model_fields[name].default)
            if name == "region" and line.place != name:
                default = getattr(self, line.place)
            if getattr(self, name) != default:
                raise refuse(line.why, name)
        return self

    @property
    def is_open(self) -> bool:
        """Whether the run chooses among instance types, rather than the person."""
        return any(set(name) & set("*?[") for name in self.instances)

    @property
    def has_no_price(self) -> bool:
        """Whether the user could set the price of an hour, and hasn't."""
        priced = self.price or any(self.prices.values())
        return PROVIDERS[self.provider].priced_by_its_user and not priced

    @property
    def free(self) -> bool:
        """Whether an hour costs nothing: neither dollars nor counted GPU-hours."""
        return self.has_no_price and not self._counted

    @property
    def counts_gpu_hours(self) -> bool:
        """Whether dollars stand for GPU-hours."""
        return self._counted

    def count_gpu_hours(self) -> bool:
        """Count each GPU-hour as a dollar, where GPUs have no price; return whether that is so."""
        self._counted = self._counted or self.free
        return self._counted

    def usd_per_hour(self, gpus: int, price: float | None) -> float:
        """Return the dollars of an hour: the price, or the GPUs where GPU-hours count."""
        return gpus if self._counted else price or 0.0

    @model_validator(mode="after")
    def _of_no_region_alone(self) -> CloudSettings:
        its_own = ("region", "zones", "image", "subnet", "subnets", "security_group")
        for name in its_own if self.regions else ():
            if name in self.model_fields_set:
                raise refuse("is of one region; leave it out, or leave regions out", name)
        return self

    @model_validator(mode="after")
    def _one_zone_a_subnet(self) -> CloudSettings:
        if self.subnet is not None and len(self.zones) > 1:
            raise refuse("a subnet lies in one zone; name that one, or leave subnet out", "zones")
        if self.subnet is not None and self.subnets:
            raise refuse("is there, and subnet too; keep one of the two", "subnets")
        strange = [zone for zone in self.zones if self.subnets and zone not in self.subnets]
        if strange:
            raise refuse(f"{quote(strange[0])} has no subnet in subnets", "zones")
        return self
