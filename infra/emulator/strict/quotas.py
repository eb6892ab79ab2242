"""The vCPU quotas of a strict account, and Service Quotas' answers about them.

Codes and names: "Amazon EC2 On-Demand instances" and "Spot Instance limits" (EC2 user guide, tables
of quota codes), 2026-11. Their values are ours: a new account of AWS's has 0 for GPUs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtune.infra.emulator.faults import Pool, Quota

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.infra.emulator.faults import Market

VCPUS = 768
_FAMILY = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class Bucket:
    """A quota: the letters that its families begin with, and a type that stands for them."""

    code: str
    name: str
    market: Market
    families: frozenset[str]
    example: str

    def fits(self, instance_type: str, market: str) -> bool:
        """Whether a type counts towards it."""
        return market == self.market and _letters(instance_type) in self.families


_STANDARD = frozenset("acdhimrtz") | {"im", "is"}
_G, _P = frozenset({"g", "gr", "vt"}), frozenset({"p"})
BUCKETS = (
    Bucket("L-DB2E81BA", "Running On-Demand G and VT instances", "on-demand", _G, "g5.xlarge"),
    Bucket("L-417A185B", "Running On-Demand P instances", "on-demand", _P, "p3.2xlarge"),
    Bucket(
        "L-1216C47A",
        "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
        "on-demand",
        _STANDARD,
        "m7i.large",
    ),
    Bucket("L-3819A6DF", "All G and VT Spot Instance Requests", "spot", _G, "g5.xlarge"),
    Bucket("L-7212CCBC", "All P Spot Instance Requests", "spot", _P, "p3.2xlarge"),
    Bucket(
        "L-34B43A08",
        "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
        "spot",
        _STANDARD,
        "m7i.large",
    ),
)


def _letters(instance_type: str) -> str:
    found = _FAMILY.match(instance_type)
    return "" if found is None else found[0]


def limits(of: Sequence[Quota]) -> dict[str, int]:
    """Return the vCPUs of each quota by its code; the scenario's own (`of`) go first."""
    return {each.code: _limit(each, of) for each in BUCKETS}


def _limit(bucket: Bucket, quotas: Sequence[Quota]) -> int:
    pool = Pool(bucket.example, bucket.market, "us-east-1a")
    told = [each.vcpus for each in quotas if each.vcpus is not None and each.fits(pool)]
    return min(told, default=VCPUS)


def as_faults(of: Sequence[Quota]) -> list[Quota]:
    """Return the account's quotas as the emulator's, those of the scenario among them."""
    vcpus = limits(of)
    ours = [
        Quota(type=f"{letters}[0-9]*", market=bucket.market, vcpus=vcpus[bucket.code])
        for bucket in BUCKETS
        for letters in sorted(bucket.families)
    ]
    return [*of, *ours]


def answer(action: str, given: Mapping[str, Any], of: Sequence[Quota]) -> tuple[int, str] | None:
    """Return the status and the JSON with which Service Quotas answers; None: moto may."""
    if given.get("ServiceCode") != "ec2":
        return None
    vcpus = limits(of)
    found = [_told(each, vcpus[each.code]) for each in BUCKETS]
    if action == "ListServiceQuotas":
        return 200, json.dumps({"Quotas": found})
    if action not in ("GetServiceQuota", "GetAWSDefaultServiceQuota"):
        return None
    code = given.get("QuotaCode")
    quota = next((each for each in found if each["QuotaCode"] == code), None)
    if quota is None:
        told = {"__type": "NoSuchResourceException", "Message": f"no quota has the code {code}"}
        return 400, json.dumps(told)
    return 200, json.dumps({"Quota": quota})


def _told(bucket: Bucket, vcpus: int) -> dict[str, Any]:
    return {
        "ServiceCode": "ec2",
        "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
        "QuotaCode": bucket.code,
        "QuotaName": bucket.name,
        "Value": float(vcpus),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }
