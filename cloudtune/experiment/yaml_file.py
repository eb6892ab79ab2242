"""A YAML file as plain values, with the line of each value."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import ScalarEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from cloudtune.errors import ExperimentError, quote
from cloudtune.experiment.validation import ExperimentMistakesError, FieldPath, Mistake, format_path

_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(f"{_TAG}{name}" for name in ("str", "timestamp", "value", "merge"))
_OLD_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
# Anchors let a few lines stand for billions of values.
_MAX_VALUES = 20_000
# No experiment is larger; parsing a file given by mistake could take minutes.
_MOST_BYTES = 1 << 20
# No experiment nests deeper; the parser and pydantic recurse.
_DEEPEST = 20
_MOST_OPEN = 1000
_TOO_DEEP = "nested too deeply, or an anchor inside itself; flatten it"


@dataclass(frozen=True)
class YamlDocument:
    """The top-level mapping of a file, and `lines`: field path -> line, counted from 1."""

    source: str
    value: Mapping[str, object]
    lines: Mapping[FieldPath, int]

    def line(self, path: FieldPath) -> int:
        """Return the line of the field, or of its nearest ancestor in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def place(self, path: FieldPath) -> str:
        """Return "file:line: field"; without a line if it isn't from a file."""
        where = f"{self.source}:{self.line(path)}" if self.lines else self.source
        return ": ".join(filter(None, (where, format_path(path))))


