"""Live instances and their prices, and the clean-up of what dead runs left behind."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudtune.errors import CloudtuneError
from cloudtune.infra import sweep as sweeping
from cloudtune.infra.aws.pricing import catalog
from cloudtune.infra.cluster.head_process import RECORD, HeadProcess, end_recorded
from cloudtune.infra.heads.launch import Remote, parse_tag
from cloudtune.infra.processes import DamagedRecordError, is_running
from cloudtune.infra.provider import (
    PRICE_TAG,
    Cloud,
    Instance,
    calls_to,
    find_provider,
    lease_end,
)
from cloudtune.model.providers import PROVIDERS
from cloudtune.runs import control, home

# How long to wait for EC2 to confirm that instances have ended.
_PATIENCE_SECONDS = 90.0


@dataclass(frozen=True)
class Found:
    """An instance of ours, and whether a controller still drives its run.

    An `emulated` one costs nothing, whatever its type's price.
    """

    instance: Instance
    controlled: bool
    known: bool
    expired: bool
    usd_per_hour: float
    emulated: bool = False

    @property
    def orphan(self) -> bool:
        """Whether no controller will return the instance: its lease is over, or the run is ours."""
        return not self.controlled and (self.known or self.expired)


def open_clouds(region: str | None, *, all_regions: bool = False) -> list[Cloud]:
    """Return every cloud that may have instances of ours.

    All providers are asked in every region that a run of this machine used or that is named, or in
    all regions; clouds on this machine only if they run.

    Raises:
        CloudtuneError: the list of regions isn't available.
    """
    used: dict[str, set[str]] = {
        name: set(_regions(name)) if all_regions else set() for name in PROVIDERS
    }
    for folder in _folders():
        provider, place = control.read_place(folder)
        if provider in used and place:
            used[provider].add(place)
    return [
        cloud
        for name, regions in used.items()
        for cloud in find_provider(name).clouds_in_use(home.home(), regions, region)
    ]


def _regions(provider: str) -> tuple[str, ...]:
    cloud = find_provider(provider)
    try:
        return cloud.regions()
    except cloud.errors() as error:
        raise CloudtuneError(f"the regions of {provider} can't be listed: {error}") from None


def find_orphans(*, end: bool) -> list[str]:
    """Return the instances on this machine whose cloud has died; `end` ends them."""
    return [
        machine
        for name in PROVIDERS
        for machine in find_provider(name).abandoned(home.home(), end=end)
    ]


def look(cloud: Cloud) -> list[Found]:
    """Return the billing instances of every run in a cloud."""
    prices = {o.instance_type.name: o.usd_per_hour for o in catalog("us-east-1").offers}
    alive = calls_to(cloud.endpoint).ours(ended=False)
    # A head that outlived its lease was rebooted: it runs nothing, and nothing will end it.
    heads = [instance for instance in alive if parse_tag(instance.run) is not None]
    carried = {parse_tag(head.run) for head in heads if lease_end(head.lease) >= time.time()}
    return [
        Found(
            instance=instance,
            controlled=instance.run in carried
            or parse_tag(instance.run) in carried
            or _is_driven_here(instance.run),
            known=bool(instance.run) and (home.runs() / instance.run).is_dir(),
            expired=lease_end(instance.lease) < time.time(),
            usd_per_hour=_price(instance, prices),
            emulated=cloud.endpoint.url is not None and PRICE_TAG not in instance.tags,
        )
        for instance in alive
    ]


def _price(instance: Instance, prices: Mapping[str, float]) -> float:
    """Return the price of an instance: from its tag, of a user's machine, or from the table."""
    try:
        return float(instance.tags[PRICE_TAG])
    except (KeyError, ValueError):  # anyone may have written the tag
        return prices.get(instance.instance_type, 0.0)


def is_controlled(run: str) -> bool:
    """Whether a process on this machine drives a run, or a head."""
    return bool(run) and control.is_driven(home.runs() / run)


def _is_driven_here(run: str) -> bool:
    """Whether a process on this machine drives a run; for heads, ask the cloud."""
    return bool(run) and Remote.of(home.runs() / run) is None and is_controlled(run)


@dataclass(frozen=True)
class Head:
    """The remains on this machine of the Ray head of a run without a controller.

    `processes` are those proven to be its own. `trouble` says why there is no proof: then none is
    ended.
    """

    folder: Path
    processes: int
    trouble: str = ""

    def end(self) -> None:
        """End its processes, and remove its temporary folder and its record."""
        end_recorded(self.folder)


def dead_heads() -> list[Head]:
    """Return the remains of the heads of runs whose controller died."""
    folders = [folder for folder in _folders() if (folder / RECORD).exists()]
    return [_find_head(folder) for folder in folders if not is_controlled(folder.name)]


def _find_head(folder: Path) -> Head:
    try:
        head = HeadProcess.recorded(folder)
    except DamagedRecordError as error:
        return Head(folder, 0, str(error))
    members = [] if head is None else head.group.members()
    return Head(folder, sum(map(is_running, members)))


def give_back(cloud: Cloud, doomed: Sequence[Found]) -> list[Instance]:
    """Return instances to the cloud; return those that it didn't confirm in time."""
    calls = calls_to(cloud.endpoint)
    wanted = {item.instance.id for item in doomed}
    calls.terminate(sorted(wanted))
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while True:
        left = [instance for instance in calls.ours(ended=False) if instance.id in wanted]
        if not left or time.monotonic() > give_up:
            break
        time.sleep(0.5)
    for run in {item.instance.run for item in doomed}:
        if (home.runs() / run).is_dir():
            sweeping.keep_records(calls, run, home.runs() / run / "instances.json")
    return left


def keep_records(cloud: Cloud) -> None:
    """Record what a cloud says about the instances of runs without such a record.

    Their controller died, and their leases have ended them: the cloud forgets them in an hour.
    """
    calls = calls_to(cloud.endpoint)
    unasked = {
        folder.name: folder / "instances.json"
        for folder in _folders()
        if not (folder / "instances.json").exists() and not is_controlled(folder.name)
    }
    listed = {instance.run for instance in calls.ours()} if unasked else set()
    for run in listed & unasked.keys():
        sweeping.keep_records(calls, run, unasked[run])


def _folders() -> list[Path]:
    return sorted(folder for folder in home.runs().glob("*") if folder.is_dir())
