"""The vCPU quotas of the account, and Service Quotas' answers about them.

Codes and names: "Amazon EC2 On-Demand instances" and "Spot Instance limits" (EC2 user guide, tables
of quota codes), 2026-11. Their values are ours: a new AWS account has 0 for GPUs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudtune.infra.emulator.faults import Market, Pool, Quota

VCPUS = 768
_STANDARD = (*"acdhimrtz", "im", "is")


@dataclass(frozen=True)
class AccountQuota:
    """A quota: the letters that its families begin with, and a type that stands for them."""

    code: str
    name: str
    market: Market
    families: tuple[str, ...]
    example: str

    def vcpus(self, scenario: Sequence[Quota], region: str = "us-east-1") -> int:
        """Return its value in a region; a quota of the scenario goes first."""
        pool = Pool(self.example, self.market, f"{region}a")
        limits = [quota.vcpus for quota in scenario if quota.vcpus is not None and quota.fits(pool)]
        return min(limits, default=VCPUS)

    def to_json(self, scenario: Sequence[Quota], region: str) -> dict[str, Any]:
        return {
            "ServiceCode": "ec2",
            "QuotaCode": self.code,
            "QuotaName": self.name,
            "Value": float(self.vcpus(scenario, region)),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }


def _quotas(kind: str, families: tuple[str, ...], example: str, *codes: str) -> list[AccountQuota]:
    on_demand, spot = codes
    return [
        AccountQuota(
            on_demand, f"Running On-Demand {kind} instances", "on-demand", families, example
        ),
        AccountQuota(spot, f"All {kind} Spot Instance Requests", "spot", families, example),
    ]


QUOTAS = [
    *_quotas("G and VT", ("g", "gr", "vt"), "g5.xlarge", "L-DB2E81BA", "L-3819A6DF"),
    _quotas("P", ("p",), "p3.2xlarge", "L-417A185B", "")[0],
    _quotas("P4, P3 and P2", ("p2", "p3", "p4"), "p3.2xlarge", "", "L-7212CCBC")[1],
    _quotas("P5", ("p5",), "p5.48xlarge", "", "L-C4BD4855")[1],
    _quotas("P6", ("p6",), "p6-b200.48xlarge", "", "L-00000006")[1],  # a code of ours
    *_quotas("Standard", _STANDARD, "m7i.large", "L-1216C47A", "L-34B43A08"),
]


def _pattern(family: str) -> str:
    """Return the pattern of a family's types: "p" is p2 to p5, "p5" also p5e and p5en."""
    return f"{family}*" if family[-1].isdigit() else f"{family}[0-9]*"


def as_faults(scenario: Sequence[Quota]) -> list[Quota]:
    """Return the account's quotas as the emulator's, those of the scenario among them."""
    return [
        *scenario,
        *(
            Quota(type=_pattern(family), market=quota.market, vcpus=quota.vcpus(scenario))
            for quota in QUOTAS
            for family in quota.families
        ),
    ]


def answer(
    action: str, given: Mapping[str, Any], scenario: Sequence[Quota], region: str
) -> tuple[int, str] | None:
    """Return the status and the JSON with which Service Quotas answers; None: moto may."""
    if given.get("ServiceCode") != "ec2" or action not in ("GetServiceQuota", "ListServiceQuotas"):
        return None
    listed = [quota.to_json(scenario, region) for quota in QUOTAS]
    if action == "ListServiceQuotas":
        return 200, json.dumps({"Quotas": listed})
    code = given.get("QuotaCode")
    quota = next((quota for quota in listed if quota["QuotaCode"] == code), None)
    if quota is None:
        error = {"__type": "NoSuchResourceException", "Message": f"no quota has the code {code}"}
        return 400, json.dumps(error)
    return 200, json.dumps({"Quota": quota})
