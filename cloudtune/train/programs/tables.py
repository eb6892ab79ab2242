"""The rows of CSV files, while a script appends to them or writes them anew."""

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from cloudtune.errors import UsageError
from cloudtune.script.printed_numbers import parse_number
from cloudtune.train.programs.metric_parsers import Values

_DELIMITERS: Final = ",;\t|"
_CELL: Final = re.compile(r"[^\s,;|]+")
_SPACES: Final = re.compile(r"\s+")


class Table:
    """The rows of a file whose first line has the names of its columns.

    A script may write the file anew with each row, also with another column: rows are counted, and
    each is yielded once, unless the first is another one: then it is another table. Lines with #
    before the names are comments, unless no other line has names.

    Args:
        path: the file, which may not exist yet.
        where: its name in messages.
        skip: whether the rows that are there are of an earlier session.
    """

    def __init__(self, path: Path, where: str, *, skip: bool = False) -> None:
        self._path = path
        self._where = where
        self._rows = 0  # yielded or skipped
        self._first: Values = {}
        self._rewind()
        if skip:
            list(self.more(ended=False))

    def _rewind(self) -> None:
        self._at = 0
        self._head = b""  # its first line
        self._inode = 0
        self._names: list[str] = []
        self._comment: list[str] = []
        self._delimiter = ","
        self._row = 0

    def more(self, *, ended: bool) -> Iterator[Values]:
        """Yield the values of each new row; when the script has `ended`, of an incomplete one.

        Raises:
            UsageError: the columns have no names.
        """
        for line in self._lines(ended=ended):
            text = line.decode("utf-8-sig", errors="replace").strip("\r\n")
            if not text.strip():
                continue
            if not self._names and not self._read_names(text):
                continue
            self._row += 1
            if self._row == 1:
                self._begin(dict(self._values(text)))
            if self._row > self._rows:
                self._rows = self._row
                yield dict(self._values(text))

    def _begin(self, first: Values) -> None:
        """Count from the first row again if it isn't that of the table before."""
        shared = set(first) & set(self._first)
        if any(repr(first[name]) != repr(self._first[name]) for name in shared):
            self._rows = 0
        self._first = first

    def _lines(self, *, ended: bool) -> list[bytes]:
        """Return the lines since the last call, or all of them where the file was written anew."""
        try:
            with self._path.open("rb") as file:
                inode = self._path.stat().st_ino
                size = file.seek(0, 2)
                file.seek(0)
                is_same = size >= self._at and self._inode in {0, inode}
                if not is_same or file.read(len(self._head)) != self._head:
                    self._rewind()
                self._inode = inode
                file.seek(self._at)
                data = file.read()
        except OSError:
            return []
        if not ended or data.endswith(b"\n"):
            data = data[: data.rfind(b"\n") + 1]
        if self._at == 0:
            self._head = data[: data.find(b"\n") + 1]
        self._at += len(data)
        return data.split(b"\n")

    def _read_names(self, text: str) -> bool:
        """Take in a line before the first row; return whether it is that row."""
        is_comment = text.lstrip().startswith("#")
        cells = self._cells(text.lstrip("# "), sniff=True)
        if is_comment:
            self._comment = cells
            return False
        has_names = any(isinstance(parse_number(cell), str) for cell in cells if cell)
        if has_names:
            self._names = cells
            return False
        if len(self._comment) != len(cells):
            raise UsageError(f"{self._where} has no line with the names of its columns")
        self._names = self._comment
        return True

    def _cells(self, text: str, *, sniff: bool = False) -> list[str]:
        if sniff:
            self._delimiter = max(_DELIMITERS, key=text.count)
        if self._delimiter not in text and (sniff or len(self._names) > 1):
            return _SPACES.split(text.strip())
        return [cell.strip() for cell in next(csv.reader([text], delimiter=self._delimiter))]

    def _values(self, text: str) -> Iterator[tuple[str, float | str]]:
        for name, cell in zip(self._names, self._cells(text), strict=False):
            if name and cell:
                yield name, parse_number(cell)


def may_have_names(line: str) -> bool:
    """Whether the first line of a file may be the names of a table, or a comment before them."""
    if line.startswith(("#", "{", "[")):
        return line.startswith("#")
    return not any(isinstance(parse_number(cell), float) for cell in _CELL.findall(line))


def json_values(row: Mapping[str, object], prefix: str = "") -> Values:
    """Return the numbers and texts of a JSON object; those of an inner one as outer/inner."""
    values: Values = {}
    for name, field in row.items():
        if isinstance(field, str):
            values[prefix + name] = parse_number(field)
        elif isinstance(field, int | float) and not isinstance(field, bool):
            values[prefix + name] = float(field)
        elif isinstance(field, dict):
            values |= json_values(field, f"{prefix}{name}/")
    return values
