"""Spot traces from a table: what pools had to give, and when (`--spot-trace FILE`).

The format is documented in benchmarks/compare/README.md.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from benchmarks.compare.pools import SpotTrace
from benchmarks.compare.tables import Table, read_table
from cloudtune.engine.spot_pools import UNLIMITED
from cloudtune.errors import UsageError, quote
from cloudtune.model.text import offer_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from cloudtune.model.catalog import Offer

SECONDS = ("from_second", "seconds", "second")
TIMES = ("time", "timestamp", "date")
INSTANCES = ("available", "instances", "capacity", "InService", "count")
PRICES = ("usd_per_hour", "price", "spot_price")
# Columns that tell traces of one file apart, where it has them.
NAMES = (
    *("pool", "trace", "kind", "nodes", "begun", "region", "zone", "availability_zone"),
    *("instance_type", "gpu", "gpus"),
)
END = "end"
_LISTED = 12


@dataclass(frozen=True)
class NamedTrace:
    """A trace of a file, and what the columns of its rows say of its pool."""

    trace: SpotTrace
    columns: Mapping[str, str]

    def fits(self, offer: Offer) -> bool:
        """Whether it may be of the offer's pool, by what is known of it."""
        machine = offer.instance_type
        said = self.columns
        zone = said.get("zone") or said.get("availability_zone") or ""
        gpu = said.get("gpu", "").lower()
        pairs = (
            (said.get("instance_type", ""), machine.name),
            (zone, offer.zone or zone),
            (gpu, machine.gpu.lower() or gpu),
            (said.get("gpus", ""), str(machine.gpus)),
        )
        return all(cell in {"", own} for cell, own in pairs)


def read_traces(path: Path, where: Iterable[str] = ()) -> tuple[NamedTrace, ...]:
    """Return the traces of a file, in its order; of those rows that have all of `where`.

    `where` is COLUMN=VALUE, as the options give it.

    Raises:
        UsageError: a mistake in the file (with its row), or no row is left.
    """
    table = read_table(path, texts=(*TIMES, *INSTANCES, *NAMES))
    names = [name for name in NAMES if table.has(name)]
    columns = {name: table.texts(name) for name in names}
    chosen = _chosen(table, where)
    keys = list(zip(*columns.values(), strict=True)) if names else [()] * len(table.frame)
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in chosen:
        groups.setdefault(keys[row], []).append(row)
    rows = _rows(table, chosen)
    return tuple(
        NamedTrace(
            _trace(table, " ".join(filter(None, key)) or path.stem, rows.loc[places]),
            dict(zip(names, key, strict=True)),
        )
        for key, places in groups.items()
    )


def _chosen(table: Table, where: Iterable[str]) -> list[int]:
    """Return the rows that have all of the values.

    Raises:
        UsageError: there is no such column, or no such row.
    """
    rows = list(range(len(table.frame)))
    for condition in where:
        column, equals, value = (part.strip() for part in condition.partition("="))
        if not equals:
            raise UsageError(f"--spot-where {quote(condition)}: write COLUMN=VALUE")
        texts = table.texts(table.need(column, "--spot-where"))
        rows = [row for row in rows if texts[row] == value]
        if not rows:
            listed = ", ".join(list(dict.fromkeys(texts))[:_LISTED])
            raise UsageError(
                f"{table.path}: no row has {column}={value} (and the rest of --spot-where); "
                f"{column} is {listed}"
            )
    return rows


