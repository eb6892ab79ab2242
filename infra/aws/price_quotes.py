"""What AWS quoted at one time, as it said it, and the file that keeps it for some hours."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloudtune.infra.processes import write_atomically
from cloudtune.model.serialization import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cloudtune.model.catalog import Market

VERSION = 1


@dataclass(frozen=True)
class SpotQuote:
    """The spot price of a type in a zone: the newest, since when, and the p90 of the last week."""

    usd_per_hour: float
    at: float
    p90: float


@dataclass(frozen=True)
class Quotes:
    """Prices per hour of a region, unchecked; `taken_at` is in Unix seconds.

    `on_demand` is by type, `spot` by type and zone. A market that could not be asked is empty, and
    `trouble` says why. `endpoint` is empty for AWS itself.
    """

    region: str
    endpoint: str
    taken_at: float
    on_demand: Mapping[str, float]
    spot: Mapping[str, Mapping[str, SpotQuote]]
    trouble: Mapping[Market, str] = field(default_factory=dict)

    @property
    def zones(self) -> tuple[str, ...]:
        """Every zone that has a spot price."""
        return tuple(sorted({zone for by_zone in self.spot.values() for zone in by_zone}))


def time_weighted_p90(changes: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Return the least price that held for nine tenths of the time it was known.

    `changes` are (time, price), at least one, in any order; a price holds until the next change,
    the last one until `end`. What lies before `begin` counts from then on.
    """
    ordered = sorted(changes)
    until = [time for time, _ in ordered[1:]] + [end]
    held = sorted(
        (price, max(0.0, stop - max(begin, start)))
        for (start, price), stop in zip(ordered, until, strict=True)
    )
    total = sum(seconds for _, seconds in held)
    left = (0.9 - 1e-9) * total
    for price, seconds in held:
        left -= seconds
        if seconds > 0 and left <= 0:
            return price
    return ordered[-1][1]


def keep(path: Path, quotes: Quotes) -> None:
    """Write quotes to a file, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"cloudtune_prices": VERSION, **encode(quotes)}, indent=1))


def kept(path: Path, region: str, endpoint: str) -> Quotes | None:
    """Return the quotes in a file; None where there are none of that region that we can read.

    Quotes can be asked for again, so a damaged file counts as none.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("cloudtune_prices") != VERSION:
            return None
        quotes = decode(Quotes, data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return quotes if (quotes.region, quotes.endpoint) == (region, endpoint) else None