def read_yaml(path: Path) -> YamlDocument:
    """Return the contents of a YAML 1.2 file, where 1e-4 is a number and 2h is text.

    A bare yes, no, on or off is refused, because YAML readers disagree whether it is a boolean.

    Raises:
        ExperimentError: the file can't be read, or isn't one YAML mapping with text keys.
    """
    source = str(path)
    node = _compose(_read(path), source)
    if node is None or (isinstance(node, ScalarNode) and node.tag == f"{_TAG}null"):
        raise ExperimentError(f"{source}: the file is empty; write fields such as name: digits")
    if not isinstance(node, MappingNode):
        raise ExperimentError(
            f"{source}:{_line(node)}: not a mapping; write one `field: value` on each line"
        )
    reader = _Reader(source)
    value = reader.mapping(node, ())
    if reader.mistakes:
        raise ExperimentMistakesError(reader.mistakes)
    return YamlDocument(source, value, reader.lines)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise ExperimentError(f"{path}: no such file; give the path of a YAML file") from None
    except IsADirectoryError:
        raise ExperimentError(f"{path}: a folder; give the YAML file inside it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ExperimentError(f"{path}: can't be read: {reason}") from error
    if len(data) > _MOST_BYTES:
        raise ExperimentError(
            f"{path}: more than {_MOST_BYTES >> 20} MiB, which no experiment has; is it the right "
            "file?"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ExperimentError(
            f"{path}:{line}: not UTF-8 text (byte 0x{data[error.start]:02x}); save it as UTF-8"
        ) from None


def _compose(text: str, source: str) -> Node | None:
    """Return the tree of nodes, which know their lines, or None for an empty file."""
    if directive := re.search(r"^%", text, re.MULTILINE):
        line = text.count("\n", 0, directive.start()) + 1
        raise ExperimentError(f"{source}:{line}: a line can't start with %; quote or remove it")
    # The parser's time grows with the square of the depth.
    if max(accumulate((c in "[{") - (c in "]}") for c in text), default=0) > _MOST_OPEN:
        raise ExperimentError(f"{source}: {_TOO_DEEP}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if len(text) > 2 * _MAX_VALUES:  # a value and its separator have two characters
                _refuse_many(text, source)
            node: Node | None = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        raise ExperimentError(_syntax_error(error, source)) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ExperimentError(f"{source}:{line}: remove the character that YAML forbids") from None
    except RecursionError:
        raise ExperimentError(f"{source}: {_TOO_DEEP}") from None
    except (YAMLError, ValueError, OverflowError) as error:
        raise ExperimentError(f"{source}: malformed YAML: {error}") from None
    return node


def _refuse_many(text: str, source: str) -> None:
    """Check the number of values in the file before they are built, which may take minutes.

    Raises:
        ExperimentError: there are more than an experiment may have.
    """
    events = YAML(typ="safe", pure=True).parse(text)
    values = (event for event in events if isinstance(event, ScalarEvent))
    for number, value in enumerate(values, start=1):
        if number > 2 * _MAX_VALUES:  # including the names of fields
            raise ExperimentError(
                f"{source}:{value.start_mark.line + 1}: more than {_MAX_VALUES} values; shorten "
                "the file"
            )


def _syntax_error(error: MarkedYAMLError, source: str) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark is not None else source
    problem = " ".join(filter(None, (error.context, error.problem)))
    return f"{place}: malformed YAML: {problem}; check quotes, colons, brackets and indentation"


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


# Fields where off can only mean the word.
_OFF = frozenset({("history",), ("history", "configurations"), ("history", "times")})


@dataclass
class _Reader:
    """Turns nodes into values, recording their lines and mistakes."""

    source: str
    lines: dict[FieldPath, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def mapping(self, node: MappingNode, path: FieldPath) -> dict[str, object]:
        self.lines.setdefault(path, _line(node))
        value: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, ScalarNode) or key_node.tag != f"{_TAG}str":
                self.refuse(key_node, path, f"{_text(key_node)} is no field name; quote the name")
            elif key in value:
                first = self.lines[*path, key]
                self.refuse(
                    key_node, (*path, key), f"written twice, first on line {first}; keep one"
                )
            else:
                self.lines[*path, key] = _line(key_node)
                value[key] = self.value(value_node, (*path, key))
        return value

    def value(self, node: Node, path: FieldPath) -> object:
        if len(self.lines) > _MAX_VALUES:
            raise ExperimentError(
                f"{self.source}:{_line(node)}: more than {_MAX_VALUES} values; shorten the file"
            )
        if len(path) > _DEEPEST:
            raise ExperimentError(f"{self.source}:{_line(node)}: {_TOO_DEEP}")
        self.lines.setdefault(path, _line(node))
        if isinstance(node, MappingNode):
            return self.mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode), "YAML has three kinds of nodes"
        if path in _OFF and node.value == "off":
            return "off"
        try:
            return _scalar(node)
        except ExperimentError as error:
            self.refuse(node, path, str(error))
            return None

    def refuse(self, node: Node, path: FieldPath, message: str) -> None:
        place = ": ".join(filter(None, (f"{self.source}:{_line(node)}", format_path(path))))
        self.mistakes.append(Mistake(path, message, place))


def _text(node: Node) -> str:
    return quote(node.value) if isinstance(node, ScalarNode) else "a list or mapping"


def _scalar(node: ScalarNode) -> object:
    text: str = node.value
    if node.style is None and text.lower() in _OLD_BOOLEANS:
        word = _OLD_BOOLEANS[text.lower()]
        raise ExperimentError(f"{text} may mean text or {word}; write {word}, or quote it")
    tag = str(node.tag)
    if tag in _PLAIN_TAGS:
        return text
    try:
        match tag.removeprefix(_TAG):
            case "null":
                return None
            case "bool":
                return {"true": True, "false": False}[text.lower()]
            case "int":  # as YAML 1.2 means it: 010 is ten and 0o10 is eight
                digits = text.lower().lstrip("+-")
                base = {"0b": 2, "0o": 8, "0x": 16}.get(digits[:2], 10)
                if base != 10:
                    digits = digits[2:]
                magnitude = int(digits, base)
                return -magnitude if text.startswith("-") else magnitude
            case "float":
                return float(re.sub(r"^([+-]?)\.(inf|nan)$", r"\1\2", text.lower()))
    except (KeyError, ValueError):
        raise ExperimentError(f"{quote(text)} is not a {tag.removeprefix(_TAG)}") from None
    raise ExperimentError(f"the tag {quote(tag)} is not read here; remove it")
