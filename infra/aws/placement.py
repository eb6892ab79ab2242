"""Placement scores: AWS's present chances of the spot capacity that a run wants.

A score is from 1 to 10, for several instance types together in a region or a zone. It says nothing
about interruptions or about later: so it weighs the pools of the public traces (`spot_prior`) as
one look at a pool would, and no more. AWS gives a low score to requests for fewer than three types,
so such a score says nothing and isn't asked for.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from cloudtune.infra.aws.client import client
from cloudtune.infra.aws.errors import CALL_ERRORS
from cloudtune.infra.aws.price_refresh import cache, cached
from cloudtune.infra.aws.spot_prior import SOURCE, by_score, spot_prior
from cloudtune.model.catalog import SpotPools

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cloudtune.infra.provider import Endpoint

FRESH_SECONDS = 3600.0
LEAST_TYPES = 3


@dataclass(frozen=True)
class Wished:
    """The capacity that scores are asked for: instances of any of the types, in these zones.

    No zones: in the region as a whole.
    """

    region: str
    types: tuple[str, ...]
    instances: int
    zones: tuple[str, ...]


@dataclass(frozen=True)
class Scores:
    """What AWS said of a wish, by zone ("" for the region); `asked_at` is in Unix seconds."""

    wished: Wished
    asked_at: float
    by_zone: Mapping[str, int]


def pools_by_score(endpoint: Endpoint, folder: Path, now: float, wished: Wished) -> list[SpotPools]:
    """Return how spot pools may behave in each zone of a wish, with what that rests on.

    Never fails for want of an answer: the prior stands in as it is, and `source` says why. An
    answer is kept in `folder` for an hour, since an account may ask for few wishes a day.
    """
    zones = wished.zones or ("",)
    if len(wished.types) < LEAST_TYPES:
        why = f"AWS scores no fewer than {LEAST_TYPES} instance types together"
        return [unweighted(zone, why) for zone in zones]
    path = folder / f"placement-{endpoint.region}.json"
    scores = cached(path, Scores)
    is_fresh = (
        scores is not None
        and scores.wished == wished
        and 0 <= now - scores.asked_at < FRESH_SECONDS
    )
    if scores is None or not is_fresh:
        try:
            scores = _ask(endpoint, now, wished)
        except ClientError as error:
            why = f"{error} (it needs ec2:GetSpotPlacementScores)"
            return [unweighted(zone, why) for zone in zones]
        except (*CALL_ERRORS, KeyError, TypeError, ValueError) as error:
            return [unweighted(zone, str(error) or repr(error)) for zone in zones]
        cache(path, scores)
    return [_scored(scores, zone) for zone in zones]


def unweighted(zone: str, why: str) -> SpotPools:
    """Return the unweighted prior, for a zone without a score."""
    return SpotPools(zone, spot_prior(), f"assumed, as {SOURCE} were (no placement score: {why})")


def _scored(scores: Scores, zone: str) -> SpotPools:
    score = scores.by_zone.get(zone)
    if score is None:
        return unweighted(zone, f"AWS gave none for {zone or scores.wished.region}")
    asked = datetime.fromtimestamp(scores.asked_at, UTC)
    where = zone or scores.wished.region
    return SpotPools(
        zone,
        by_score(score),
        f"placement score {score} of 10 ({where}, asked {asked:%H:%M} UTC) weighs pools of "
        f"{SOURCE}; the score is of the chance of capacity now, not of interruptions",
    )


def _ask(endpoint: Endpoint, now: float, wished: Wished) -> Scores:
    by_zone: dict[str, int] = {}
    with contextlib.closing(client("ec2", endpoint)) as ec2:
        names = {"": ""}  # scores have ids of zones, whose names differ from account to account
        if wished.zones:
            zones = ec2.describe_availability_zones()["AvailabilityZones"]
            names = {zone["ZoneId"]: zone["ZoneName"] for zone in zones}
        answer = ec2.get_spot_placement_scores(
            InstanceTypes=list(wished.types),
            TargetCapacity=wished.instances,
            TargetCapacityUnitType="units",
            SingleAvailabilityZone=bool(wished.zones),
            RegionNames=[wished.region],
        )
    for score in answer.get("SpotPlacementScores", ()):
        zone = names.get(score.get("AvailabilityZoneId", ""))
        if score["Region"] == wished.region and zone is not None:
            by_zone[zone] = min(10, max(1, int(score["Score"])))
    return Scores(wished, now, by_zone)
