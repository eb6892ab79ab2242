"""How spot pools behave if the experiment doesn't say so: as those of public traces did.

AWS's Spot Instance Advisor says how much of a type's capacity was taken back in a month, which is
a hundred to thousands of times less than what those lost who rented GPUs in the public traces; and
it doesn't say when there are none to be had. So a small table of figures that were worked out from
such traces stands in: each of its pools is as likely as another.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from cloudtune.model.catalog import SpotBehaviour

TABLE = Path(__file__).with_name("spot_pools.csv")
SOURCE = "public traces of EC2's GPU pools, 2021 to 2023"
_PARTS = 120


@cache
def spot_prior() -> tuple[SpotBehaviour, ...]:
    """Return how the pools of the table behaved, in its order."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return tuple(
            SpotBehaviour(float(row["losses_per_hour"]), float(row["availability"])) for row in rows
        )


def by_score(score: int) -> tuple[SpotBehaviour, ...]:
    """Return the pools of the table, each as often as a placement score (1 to 10) makes it likely.

    The score is taken for one look at a pool, whose outcome is not sure: with the chance
    x = (score - 1) / 9 there was capacity. A pool that is there for a share `a` of the time weighs
    x a + (1 - x)(1 - a). So a score halfway weighs all alike, and none rules a pool out that is
    there at times. No figure of AWS's says how well its scores foretell; that is our choice.
    """
    pools = spot_prior()
    x = (score - 1) / 9
    weights = [x * pool.availability + (1 - x) * (1 - pool.availability) for pool in pools]
    ideal = [_PARTS * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in ideal]
    by_rest = sorted(range(len(pools)), key=lambda at: counts[at] - ideal[at])
    for at in by_rest[: _PARTS - sum(counts)]:
        counts[at] += 1
    return tuple(pool for pool, count in zip(pools, counts, strict=True) for _ in range(count))
