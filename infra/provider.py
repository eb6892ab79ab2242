# ruff: noqa: ARG002  what most clouds answer needs no argument
"""What a cloud must give: prices, a place to rent in, and what it asks of an experiment.

Everything that differs from cloud to cloud is asked here; no other code looks at provider names.
`tests/contracts/provider.py` says whether an implementation is right.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from cloudtune.errors import UsageError, allowed_names, shown
from cloudtune.model.providers import PROVIDERS

if TYPE_CHECKING:
    from cloudtune.experiment.cloud import CloudSettings as Settings
    from cloudtune.experiment.schema import Experiment
    from cloudtune.model.catalog import Catalog, InstanceType, Market
    from cloudtune.model.commands import Launch
    from cloudtune.model.events import RefusalKind
    from cloudtune.model.scaling import ScalingProfile

RUN_TAG = "cloudtune:run"
INTENT_TAG = "cloudtune:intent"
LEASE_TAG = "cloudtune:lease"
# What an instance costs that no price table knows, on the instance itself.
PRICE_TAG = "cloudtune:usd-per-hour"


@dataclass(frozen=True)
class Endpoint:
    """Where a cloud is asked: a region, and an address for anything that isn't AWS.

    `key` and `secret` are the credentials where there is no account to speak of; otherwise they are
    found as usual. `provider` is whose calls are understood there: what runs on
    this machine understands those of AWS. `look_seconds` lie between two looks at what is rented:
    a cloud lets an account, and all its other programs, ask only so often. A machine that answers
    nothing for `silent_seconds` is taken for lost; one whose Ray has ended in a third of that.
    """

    region: str
    url: str | None = None
    key: str | None = None
    secret: str | None = field(default=None, repr=False)
    provider: str = "aws"
    look_seconds: float = 3.0
    silent_seconds: float = 50.0


# The state of an instance that was asked for, and isn't there yet: it costs nothing so far.
QUEUED = "queued"
BILLING_STATES = (QUEUED, "pending", "running", "stopping", "stopped")


@dataclass(frozen=True)
class Instance:
    """An instance of ours as its cloud describes it; times are Unix seconds.

    `ended_at` is when it began to shut down: from then on it doesn't bill.
    """

    id: str
    run: str
    intent: str
    lease: str
    instance_type: str
    state: str
    launched_at: float
    ended_at: float | None
    reason: str
    tags: Mapping[str, str]

    @property
    def billing(self) -> bool:
        """Whether the instance still costs money (a stopped one costs its disk)."""
        return self.state in BILLING_STATES


@dataclass(frozen=True)
class Cloud:
    """A cloud that is open: where instances are rented, and how they are asked for.

    `request` goes into each request as it is (image, subnet, …), `tags` onto each instance.
    `subnets` are those of zones, where each zone has its own to be asked for.
    `close` ends what was started on this machine for it, once no instance is left there.
    """

    endpoint: Endpoint
    request: Mapping[str, Any]
    tags: Mapping[str, str]
    close: Callable[[], object] = lambda: None
    subnets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HeadOffer:
    """The instance that would carry a run for a machine that can't: its type, what it costs.

    `request` goes into its launch besides what that needs of itself, `tags` onto the instance.
    Where the type can't be had, the `second_type` is asked for, which costs no more.
    """

    instance_type: str
    usd_per_hour: float
    request: Mapping[str, Any]
    tags: Mapping[str, str] = field(default_factory=dict)
    second_type: str = ""


def merge_requests(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return one request of two, sections of both taken together; the second goes first."""
    both = {**first, **second}
    for name in first.keys() & second.keys():
        if isinstance(first[name], Mapping) and isinstance(second[name], Mapping):
            both[name] = merge_requests(first[name], second[name])
    return both


def launch_token(run: str, intent: str, instance_type: str, market: str, zone: str) -> str:
    """Return the token of a launch intent: the same intent never buys twice."""
    key = f"{run}\n{intent}\n{instance_type}\n{market}\n{zone}"
    return hashlib.sha256(key.encode()).hexdigest()


def lease_end(text: str) -> float:
    """Return the end of a lease (Unix time) as its tag has it; inf where it has none."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return math.inf


class Calls(Protocol):
    """The few calls that cloudtune makes of a cloud, in one region, and what their errors mean.

    Instances are found by their tags, `cloudtune:run` and `cloudtune:intent`: by them they can be
    given back without any local state.
    """

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What a call raises when it fails."""

    def code(self, error: BaseException, /) -> str:
        """Return the cloud's own word for an error, for people."""
        return type(error).__name__

    def is_definite(self, error: BaseException, /) -> bool:
        """Whether an error of a launch says for certain that nothing was launched."""

    def refusal_kind(self, code: str, /) -> RefusalKind:
        """Return what a word of `code` means for us."""

    def is_permanent(self, code: str, /) -> bool:
        """Whether asking again is pointless."""
        return self.refusal_kind(code) in {"denied", "unknown"}

    def run_instance(
        self, token: str, tags: Mapping[str, str], request: Mapping[str, Any], /
    ) -> str:
        """Launch one instance and return its id; asked again with the same token, the same id."""

    def ours(self, run: str | None = None, /, *, ended: bool = True) -> list[Instance]:
        """Return the instances of a run, or of every run; `ended` includes terminated ones."""

    def terminate(self, ids: Sequence[str], /) -> None:
        """Give instances back. Repeating it for one that is gone is harmless."""

    def console(self, instance: str, /) -> str:
        """Return the last of what an instance has printed as it booted, also of one that is gone.

        "" where the cloud has none, or doesn't tell.
        """
        return ""


