"""Learning curves that were recorded: what each configuration reached, epoch by epoch.

The formats are documented in benchmarks/compare/README.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmarks.compare.tables import Table, read_table
from cloudtune.errors import UsageError, quote
from cloudtune.model.trial import rank_key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from cloudtune.model.trial import Mode

CONFIG = ("config", "config_id", "trial", "run")
EPOCH = ("epoch", "step", "global_step", "iteration")
SECONDS = ("seconds", "epoch_seconds", "seconds_per_epoch")
ELAPSED = ("elapsed_s", "elapsed_seconds", "elapsed")
PLANNED = ("planned_epochs", "epochs", "num_epochs", "max_epochs")
# Steps are epochs with gaps where at least this share of them is there, of any configuration.
_DENSE = 0.5
_LISTED = 8


@dataclass(frozen=True)
class Columns:
    """What the columns of curves are called; "" for the usual names, the first that there is.

    `seconds` are those of an epoch, `elapsed` those since training began: on one GPU. `planned` and
    `hyperparameters` are columns of the table of configurations.
    """

    config: str = ""
    epoch: str = ""
    seconds: str = ""
    elapsed: str = ""
    planned: str = ""
    hyperparameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Curve:
    """One configuration: its metric after epochs 1, 2 …; nan, at the end, where it diverged.

    `epochs` is how long it trains at most, `seconds` what each of its epochs takes on one GPU
    (empty: not known).
    """

    name: str
    metrics: tuple[float, ...]
    epochs: int
    config: Mapping[str, object] = field(default_factory=dict)
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Curves:
    """All configurations that can be tried; `notices` says what of the tables was left out."""

    metric: str
    mode: Mode
    curves: tuple[Curve, ...]
    notices: tuple[str, ...] = ()

    @cached_property
    def max_epochs(self) -> int:
        return max(curve.epochs for curve in self.curves)

    @cached_property
    def best(self) -> float:
        values = (value for curve in self.curves for value in curve.metrics)
        return min(values, key=lambda value: rank_key(self.mode, value))

    @cached_property
    def mean_seconds(self) -> float | None:
        """The mean seconds of all epochs on one GPU; None where none are known."""
        seconds = [epoch for curve in self.curves for epoch in curve.seconds]
        return math.fsum(seconds) / len(seconds) if seconds else None

    def regret(self, value: float | None) -> float | None:
        """Return by how much a value is worse than the best; None for no value."""
        if value is None:
            return None
        return self.best - value if self.mode == "max" else value - self.best


def read_curves(
    path: Path,
    metric: str,
    mode: Mode,
    *,
    columns: Columns | None = None,
    configs: Path | None = None,
    where: Sequence[tuple[str, str]] = (),
) -> Curves:
    """Return the curves of a table; those of its rows, or configurations, that are as `where` says.

    With a table of `configs` these, and no others, can be tried; one without rows diverged in its
    first epoch.

    Raises:
        UsageError: a mistake in a table, with its row, or a column that isn't there.
    """
    columns = columns or Columns()
    table = read_table(path, texts=[columns.config] if columns.config else CONFIG)
    notices: list[str] = []
    rows, elapsed = _rows(table, metric, columns, notices)
    listed = None
    if configs is not None:
        listed = _Configs(configs, columns.config or table.first(CONFIG), columns)
    rows = _chosen(table, rows, listed, where, notices)
    names = list(rows["config"].unique()) if listed is None else list(listed.rows)
    # The order of the rows in a file means nothing.
    names.sort(key=int if all(name.isdecimal() for name in names) else None)
    rows = _unrepeated(table, rows, notices)
    apart = _apart(rows, notices)
    rows = _numbered(table, rows, apart, notices, elapsed=elapsed)
    planned = {} if listed is None else listed.planned(apart, notices)
    if rows["value"].isna().all():
        raise UsageError(f"{path}: {metric} has no value in any row: each is empty or nan")
    curves, diverged = _curves(rows, names, mode, planned, notices, elapsed=elapsed)
    if listed is not None:
        params = listed.hyperparameters(diverged, notices)
        curves = [replace(curve, config=params[curve.name]) for curve in curves]
    return Curves(metric, mode, tuple(curves), tuple(notices))


# ---- rows ----------------------------------------------------------------------------------------


def _rows(
    table: Table, metric: str, columns: Columns, notices: list[str]
) -> tuple[pd.DataFrame, bool]:
    """Return config, step, value and seconds of each row, and whether seconds are accumulated."""
    if columns.seconds and columns.elapsed:
        raise UsageError("give --seconds-column or --elapsed-column, not both")
    config = table.need(columns.config or table.first(CONFIG) or CONFIG[0], "--config-column")
    epoch = table.need(columns.epoch or table.first(EPOCH) or EPOCH[0], "--epoch-column")
    value = table.need(metric, "--metric")
    named = columns.seconds or columns.elapsed
    option = "--seconds-column" if columns.seconds else "--elapsed-column"
    seconds = table.need(named, option) if named else table.first((*SECONDS, *ELAPSED))
    elapsed = bool(columns.elapsed) or (not columns.seconds and seconds in ELAPSED)
    read_as = [f"{config} as config"] if config != CONFIG[0] else []
    read_as += [f"{epoch} as epoch"] if epoch != EPOCH[0] else []
    read_as += [f"{seconds} as the seconds since training began"] if elapsed else []
    if read_as and not (columns.config or columns.epoch or columns.elapsed):
        notices.append(f"read {', '.join(read_as)}")
    rows = pd.DataFrame(
        {
            "config": table.names(config),
            "step": table.numbers(epoch),
            "value": table.numbers(value),
            "seconds": table.numbers(seconds) if seconds else math.nan,
        }
    )
    table.refuse(~(rows["step"] >= 0) | np.isinf(rows["step"]), f"{epoch} must be 1, 2, 3 …")
    rows = rows.replace([math.inf, -math.inf], math.nan)
    too_short = rows["seconds"] < 0 if elapsed else rows["seconds"] <= 0
    table.refuse(too_short, f"{seconds} must be above 0")
    return rows, elapsed


def _chosen(
    table: Table,
    rows: pd.DataFrame,
    listed: _Configs | None,
    where: Sequence[tuple[str, str]],
    notices: list[str],
) -> pd.DataFrame:
    """Return the rows of the configurations that can be tried.

    Raises:
        UsageError: a condition is about no column, or nothing is left.
    """
    chosen = rows
    why = ""
    for column, value in where:
        if listed is not None and not table.has(column) and listed.table.has(column):
            texts = listed.table.texts(column)
            listed.rows = {name: row for name, row in listed.rows.items() if texts[row] == value}
        else:
            texts = table.texts(table.need(column, "--where COLUMN=VALUE"))
            chosen = chosen[[texts[row] == value for row in chosen.index]]
        values = list(dict.fromkeys(texts))
        more = ", …" if len(values) > _LISTED else ""
        why = f" where {column}={value}; {column} is one of {', '.join(values[:_LISTED])}{more}"
    if listed is not None:
        tried = chosen["config"].isin(list(listed.rows))
        strangers = chosen.loc[~tried, "config"].unique()
        if len(strangers) and not where:
            notices.append(
                f"{len(strangers)} configurations aren't in {listed.table.path}: left out "
                f"({quote(strangers[0])} is the first)"
            )
            why = f": its configurations, as {quote(strangers[0])}, aren't in {listed.table.path}"
        chosen = chosen[tried]
    if chosen.empty:
        raise UsageError(f"{table.path}: no row is left{why}")
    return chosen


def _unrepeated(table: Table, rows: pd.DataFrame, notices: list[str]) -> pd.DataFrame:
    """Return the rows of each configuration in order, equal ones once."""
    once = rows.drop_duplicates()
    if len(once) < len(rows):
        notices.append(f"{len(rows) - len(once)} rows are there twice: taken once")
    twice = once.duplicated(["config", "step"])
    table.refuse(twice, "its configuration has this epoch before, with other figures; keep one")
    return once.sort_values(["config", "step"], kind="stable")


def _apart(rows: pd.DataFrame, notices: list[str]) -> int | None:
    """Return how far the steps of two epochs are apart.

    It is 1 if the steps are 1, 2, 3 … by and large. None: steps are no multiples of anything, and
    the evaluations of a configuration count in order.
    """
    steps = rows.loc[rows["step"] > 0, "step"].unique()
    if len(steps) and (steps % 1 == 0).all():
        apart = int(np.gcd.reduce(steps.astype(int)))
        if len(steps) >= _DENSE * max(steps) / apart:
            if apart > 1:
                notices.append(f"the steps are {apart} apart: epoch 1 is step {apart}, and so on")
            return apart
    notices.append(
        "the steps are not 1, 2, 3 …: the first evaluation of a configuration counts as epoch 1, "
        "and so on"
    )
    return None


def _numbered(
    table: Table, rows: pd.DataFrame, apart: int | None, notices: list[str], *, elapsed: bool
) -> pd.DataFrame:
    """Return the rows from epoch 1 on with their `epoch`; accumulated seconds as an epoch's."""
    begun = rows["step"] > 0
    if apart is None:
        epochs = begun.groupby(rows["config"]).cumsum()
    else:
        epochs = (rows["step"] / apart).round()
    rows = rows.assign(epoch=epochs.astype(int))
    if elapsed:
        timed = rows.dropna(subset="seconds").groupby("config")
        taken = timed["seconds"].diff().fillna(timed["seconds"].head(1))
        since = timed["epoch"].diff().fillna(timed["epoch"].head(1))
        table.refuse(taken[begun] <= 0, "accumulated seconds must grow from epoch to epoch")
        rows["seconds"] = taken[begun] / since[begun]
    if not begun.all():
        notices.append(f"{(~begun).sum()} rows are of epoch 0, before training: left out")
    return rows[begun]


