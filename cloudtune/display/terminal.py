"""Facts and sheets on a terminal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cloudtune.model.plain_text import clean

_WIDTH = 100


class Fact(NamedTuple):
    """A labelled line; an empty label continues the line above."""

    label: str
    text: str
    warning: bool = False


def label_lines(label: str, texts: Iterable[str]) -> list[Fact]:
    """Return lines of which the first has the label."""
    facts = [Fact("", text) for text in texts]
    return [facts[0]._replace(label=label), *facts[1:]] if facts else []


@dataclass(frozen=True)
class Sheet:
    """A table of text.

    The columns in `left` are left-aligned, the others right-aligned; those in `wraps` may take
    several lines if there is little room. `total`: the last row is the sum of the others.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[str] = frozenset()
    wraps: frozenset[str] = frozenset()
    total: bool = False

    def beside(self, basis: str) -> "Sheet":
        """Return the sheet with the basis of its figures in its title."""
        return replace(self, title=beside(self.title, basis))

    def without(self, *names: str) -> "Sheet":
        kept = [n for n, name in enumerate(self.columns) if name not in names]

        def select(cells: Sequence[str]) -> tuple[str, ...]:
            return tuple(cells[n] for n in kept)

        return replace(self, columns=select(self.columns), rows=tuple(map(select, self.rows)))


def beside(title: str, basis: str) -> str:
    """Return a title with the basis of the figures below it: "Stages, emulated"."""
    return f"{title}, {basis}" if basis else title


class CleanConsole(Console):
    """A console whose text, which may be a script's or a person's, has no escapes of its own."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_ours = segment.control is not None
            yield segment if is_ours else segment._replace(text=clean(segment.text))


def console() -> Console:
    """Return standard output; a file or a pipe gets lines of 100 characters, without colours."""
    plain = CleanConsole(highlight=False)
    if plain.is_terminal:
        return plain
    return CleanConsole(width=_WIDTH, highlight=False, soft_wrap=True)


# With fewer columns every cell may wrap, so that no figure loses a digit.
ROOMY = 80


def print_title(out: Console, text: str) -> None:
    """Print a title, with room above it."""
    out.print()
    out.print(Text(text, style="italic"), soft_wrap=False)


def print_facts(out: Console, facts: Sequence[Fact]) -> None:
    """Print labelled lines; warnings are yellow."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for fact in facts:
        style = "yellow" if fact.warning else ""
        grid.add_row(Text(f"  {fact.label}"), Text(fact.text, style=style))
    out.print(grid)


def print_sheet(out: Console, sheet: Sheet) -> None:
    """Print a table under its title; a table without a title is indented and has no rules."""
    roomy = out.width >= ROOMY
    if sheet.title:
        print_title(out, sheet.title)
        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1))
        indent = ""
    else:
        out.print()
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        indent = "  "
    for name in sheet.columns:
        table.add_column(
            Text(f"{indent}{name}" if name == sheet.columns[0] else name),
            justify="left" if name in sheet.left else "right",
            no_wrap=roomy and name not in sheet.wraps,
            overflow="fold",
        )
    for number, row in enumerate(sheet.rows, start=1):
        if sheet.total and number == len(sheet.rows):
            table.add_section()
        table.add_row(Text(f"{indent}{row[0]}"), *(Text(cell) for cell in row[1:]))
    out.print(table)
