"""The few EC2 calls that cloudtune makes, and the interpretation of the answers.

The same code calls AWS and the emulator, which only differ in `endpoint`. Every instance has tags
that identify it (`cloudtune:run`, `cloudtune:intent`, `cloudtune:lease`), so that it can be found
and returned without any local state.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from cloudtune.infra.aws.client import client
from cloudtune.infra.aws.errors import CALL_ERRORS, SortedErrors
from cloudtune.infra.provider import BILLING_STATES, INTENT_TAG, LEASE_TAG, RUN_TAG, Instance

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mypy_boto3_ec2 import EC2Client

    from cloudtune.infra.provider import Endpoint

# Maximum seconds until each retry of a launch that EC2 has throttled.
BUSY_WAITS = (0.5, 1.0, 2.0, 4.0)
_TERMINATE_AT_ONCE = 1000  # EC2's limit per call
_PLAIN_ZONE = "availability-zone"
# The meaning of EC2's codes of failed launches (EC2 user guide, "Instance terminates immediately").
_STATE_HINTS = {
    "Client.InternalError": " (often a KMS key of its disk that this account may not use)",
    "Client.InvalidSnapshot.NotFound": " (its image has a snapshot that was deleted)",
    "Client.VolumeLimitExceeded": " (the quota of EBS storage is used up)",
}
_TIME_ONLY = re.compile(r"^.*?(?=\(\d{4}-|$)")
_REASON_TIME = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) GMT\)")


def market_request(market: str, zone: str) -> dict[str, Any]:
    """Return the arguments of RunInstances for a market, and for a zone if there is one.

    A spot instance is requested once and ends when it is interrupted: the policy decides about a
    replacement. There is no maximum price: EC2's default is the on-demand price, and a lower one
    makes interruptions more likely ("Spot best practices", Amazon EC2 user guide, 2026). The ledger
    keeps the budget.
    """
    request: dict[str, Any] = {}
    if market == "spot":
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    if zone:
        request["Placement"] = {"AvailabilityZone": zone}
    return request


class Ec2(SortedErrors):
    """EC2 in one region, through cloudtune's tags."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._client: EC2Client = client("ec2", endpoint, attempts=5, read_seconds=60)
        # The library never retries a launch: it would call a dry pool repeatedly.
        self._launcher: EC2Client = client("ec2", endpoint, attempts=1, read_seconds=60)

    def run_instance(self, token: str, tags: Mapping[str, str], request: Mapping[str, Any]) -> str:
        """Launch one instance and return its id; with the same token again, the same id.

        A throttled launch is retried after `BUSY_WAITS`: EC2 takes five at once, and two per second
        after that.

        Raises:
            botocore.exceptions.ClientError: EC2 refused; `errors.error_code` names why.
        """
        for wait in BUSY_WAITS:
            try:
                return self._run_instance(token, tags, request)
            except ClientError as error:
                if self.refusal_kind(self.code(error)) != "busy":
                    raise
                time.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - not all at once
        return self._run_instance(token, tags, request)

    def _run_instance(self, token: str, tags: Mapping[str, str], request: Mapping[str, Any]) -> str:
        with _request_ids():
            answer = self._launcher.run_instances(ClientToken=token, **_whole(tags, request))
        return answer["Instances"][0]["InstanceId"]

    def try_launch(self, tags: Mapping[str, str], request: Mapping[str, Any]) -> Exception | None:
        """Return EC2's answer to a dry run of a launch; None if it would be accepted."""
        try:
            with _request_ids():
                self._client.run_instances(DryRun=True, **_whole(tags, request))
        except CALL_ERRORS as error:
            return error
        return None

    def look(self, call: str, **given: Any) -> Any:
        """Return EC2's answer to a read-only call of boto3's client."""
        return getattr(self._client, call)(**given)

    def ours(self, run: str | None = None, *, ended: bool = True) -> list[Instance]:
        filters: list[dict[str, Any]] = [{"Name": "tag-key", "Values": [RUN_TAG]}]
        if run is not None:
            filters = [{"Name": f"tag:{RUN_TAG}", "Values": [run]}]
        if not ended:
            filters.append({"Name": "instance-state-name", "Values": list(BILLING_STATES)})
        pages = self._client.get_paginator("describe_instances").paginate(Filters=filters)  # type: ignore[arg-type]
        with _request_ids():
            return [
                _read(described)
                for page in pages
                for reservation in page["Reservations"]
                for described in reservation["Instances"]
            ]

    def zones(self) -> tuple[str, ...]:
        """Return the availability zones of the region that accept instances now, by name."""
        zones = self._client.describe_availability_zones()["AvailabilityZones"]
        open_ones = (zone for zone in zones if zone.get("State") == "available")
        plain = (z for z in open_ones if z.get("ZoneType", _PLAIN_ZONE) == _PLAIN_ZONE)
        return tuple(sorted(zone["ZoneName"] for zone in plain))

    def terminate(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), _TERMINATE_AT_ONCE):  # no ids, no call
            some = ids[start : start + _TERMINATE_AT_ONCE]
            with _request_ids():
                self._client.terminate_instances(InstanceIds=some)

    def console(self, instance: str) -> str:
        """Return the end of an instance's output; "" if EC2 doesn't have it.

        EC2 keeps 64 KiB for an hour after the end: the latest output for Nitro instances, that of
        the boot for others.
        """
        for latest in (True, False):
            with contextlib.suppress(*CALL_ERRORS):  # without permission there is none
                answer = self._client.get_console_output(InstanceId=instance, Latest=latest)
                if answer.get("Output"):
                    return answer["Output"]
        return ""


