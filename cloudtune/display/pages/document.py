"""A self-contained page of HTML, with its style, its chart library and its data.

The charts are plotly's, drawn by the plotly.js in the package of that name. The page's content
security policy lets it fetch nothing and run no script but its own three, so that names from users
or training scripts can do neither. Its colours follow the reader's scheme; prints are on white.
"""

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from cloudtune.display.pages.figures import Figure
from cloudtune.display.terminal import Fact, Sheet
from cloudtune.errors import UsageError, need
from cloudtune.private_files import for_others

_MEGABYTE = 1_000_000
# Significant digits of a number in a chart: finer than a screen's pixels.
_DIGITS = 7


@dataclass(frozen=True)
class PageSection:
    """A part of a page: a title, a chart with its description, and HTML below it.

    `figure` is None for a section without a chart; `wide` sections take a whole row. `below` is
    markup.
    """

    title: str
    figure: Figure | None = None
    below: str = ""
    wide: bool = True


def require_plotly() -> None:
    """Check that the chart library is installed, without loading it.

    Raises:
        UsageError: plotly isn't installed.
    """
    need("plots", "a page of charts", "plotly")


def library() -> str:
    """Return plotly.js.

    Raises:
        UsageError: plotly isn't installed.
    """
    require_plotly()
    from plotly.offline import get_plotlyjs  # noqa: PLC0415  an extra, and not for every command

    return str(get_plotlyjs())


def document(
    title: str,
    head: str,
    sections: Sequence[PageSection],
    trials: Mapping[str, str] | None = None,
    *,
    live: bool = False,
) -> str:
    """Return a page; `head` is markup, `trials` has a text for each trial, shown when selected.

    A `live` page asks the address that it came from for its `content`, and has the controls of its
    run.

    Raises:
        UsageError: plotly isn't installed.
    """
    parts = content(head, sections, trials)
    data = {"figures": parts["figures"], "trials": parts["trials"]}
    here = files(__package__)
    style = (here / "page.css").read_text(encoding="utf-8")
    scripts = (library(), (here / "page.js").read_text(encoding="utf-8"))
    body = "\n".join(
        [
            f'<header><h1>{escape(title)}</h1>\n<div id="head">{head}</div></header>',
            _bar(trials, live=live),
            "<noscript><p>The charts need JavaScript; the tables don't.</p></noscript>",
            f"<main>{parts['main']}</main>",
            f'<script type="application/json" id="data">{strict_json(data)}</script>',
            *(f"<script>{script}</script>" for script in scripts),
        ]
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">\n'
        f"{_policy(scripts, live=live)}\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body{' data-live' if live else ''}>\n{body}\n</body>\n</html>\n"
    )


def content(
    head: str, sections: Sequence[PageSection], trials: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what changes on a page as its run goes on: markup, figures and texts of trials."""
    drawn = [section.figure for section in sections if section.figure is not None]
    return {
        "head": head,
        "main": "\n".join(_sections(sections)),
        "figures": [
            {
                "data": _round(figure.data),
                "layout": _round(figure.layout),
                "linked": figure.linked,
            }
            for figure in drawn
        ],
        "trials": dict(trials or {}),
    }


def _policy(scripts: Iterable[str], *, live: bool) -> str:
    """Return the content security policy: no other scripts, and requests to its run alone."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    rule = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; form-action 'none'; base-uri 'none'"
    )
    if live:
        rule += "; connect-src 'self'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rule}">'


def _sections(sections: Sequence[PageSection]) -> Iterable[str]:
    number = 0
    for place, section in enumerate(sections):
        chart = ""
        if section.figure is not None:
            name = escape(f"{section.title}: {section.figure.says}")
            chart = (
                f'<figure><div class="chart" id="figure-{number}" role="img" '
                f'aria-label="{name}"></div>'
                f"<figcaption>{escape(section.figure.says)}</figcaption></figure>\n"
            )
            number += 1
        kind = "wide" if section.wide else "half"
        yield (
            f'<section class="{kind}" aria-labelledby="title-{place}">'
            f'<h2 id="title-{place}">{escape(section.title)}</h2>\n{chart}'
            f'<div class="below">{section.below}</div></section>'
        )


