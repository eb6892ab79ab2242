"""The behaviour of spot pools if the experiment doesn't say: that of pools in public traces.

AWS's Spot Instance Advisor says how much of a type's capacity was interrupted in a month, which is
a hundred to thousands of times less than the losses of GPU instances in public traces; and it
doesn't say when there is no capacity. So a small table of figures computed from such traces is
used instead: all of its pools are equally likely.
"""

from functools import cache
from pathlib import Path

from cloudtune.model.catalog import SpotBehaviour
from cloudtune.profiles.csv_table import rows

TABLE = Path(__file__).with_name("spot_pools.csv")
SOURCE = "public traces of EC2's GPU pools, 2021 to 2023"


@cache
def spot_prior() -> tuple[SpotBehaviour, ...]:
    """Return the behaviours of the table's pools, in order."""
    return tuple(
        SpotBehaviour(float(row["losses_per_hour"]), float(row["availability"]))
        for row in rows(TABLE)
    )
