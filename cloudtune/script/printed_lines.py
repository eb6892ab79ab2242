"""Patterns that name the places of numbers in what a script prints.

    val_loss {val_loss}

names the number after `val_loss`, whether a space, a colon or an equals sign is between. A pattern
may also be a regular expression with named groups. How much of a number a place or a group catches
makes no difference: `printed_numbers` reads it to its end.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from cloudtune.script.printed_numbers import read_value, widen

# The pattern that documentation, messages and drafts show.
EXAMPLE: Final = "accuracy {accuracy}"

_PLACE: Final = re.compile(r"(\s*)\{([A-Za-z_][\w./@-]*)\}")
# What may be between a label and its number: 'loss': 0.3, loss=0.3, loss 0.3, loss │ 0.3.
_BETWEEN: Final = r"(?:['\"]?\s*(?:[:=|│→]|->)\s*|['\"]?\s+|['\"])['\"]?"
# A label doesn't begin within another one: `loss` isn't val_loss, and isn't eval/loss.
_BEGINS: Final = r"(?<![\w/.-])"
# A named group, with at most one level of groups in it.
_GROUP: Final = re.compile(r"\(\?P<(\w+)>((?:[^()\\]|\\.|\((?:[^()\\]|\\.)*\))*)\)")
_VALUE: Final = r"\S+"
# The parts of a regular expression: escapes, sets, repetitions, words, single characters.
_PART: Final = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\{[^}]*\}|\w+|.", re.DOTALL)


@dataclass(frozen=True)
class LinePattern:
    """A pattern of lines: `text` as in the experiment.

    Raises:
        re.error: it is no regular expression, and has no places.
    """

    text: str

    def __post_init__(self) -> None:
        """Compile it, so that a mistake shows here."""
        assert self._compiled

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its numbers."""
        return tuple(dict.fromkeys(name for _, names in self._compiled for name in names.values()))

    @cached_property
    def _compiled(self) -> list[tuple[re.Pattern[str], Mapping[str, str]]]:
        """Regular expressions in the order in which they are tried; names by group.

        With places, the text between them is tried as it stands, then as a regular expression.
        """
        if _PLACE.search(self.text) is None:
            re.compile(self.text)  # its mistakes are of what was written
            pattern = re.compile(_widen(self.text))
            return [(pattern, {name: name for name in pattern.groupindex})]
        compiled = [] if "(?P<" in self.text else [_expression(self.text, as_it_stands=True)]
        try:
            compiled.append(_expression(self.text, as_it_stands=False))
        except re.error:
            if not compiled:
                raise
        return compiled

    def values(self, line: str) -> Iterator[dict[str, float | str]]:
        """Yield the numbers and texts that each match in a (clean) line names."""
        for pattern, names in self._compiled:
            matched = False
            for match in pattern.finditer(line):
                matched = True
                yield dict(_values(match, names))
            if matched:
                return

    @cached_property
    def needle(self) -> bytes:
        """Letters that each of its lines has; b"" if that isn't known."""
        return _certain_letters(_PLACE.sub(" ", self.text))


def _values(match: re.Match[str], names: Mapping[str, str]) -> Iterator[tuple[str, float | str]]:
    """Yield the values of a match by name; none goes on into the next group."""
    spans = [match.span(group) for group in names]
    for name, (start, end) in zip(names.values(), spans, strict=True):
        if end > start:
            low = max((other for _, other in spans if other <= start), default=0)
            high = min((other for other, _ in spans if other >= end), default=None)
            yield name, read_value(match.string, start, end, max(0, low), high)


def _widen(pattern: str) -> str:
    """Return a regular expression whose named groups find numbers of all kinds."""
    return _GROUP.sub(lambda group: f"(?P<{group[1]}>{widen(group[2])})", pattern)


def _expression(text: str, *, as_it_stands: bool) -> tuple[re.Pattern[str], Mapping[str, str]]:
    names: dict[str, str] = {}
    literal = _literal if as_it_stands else str
    parts = [_BEGINS] if re.match(r"\w", text) else []
    end = 0
    for place in _PLACE.finditer(text):
        parts.append(literal(text[end : place.start()]))
        if place[1] and place.start():
            parts.append(_BETWEEN)
        group = f"place_{len(names)}"
        names[group] = place[2]
        parts.append(f"(?P<{group}>{_VALUE})")
        end = place.end()
    parts.append(literal(text[end:]))
    pattern = re.compile(_widen("".join(parts)))
    return pattern, {name: names.get(name, name) for name in pattern.groupindex}


def _literal(text: str) -> str:
    """Return an expression for a text in which spaces may be of any width."""
    return re.sub(r"(?:\\?\s)+", r"\\s+", re.escape(text))


def _certain_letters(pattern: str) -> bytes:
    """Return the longest run of letters that a regular expression can't match without."""
    if "|" in pattern or "(?i" in pattern or not pattern.isascii():
        return b""
    runs = [""]
    depth = 0
    for part in _PART.findall(pattern):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part[0] in "?*{":
            runs[-1] = runs[-1][:-1]  # the letter before is optional
        run = part if depth == 0 and part.isidentifier() else ""
        runs.append(run)
    return max(runs, key=len).encode()