def _bar(trials: Mapping[str, str] | None, *, live: bool) -> str:
    """Return the bar that stays at the top: the choice of a trial, and a live run's controls."""
    if not trials and not live:
        return ""
    options = "".join(f"<option>{escape(name)}</option>" for name in trials or ())
    chooser = (
        '<label for="trial">Trial</label> <select id="trial">'
        f'<option value="">all</option>{options}</select> '
        '<span id="chosen" aria-live="polite">click on a line or a bar to follow a trial</span>'
    )
    return f'<nav aria-label="Trial">{_CONTROLS if live else ""}{chooser}</nav>'


# Stopping takes two clicks; what is extended goes on when the run has reached its limits.
_CONTROLS = (
    '<div id="controls"><button type="button" id="stop">Stop the run</button> '
    '<label>time <input id="time" size="5" placeholder="+1h"></label> '
    '<label>dollars <input id="dollars" size="5" placeholder="+$10"></label> '
    '<button type="button" id="extend">Extend</button> '
    '<span id="state" aria-live="polite">live</span></div>'
)


def strict_json(value: Any) -> str:
    """Return strict JSON in which no text can end the script element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _round(value: Any) -> Any:
    """Return data with visible digits only; numbers that aren't finite become null."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _round(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_round(item) for item in value]
    return value


def facts(lines: Sequence[Fact]) -> str:
    """Return labelled lines as markup."""
    rows = [
        f"<dt>{escape(line.label)}</dt>"
        f"<dd{' class=warning' if line.warning else ''}>{escape(line.text)}</dd>"
        for line in lines
    ]
    return f"<dl>{''.join(rows)}</dl>"


def table(sheet: Sheet) -> str:
    """Return a sheet as markup; its title is the caption."""
    last = len(sheet.rows) - 1
    rows = [
        f"<tr{' class=total' if sheet.total and n == last else ''}>{_cells('td', sheet, row)}</tr>"
        for n, row in enumerate(sheet.rows)
    ]
    head = f"<thead><tr>{_cells('th', sheet, sheet.columns)}</tr></thead>"
    return (
        f'<div class="scrolls"><table><caption>{escape(sheet.title)}</caption>{head}'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cells(tag: str, sheet: Sheet, cells: Sequence[str]) -> str:
    """Return the cells of a row; on a narrow screen each stands beside the name of its column."""
    markup = ""
    for name, cell in zip(sheet.columns, cells, strict=True):
        more = ' scope="col"' if tag == "th" else f' data-name="{escape(name)}"'
        if name in sheet.left:
            more += " class=left"
        markup += f"<{tag}{more}>{escape(cell)}</{tag}>"
    return markup


def fold(summary: str, inner: str) -> str:
    """Return markup that is shown when opened, and always printed."""
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def paragraph(text: str) -> str:
    """Return a sentence as markup."""
    return f'<p class="more">{escape(text)}</p>'


class Page(str):
    """A page as text, with a short representation: the page has megabytes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<a page of {len(self) / _MEGABYTE:.1f} MB; to_html(path) writes it>"


def write(path: Path, text: str, option: str = "--html") -> str:
    """Write a page, and return a line with its path and its size.

    Raises:
        UsageError: it can't be written there.
    """
    data = text.encode("utf-8", "replace")
    try:
        with for_others():
            path.write_bytes(data)
    except OSError as error:
        raise UsageError(
            f"{option} {path}: can't be written ({error.strerror}); name a file in a folder that "
            "exists and is yours"
        ) from None
    return f"Wrote {path} ({len(data) / _MEGABYTE:.1f} MB): open it in a browser"
