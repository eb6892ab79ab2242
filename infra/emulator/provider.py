# ruff: noqa: ARG002  a cloud that needs few of the arguments
"""The emulated EC2 as a cloud to rent from, and the base of all clouds on this machine."""

import math
import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from cloudtune.errors import UsageError
from cloudtune.experiment.cloud import CloudSettings as Settings
from cloudtune.experiment.schema import Experiment
from cloudtune.infra.aws import pricing
from cloudtune.infra.aws.provider import Ec2Speaking
from cloudtune.infra.emulator import pacing, service
from cloudtune.infra.emulator.early import started_early
from cloudtune.infra.emulator.machine_process import ID_VARIABLE
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.node import this_machine
from cloudtune.infra.node.entering import SHELL, entering
from cloudtune.infra.provider import Cloud, Endpoint
from cloudtune.infra.refcount import claim
from cloudtune.model.catalog import Catalog, InstanceType, Market
from cloudtune.model.scaling import Measurement, ScalingProfile

IMAGE = "ami-0c1000000000e8664"
_HOME_REGION = "us-east-1"
# The share of this machine's cores that emulated GPUs may keep busy.
_BUSY = 0.5
# Memory of a trial's worker: Python with torch, a small model and its data.
_WORKER_MIB = 700
# Instances that one core controls at once: each has a node of Ray, and an agent.
_INSTANCES_PER_CORE = 2
# Delays of instances that are processes, and how far they may be off (demo, two cores, 2026-11).
_USUAL_DELAYS: Mapping[str, Measurement] = {
    "launch": Measurement(1.0, 0.0, 0, 0.8),
    "boot": Measurement(15.0, 0.0, 0, 5.0),
    "start": Measurement(5.0, 0.0, 0, 3.0),
    "resize": Measurement(5.0, 0.0, 0, 3.0),
    "release": Measurement(1.0, 0.0, 0, 0.5),
}


class OnThisMachine(Ec2Speaking):
    """A cloud whose EC2 runs on this machine, in `folder` of cloudtune's home."""

    asks_first = ""
    folder = ""

    def known_types(self) -> Mapping[str, InstanceType]:
        return pricing.instance_types()

    def check(self, experiment: Experiment) -> None:
        """Do nothing: experiments have everything that is needed."""

    def early(self, home: Path) -> AbstractContextManager[None]:
        """Start an emulator's process, if `open` will need one and there is a core for it."""
        if this_machine.cores() == 1 or not self._starts_one(home / self.folder):
            return nullcontext()
        return started_early(service.environment_here())

    def _starts_one(self, folder: Path) -> bool:
        """Whether `open` will start an emulator, as far as one can tell now."""
        try:
            return service.find_emulator(folder) is None
        except UsageError:  # `open` reports it
            return False

    def clouds_in_use(self, home: Path, regions: Collection[str], asked: str | None) -> list[Cloud]:
        emulator = service.find_emulator(home / self.folder)
        if emulator is None:
            return []
        return [
            open_cloud(home / self.folder, region, emulator.access)
            for region in sorted({_HOME_REGION, *regions})
        ]

    def abandoned(self, home: Path, *, end: bool) -> list[str]:
        return service.find_orphans(home / self.folder, end=end)

    def enter(self, endpoint: Endpoint, home: Path, instance: str, words: Sequence[str]) -> int:
        return subprocess.run(
            entering(words or SHELL, f"{ID_VARIABLE}={instance}"),
            cwd=home / self.folder / "instances" / instance,
            env={**os.environ, ID_VARIABLE: instance},  # it ends with the machine
            check=False,
        ).returncode

    def shared_cores(self) -> int:
        """Return this machine's cores: its instances are processes."""
        return this_machine.cores()

    def usual_delays(self) -> Mapping[str, Measurement]:
        return _USUAL_DELAYS

    def own_address(self) -> str:
        """Return the loopback: instances are processes of this machine."""
        return "127.0.0.1"


class Emulated(OnThisMachine):
    """An EC2 for everyone: instances are local processes, and training is paced by a table."""

    name = "emulated"
    folder = "emulator"
    paced = True
    has_gpus = False

    def catalog(self, settings: Settings, markets: Sequence[Market], home: Path) -> Catalog:
        return pricing.catalog(settings.region, markets, settings.zones)

    def host_permille(self, machine: InstanceType) -> int:
        """Return what an instance and its GPUs take of the cores and the memory, the larger one.

        Half of the cores is left for starting workers, and for the person in front of them.
        """
        factor, _ = pacing.core_factor(machine.gpu)
        cores = machine.gpus / factor / (_BUSY * this_machine.cores())
        memory = machine.gpus * _WORKER_MIB / this_machine.memory_mib()
        instance = 1 / (_INSTANCES_PER_CORE * this_machine.cores())
        return math.ceil(1000 * max(cores, memory, instance))

    def paced_profile(self, profile: ScalingProfile, core_seconds: float) -> ScalingProfile:
        machine = self.known_types()[profile.instance_type]
        return pacing.emulated_profile(profile, machine, core_seconds, pacing.scale_here())

    def open(
        self,
        experiment: Experiment,
        home: Path,
        *,
        pace: bool,
        profiles: Sequence[ScalingProfile] = (),
        adopt: bool = False,
    ) -> Cloud:
        """Return the emulated EC2; with `pace`, the experiment's seed seeds its noise."""
        seed = experiment.seed if pace else None
        folder = home / self.folder
        region = experiment.cloud.region
        types = self.known_types()
        measured = [(profile, types[profile.instance_type]) for profile in profiles]
        core_seconds = pacing.core_seconds_by_profile(measured, pacing.scale_here())
        return claim(
            folder, lambda: emulated_cloud(folder, region, pace=seed, core_seconds=core_seconds)
        )


def emulated_cloud(
    folder: Path, region: str, *, pace: int | None, core_seconds: float | None = None
) -> Cloud:
    """Return the emulated EC2 of a folder, started if necessary.

    `pace` seeds the noise of the speed curve by which machines pace training; None turns off
    pacing. `core_seconds` is the time of an epoch on one core of this machine.
    """
    tags = {pacing.PACE_TAG: pacing.OFF if pace is None else pacing.make_tag(pace, core_seconds)}
    return open_cloud(folder, region, service.ensure_emulator(folder).access, tags)


def open_cloud(
    folder: Path, region: str, access: Access, tags: Mapping[str, str] | None = None
) -> Cloud:
    """Return the EC2 of a folder; closing it ends it if no instance is left."""
    close = partial(service.stop_emulator, folder, only_if_idle=True)
    return Cloud(make_endpoint(access, region), {"ImageId": IMAGE}, tags or {}, close)


def make_endpoint(access: Access, region: str = _HOME_REGION) -> Endpoint:
    """Return the endpoint of an emulated EC2's region."""
    keys = (access.key, access.secret)
    return Endpoint(region, access.endpoint, *keys, look_seconds=0.0, silent_seconds=10.0)


EMULATED = Emulated()
