# ruff: noqa: ARG002  one machine needs few of the arguments
"""This machine as a cloud to rent from: one instance, with its own GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cloudtune.errors import UsageError
from cloudtune.experiment.cloud import CloudSettings as Settings
from cloudtune.experiment.schema import Experiment
from cloudtune.infra.emulator.pacing import OFF, PACE_TAG
from cloudtune.infra.emulator.provider import OnThisMachine, open_cloud
from cloudtune.infra.emulator.service import ensure_emulator, stop_emulator
from cloudtune.infra.node.this_machine import catalog, this_machine
from cloudtune.infra.provider import PRICE_TAG, Cloud, Endpoint
from cloudtune.infra.refcount import TAKEN, claim, in_use
from cloudtune.model.catalog import Catalog, InstanceType, Market
from cloudtune.model.scaling import ScalingProfile


class ThisMachine(OnThisMachine):
    """This machine as a cloud of one instance, at the price that its user sets."""

    name = "local"
    folder = "local"
    paced = False
    sends_files = False
    has_gpus = False  # its instance type is made from those that it has

    def instance_types(self, settings: Settings) -> list[InstanceType]:
        return [this_machine(settings.slots)]

    def catalog(self, settings: Settings, markets: Sequence[Market], home: Path) -> Catalog:
        gpus = this_machine(settings.slots).gpus
        price = settings.usd_per_hour(gpus, settings.price)
        return catalog(settings.region, settings.slots, price)

    def _starts_one(self, folder: Path) -> bool:
        return not in_use(folder)

    def taken(self, home: Path) -> str:
        return TAKEN if in_use(home / self.folder) else ""

    def capacity(self, settings: Settings) -> Mapping[str, int]:
        return {this_machine(settings.slots).name: 1}

    def open(
        self,
        experiment: Experiment,
        home: Path,
        *,
        pace: bool,
        profiles: Sequence[ScalingProfile] = (),
        adopt: bool = False,
    ) -> Cloud:
        """Return this machine as a cloud of one instance; an EC2 of its own is started for it.

        Raises:
            UsageError: another run has the machine.
        """
        folder = home / self.folder
        # Started afresh, it has the environment of this command, not of an earlier one.
        if not stop_emulator(folder, only_if_idle=True) and not adopt:
            raise UsageError(TAKEN)
        return claim(folder, lambda: self._open(experiment, folder), alone=True)

    @staticmethod
    def _open(experiment: Experiment, folder: Path) -> Cloud:
        gpus = this_machine(experiment.cloud.slots).gpus
        price = repr(experiment.cloud.usd_per_hour(gpus, experiment.cloud.price))
        emulator = ensure_emulator(folder, boot_seconds=0.0)
        tags = {PACE_TAG: OFF, PRICE_TAG: price}
        cloud = open_cloud(folder, experiment.cloud.region, emulator.access, tags)
        # A machine with busy cores and a busy disk isn't lost.
        return replace(
            cloud, endpoint=replace(cloud.endpoint, silent_seconds=Endpoint.silent_seconds)
        )

    def zones(self, cloud: Cloud) -> tuple[str, ...]:
        """Return (): there is only this machine."""
        return ()


LOCAL = ThisMachine()
