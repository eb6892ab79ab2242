"""Other people's tables: CSV (also .tsv) and Parquet, as pandas frames with one-line errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pandas as pd

from cloudtune.errors import UsageError, nearest, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

PARQUET = frozenset({".parquet", ".pq"})
TEXT = frozenset({".csv", ".tsv", ".txt"})
# Fewer than pandas takes for missing: an optimizer may be called "None", and a run "NA".
_MISSING = ("", "nan", "NaN", "null")


class Table:
    """A table of a file, by column."""

    def __init__(self, path: Path, frame: pd.DataFrame) -> None:
        if frame.empty:
            raise UsageError(f"{path}: has no rows below its header")
        self.path = path
        self.frame = frame.rename(columns=lambda name: str(name).strip())

    def has(self, name: str) -> bool:
        return name in self.frame.columns

    def first(self, names: Iterable[str]) -> str:
        """Return the first of these columns that exists; "" if none does."""
        return next((name for name in names if self.has(name)), "")

    def need(self, name: str, option: str) -> str:
        """Return the name of a column that has to be there.

        Raises:
            UsageError: it isn't; the message lists those that are, and has the nearest.
        """
        if self.has(name):
            return name
        columns = [str(column) for column in self.frame.columns]
        raise UsageError(
            f"{self.path}: there is no column {quote(name)}; there are {', '.join(columns)}."
            f"{nearest(name, columns)} Name it with {option}"
        )

    def refuse(self, wrong: pd.Series[bool], message: str) -> None:
        """Pass if no row is wrong.

        Raises:
            UsageError: one is; the message has its number, counted from 1 below the header.
        """
        if wrong.any():
            raise UsageError(
                f"{self.path}: row {wrong.index[int(wrong.to_numpy().argmax())] + 1}: {message}"
            )

    def values(self, name: str) -> list[Any]:
        """Return a column as Python objects; None for an empty cell or nan."""
        column = self.frame[name]
        return list(column.astype(object).where(column.notna(), None))

    def texts(self, name: str) -> list[str]:
        """Return a column as text: what was read as a number is written as a person would."""
        return [text_of(value) for value in self.values(name)]

    def names(self, name: str) -> list[str]:
        """Return a column of names.

        Raises:
            UsageError: a cell is empty.
        """
        names = self.texts(name)
        self.refuse(pd.Series(names) == "", f"{name} is empty; each row needs one")
        return names

    def numbers(self, name: str) -> pd.Series[float]:
        """Return a column of numbers; nan for an empty cell.

        Raises:
            UsageError: a cell holds something else.
        """
        column = self.frame[name]
        numbers = pd.to_numeric(column, errors="coerce").astype(float)
        wrong = numbers.isna() & column.notna() & (column.astype(str).str.lower() != "nan")
        if wrong.any():
            self.refuse(wrong, f"{name} is {quote(column[wrong].iloc[0])}; write a number")
        return numbers


def text_of(value: object) -> str:
    """Return a cell as a person would write it: 7 for 7.0, "" for nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def read_table(path: Path, *, texts: Sequence[str] = ()) -> Table:
    """Return a table; columns named in `texts` are read as they are written ("007").

    Raises:
        UsageError: there is no such file, it is no table, or it has no rows.
    """
    try:
        frame = pd.read_parquet(path) if path.suffix.lower() in PARQUET else _csv(path, texts)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].strip()
        raise UsageError(f"{path}: not a table of CSV or Parquet: {reason}") from None
    return Table(path, frame)


def _csv(path: Path, texts: Sequence[str]) -> pd.DataFrame:
    return pd.read_csv(
        path,
        sep="\t" if path.suffix.lower() == ".tsv" else ",",
        encoding="utf-8-sig",
        dtype=dict.fromkeys(texts, str),
        keep_default_na=False,
        na_values=list(_MISSING),
        index_col=False,
    )
