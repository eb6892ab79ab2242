"""The numbers in what a script has printed: their labels, and the patterns that name their places.

A label's pattern is as short as it can be without a match in lines of another kind.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from cloudtune.script.printed_lines import LinePattern
from cloudtune.script.printed_numbers import clean, parse_number

# The lines that are looked at: the first, and as many of the last.
_LINES: Final = 5000
# A longer line is no line of numbers for people.
_LONGEST: Final = 2000
_NUMBER: Final = re.compile(
    r"(?<![\w.])[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)(?![\w]|\.\d)",
    re.IGNORECASE,
)
# What differs from line to line: numbers, and amounts such as 0.31s, 15ms/step and 1.57it/s.
_UNIT: Final = r"(?:[a-z]+/[a-z]+|[mnuµ]?s|secs?|seconds?|m|mins?|h|hrs?|hours?|[kmgt]i?b?|b)"
_VARYING: Final = re.compile(
    rf"{_NUMBER.pattern}|(?<![\w.])\d[\d,]*\.?\d*{_UNIT}(?!\w)", re.IGNORECASE
)
# What libraries print around a number.
_WRAPPER: Final = re.compile(r"(?:\w+\.)*(?:tensor|float\d*|array)\(\[?$")
_WORD: Final = re.compile(r"[A-Za-z_@][\w@/.%-]*")
# The end of a label before its number: quotes, and a separator.
_SEPARATOR: Final = re.compile(r"(?:['\"]?\s*(?:[:=|│→]|->)\s*|['\"]?\s+|['\"])['\"]?$")
# The words of a label that are tried, from the last on.
_WORDS: Final = 4
_QUALIFIER: Final = re.compile(
    r"(?:^|[\W_])(val(?:i(?:d(?:ation)?)?)?|dev|test(?:ing)?|eval(?:uation)?|train(?:ing)?)(?![a-z])",
    re.IGNORECASE,
)
# Where a line says at which step it is; one with an epoch is of that.
_STEP: Final = re.compile(
    r"^(?!.*\bepoch)(?:.*?)\b((?:global_|total_)?(?:time)?steps?|iter(?:ation)?s?)(?=\W{1,4}\d)",
    re.IGNORECASE,
)
_PLACE_NAME: Final = re.compile(r"[A-Za-z_][\w./@-]*")


class Labelled(NamedTuple):
    """A number that lines of one kind have: its name, a pattern for its place, and its values."""

    name: str
    pattern: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class _Number:
    """A number of a line: where its label begins and ends, and the text of the number."""

    line: int
    start: int
    end: int
    text: str


def labelled_numbers(text: str) -> list[Labelled]:
    """Return the labelled numbers of a text, such as that of "val loss: 0.31", in its order."""
    lines = [line for line in read_lines(text) if len(line) <= _LONGEST]
    if len(lines) > 2 * _LINES:
        lines = lines[:_LINES] + lines[-_LINES:]
    kinds: dict[tuple[str, int], list[_Number]] = defaultdict(list)
    for number, line in enumerate(lines):
        kind = _VARYING.sub("#", line)
        for place, found in enumerate(_numbers(line, number)):
            kinds[kind, place].append(found)
    labelled: dict[str, Labelled] = {}
    for numbers in _by_label(kinds, lines):
        for it in _label_numbers(numbers, lines):
            known = labelled.get(it.name)
            if known is None or len(known.values) < len(it.values):
                labelled[it.name] = it
    return list(labelled.values())


def read_lines(text: str) -> list[str]:
    """Return the lines of a text; of one that is rewritten the last state."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        states = [state for state in line.split("\r") if state.strip()]
        lines += [clean(state).rstrip() for state in states[-1:]]
    return lines


