"""EC2's instances on this machine: moto's backend, with our machines behind its records.

Importing this module imports moto's EC2 (about a second), so only the emulator's own process does.
moto 5.2.5 creates an instance as running and never changes that by itself, so we write each change
of a machine's state into its record.
"""

import base64
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models.instances import InstanceState, StateReason
from moto.ec2.utils import filter_dict_attribute_mapping, filter_reservations

from cloudtune.infra.aws import pricing
from cloudtune.infra.emulator import pacing, pools
from cloudtune.infra.emulator.faults import Hidden, Market, Pool, fault_kind
from cloudtune.infra.emulator.machine import STATE_CODES, Ending, Machine
from cloudtune.infra.emulator.machine_process import console
from cloudtune.infra.emulator.machines import Clock, RunningMachines
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.emulator.rules import AccessRules
from cloudtune.infra.emulator.scenario import Scenario
from cloudtune.infra.node import this_machine as local
from cloudtune.infra.node.boot import LOCAL_VARIABLE

DEFAULT_REGION = "us-east-1"
_PUBLIC = "203.0.113.1"  # nobody's (RFC 5737)
_MAC = "02:00:00:00:00:01"
_CONSOLE_BYTES = 64 * 1024  # what EC2 keeps of it


class EmulatedEC2:
    """The instances: moto's records and the machines behind them, kept in sync."""

    def __init__(
        self,
        home: Path,
        access: Access,
        boot_seconds: float,
        clock: Clock,
        scenario: Scenario,
        *,
        rules: AccessRules,
    ) -> None:
        self.clock = clock
        self._rules = rules
        self.eyes = threading.local()  # with `see_all`, nothing is hidden from this thread
        folder = home / "instances"
        self.machines = RunningMachines(
            folder, access, boot_seconds, clock, self._mirror, housing=rules.housing
        )
        self._scenario = scenario
        _Backend.ec2 = self
        ec2_backends.backend = _Backend
        # Filters that EC2 has and moto lacks.
        filter_dict_attribute_mapping["client-token"] = "client_token"
        filter_dict_attribute_mapping["instance-lifecycle"] = "lifecycle"

    def is_live(self, instance_id: str) -> bool:
        """Return whether an instance hasn't ended and isn't about to."""
        machine = self.machines.find(instance_id)
        return machine is not None and machine.is_live and not machine.is_leaving

    def add(self, instance: Any, script: str | None) -> None:
        """Set up the machine behind a record that moto has just made."""
        primary = instance.nics[0]
        address = self.machines.housing.address()
        primary.private_ip_address = address
        primary.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]
        if primary.public_ip:
            primary.public_ip = _PUBLIC  # moto makes one up, and it might be somebody's
        instance.launch_time += timedelta(seconds=self.clock.offset)
        kind = pricing.instance_types().get(instance.instance_type)
        market: Market = "spot" if instance.lifecycle == "spot" else "on-demand"
        pool = Pool(instance.instance_type, market, instance.placement.zone)
        faults = self._scenario.befall(pool)
        if self._rules.hidden_seconds:  # the first: another one goes before it
            faults.insert(0, Hidden(seconds=self._rules.hidden_seconds))
        machine = Machine(
            id=instance.id,
            pool=pool,
            folder=self.machines.folder / instance.id,
            launched_at=self.clock.now(),
            record=instance,
            script=script,
            settings=_settings(instance),
            address=address,
            vcpus=0 if kind is None else kind.vcpus,
            gpus=0 if kind is None else kind.gpus,
            stops_on_shutdown=instance.instance_initiated_shutdown_behavior == "stop",
            faults=faults,
        )
        self.machines.add(machine)
        self._mirror(machine)

    def end(self, instances: Sequence[Any], **to: Any) -> list[tuple[Any, InstanceState]]:
        """Begin to end instances on request; return their previous states."""
        ended = []
        for instance in instances:
            ended.append((instance, instance.instance_state))
            machine = self.machines.find(instance.id)
            assert machine is not None, "every instance is launched through us"
            ending = Ending(self.clock.now(), "Client.UserInitiatedShutdown", **to)
            self.machines.end(machine, ending)
        return ended

    def place(self, region: str, parameters: Mapping[str, str]) -> dict[str, str]:
        """Return a launch request with a zone and the number of instances that fit there.

        Raises:
            Ec2Error: there is no room, by a capacity or a quota of the scenario.
        """
        # moto starts MinCount; EC2 starts as many as it can up to MaxCount.
        count = parameters.get("MaxCount", "1")
        capacities = self._scenario.capacities()
        quotas = self._rules.quotas(self._scenario.quotas())
        if not (capacities or quotas):
            return {**parameters, "MinCount": count}
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
        zone = parameters.get("Placement.AvailabilityZone", "")
        subnet = parameters.get("SubnetId") or parameters.get("NetworkInterface.1.SubnetId")
        if subnet:
            zone = backend.get_subnet(subnet).availability_zone
        is_spot = parameters.get("InstanceMarketOptions.MarketType") == "spot"
        market: Market = "spot" if is_spot else "on-demand"
        instance_type = parameters.get("InstanceType", "")
        wanted = Pool(instance_type, market, zone)
        live = [it for it in self.machines.live() if it.record.region_name == region]
        zones = [zone] if zone else [it.name for it in backend.describe_availability_zones()]
        counts = (int(parameters.get("MinCount", "1")), int(count))
        pool, room = pools.find_room(wanted, counts, live, capacities, zones)
        kind = pricing.instance_types().get(instance_type)
        vcpus = 0 if kind is None else kind.vcpus * counts[1]
        pools.check_quotas(pool, vcpus, live, quotas)
        placed = {} if subnet else {"Placement.AvailabilityZone": pool.zone}
        return {**parameters, **placed, "MinCount": str(room)}

    def is_hidden(self, instance_id: str) -> bool:
        """Return whether this instance is still hidden from calls."""
        if getattr(self.eyes, "see_all", False):
            return False
        machine = self.machines.find(instance_id)
        return machine is not None and machine.is_hidden(self.clock.now())

    def count_call(self) -> None:
        """Count a call about instances, which hidden ones are hidden from for a while."""
        for machine in self.machines.live():
            machine.seen += 1

    def records(self) -> list[dict[str, Any]]:
        """Return the data of every instance, including ended ones, for JSON."""
        return [
            {
                "id": machine.id,
                "type": machine.pool.instance_type,
                "market": machine.pool.market,
                "zone": machine.pool.zone,
                "state": machine.state,
                "health": machine.health,
                "faults": [fault_kind(fault) for fault in machine.faults],
                "launched_at": machine.launched_at,
                "running_at": machine.running_at,
                "booted_at": machine.booted_at,
                "shutting_down_at": machine.shutting_down_at,
                "terminated_at": machine.terminated_at,
                "power_off_at": machine.power_off.due if machine.power_off else None,
                "ends_at": machine.ending.due if machine.ending else None,
                "reason": machine.reason_code,
                "tags": _tags(machine.record),
                "pid": machine.pid,
            }
            for machine in self.machines.all()
        ]

    def metadata(self, machine: Machine) -> dict[str, str]:
        """Return what an instance's metadata service answers, by path under meta-data/."""
        instance = machine.record
        answers = {
            "instance-id": machine.id,
            "instance-type": machine.pool.instance_type,
            "local-ipv4": machine.address,
            "placement/availability-zone": machine.pool.zone,
            "placement/region": instance.region_name,
            "instance-life-cycle": machine.pool.market,
            "network/interfaces/macs/": f"{_MAC}/",
            f"network/interfaces/macs/{_MAC}/security-group-ids": "\n".join(
                group.id for group in instance.security_groups
            ),
        }
        ending = machine.ending
        if ending is not None and ending.code == "Server.SpotInstanceTermination":
            answers["spot/instance-action"] = (
                f'{{"action": "terminate", "time": "{_iso(ending.due)}"}}'
            )
        if machine.at_risk_since is not None:
            answers["events/recommendations/rebalance"] = (
                f'{{"noticeTime": "{_iso(machine.at_risk_since)}"}}'
            )
        return answers

    def console(self, instance_id: str) -> bytes:
        """Return the end of an instance's output; nothing for an unknown one."""
        machine = self.machines.find(instance_id)
        return b"" if machine is None else console(machine.folder)[-_CONSOLE_BYTES:]

    def _mirror(self, machine: Machine) -> None:
        instance = machine.record
        if machine.state == "terminated":
            instance.terminate()  # moto gives the volume and the network interface back
        # moto has no door for these two.
        instance._state = InstanceState(machine.state, STATE_CODES[machine.state])  # noqa: SLF001
        instance._reason = machine.transition_reason  # noqa: SLF001
        instance.state_reason = StateReason(machine.state_reason, machine.reason_code)


