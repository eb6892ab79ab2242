"""The options of a script, as its parser describes them or its help prints them."""

import ast
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

# A default that isn't known.
UNKNOWN: Final = object()
# A value that hydra takes from the command line.
_MISSING: Final = "???"

_BOX: Final = re.compile(r"^\s*[│┃|](.*?)[│┃|]?\s*$")
_NAME: Final = re.compile(r"-{1,2}(?:\[no-?\])?[A-Za-z][\w.\-]*")
# What a value is called: FLOAT, {a,b}, <a|b>, [a|b].
_METAVAR: Final = re.compile(
    r"(?:\s|=)\s*(\{[^}]*\}|<[^>]*>|\[[^\]\s:]*\]|(?!\[)[A-Z][A-Z0-9_.|]*(?: RANGE)?)(?=[\s,]|$)"
)
_SEPARATOR: Final = re.compile(r"\s*[,/]\s*(?=-)|\s+(?=--?[A-Za-z])")
_DEFAULTS: Final = (
    re.compile(
        r"[\[(]defaults?(?: to)?[:=]?\s*(.*?)\s*(?:;[^\])]*)?[\])](?=[\s\])(.,]|$)", re.IGNORECASE
    ),
    re.compile(r"^\s*defaults?:\s*(\S.*?)\s*$", re.IGNORECASE | re.MULTILINE),
)
_TYPE: Final = re.compile(r"^\s*type:\s*(?:Optional\[)?(\w+)", re.IGNORECASE | re.MULTILINE)
_REQUIRED: Final = re.compile(r"[\[(]required[\])]", re.IGNORECASE)
_COMMANDS: Final = re.compile(r"^\W*(?:sub)?commands?\W*$", re.IGNORECASE)
_COMMAND: Final = re.compile(r"\s+([a-z][\w-]*)(?:\s|$)")
# How libraries say what a value is.
_KINDS: Final = {
    "float": "float",
    "(a number)": "float",
    "double": "float",
    "int": "int",
    "integer": "int",
    "(an integer)": "int",
}