# ---- curves --------------------------------------------------------------------------------------


def _curves(
    rows: pd.DataFrame,
    names: Sequence[str],
    mode: Mode,
    planned: Mapping[str, int],
    notices: list[str],
    *,
    elapsed: bool,
) -> tuple[list[Curve], set[str]]:
    """Return the curves without their hyperparameters, and which of them diverge."""
    missing = rows["value"].isna()
    after = missing.groupby(rows["config"]).cumsum() > missing.astype(int)
    kept = rows[~after]
    worst = float(kept["value"].min() if mode == "max" else kept["value"].max())
    last = rows.groupby("config")["epoch"].max()
    ended = missing.groupby(rows["config"]).last()
    longest = max(*planned.values(), *last, 1)
    by_name = dict(list(kept.groupby("config")))
    dense = {name: _dense(by_name[name], elapsed=elapsed) for name in names if name in by_name}
    seconds = [value for _, times in dense.values() for value in times if not math.isnan(value)]
    mean = math.fsum(seconds) / len(seconds) if seconds else None
    curves = []
    diverged = set()
    short = 0
    for name in names:
        values, times = dense.get(name, ([math.nan], [math.nan]))
        end = int(last.get(name, 0))
        limit = planned.get(name, 0)
        if math.isnan(values[-1]):
            diverged.add(name)
            if name not in dense or ended[name]:
                limit = limit or longest
        elif len(values) < limit:
            short += 1
            diverged.add(name)
            values = [*values, math.nan]
            times = [*times, math.nan]
        # Before the first evaluation the metric is the worst of the table.
        filled = [worst if math.isnan(value) else value for value in values[:-1]]
        curves.append(
            Curve(name, (*filled, values[-1]), max(limit, end, 1), {}, _filled(times, mean))
        )
    gaps = sum(len(values) > len(by_name[name]) for name, (values, _) in dense.items())
    ignored = rows[after & ~missing]["config"].nunique()
    for count, message in (
        (gaps, "lack epochs: the metric stays as it was in these"),
        (ignored, "have values after an empty one or nan: taken as diverged there"),
        (short, "end before their planned epochs, without a nan: taken as diverged after that"),
    ):
        if count:
            notices.append(f"{count} configurations {message}")
    if diverged:
        notices.append(f"{len(diverged)} of {len(names)} configurations diverge")
    return curves, diverged