class _Backend(EC2Backend):  # type: ignore[misc] # moto has no types
    """moto's EC2 of one region, with real machines for its instances."""

    __module__ = EC2Backend.__module__  # moto looks for its URLs next to a backend's module
    ec2: ClassVar[EmulatedEC2]

    def run_instances(
        self, image_id: str, count: int, user_data: Any, security_group_names: Any, **kwargs: Any
    ) -> Any:
        instance_type = kwargs["instance_type"]
        known = {*pricing.instance_types(), *pricing.HEAD_USD_PER_HOUR}
        if instance_type not in known and not local.is_local(instance_type):
            raise EC2ClientError(
                "InvalidParameterValue",
                f"The following supplied instance types do not exist: [{instance_type}]",
            )
        reservation = super().run_instances(
            image_id, count, user_data, security_group_names, **kwargs
        )
        for instance in reservation.instances:
            data = instance.user_data
            # Anything but text fails on the machine, as on EC2.
            script = data and base64.b64decode(str(data)).decode(errors="replace")
            self.ec2.add(instance, script)
        return reservation

    def terminate_instances(self, instance_ids: Sequence[str]) -> list[tuple[Any, Any]]:
        instances = self.get_multi_instances_by_id(instance_ids)
        for instance in instances:
            if instance.disable_api_termination is True:
                raise EC2ClientError(
                    "OperationNotPermitted",
                    f"The instance '{instance.id}' may not be terminated. Modify its "
                    "'disableApiTermination' instance attribute and try again.",
                )
        return self.ec2.end(instances)

    def associate_iam_instance_profile(self, *args: Any, **kwargs: Any) -> Any:
        """Give a new instance its profile, as part of its launch."""
        self.ec2.eyes.see_all = True
        try:
            return super().associate_iam_instance_profile(*args, **kwargs)
        finally:
            self.ec2.eyes.see_all = False

    def stop_instances(self, instance_ids: Sequence[str]) -> list[tuple[Any, Any]]:
        return self.ec2.end(self.get_multi_instances_by_id(instance_ids), to="stopping")

    def all_reservations(self, filters: Any = None) -> list[Any]:
        """Return the visible reservations, from which every call about instances starts."""
        reservations = super().all_reservations()  # a copy: moto's own stays unchanged
        for reservation in reservations:
            reservation.instances = [
                instance
                for instance in reservation.instances
                if not self.ec2.is_hidden(instance.id)
            ]
        seen = [reservation for reservation in reservations if reservation.instances]
        return seen if filters is None else list(filter_reservations(seen, filters))

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise EC2ClientError(
            "UnsupportedOperation",
            "The emulator can't start or reboot instances: launch new ones instead.",
        )

    start_instances = reboot_instances = _refuse


def _iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _settings(instance: Any) -> dict[str, str]:
    """Return the environment of a machine of its kind; a user's own machine has no pace."""
    if local.is_local(instance.instance_type):
        return {LOCAL_VARIABLE: "1"}
    kind = pricing.instance_types().get(instance.instance_type)
    gpu = kind.gpu if kind is not None and kind.gpus else ""
    pace = _tags(instance).get(pacing.PACE_TAG, "0")
    paced = pacing.make_settings(gpu, pace, scale=pacing.scale_here())
    return {**paced, "AWS_DEFAULT_REGION": instance.region_name}


def _tags(instance: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in instance.get_tags()}