@contextlib.contextmanager
def _request_ids() -> Iterator[None]:
    """Add the id of the request to an error of EC2, for AWS's support."""
    try:
        yield
    except ClientError as error:
        request = error.response.get("ResponseMetadata", {}).get("RequestId")
        if request and request not in str(error):
            error.args = (f"{error} (request {request})",)
        raise


def _whole(tags: Mapping[str, str], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a launch, except its token.

    If there are network interfaces, as for EFA, subnet and security groups belong to each of them.
    """
    request = dict(request)
    if request.get("NetworkInterfaces"):
        moved = {"SubnetId": "SubnetId", "SecurityGroupIds": "Groups"}
        theirs = {name: request.pop(ours) for ours, name in moved.items() if ours in request}
        request["NetworkInterfaces"] = [theirs | one for one in request["NetworkInterfaces"]]
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    return {
        "MinCount": 1,
        "MaxCount": 1,
        "InstanceInitiatedShutdownBehavior": "terminate",
        # A machine that EC2 recovers would boot without its lease, and keep billing.
        "MaintenanceOptions": {"AutoRecovery": "disabled"},
        "MetadataOptions": {"HttpTokens": "required"},  # IMDSv2, which many organizations demand
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": pairs},
            {"ResourceType": "volume", "Tags": pairs},
        ],
        **request,
    }


def _read(described: Any) -> Instance:
    tags = {tag["Key"]: tag["Value"] for tag in described.get("Tags", ())}
    state = described["State"]["Name"]
    # EC2's times have whole seconds.
    transition = described.get("StateTransitionReason", "")
    ended = None if state in BILLING_STATES else _REASON_TIME.search(transition)
    # EC2's reason, if it says more than who did it.
    cause = described.get("StateReason", {})
    code = cause.get("Code", "")
    reason = transition
    if cause.get("Message") and "Initiated" not in code:
        when = _TIME_ONLY.sub("", transition)
        reason = f"{cause['Message']}{_STATE_HINTS.get(code, '')} {when}".strip()
    return Instance(
        id=described["InstanceId"],
        run=tags.get(RUN_TAG, ""),
        intent=tags.get(INTENT_TAG, ""),
        lease=tags.get(LEASE_TAG, ""),
        instance_type=described["InstanceType"],
        state=state,
        launched_at=described["LaunchTime"].timestamp(),
        ended_at=ended and datetime.fromisoformat(f"{ended[1]}Z").timestamp(),
        reason=reason,
        tags=tags,
    )
