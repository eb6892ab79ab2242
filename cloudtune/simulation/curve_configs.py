"""The table of configurations beside their curves: hyperparameters, and how long each trains."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cloudtune.errors import UsageError, shown
from cloudtune.simulation.table_file import read_table

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from cloudtune.simulation.table_file import TableFile

PLANNED = ("planned_epochs", "epochs", "num_epochs", "max_epochs")


@dataclass(frozen=True)
class Configs:
    """The configurations of a table that can be tried: the row of each by its name."""

    file: TableFile
    key: str
    rows: Mapping[str, int]
    planned_column: str
    wanted: tuple[str, ...]

    def where(self, column: str, value: str) -> Configs:
        """Return the configurations whose cell in a column is that value."""
        cells = self.file.names(column)
        return replace(self, rows={n: r for n, r in self.rows.items() if cells[r] == value})

    def planned(self, each: int | None, notices: list[str]) -> dict[str, int]:
        """Return how many epochs of `each` steps the configurations are to train, where known.

        Raises:
            UsageError: a number that is none, with its line.
        """
        column = self.planned_column
        if not column:
            return {}
        if each is None:
            notices.append(f"{column} is not used: it can't be compared with the steps")
            return {}
        cells, found = self.file.numbers(column), {}
        for name, row in self.rows.items():
            steps = cells[row]
            if steps is not None and not (steps >= 1 and steps.is_integer()):
                raise UsageError(
                    f"{self.file.where(row)}: {column} is {steps:g}; write a whole number above 0"
                )
            if steps is not None:
                found[name] = max(1, round(steps / each))
        return found

    def hyperparameters(
        self, diverged: Collection[str], notices: list[str]
    ) -> dict[str, dict[str, object]]:
        """Return the hyperparameters of each configuration, by name.

        If no columns were named, all are hyperparameters, but for one of yes and no that tells
        which configurations diverge: nobody knows that before a run.
        """
        columns = self.wanted or tuple(c for c in self.file.columns if c != self.key)
        cells = {column: self.file.values(column) for column in columns}
        if not self.wanted:
            for column in [c for c, values in cells.items() if self._tells(values, diverged)]:
                notices.append(f"{column} is no hyperparameter: it tells which diverge")
                del cells[column]
        return {
            name: {column: _plain(values[row]) for column, values in cells.items()}
            for name, row in self.rows.items()
        }

    def _tells(self, values: Sequence[Any], diverged: Collection[str]) -> bool:
        if not 0 < len(diverged) < len(self.rows):
            return False
        cells = [(values[row], name in diverged) for name, row in self.rows.items()]
        flags = all(isinstance(value, bool) for value, _ in cells)
        return flags and len({value == over for value, over in cells}) == 1


def read_configs(path: Path, key: str, planned: str, hyperparameters: Sequence[str]) -> Configs:
    """Return a table of configurations; `key` is the column of their names.

    `planned` names the column of their epochs: without one it is the usual one, if it is there.

    Raises:
        UsageError: a column isn't there, or a configuration is there twice.
    """
    file = read_table(path, texts=(key,))
    file.need(key, "--config-column")
    column = file.need(planned, "--planned-column") if planned else file.first(PLANNED)
    for name in hyperparameters:
        file.need(name, "--hyperparameters")
    rows: dict[str, int] = {}
    for row, name in enumerate(file.names(key)):
        if name in rows:
            raise UsageError(
                f"{file.where(row)}: configuration {shown(name)} is in {file.where(rows[name])} "
                "too; keep one of them"
            )
        rows[name] = row
    return Configs(file, key, rows, column, tuple(hyperparameters))


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, dt.date) else value