def _dense(rows: pd.DataFrame, *, elapsed: bool) -> tuple[list[float], list[float]]:
    """Return metric and seconds of each epoch of a configuration; nan where not known."""
    rows = rows.set_index("epoch")
    epochs = range(1, rows.index[-1] + 1)
    values = rows["value"].reindex(epochs)
    end = values.iloc[-1]
    values = values.ffill()
    values.iloc[-1] = end
    # Accumulated seconds are shared out evenly over the epochs since the last known time.
    times = rows["seconds"].dropna() if elapsed else rows["seconds"]
    return values.tolist(), times.reindex(epochs, method="bfill" if elapsed else None).tolist()


def _filled(times: Sequence[float], mean: float | None) -> tuple[float, ...]:
    """Return what each epoch takes; where that isn't known, what one does on average."""
    if mean is None:
        return ()
    own = [value for value in times if not math.isnan(value)]
    usual = math.fsum(own) / len(own) if own else mean
    return tuple(usual if math.isnan(value) else value for value in times)


# ---- configurations ------------------------------------------------------------------------------


class _Configs:
    """The configurations of a table that can be tried: the row of each by its name."""

    def __init__(self, path: Path, key: str, columns: Columns) -> None:
        self.table = read_table(path, texts=(key,))
        self._key = self.table.need(key, "--config-column")
        self._wanted = columns.hyperparameters
        self._planned = columns.planned or self.table.first(PLANNED)
        if columns.planned:
            self.table.need(columns.planned, "--planned-column")
        for name in self._wanted:
            self.table.need(name, "--hyperparameters")
        names = pd.Series(self.table.names(key))
        self.table.refuse(names.duplicated(), "its configuration is there twice; keep one of them")
        self.rows = {name: row for row, name in enumerate(names)}

    def planned(self, apart: int | None, notices: list[str]) -> dict[str, int]:
        """Return how many epochs the configurations are to train, where known.

        Raises:
            UsageError: a number that is none, with its row.
        """
        if not self._planned:
            return {}
        if apart is None:
            notices.append(f"{self._planned} is not used: it can't be compared with the steps")
            return {}
        steps = self.table.numbers(self._planned)
        wrong = steps.notna() & ~((steps >= 1) & (steps % 1 == 0))
        self.table.refuse(wrong, f"{self._planned} must be a whole number above 0")
        return {
            name: max(1, round(steps[row] / apart))
            for name, row in self.rows.items()
            if not math.isnan(steps[row])
        }

    def hyperparameters(
        self, diverged: Collection[str], notices: list[str]
    ) -> dict[str, dict[str, Any]]:
        """Return the hyperparameters of each configuration, by name.

        If no columns were named, all are hyperparameters, but for one of yes and no that says
        which configurations diverge: that can't be known before a run.
        """
        columns = self._wanted or [c for c in self.table.frame.columns if c != self._key]
        cells = {column: self.table.values(column) for column in columns}
        if not self._wanted and 0 < len(diverged) < len(self.rows):
            for column, values in list(cells.items()):
                pairs = [(values[row], name in diverged) for name, row in self.rows.items()]
                flags = all(isinstance(value, bool) for value, _ in pairs)
                if flags and len({value == over for value, over in pairs}) == 1:
                    notices.append(f"{column} is no hyperparameter: it tells which diverge")
                    del cells[column]
        return {
            name: {column: values[row] for column, values in cells.items()}
            for name, row in self.rows.items()
        }
