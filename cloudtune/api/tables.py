"""Rows as pandas DataFrames, and labelled lines as HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd


def frame(
    rows: list[dict[str, Any]],
    columns: Iterable[str],
    *,
    numbers: Iterable[str] = (),
    counts: Iterable[str] = (),
) -> pd.DataFrame:
    """Return rows as a table; missing values are NaN in `numbers`, and pandas' NA in `counts`."""
    import pandas as pd  # noqa: PLC0415  it takes half a second

    table = pd.DataFrame(rows, columns=list(columns))
    kinds = {**dict.fromkeys(numbers, "float64"), **dict.fromkeys(counts, "Int64")}
    return table.astype(kinds)


def notebook_table(title: str, lines: Iterable[tuple[str, str]]) -> str:
    """Return labels with their texts as HTML for a notebook, below a title."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(label)}</th>"
        f"<td style='text-align:left'>{escape(text)}</td></tr>"
        for label, text in lines
    )
    return f"<b>{escape(title)}</b><table>{rows}</table>"
