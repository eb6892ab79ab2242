"""Tables that a script prints: a line of names, and below it a line of numbers for each epoch.

    epoch  train_loss  valid_loss  time
    0      0.4210      0.3817      00:03

As fastai prints them, and loops written by hand; there may be bars between the columns.
"""

import re
from collections.abc import Sequence
from typing import Final

from cloudtune.script.guesses import is_metric
from cloudtune.script.labels import Labelled, read_lines
from cloudtune.script.printed_lines import LinePattern

_FEWEST_COLUMNS: Final = 2
_FEWEST_ROWS: Final = 2
_BAR: Final = re.compile(r"[|│┃]")
_NAME: Final = re.compile(r"[A-Za-z_][\w ./%()-]*", re.ASCII)


def table_columns(text: str) -> list[Labelled]:
    """Return the columns of metrics in the tables of a text, in its order."""
    lines = read_lines(text)
    headers = dict.fromkeys(line for line in lines if _is_header(_cells(line)))
    found: dict[str, Labelled] = {}
    for header in headers:
        pattern = LinePattern(_pattern(header))
        rows = [values for line in lines for values in pattern.values(line)]
        for name in pattern.names if len(rows) >= _FEWEST_ROWS else ():
            values = tuple(str(row[name]) for row in rows)
            found.setdefault(name, Labelled(name, pattern.text, values))
    return list(found.values())


def _cells(line: str) -> list[str]:
    if _BAR.search(line):
        return [cell.strip() for cell in _BAR.split(line.strip().strip("|│┃"))]
    return line.split()


def _is_header(cells: Sequence[str]) -> bool:
    enough = len(cells) >= _FEWEST_COLUMNS and len(set(map(_name, cells))) == len(cells)
    return enough and all(map(_NAME.fullmatch, cells)) and any(map(is_metric, cells))


def _name(cell: str) -> str:
    return re.sub(r"\W+", "_", cell.lower()).strip("_")


def _pattern(header: str) -> str:
    """Return a regular expression for the rows below a header: their epoch and their metrics."""
    has_bars = _BAR.search(header) is not None
    between = r"\s*[|│┃]\s*" if has_bars else r"\s+"
    edge = r"\s*[|│┃]?\s*" if has_bars else r"\s*"
    other = r"[^|│┃]+" if has_bars else r"\S+"
    cells = []
    for name in map(_name, _cells(header)):
        if name == "epoch":
            cells.append(r"(?P<epoch>\d+)")
        else:
            cells.append(rf"(?P<{name}>[\d.]+)" if is_metric(name) else other)
    return f"^{edge}{between.join(cells)}{edge}$"
