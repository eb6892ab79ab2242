# ruff: noqa: ARG002  most default answers ignore their arguments
"""The interface of clouds: prices, a place to rent in, and requirements of an experiment.

Everything that differs between clouds is behind this interface; no other code looks at provider
names. `tests/contracts/provider.py` tests whether an implementation is right.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from cloudtune.errors import UsageError, allowed_names, quote
from cloudtune.model.providers import PROVIDERS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from cloudtune.experiment.cloud import CloudSettings as Settings
    from cloudtune.experiment.schema import Experiment
    from cloudtune.model.catalog import Catalog, InstanceType, Market, Offer
    from cloudtune.model.commands import Launch
    from cloudtune.model.events import RefusalKind
    from cloudtune.model.scaling import Measurement, ScalingProfile

RUN_TAG = "cloudtune:run"
INTENT_TAG = "cloudtune:intent"
LEASE_TAG = "cloudtune:lease"
# A tag with the price of an instance that isn't in a price table.
PRICE_TAG = "cloudtune:usd-per-hour"


@dataclass(frozen=True)
class Endpoint:
    """Where a cloud is called: a region, and an address for anything other than AWS.

    `key` and `secret` are credentials for a cloud without accounts; otherwise they are found as
    usual. `provider` names the calls that it understands: clouds on this machine understand those
    of AWS. `look_seconds` are the seconds between two looks at the instances: a cloud limits the
    calls of an account and all its programs. A machine that is silent for `silent_seconds` counts
    as lost; one whose Ray has ended, after a third of that.
    """

    region: str
    url: str | None = None
    key: str | None = None
    secret: str | None = field(default=None, repr=False)
    provider: str = "aws"
    look_seconds: float = 3.0
    silent_seconds: float = 50.0


# The state of an instance that was requested and isn't there yet: it costs nothing so far.
QUEUED = "queued"
BILLING_STATES = (QUEUED, "pending", "running", "stopping", "stopped")


@dataclass(frozen=True)
class Instance:
    """An instance of ours as its cloud describes it; times are Unix seconds.

    `ended_at` is when it began to shut down and stopped billing.
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
    """An open cloud: where to rent instances, and how to request them.

    `request` goes unchanged into each request (image, subnet, …), `tags` onto each instance.
    `places` are the parts of requests that place an instance, by zone, where each zone has its own
    (`at_place`). `close` ends what was started for it on this
    machine, once no instance is left there.
    """

    endpoint: Endpoint
    request: Mapping[str, Any]
    tags: Mapping[str, str]
    close: Callable[[], object] = lambda: None
    places: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class HeadOffer:
    """The instance that would carry a run for a machine that can't: its type and its price.

    `request` is added to its launch, `tags` to the instance. If the type isn't available, the
    `second_type` is requested, which costs no more. `places` are as a cloud's: one after another is
    tried.
    """

    instance_type: str
    usd_per_hour: float
    request: Mapping[str, Any]
    tags: Mapping[str, str] = field(default_factory=dict)
    second_type: str = ""
    places: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Preflight:
    """What a cloud says of a run's launches, before there are any.

    Each of `problems` is a line, and refuses the run. `refused` are the types and markets that the
    cloud wouldn't rent out while it would others, and `notes` the lines that say so.
    """

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refused: frozenset[tuple[str, Market]] = frozenset()

    def allows(self, offer: Offer) -> bool:
        return (offer.instance_type.name, offer.market) not in self.refused


