"""Two trials on one GPU: what each loses by it, where somebody has measured that.

Sharing is no gain by itself. Of the measured pairs some together train less than one alone, and
some don't fit into the GPU's memory; both are kept as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import stdev
from typing import TYPE_CHECKING

from cloudtune.model.scaling import Measurement
from cloudtune.profiles.csv_table import relative_to, rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.model.trial import Width

SOURCE = "Gavel (OSDI'20), stanford-futuredata/gavel @c4fa4009"


@dataclass(frozen=True)
class Pair:
    """Two equal jobs on one GPU: the speed of each as a share of its speed alone.

    `share` is None where the pair doesn't run at all. `batch` is of each job.
    """

    workload: str
    gpu: str
    batch: int
    share: float | None


@cache
def pairs() -> tuple[Pair, ...]:
    """Return every pair that was measured."""
    return tuple(
        Pair(
            row["workload"],
            row["gpu"],
            int(row["batch"]),
            float(row["share"]) if row["share"] else None,
        )
        for row in rows("packing.csv")
    )


def spread(workload: str, gpu: str) -> float:
    """Return how far the shares of a workload differ over batch sizes, relative to a pair's share.

    A pair was measured once, so that the other batch sizes are all there is to judge it by.
    """
    all_shares = [p.share for p in pairs() if (p.workload, p.gpu) == (workload, gpu)]
    shares = [share for share in all_shares if share is not None]
    return stdev(shares) if len(shares) > 1 else 0.0


def packed_widths(
    alone: Measurement, *, workload: str, gpu: str, batch: int
) -> Mapping[Width, Measurement]:
    """Return the seconds of an epoch at width 1/2, from those at width 1 (`alone`).

    Empty where the pair was never measured, on another GPU only, or does not run.
    """
    key = (workload, gpu.lower(), batch)
    share = next((p.share for p in pairs() if (p.workload, p.gpu, p.batch) == key), None)
    if share is None:
        return {}
    mean = alone.mean / share
    sd = relative_to(mean, alone.sd / alone.mean, spread(*key[:2]) / share)
    return {0.5: Measurement(mean, sd, 1)}
