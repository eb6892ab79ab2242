"""Other people's tables: CSV (also .tsv) and Parquet, by column, with the place of each row.

pyarrow is imported when a file is read: it takes longer than most commands do.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cloudtune.errors import UsageError, nearest, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

PARQUET = frozenset({".parquet", ".pq"})
TEXT = frozenset({".csv", ".tsv", ".txt"})


class TableFile:
    """A table that was read: `rows` rows under these columns."""

    def __init__(self, path: Path, table: Any) -> None:
        self.path = path
        self.columns: tuple[str, ...] = tuple(table.column_names)
        self.rows: int = table.num_rows
        self._table = table

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return name in self.columns

    def need(self, name: str, option: str) -> str:
        """Return the name of a column that has to be there.

        Raises:
            UsageError: it isn't; the message lists those that are, and has the nearest.
        """
        if self.has(name):
            return name
        there_are = ", ".join(self.columns)
        raise UsageError(
            f"{self.path}: there is no column {shown(name)}; there are {there_are}."
            f"{nearest(name, self.columns)} Name it with {option}"
        )

    def first(self, names: Sequence[str]) -> str:
        """Return the first of these columns that there is; "" if there is none."""
        return next((name for name in names if self.has(name)), "")

    def where(self, row: int) -> str:
        """Return the place of a row, from 0: "curves.csv:7", or "curves.parquet: row 7"."""
        if row < len(self._lines):
            return f"{self.path}:{self._lines[row]}"
        return f"{self.path}: row {row + 1}"

    @cached_property
    def _lines(self) -> tuple[int, ...]:
        """The line of each row, for files that have lines; looked up when there is a mistake."""
        if self.path.suffix.lower() not in TEXT:
            return ()
        with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(file, delimiter=_delimiter(self.path))
            lines = [reader.line_num for cells in reader if cells]
        return tuple(lines[1:])

    def values(self, name: str) -> list[Any]:
        """Return a column as it is; None for an empty cell."""
        found: list[Any] = self._table.column(name).to_pylist()
        return found

    def names(self, name: str) -> list[str]:
        """Return a column of names: what was read as a number is written as a person would.

        Raises:
            UsageError: a cell is empty.
        """
        found = [_text(value) for value in self.values(name)]
        for row, text in enumerate(found):
            if not text:
                raise UsageError(f"{self.where(row)}: {name} is empty; every row needs one")
        return found

    def numbers(self, name: str) -> list[float | None]:
        """Return a column of numbers; None for an empty cell.

        Raises:
            UsageError: a cell holds something else.
        """
        return [self._number(name, row, value) for row, value in enumerate(self.values(name))]

    def _number(self, name: str, row: int, value: object) -> float | None:
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            message = f"{self.where(row)}: {name} is {shown(value)}; write a number"
            raise UsageError(message) from None


def _text(value: object) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return str(int(value)) if value.is_integer() else str(value)
    return "" if value is None else str(value).strip()


def read_table(path: Path, *, texts: Iterable[str] = ()) -> TableFile:
    """Return a table; columns named in `texts` are read as they are written ("007").

    Raises:
        UsageError: there is no such file, it is no table, it has no rows, or two columns share a
            name.
    """
    try:
        table = _read_parquet(path) if path.suffix.lower() in PARQUET else _read_csv(path, texts)
        names = [name.strip() for name in table.column_names]
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].strip()
        raise UsageError(f"{path}: not a table of CSV or Parquet: {reason}") from None
    table = table.rename_columns(names)
    twice = [name for name, count in Counter(table.column_names).items() if count > 1]
    if twice:
        raise UsageError(f"{path}: two columns are called {shown(twice[0])}; rename one of them")
    if table.num_rows == 0:
        raise UsageError(f"{path}: has no rows below its header")
    return TableFile(path, table)


def _read_parquet(path: Path) -> Any:
    from pyarrow import parquet  # noqa: PLC0415  see the module's docstring

    with path.open("rb") as file:
        return parquet.read_table(file)


def _read_csv(path: Path, texts: Iterable[str]) -> Any:
    import pyarrow as pa  # noqa: PLC0415  see the module's docstring
    from pyarrow import csv as arrow_csv  # noqa: PLC0415

    with path.open("rb") as file:
        return arrow_csv.read_csv(
            file,
            parse_options=arrow_csv.ParseOptions(
                delimiter=_delimiter(path), newlines_in_values=True
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in texts}, strings_can_be_null=False
            ),
        )


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","