def merge_requests(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return two requests merged, section by section; the second takes precedence."""
    both = {**first, **second}
    for name in first.keys() & second.keys():
        if isinstance(first[name], Mapping) and isinstance(second[name], Mapping):
            both[name] = merge_requests(first[name], second[name])
    return both


def at_place(
    request: Mapping[str, Any], places: Mapping[str, Mapping[str, Any]], zone: str
) -> dict[str, Any]:
    """Return a request at the place of a zone: at the first one if it names none of them."""
    first: Mapping[str, Any] = next(iter(places.values()), {})
    return merge_requests(request, places.get(zone, first))


def launch_token(run: str, intent: str, instance_type: str, market: str, zone: str) -> str:
    """Return the token of a launch intent, so that the same intent never rents twice."""
    key = f"{run}\n{intent}\n{instance_type}\n{market}\n{zone}"
    return hashlib.sha256(key.encode()).hexdigest()


def lease_end(text: str) -> float:
    """Return the end of a lease (Unix time) from its tag; inf if it has none."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return math.inf


class Calls(Protocol):
    """The few calls that cloudtune makes to a cloud in one region, and the meaning of their errors.

    Instances are found by their tags, `cloudtune:run` and `cloudtune:intent`, so they can be
    returned without any local state.
    """

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions of failed calls."""

    def code(self, error: BaseException, /) -> str:
        """Return the cloud's own word for an error, for people."""
        return type(error).__name__

    def is_definite(self, error: BaseException, /) -> bool:
        """Whether an error of a launch says for certain that nothing was launched."""

    def refusal_kind(self, code: str, /) -> RefusalKind:
        """Return the kind of refusal of a `code`."""

    def is_permanent(self, code: str, /) -> bool:
        """Whether a retry is pointless."""
        return self.refusal_kind(code) in {"denied", "unknown"}

    def run_instance(
        self, token: str, tags: Mapping[str, str], request: Mapping[str, Any], /
    ) -> str:
        """Launch one instance and return its id; with the same token again, the same id."""

    def ours(self, run: str | None = None, /, *, ended: bool = True) -> list[Instance]:
        """Return the instances of a run, or of every run; `ended` includes terminated ones."""

    def terminate(self, ids: Sequence[str], /) -> None:
        """Terminate instances. Repeating it for one that is gone is harmless."""

    def console(self, instance: str, /) -> str:
        """Return the end of an instance's boot output, even if the instance is gone.

        "" if the cloud doesn't have it.
        """
        return ""


class Provider(Protocol):
    """A cloud: one instance of this for each line of `cloudtune.model.providers.PROVIDERS`.

    It imports its cloud's libraries within its methods, so that plans don't wait for them. `home`
    is cloudtune's folder on this machine. A cloud inherits from this class, which has the answers
    of most clouds.
    """

    @property
    def name(self) -> str:
        """The name in experiments."""

    @property
    def asks_first(self) -> str:
        """Whose money is spent, for the question before renting; "" for no question."""

    @property
    def paced(self) -> bool:
        """Whether training follows a table of times, because there are no real GPUs."""

    @property
    def sends_files(self) -> bool:
        """Whether instances get a copy of the script's folder; otherwise they train beside it."""
        return True

    @property
    def has_roles(self) -> bool:
        """Whether instances have a role of their own, by which they read AWS's secrets."""
        return False

    @property
    def has_gpus(self) -> bool:
        """Whether instances have the GPUs of their types; one that lacks some is then refused."""

    def taken(self, home: Path) -> str:
        """Return why no run can begin there now, whatever its plan; "" if one can."""
        return ""

    def known_types(self) -> Mapping[str, InstanceType]:
        """Return the instance types that an experiment may name or be derived from, by name.

        Empty if only the cluster itself knows them.
        """
        return {}

    def instance_types(self, settings: Settings) -> list[InstanceType]:
        """Return the instance types that an experiment names, patterns resolved."""
        catalog = self.catalog(settings, ("on-demand",), Path())
        offers = catalog.matching(settings.instances, ("on-demand",))
        return list(dict.fromkeys(offer.instance_type for offer in offers))  # one for all zones

    def catalog(self, settings: Settings, markets: Sequence[Market], home: Path) -> Catalog:
        """Return the offers in the region, the markets and the zones of an experiment.

        Raises:
            UsageError: a budget could not be kept, because prices are unknown.
        """

    def check(self, experiment: Experiment) -> None:
        """Check that the experiment has everything that is needed to rent.

        Raises:
            UsageError: something is missing; the message says what to write.
        """

    def waits(self, experiment: Experiment) -> Mapping[str, float]:
        """Return the seconds that a launch of each type waits now, if the cloud predicts it."""
        return {}

    def capacity(self, settings: Settings) -> Mapping[str, int]:
        """Return how many instances there are of each type that the experiment names.

        A type without a known number is left out. No machine counts twice, so the sum is how many
        instances there can be at once.
        """
        return {}

    def occupancy(self, settings: Settings) -> str:
        """Return how much of a cluster others hold now, in a line; "" if nothing or unknown."""
        return ""

    def shared_cores(self) -> int | None:
        """Return the cores that all instances share; None if each has its own."""
        return None

    def host_permille(self, machine: InstanceType) -> int:
        """Return the thousandths of this machine that training on an emulated instance takes.

        0 where instances are machines of their own.
        """
        return 0

    def usual_delays(self) -> Mapping[str, Measurement]:
        """Return the delays around training that are usual here, by the names of `DELAYS`.

        They are for scripts that never ran; what is left out is as in a public cloud.
        """
        return {}

    def paced_profile(self, profile: ScalingProfile, core_seconds: float) -> ScalingProfile:
        """Return a profile measured without a pace as it is with the pace.

        An epoch took `core_seconds` on one core of this machine. Unchanged if nothing is paced.
        """
        return profile

    def early(self, home: Path) -> AbstractContextManager[None]:
        """Begin to start what `open` will need, while a run is planned; rents nothing.

        What `open` hasn't used by the end of the context has ended.
        """
        return nullcontext()

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

        With `pace`, training takes the times of these profiles if the provider is paced. `adopt` is
        for a run that continues with its instances.

        Raises:
            UsageError: it can't be rented from now.
        """

    def clouds_in_use(self, home: Path, regions: Collection[str], asked: str | None) -> list[Cloud]:
        """Return the clouds that may have instances of ours, without starting any.

        `regions` are those that runs of this machine used; `asked` is one that the user named.
        """

    def regions(self) -> tuple[str, ...]:
        """Return all regions in which the account may rent; () if the cloud has none.

        Raises:
            Exception: one of `errors`.
        """
        return ()

    def abandoned(self, home: Path, *, end: bool) -> list[str]:
        """Return the instances on this machine whose cloud has died; `end` ends them."""
        return []

    def zones(self, cloud: Cloud) -> tuple[str, ...]:
        """Return the zones to ask if one has no capacity; () if unknown."""
        return ()

    def calls(self, endpoint: Endpoint) -> Calls:
        """Return what asks the cloud."""

    def errors(self) -> tuple[type[Exception], ...]:
        """Return the exceptions of `calls` and of failed calls."""
        return self.calls(Endpoint("")).errors

    def launch_request(self, launch: Launch, user_data: str) -> Mapping[str, Any]:
        """Return the request for `Calls.run_instance`, on top of `Cloud.request`.

        `user_data` is the script that the instance runs at boot to join the cluster.
        """

    def with_account_defaults(self, experiment: Experiment) -> Experiment:
        """Return an experiment with the account's resources for fields that it leaves out."""
        return experiment

    def preflight(
        self, experiment: Experiment, head: HeadOffer | None, offers: Sequence[Offer] = ()
    ) -> Preflight:
        """Return what would refuse the launches of a run, without launching anything.

        With `head`, this machine launches the head, and the head launches the others. `offers` are
        those of its plan, the best first; () stands for all that the experiment names.
        """
        return Preflight()

    def head(self, experiment: Experiment, home: Path, *, force: bool = False) -> HeadOffer | None:
        """Return the head for a run that this machine can't carry; None if it can.

        Raises:
            UsageError: its price is unknown.
        """
        return None

    def enter(self, endpoint: Endpoint, home: Path, instance: str, words: Sequence[str]) -> int:
        """Run a person's command on an instance; without words, open a terminal there.

        Its output is printed. Returns its exit code.

        Raises:
            UsageError: this cloud has no way in, or this machine lacks what it takes.
            CloudtuneError: the command couldn't be run there.
        """
        raise UsageError(f"provider {self.name} has no way into its instances")

    def own_address(self) -> str:
        """Return the address at which instances reach this machine.

        Raises:
            UsageError: they can't.
        """

    def joined(self, folder: Path, rental: Any) -> Any:
        """Return the Ray cluster of its instances (a `RunCluster`); None: a run starts its own.

        `rental` is the `Rental` of a run (infra/cluster/base.py).
        """
        return None


def calls_to(endpoint: Endpoint) -> Calls:
    """Return the calls to the cloud at an endpoint."""
    return find_provider(endpoint.provider).calls(endpoint)


def list_errors(endpoint: Endpoint) -> tuple[type[Exception], ...]:
    """Return the exceptions of calls to the cloud at an endpoint."""
    return find_provider(endpoint.provider).errors()


def find_provider(name: str) -> Provider:
    """Return a cloud by its name, loaded on first use.

    Raises:
        UsageError: there is none of that name.
    """
    line = PROVIDERS.get(name)
    if line is None:
        raise UsageError(f"provider {quote(name)} is not known; {allowed_names(name, PROVIDERS)}")
    module, _, attribute = line.implementation.partition(":")
    return cast("Provider", getattr(importlib.import_module(module), attribute))
