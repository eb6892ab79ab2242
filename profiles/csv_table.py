"""Small tables of figures: CSV with `#` comments at the top."""

import csv
from functools import cache
from pathlib import Path


@cache
def rows(table: str | Path) -> tuple[dict[str, str], ...]:
    """Return the rows of a table by column: of a file, or of one beside this by name."""
    with (Path(__file__).parent / table).open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(line for line in file if not line.startswith("#")))
