"""Spot traces from a table: what pools had to give, and when (`--spot-trace FILE`).

The format is documented in docs/spot.md.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from cloudtune.engine.spot_pools import UNLIMITED, PoolTrace
from cloudtune.errors import UsageError, shown
from cloudtune.simulation.table_file import read_table
from cloudtune.text import offer_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from cloudtune.catalog import Offer
    from cloudtune.simulation.table_file import TableFile

SECONDS = ("from_second", "seconds", "second")
TIMES = ("time", "timestamp", "date")
INSTANCES = ("available", "instances", "capacity", "InService", "count")
PRICES = ("usd_per_hour", "price", "spot_price")
NAMES = (
    *("pool", "trace", "kind", "nodes", "begun", "region", "zone", "availability_zone"),
    *("instance_type", "gpu", "gpus"),
)
"""Columns that tell traces of one file apart, where it has them."""
END = "end"
_MOST_LISTED = 12


@dataclass(frozen=True)
class NamedTrace:
    """A trace of a file, and what the columns of its rows say of the pool that it is of."""

    trace: PoolTrace
    columns: Mapping[str, str]

    def fits(self, offer: Offer) -> bool:
        """Whether it may be of the offer's pool, by what is known of it."""
        machine, said = offer.instance_type, self.columns
        zone = said.get("zone") or said.get("availability_zone") or ""
        pairs = (
            (said.get("instance_type", ""), machine.name),
            (zone, offer.zone or zone),
            (said.get("gpu", "").lower(), machine.gpu.lower() or said.get("gpu", "").lower()),
            (said.get("gpus", ""), str(machine.gpus)),
        )
        return all(told in {"", known} for told, known in pairs)

    @property
    def where(self) -> str:
        """The options that pick it."""
        return " ".join(f"--spot-where {name}={value}" for name, value in self.columns.items())


@dataclass(frozen=True)
class _Row:
    at: float
    instances: int
    price: float | None
    ends: bool
    place: str


def read_traces(path: Path, where: Iterable[str] = ()) -> tuple[NamedTrace, ...]:
    """Return the traces of a file, in its order; of those rows that have all of `where`.

    `where` is COLUMN=VALUE, as the options give it.

    Raises:
        UsageError: a mistake in the file (with its line), or no row is left.
    """
    file = read_table(path, texts=(*TIMES, *SECONDS, *INSTANCES, *NAMES))
    rows = _chosen(file, where)
    names = [name for name in NAMES if file.has(name)]
    columns = {name: [str(value or "").strip() for value in file.values(name)] for name in names}
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        groups.setdefault(tuple(columns[name][row] for name in names), []).append(row)
    reader = _Reader(file)
    return tuple(
        NamedTrace(
            reader.trace(" ".join(filter(None, key)) or path.stem, found),
            dict(zip(names, key, strict=True)),
        )
        for key, found in groups.items()
    )


def _chosen(file: TableFile, where: Iterable[str]) -> list[int]:
    """Return the rows that have all of the values.

    Raises:
        UsageError: there is no such column, or no such row.
    """
    rows = list(range(file.rows))
    for condition in where:
        column, equals, value = (part.strip() for part in condition.partition("="))
        if not equals:
            raise UsageError(f"--spot-where {shown(condition)}: write COLUMN=VALUE")
        values = [str(v).strip() for v in file.values(file.need(column, "--spot-where"))]
        rows = [row for row in rows if values[row] == value]
        if not rows:
            there = ", ".join(list(dict.fromkeys(values))[:_MOST_LISTED])
            raise UsageError(
                f"{file.path}: no row has {column}={value} (and the rest of --spot-where); "
                f"{column} is {there}"
            )
    return rows


