"""Our own small tables of published figures, beside this file: CSV with `#` comments above."""

import csv
from functools import cache
from pathlib import Path


@cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a table by its file name, each by column."""
    path = Path(__file__).with_name(name)
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(line for line in file if not line.startswith("#")))