def _numbers(line: str, number: int) -> Iterator[_Number]:
    end = 0
    for found in _VARYING.finditer(line):
        before = _WRAPPER.sub("", line[end : found.start()])
        stop = end + len(before)
        separator = _SEPARATOR.search(before)
        label_end = stop if separator is None else end + separator.start()
        is_labelled = separator is not None and _WORD.search(line[end:label_end])
        if is_labelled and _NUMBER.fullmatch(found[0]):
            yield _Number(number, end, label_end, found[0])
        end = found.end()


def _by_label(
    kinds: dict[tuple[str, int], list[_Number]], lines: Sequence[str]
) -> list[list[_Number]]:
    """Return the numbers of lines that differ in nothing but other words, such as names."""
    groups: dict[tuple[str, ...], list[_Number]] = defaultdict(list)
    for numbers in kinds.values():
        first = numbers[0]
        line = lines[first.line]
        begins = _WORD.findall(line)[:1]
        data = _QUALIFIER.findall(line[: first.start])[-1:]
        groups[*begins, *data, line[first.start : first.end]] += numbers
    return list(groups.values())


def _label_numbers(numbers: Sequence[_Number], lines: Sequence[str]) -> Iterator[Labelled]:
    numbers = sorted(numbers, key=lambda it: it.line)
    first = numbers[0]
    line = lines[first.line]
    label = line[first.start : first.end]
    words = list(_WORD.finditer(label))[-_WORDS:]
    name = _name(label, words, line[: first.start])
    if not name:
        return
    labels = [label[word.start() :] for word in reversed(words)]
    # `acc` is also in "test acc", which may come after all that has been seen.
    labels.sort(key=lambda it: _QUALIFIER.search(it) is None)
    expected = [(it.line, repr(parse_number(it.text))) for it in numbers]
    for pattern in _patterns(line, first, labels, name):
        if _matches(pattern, name, lines) == expected:
            step = _STEP.search(line[: first.end])
            with_step = f"{step[1]} {{step}}.*?{pattern}" if step is not None else ""
            has_step = _matches(with_step, name, lines) == expected
            values = tuple(it.text for it in numbers)
            chosen = with_step if has_step else pattern
            yield Labelled(name, chosen, values)
            return


def _name(label: str, words: Sequence[re.Match[str]], before: str) -> str:
    """Return the name of a number: its last words, with what says of which data it is."""
    last = words[-1][0].rstrip(".-/")
    parts = [last]
    if len(words) > 1 and last.isalpha() and label[words[-2].end() : words[-1].start()] == " ":
        parts.insert(0, words[-2][0])
    if not any(_QUALIFIER.search(part) for part in parts):
        qualifiers = _QUALIFIER.findall(label) or _QUALIFIER.findall(before)
        parts = [*qualifiers[-1:], *parts]
    if len(parts) == 1 and _PLACE_NAME.fullmatch(last):
        return last
    return re.sub(r"\W+", "_", "_".join(parts)).strip("_").lower()


def _patterns(line: str, number: _Number, labels: Sequence[str], name: str) -> Iterator[str]:
    """Yield patterns for the place of a number, the shortest first."""
    for label in labels:
        if not set(label) & set("{}\\"):
            yield f"{label} {{{name}}}"
    before = line[: number.end]
    parts = [re.sub(r"(?:\\?\s)+", r"\\s+", re.escape(part)) for part in _VARYING.split(before)]
    places = [r"\S+"] * (len(parts) - 1)
    pieces = [piece for pair in zip(parts, [*places, ""], strict=True) for piece in pair]
    # Braces would be places, and names of layers or models change.
    yield "^" + "".join(pieces).replace(r"\{", ".").replace(r"\}", ".") + f" {{{name}}}"


def _matches(pattern: str, name: str, lines: Sequence[str]) -> list[tuple[int, str]] | None:
    """Return the lines that a pattern matches, and their numbers; None if it is no pattern."""
    try:
        compiled = LinePattern(pattern)
    except re.error:
        return None
    matched = []
    for number, line in enumerate(lines):
        values = next(compiled.values(line), {})
        if isinstance(values.get(name), float):
            matched.append((number, repr(values[name])))
    return matched
