"""How spot pools behave if the experiment doesn't say so: as those of public traces did.

AWS's Spot Instance Advisor says how much of a type's capacity was taken back in a month, which is
a hundred to thousands of times less than what those lost who rented GPUs in the public traces; and
it doesn't say when there are none to be had. So a small table of figures that were worked out from
such traces stands in: each of its pools is as likely as another.
"""

from functools import cache
from pathlib import Path

from cloudtune.model.catalog import SpotBehaviour
from cloudtune.profiles.csv_table import rows

TABLE = Path(__file__).with_name("spot_pools.csv")
SOURCE = "public traces of EC2's GPU pools, 2021 to 2023"


@cache
def spot_prior() -> tuple[SpotBehaviour, ...]:
    """Return how the pools of the table behaved, in its order."""
    return tuple(
        SpotBehaviour(float(row["losses_per_hour"]), float(row["availability"]))
        for row in rows(TABLE)
    )