def _rows(table: Table, chosen: Sequence[int]) -> pd.DataFrame:
    """Return second, instances (nan where a trace ends) and price of these rows, by place.

    Raises:
        UsageError: a cell is none of these; the message has its row.
    """
    seconds = table.first(SECONDS)
    times = table.first(TIMES)
    if not (seconds or times):
        table.need(SECONDS[0], f"one of the names {', '.join((*SECONDS, *TIMES))}")
    amount = table.first(INSTANCES)
    price = table.first(PRICES)
    if not (amount or price):
        table.need(INSTANCES[0], f"one of the names {', '.join(INSTANCES)}")
    part = Table(table.path, table.frame.iloc[list(chosen)])
    texts = part.frame[amount].fillna("").str.strip() if amount else pd.Series(str(UNLIMITED))
    instances = pd.to_numeric(texts, errors="coerce")
    rows = pd.DataFrame(
        {
            "at": part.numbers(seconds) if seconds else _clock(part.frame[times]),
            "instances": instances if amount else float(UNLIMITED),
            "price": part.numbers(price) if price else math.nan,
            "ends": texts.str.lower() == END if amount else False,
        }
    )
    no_amount = ~rows["ends"] & ~((rows["instances"] >= 0) & (rows["instances"] % 1 == 0))
    for wrong, message in (
        (~np.isfinite(rows["at"]), f"{seconds or times} must be a number of seconds or a date"),
        (no_amount, f"{amount} must be the number of instances, or `{END}` in a trace's last row"),
        (rows["price"] <= 0, f"{price} must be above 0"),
    ):
        table.refuse(wrong, message)
    return rows


def _clock(times: pd.Series[str]) -> pd.Series[float]:
    moments = pd.to_datetime(times, errors="coerce", utc=True, format="ISO8601")
    return (moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)


def _trace(table: Table, name: str, rows: pd.DataFrame) -> SpotTrace:
    """Return the trace of these rows.

    Raises:
        UsageError: they aren't in order, or say nothing of time; the message has the row.
    """
    gaps = rows["at"].diff()
    priced = bool(rows["price"].notna().any())
    for wrong, message in (
        (gaps <= 0, "doesn't come after the row before, of the same trace; sort the rows by time"),
        (rows["ends"].shift(fill_value=False), "the trace had its end before"),
        (rows["at"].notna() & (len(rows) == 1), "a trace of one row says nothing of time"),
        (rows["price"].isna() & ~rows["ends"] & priced, "has no price"),
    ):
        table.refuse(wrong, f"{message} ({name})")
    first = rows["at"].iloc[0]
    last = rows["at"].iloc[-1]
    kept = rows[~rows["ends"]]
    # A last row that isn't the end lasts as long as the others do.
    until = last if rows["ends"].iloc[-1] else last + gaps.median()
    prices = kept["price"].dropna()
    return SpotTrace(
        name,
        tuple((kept["at"] - first).tolist()),
        tuple(kept["instances"].astype(int).tolist()),
        float(until - first),
        tuple(prices.tolist()),
    )


def matched(
    traces: Sequence[NamedTrace], offers: Iterable[Offer], path: Path
) -> dict[Offer, SpotTrace]:
    """Return the trace of each spot offer: the one whose columns fit it, or the only one there is.

    Raises:
        UsageError: an offer has none, or several that can't be told apart, or nothing is on spot.
    """
    wanted = [offer for offer in offers if offer.market == "spot"]
    if not wanted:
        raise UsageError(f"{path}: nothing is rented on spot; name spot offers, or --market any")
    return {offer: _trace_of(offer, traces, path) for offer in wanted}


def _trace_of(offer: Offer, traces: Sequence[NamedTrace], path: Path) -> SpotTrace:
    fitting = [trace for trace in traces if trace.fits(offer)]
    among = fitting or (list(traces) if len(traces) == 1 else [])
    if len(among) == 1:
        return among[0].trace
    counts = Counter(cell for trace in traces for cell in trace.columns.items())
    options = [
        " ".join(
            f"--spot-where {name}={value}"
            for name, value in trace.columns.items()
            if counts[name, value] < len(traces)
        )
        for trace in (among or traces)[:_LISTED]
    ]
    what = "several traces" if among else "no trace"
    listed = "".join(f"\n  {line}" for line in options)
    raise UsageError(f"{path}: {what} for {offer_text(offer)}; pick one of these:{listed}")