class _Reader:
    """Reads the rows of one trace after the other."""

    def __init__(self, file: TableFile) -> None:
        self._file = file
        seconds, times = file.first(SECONDS), file.first(TIMES)
        if not (seconds or times):
            file.need(SECONDS[0], f"one of the names {', '.join((*SECONDS, *TIMES))}")
        self._time = seconds or times
        self._by_clock = not seconds
        amount = file.first(INSTANCES)
        price = file.first(PRICES)
        if not (amount or price):
            file.need(INSTANCES[0], f"one of the names {', '.join(INSTANCES)}")
        self._amount = amount
        self._times = file.values(self._time)
        self._amounts = file.values(amount) if amount else [str(UNLIMITED)] * file.rows
        self._prices = file.numbers(price) if price else [None] * file.rows

    def trace(self, name: str, rows: Sequence[int]) -> PoolTrace:
        """Return the trace of these rows.

        Raises:
            UsageError: a mistake in one of them, with its line.
        """
        found = [self._row(row) for row in rows]
        first = found[0].at
        for before, after in pairwise(found):
            if after.at <= before.at:
                raise UsageError(
                    f"{after.place}: {self._time} doesn't come after that of the row before, of "
                    f"the same trace ({name}); sort the rows by it"
                )
            if before.ends:
                raise UsageError(f"{after.place}: the trace ({name}) had its end before; remove it")
        if found[0].ends or (len(found) == 1 and not found[-1].ends):
            raise UsageError(f"{found[0].place}: a trace ({name}) of one row says nothing of time")
        last = found[-1]
        if last.ends:
            found = found[:-1]
        gaps = [b.at - a.at for a, b in pairwise(found)]
        length = (last.at if last.ends else last.at + median(gaps)) - first
        return PoolTrace(
            name,
            tuple(row.at - first for row in found),
            tuple(row.instances for row in found),
            length,
            self._priced(found),
        )

    def _priced(self, found: Sequence[_Row]) -> tuple[float, ...]:
        prices = [row.price for row in found]
        if all(price is None for price in prices):
            return ()
        for row in found:
            if row.price is None:
                raise UsageError(f"{row.place}: the price is empty, and others of the trace aren't")
        return tuple(price for price in prices if price is not None)

    def _row(self, row: int) -> _Row:
        place, amount = self._file.where(row), str(self._amounts[row] or "").strip()
        ends = amount.lower() == END
        return _Row(
            self._at(row, place),
            0 if ends else self._instances(amount, place),
            None if ends else self._price(self._prices[row], place),
            ends,
            place,
        )

    def _at(self, row: int, place: str) -> float:
        text = str(self._times[row] or "").strip()
        try:
            if not self._by_clock:
                return _finite(float(text))
            read = datetime.fromisoformat(text)
        except ValueError:
            wanted = "a date and time as 2023-08-27 14:05:00" if self._by_clock else "seconds"
            raise UsageError(f"{place}: {self._time} is {shown(text)}; write {wanted}") from None
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()

    def _instances(self, text: str, place: str) -> int:
        try:
            value = _finite(float(text))
        except ValueError:
            value = -1.0
        if value < 0 or not value.is_integer():
            raise UsageError(
                f"{place}: {self._amount} is {shown(text)}; write how many instances there were "
                f"(0 for none), or `{END}` in the last row of a trace"
            )
        return int(value)

    def _price(self, price: float | None, place: str) -> float | None:
        if price is not None and not 0 < price < math.inf:
            raise UsageError(f"{place}: the price is {price:g}; write dollars an hour, above 0")
        return price


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError
    return value


# ---- to the offers that they are of ----------------------------------------------------------


def matched(
    traces: Sequence[NamedTrace], offers: Iterable[Offer], path: Path
) -> dict[Offer, PoolTrace]:
    """Return the trace of each spot offer: the one whose columns fit it, or the only one there is.

    Raises:
        UsageError: an offer has none, or several that can't be told apart, or nothing is on spot.
    """
    wanted = [offer for offer in offers if offer.market == "spot"]
    if not wanted:
        raise UsageError(
            f"{path}: nothing of the experiment is rented on spot; set cloud.market to spot or any "
            "(--market any)"
        )
    return {offer: _trace_of(offer, traces, path) for offer in wanted}


def _trace_of(offer: Offer, traces: Sequence[NamedTrace], path: Path) -> PoolTrace:
    fitting = [each for each in traces if each.fits(offer)]
    among = fitting or (list(traces) if len(traces) == 1 else [])
    if len(among) == 1:
        return among[0].trace
    counts = Counter(name for each in traces for name in each.columns.items())
    telling = {name for name, count in counts.items() if count < len(traces)}
    shown_ones = [
        " ".join(f"--spot-where {n}={v}" for n, v in each.columns.items() if (n, v) in telling)
        for each in (among or traces)[:_MOST_LISTED]
    ]
    what = "several traces" if among else "no trace"
    listed = "".join(f"\n  {one}" for one in shown_ones)
    raise UsageError(f"{path}: {what} for {offer_text(offer)}; pick one of these:{listed}")
