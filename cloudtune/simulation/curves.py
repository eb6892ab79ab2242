"""Learning curves that were recorded: what each configuration reached, epoch by epoch.

The formats are documented in docs/simulate.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cloudtune.errors import UsageError, shown
from cloudtune.simulation.curve_configs import Configs, read_configs
from cloudtune.simulation.curve_rows import Drawing, Numbering, draw, numbered, rows_of
from cloudtune.simulation.table_file import read_table
from cloudtune.trial import rank_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from cloudtune.simulation.curve_rows import Row
    from cloudtune.simulation.table_file import TableFile
    from cloudtune.trial import Mode

CONFIG = ("config", "config_id", "trial", "run")
EPOCH = ("epoch", "step", "global_step", "iteration")
SECONDS = ("seconds", "epoch_seconds", "seconds_per_epoch")
_LISTED = 8
ELAPSED = ("elapsed_s", "elapsed_seconds", "elapsed")


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
        """The most epochs that any configuration trains."""
        return max(curve.epochs for curve in self.curves)

    @cached_property
    def best(self) -> float:
        """The best value that there is to be found."""
        values = (value for curve in self.curves for value in curve.metrics)
        return min(values, key=lambda value: rank_key(self.mode, value))

    @cached_property
    def mean_seconds(self) -> float | None:
        """The mean seconds of all epochs on one GPU; None where no epoch's are known."""
        known = [seconds for curve in self.curves for seconds in curve.seconds]
        return math.fsum(known) / len(known) if known else None

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
        UsageError: a mistake in a table, with its line, or a column that isn't there.
    """
    columns = columns or Columns()
    file = read_table(path, texts=[columns.config] if columns.config else CONFIG)
    known = None
    if configs is not None:
        key = _name(file, columns.config, CONFIG, "--config-column")
        known = read_configs(configs, key, columns.planned, columns.hyperparameters)
    notices: list[str] = []
    rows = _grouped(file, metric, columns, notices)
    rows = _chosen(file, rows, known, where, notices)
    numbering = numbered(rows, notices)
    drawings = {
        name: draw(file, name, rows.get(name, ()), numbering, metric) for name in _order(rows)
    }
    notices += _told(drawings.values())
    found = _curves(drawings, known, numbering, (metric, mode), notices)
    return Curves(metric, mode, found, tuple(notices))


# ---- columns and rows ----------------------------------------------------------------------------


def _name(file: TableFile, given: str, usual: Sequence[str], option: str) -> str:
    return file.need(given or file.first(usual) or usual[0], option)


def _times(file: TableFile, columns: Columns) -> tuple[str, bool]:
    """Return the column of seconds, "" if there is none, and whether they are accumulated."""
    if columns.seconds and columns.elapsed:
        raise UsageError("give --seconds-column or --elapsed-column, not both")
    if columns.elapsed:
        return file.need(columns.elapsed, "--elapsed-column"), True
    if columns.seconds:
        return file.need(columns.seconds, "--seconds-column"), False
    seconds = file.first(SECONDS)
    return (seconds, False) if seconds else (file.first(ELAPSED), True)


def _grouped(
    file: TableFile, metric: str, columns: Columns, notices: list[str]
) -> dict[str, list[Row]]:
    """Return the rows of each configuration."""
    config = _name(file, columns.config, CONFIG, "--config-column")
    epoch = _name(file, columns.epoch, EPOCH, "--epoch-column")
    value, (seconds, elapsed) = file.need(metric, "--metric"), _times(file, columns)
    usual = {config: CONFIG[0], epoch: EPOCH[0]}
    read_as = [f"{name} as {as_}" for name, as_ in usual.items() if name != as_]
    if elapsed and seconds:
        read_as.append(f"{seconds} as the seconds since training began")
    if read_as and not (columns.config or columns.epoch or columns.elapsed):
        notices.append(f"read {', '.join(read_as)}")
    return rows_of(file, config=config, epoch=epoch, value=value, seconds=seconds, elapsed=elapsed)


def _chosen(
    file: TableFile,
    rows: Mapping[str, Sequence[Row]],
    known: Configs | None,
    where: Sequence[tuple[str, str]],
    notices: list[str],
) -> dict[str, list[Row]]:
    """Return the rows of the configurations that can be tried, those without rows included.

    Raises:
        UsageError: a condition is about no column, or nothing is left.
    """
    fits = [True] * file.rows
    for column, value in where:
        if file.has(column):
            fits = [a and _same(b, value) for a, b in zip(fits, file.values(column), strict=True)]
        elif known is not None and known.file.has(column):
            known = known.where(column, value)
        else:
            file.need(column, "--where COLUMN=VALUE")
    left = {name: [row for row in found if fits[row.place]] for name, found in rows.items()}
    chosen = {name: found for name, found in left.items() if found}
    if known is not None:
        strangers = [name for name in chosen if name not in known.rows]
        if strangers and not where:
            notices.append(
                f"{len(strangers)} configurations aren't in {known.file.path}: left out "
                f"({shown(strangers[0])} is the first)"
            )
        chosen = {name: chosen.get(name, []) for name in known.rows}
    if not any(chosen.values()):
        raise UsageError(f"{file.path}: no row is left{_why(file, known, where, rows)}")
    return chosen


def _same(value: Any, text: str) -> bool:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() == text


def _why(
    file: TableFile,
    known: Configs | None,
    where: Sequence[tuple[str, str]],
    rows: Mapping[str, object],
) -> str:
    if not where:
        assert known is not None
        there, here = shown(next(iter(known.rows), "")), shown(next(iter(rows)))
        named = f"where they are as {there}, not {here}"
        return f": no configuration of it is in {known.file.path}, {named}"
    conditions = " and ".join(f"{column}={value}" for column, value in where)
    column = where[-1][0]
    table = file if file.has(column) or known is None else known.file
    values = [str(value) for value in dict.fromkeys(table.values(column))]
    more = ", …" if len(values) > _LISTED else ""
    return f" where {conditions}; {column} is one of {', '.join(values[:_LISTED])}{more}"


# ---- curves --------------------------------------------------------------------------------------


def _order(names: Iterable[str]) -> list[str]:
    """Return names by number if all are numbers: the order of the rows in a file means nothing."""
    found = list(names)
    if all(name.isdecimal() for name in found):
        return sorted(found, key=int)
    return sorted(found)


def _told(drawings: Iterable[Drawing]) -> list[str]:
    found = list(drawings)
    again, before = sum(each.again for each in found), sum(each.before for each in found)
    ignored = sum(each.after_nan > 0 for each in found)
    gaps = sum(each.gaps > 0 for each in found)
    notices = []
    if again:
        notices.append(f"{again} rows are there twice: taken once")
    if before:
        notices.append(f"{before} rows are of epoch 0, before training: left out")
    if gaps:
        notices.append(f"{gaps} configurations lack epochs: the metric stays as it was in these")
    if ignored:
        notices.append(
            f"{ignored} configurations have values after an empty one or nan: taken as diverged "
            "there (leave out rows of epochs that were only not evaluated)"
        )
    return notices


def _curves(
    drawings: Mapping[str, Drawing],
    known: Configs | None,
    numbering: Numbering,
    wanted: tuple[str, Mode],
    notices: list[str],
) -> tuple[Curve, ...]:
    """Return the curves, with what is known only from all together."""
    metric, mode = wanted
    values = [v for d in drawings.values() for v in d.values if v is not None and math.isfinite(v)]
    if not values:
        raise UsageError(f"{metric} has no value in any row: each is empty or nan")
    worst = max(values, key=lambda value: rank_key(mode, value))
    planned = {} if known is None else known.planned(numbering.each, notices)
    largest = max(*planned.values(), *(drawing.last for drawing in drawings.values()), 1)
    short = {
        name
        for name, drawing in drawings.items()
        if name in planned and not drawing.diverged and len(drawing.values) < planned[name]
    }
    if short:
        notices.append(
            f"{len(short)} configurations end before their planned epochs, without a nan: taken as "
            "diverged in the epoch after"
        )
    diverged = {name for name, drawing in drawings.items() if drawing.diverged} | short
    if diverged:
        notices.append(f"{len(diverged)} of {len(drawings)} configurations diverge")
    params = {} if known is None else known.hyperparameters(diverged, notices)
    mean = _mean([s for drawing in drawings.values() for s in drawing.seconds if s is not None])
    return tuple(
        Curve(
            name=name,
            metrics=_metrics(drawing, worst, diverges=name in short),
            epochs=max(planned.get(name) or (largest if drawing.cut else 0), drawing.last, 1),
            config=params.get(name, {}),
            seconds=_seconds(drawing, mean, diverges=name in short),
        )
        for name, drawing in drawings.items()
    )


def _metrics(drawing: Drawing, worst: float, *, diverges: bool) -> tuple[float, ...]:
    values = [worst if value is None else value for value in drawing.values]
    return (*values, math.nan) if diverges else tuple(values)


def _seconds(drawing: Drawing, mean: float | None, *, diverges: bool) -> tuple[float, ...]:
    """Return what each epoch takes; where that isn't known, what one does on average."""
    if mean is None:
        return ()
    own = _mean([seconds for seconds in drawing.seconds if seconds is not None])
    usual = mean if own is None else own
    found = [usual if seconds is None else seconds for seconds in drawing.seconds]
    return (*found, usual) if diverges else tuple(found)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