@dataclass(frozen=True)
class Option:
    """An option: `names` such as ("-b", "--batch-size"), or a key of a configuration.

    `default` is UNKNOWN if nothing says it; `kind` is the name of its type, such as "float".
    `takes_value` is False for a flag. `makes_bool`: argparse calls bool() on its text, which is
    true of every text but the empty one. `line` is where a function reads a key; 0 for others.
    `assigned`: it is given as name=value, as hydra's are. `parameter` is its name in an experiment,
    if that is another.
    """

    names: tuple[str, ...]
    line: int = 0
    default: Any = UNKNOWN
    choices: tuple[Any, ...] = ()
    kind: str = ""
    help: str = ""
    takes_value: bool = True
    required: bool = False
    makes_bool: bool = False
    assigned: bool = False
    parameter: str = ""

    @property
    def flag(self) -> str:
        """The long name, or else the first."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def name(self) -> str:
        """The name of its value in a script: "batch_size"."""
        if self.parameter:
            return self.parameter
        is_key = not self.flag.startswith("-")
        return self.flag if is_key else self.flag.lstrip("-").replace("-", "_")

    @property
    def last_name(self) -> str:
        """The last part of its name: "lr" of "optimizer.lr"."""
        return re.split(r"[./]", self.name)[-1].lower()

    def words(self, value: str) -> str:
        """Return how the command line says its value."""
        if self.assigned:
            return f"{self.flag}={value}"
        return f"{self.flag} {value}" if self.flag.startswith("-") else value


@dataclass(frozen=True)
class Help:
    """What a script says of its command line: its options, and the commands to choose from."""

    options: tuple[Option, ...] = ()
    commands: tuple[str, ...] = ()


def read_help(described: str, printed: str) -> Help:
    """Return the options that `help_hook` has written, or else those of a help text."""
    options: dict[tuple[str, ...], Option] = {}
    commands: list[str] = []
    for line in described.splitlines():
        fields = json.loads(line)
        commands += fields.get("commands", [])
        if "names" in fields:
            option = _parse_fields(fields)
            options[option.names] = option
    if options or commands:
        return Help(tuple(options.values()), tuple(commands))
    lines = [_strip_box(line) for line in printed.splitlines()]
    return Help(tuple(_printed_options(lines)), tuple(_printed_commands(lines)))


def _parse_fields(fields: Mapping[str, Any]) -> Option:
    names = fields["names"]
    if fields["negates"]:
        names = [*names, *(f"--no-{name[2:]}" for name in names if name.startswith("--"))]
    default = fields["default"]
    return Option(
        names=tuple(dict.fromkeys(names)),
        default=UNKNOWN if default is None else default,
        choices=tuple(fields["choices"]),
        kind=_kind(fields["kind"]),
        help=fields["help"],
        takes_value=fields["takes_value"] and not fields["negates"],
        required=fields["required"],
        makes_bool=fields["makes_bool"],
    )


def _kind(text: str) -> str:
    """Return the type that a word names, float or int; else the word."""
    lower = text.lower()
    for word, kind in _KINDS.items():
        if re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", lower):
            return kind
    return lower


def _strip_box(line: str) -> str:
    box = _BOX.match(line)
    return box[1] if box else line


def _printed_options(lines: Sequence[str]) -> Iterator[Option]:
    """Yield the options of a help text: each begins a line, and its help may fill others."""
    starts = [number for number, line in enumerate(lines) if _starts(line)]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        indent = _indent(lines[start])
        text = [lines[start]]
        for line in lines[start + 1 : end]:
            if line.strip() and _indent(line) <= indent:
                break
            text.append(line)
        option = _parse_help(text)
        if option is not None:
            yield option


def _starts(line: str) -> bool:
    return re.match(r"\s*(?:\*\s+)?-{1,2}(?:\[no-?\])?[A-Za-z]", line) is not None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _parse_help(lines: Sequence[str]) -> Option | None:
    """Return the option of some lines of a help text; None for --help itself."""
    head = lines[0].strip()
    starred = head.startswith("*")
    rest = head.lstrip("* ")
    names: list[str] = []
    value = ""
    while name := _NAME.match(rest):
        names.append(name[0])
        rest = rest[name.end() :]
        if metavar := _METAVAR.match(rest):
            value = metavar[1]
            rest = rest[metavar.end() :]
        if (separator := _SEPARATOR.match(rest)) is None:
            break
        rest = rest[separator.end() :]
    rest = rest.removeprefix(":")
    if enum := re.match(r"\s*<([^>]*)>:", rest):  # absl's
        value = f"<{enum[1]}>"
    text = "\n".join([rest, *lines[1:]])
    names = [part for name in names for part in _both(name)]
    if not names or "--help" in names or "-h" in names:
        return None
    default = _default(text)
    typed = _TYPE.search(text)
    absl = next((word for word in _KINDS if word.startswith("(") and word in text), "")
    in_text = typed[1] if typed else ""
    kind = _kind(absl) if absl else _kind(value) or _kind(in_text)
    is_flag = any(
        name.startswith("--no") and f"--{name[4:].lstrip('-')}" in names for name in names
    )
    return Option(
        names=tuple(names),
        default=default,
        choices=_choices(value),
        kind=kind,
        help=" ".join(rest.split()),
        takes_value=not is_flag and bool(value or typed or absl or default is not UNKNOWN),
        required=starred or _REQUIRED.search(text) is not None,
    )


def _both(name: str) -> list[str]:
    """Return an option's name, with its negation where it is written as --[no]name."""
    plain = re.sub(r"\[no-?\]", "", name)
    return [plain] if plain == name else [plain, f"--no{plain[2:]}"]


def _choices(value: str) -> tuple[Any, ...]:
    if not value or value[0] not in "{<[":
        return ()
    parts = re.split(r"[,|]", value[1:-1])
    return tuple(_literal(part.strip()) for part in parts) if len(parts) > 1 else ()


def _default(text: str) -> Any:
    for pattern in _DEFAULTS:
        found = pattern.search(text)
        if found is not None:
            value = _literal(found[1].strip())
            if isinstance(value, str):  # absl writes '0.1'
                value = _literal(value)
            return UNKNOWN if value is None else value
    return UNKNOWN


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _printed_commands(lines: Sequence[str]) -> Iterator[str]:
    """Yield the commands that a help text lists under such a title."""
    for number, line in enumerate(lines):
        if _COMMANDS.match(line) and line.strip():
            for below in lines[number + 1 :]:
                if below.strip() and not below.startswith(" "):
                    break
                if command := _COMMAND.match(below):
                    yield command[1]


def read_configuration(configuration: Mapping[str, Any], prefix: str = "") -> Iterator[Option]:
    """Yield the settings of a configuration, as hydra's command line names them."""
    for name, value in configuration.items():
        if isinstance(value, Mapping):
            yield from read_configuration(value, f"{prefix}{name}.")
            continue
        missing = value == _MISSING
        is_text = isinstance(value, str) and not missing
        yield Option(
            names=(f"{prefix}{name}",),
            default=UNKNOWN if missing or value is None else value,
            kind="" if is_text else type(value).__name__,
            required=missing,
            assigned=True,
        )