class Provider(Protocol):
    """A cloud: one instance of this for each line of `cloudtune.model.providers.PROVIDERS`.

    What it needs of its cloud's libraries is imported within its methods: a plan doesn't wait for
    them. `home` is the folder in which cloudtune keeps things on this machine. A cloud inherits
    from this: what most of them answer stands here.
    """

    @property
    def name(self) -> str:
        """The name that stands in experiments."""

    @property
    def asks_first(self) -> str:
        """Whose money is spent, for the question before renting; "" if none is asked."""

    @property
    def paced(self) -> bool:
        """Whether training takes there what a table says, for want of real GPUs."""

    @property
    def has_gpus(self) -> bool:
        """Whether instances have the GPUs of their types; one that lacks any is then refused."""

    def known_types(self) -> Mapping[str, InstanceType]:
        """Return the instance types that an experiment may name or be derived from, by name.

        None where only the cluster itself knows which there are.
        """
        return {}

    def instance_types(self, settings: Settings) -> list[InstanceType]:
        """Return the instance types that an experiment names, patterns resolved."""
        catalog = self.catalog(settings, ("on-demand",), Path())
        offers = catalog.matching(settings.instances, ("on-demand",))
        return list(dict.fromkeys(offer.instance_type for offer in offers))  # one for all zones

    def catalog(self, settings: Settings, markets: Sequence[Market], home: Path) -> Catalog:
        """Return what is offered in the region, the markets and the zones of an experiment.

        Raises:
            UsageError: a budget could not be kept, as prices are unknown.
        """

    def check(self, experiment: Experiment) -> None:
        """Pass if the experiment has all that is needed to rent.

        Raises:
            UsageError: something is missing; the message says what to write.
        """

    def waits(self, settings: Settings) -> Mapping[str, float]:
        """Return the seconds for which a launch of each type waits now, where that is foretold."""
        return {}

    def shared_cores(self) -> int | None:
        """Return the cores that all instances have together; None where each has its own."""
        return None

    def paced_profile(self, profile: ScalingProfile, core_seconds: float) -> ScalingProfile:
        """Return what a profile that was measured without a pace is where training is paced.

        An epoch took `core_seconds` on one core of this machine. As it is, where nothing is paced.
        """
        return profile

    def open(
        self,
        experiment: Experiment,
        home: Path,
        *,
        pace: bool,
        profiles: Sequence[ScalingProfile] = (),
        adopt: bool = False,
    ) -> Cloud:
        """Return the cloud ready to rent from.

        With `pace` training takes what these profiles say, where the provider is paced. `adopt` is
        for a run that goes on with instances that it has already.

        Raises:
            UsageError: it can't be rented from now.
        """

    def clouds_in_use(self, home: Path, regions: Collection[str], asked: str | None) -> list[Cloud]:
        """Return the clouds in which instances of ours may be, without starting any.

        `regions` are those that runs of this machine used; `asked` is one that a person named.
        """

    def regions(self) -> tuple[str, ...]:
        """Return all regions in which the account may rent; () where there are none to ask.

        Raises:
            Exception: one of `errors`.
        """
        return ()

    def abandoned(self, home: Path, *, end: bool) -> list[str]:
        """Return the instances that run on this machine though their cloud has died.

        With `end` they are ended.
        """
        return []

    def zones(self, cloud: Cloud) -> tuple[str, ...]:
        """Return where else to ask if a zone has no capacity; () if that is unknown."""
        return ()

    def calls(self, endpoint: Endpoint) -> Calls:
        """Return what asks the cloud."""

    def errors(self) -> tuple[type[Exception], ...]:
        """Return what `calls`, or a call, raises when it fails."""
        return self.calls(Endpoint("")).errors

    def launch_request(self, launch: Launch, user_data: str) -> Mapping[str, Any]:
        """Return what `Calls.run_instance` is given for a launch besides `Cloud.request`.

        `user_data` is the script that the instance runs at boot; with it, it joins the cluster.
        """

    def with_account_defaults(self, experiment: Experiment) -> Experiment:
        """Return an experiment with what the account has for it, where it names nothing else."""
        return experiment

    def preflight(self, experiment: Experiment, head: HeadOffer | None) -> list[str]:
        """Return what would refuse the launches of a run, a line for each; nothing is launched.

        With `head` it is this machine that launches that, and that which launches the others.
        """
        return []

    def head(self, experiment: Experiment, home: Path, *, force: bool = False) -> HeadOffer | None:
        """Return what would carry a run that this machine can't; None where it can.

        Raises:
            UsageError: its price is unknown.
        """
        return None

    def own_address(self) -> str:
        """Return the address at which instances reach this machine.

        Raises:
            UsageError: they can't.
        """

    def joined(self, folder: Path, rental: Any) -> Any:
        """Return the Ray cluster in which its instances are; None: a run starts its own.

        It is a `RunCluster` of `infra/cluster/base.py`, and takes the `Rental` of a run.
        """
        return None


def calls_to(endpoint: Endpoint) -> Calls:
    """Return what asks the cloud that is at an endpoint."""
    return provider_named(endpoint.provider).calls(endpoint)


def errors_at(endpoint: Endpoint) -> tuple[type[Exception], ...]:
    """Return what asking the cloud that is at an endpoint raises when it fails."""
    return provider_named(endpoint.provider).errors()


def provider_named(name: str) -> Provider:
    """Return a cloud by its name, loaded when it is first asked for.

    Raises:
        UsageError: there is none of that name.
    """
    line = PROVIDERS.get(name)
    if line is None:
        raise UsageError(f"provider {shown(name)} is not known; {allowed_names(name, PROVIDERS)}")
    module, _, attribute = line.implementation.partition(":")
    return cast("Provider", getattr(importlib.import_module(module), attribute))
