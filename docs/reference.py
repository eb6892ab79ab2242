"""Write docs/reference.md: every field, option, exit code and name, as the code has them.

    make docs                # or: .venv/bin/python -m docs.reference

What can be read off the code is read off it: fields, types, defaults, options, names, events. What
the code doesn't say in a user's words stands in the tables of `docs/reference_words.py`. A field or
a name without words there, or words for what is gone, is an error that says which; and
tests/architecture/test_docs.py fails while the page isn't what this would write.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import tempfile
import types
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import click
from click.testing import CliRunner
from pydantic import BaseModel

from cloudtune import errors
from cloudtune.cli.main import Deferred, cli
from cloudtune.cli.plan import plan
from cloudtune.experiment import Experiment
from cloudtune.experiment import field_types as kinds
from cloudtune.model import menu
from cloudtune.model.commands import Command
from cloudtune.model.events import Event
from cloudtune.model.providers import PROVIDERS
from cloudtune.model.trial import EndReason
from cloudtune.model.units import format_seconds
from cloudtune.planners.base import InfeasibleError
from cloudtune.runs.job import choices
from docs import reference_words as words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

    from pydantic.fields import FieldInfo

# How an option is typed, and what it says.
Row = tuple[str, str]
PAGE = Path(__file__).with_suffix(".md")
_INTRODUCTION = """\
# Reference

Generated from the code by `make docs`: edit `docs/reference_words.py`, not this page.
"""
# An option that at least this many commands have is described once, for all of them.
_SHARED_BY = 3
_OTHER_OPTIONS = "Other options of several commands"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the whole page."""
    parts = [
        _INTRODUCTION,
        "\n".join(_experiment()),
        "\n".join(_names()),
        "\n".join(_commands()),
        "\n".join(_exit_codes()),
        "\n".join(_environment()),
        "\n".join(_objects()),
        "\n".join(_ledger()),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _list(rows: Iterable[Row]) -> Iterator[str]:
    yield from (f"- {option}: {text}" for option, text in rows)


def _code(text: str) -> str:
    return f"`{text}`"


def _first_line(thing: object) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def _worded(what: str, names: Iterable[str], said: Mapping[str, Any]) -> None:
    """Raise unless there are words for each of the names, and for nothing else."""
    named = list(names)
    missing = [name for name in named if name not in said]
    gone = [name for name in said if name not in named]
    if missing or gone:
        raise SystemExit(
            f"docs/reference_words.py, {what}: say what {missing} are; {gone} are no more"
        )


# ---- the experiment file -----------------------------------------------------------------------


def fields(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every field of an experiment by its dotted name, in the order of the schema."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields(kind, f"{above}{name}.")
        elif not field.exclude:
            yield f"{above}{name}", field


def _experiment() -> Iterator[str]:
    by_name = dict(fields(Experiment))
    _worded("FIELDS", by_name, words.FIELDS)
    yield "## The experiment file\n"
    yield words.EXPERIMENT
    sections: dict[str, list[Row]] = {"": []}
    for name, field in by_name.items():
        row = (
            f"{_code(name)} ({_type(field)}; {_default(name, field)})",
            words.FIELDS[name][0] + _example(field),
        )
        sections.setdefault(name.rpartition(".")[0].partition(".")[0], []).append(row)
    for section, rows in sections.items():
        if section:
            yield f"\n### `{section}`\n"
        yield from _list(rows)


def _type(field: FieldInfo) -> str:
    """Return what may stand in a field, in words, its bounds included."""
    kind = _kind(field.annotation, field.metadata)
    low, high = (_bound(field, name) for name in ("ge", "le"))
    if kind == "mapping":  # its bounds are those of its values
        return kind
    if low is not None and high is not None:
        return f"{kind}, {low} to {high:,}"
    return kind if low is None else f"{kind}, {low} or more"


def _bound(field: FieldInfo, name: str) -> int | None:
    """Return the least or the greatest value; pydantic keeps those of an optional one inside."""
    inner = [constraint for part in get_args(field.annotation) for constraint in _metadata(part)]
    bounds = [
        getattr(constraint, name)
        for constraint in (*field.metadata, *inner)
        if hasattr(constraint, name)
    ]
    return bounds[0] if bounds else None


def _metadata(annotation: Any) -> tuple[Any, ...]:
    items: list[Any] = []
    for item in getattr(annotation, "__metadata__", ()):
        items += item.metadata if hasattr(item, "metadata") else [item]
    return tuple(items)


_WORDS = (
    (kinds.Every, "integer, 1 to 1,000,000,000, or a part of an epoch such as `1/4`"),
    (kinds.Seconds, "duration"),
    (kinds.Dollars, "dollars"),
    (kinds.Name, "name"),
    (kinds.Train, "`file.py:function`, or command"),
    (kinds.Storage, "folder, or `s3://bucket/prefix`"),
    (kinds.History, "`auto`, `off`, or list"),
)


def _kind(annotation: Any, metadata: Iterable[object] = ()) -> str:  # noqa: PLR0911  one flat list
    """Return what a type is called in a table."""
    has = [*metadata, *getattr(annotation, "__metadata__", ())]
    for annotated, text in _WORDS:
        if any(get_args(annotated)[-1] is part for part in has):
            return text
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        *first, last = map(_code, inside)
        return f"{', '.join(first)} or {last}"
    if origin in {Union, types.UnionType}:
        return " or ".join(_kind(part) for part in inside if part is not type(None))
    if hasattr(annotation, "__metadata__"):
        return _kind(inside[0])
    if origin is tuple:
        return f"list of {_kind(inside[0])}"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "mapping"
    return {
        str: "text",
        int: "integer",
        float: "number",
        bool: "true or false",
        Any: "mapping",
    }[annotation]


def _default(name: str, field: FieldInfo) -> str:
    """Return what holds if a field is left out: the code's value, or what no value stands for."""
    said = words.FIELDS[name][1:]
    if field.is_required():
        return said[0] if said else "required"
    value = field.default
    if value is None or value in ((), {}):
        if not said:
            raise SystemExit(f"docs/reference_words.py, FIELDS: say what holds without {name}")
        return str(said[0])
    if said:
        raise SystemExit(f"docs/reference_words.py, FIELDS: {name} has a default, {value!r}")
    if _kind(field.annotation, field.metadata) == "duration":
        return _code(format_seconds(value))
    if isinstance(value, tuple):
        return _code(f"[{', '.join(value)}]")
    return _code(str(value).lower() if isinstance(value, bool) else str(value))


def _example(field: FieldInfo) -> str:
    """Return an example of a list or a mapping without a default; other types say enough."""
    if get_origin(_without_none(field.annotation)) not in {tuple, dict} or field.default:
        return ""
    return f", as in {_code(str(field.examples[0]))}" if field.examples else ""


def _without_none(annotation: Any) -> Any:
    """Return the type of an optional field, without its `None`."""
    if get_origin(annotation) in {Union, types.UnionType}:
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    return get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


# ---- names -------------------------------------------------------------------------------------


def names() -> dict[str, tuple[str, ...]]:
    """Return the names that stand for a choice, by the kind of the choice.

    Of strategies and allocators those on the menu: docs/papers.md has the others.
    """
    registered = choices()
    planner = next(option for option in plan.params if option.name == "planner")
    assert isinstance(planner.type, click.Choice)
    return {
        "strategy": menu.STRATEGIES,
        "sampler": registered["sampler"],
        "allocator": menu.ALLOCATORS,
        "fleet": registered["fleet"],
        "planner": tuple(map(str, planner.type.choices)),
        "provider": tuple(PROVIDERS),
    }


def _names() -> Iterator[str]:
    by_kind = names()
    _worded("NAMES", by_kind, words.NAMES)
    yield "## Names\n"
    yield words.NAMED
    for kind, (heading, lines) in words.NAMES.items():
        _worded(f"NAMES[{kind!r}]", by_kind[kind], lines)
        yield f"\n### {heading}\n"
        rows = ((_code(name), lines[name]) for name in by_kind[kind])
        yield from _list(rows)


# ---- commands ----------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    """Return every command by what is typed for it, those within a command included."""
    by_usage: dict[str, click.Command] = {}
    for name, entry in cli.commands.items():
        command = entry.load() if isinstance(entry, Deferred) else entry
        by_usage[f"cloudtune {name}"] = command
        if isinstance(command, click.Group):
            by_usage |= {f"cloudtune {name} {n}": sub for n, sub in command.commands.items()}
    return by_usage


def _options(command: click.Command) -> list[click.Option]:
    return [
        option
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
    ]


def _commands() -> Iterator[str]:
    by_usage = commands()
    rows = {typed: [_option(option) for option in _options(it)] for typed, it in by_usage.items()}
    wordless = {
        option.opts[-1] for it in by_usage.values() for option in _options(it) if not option.help
    }
    _worded("OPTIONS", wordless, words.OPTIONS)
    groups = _option_groups(rows)
    grouped = {row for group in groups.values() for row in group}
    yield "## Commands\n"
    yield words.COMMANDS
    for typed, command in by_usage.items():
        yield f"\n### {_usage(typed, command)}\n"
        yield _help(command)
        own = [row for row in rows[typed] if row not in grouped]
        if own:
            yield ""
            yield from _list(own)
        also = list(_also(rows[typed], groups))
        if also:
            yield f"\nAlso: {', '.join(also)}."
    for name, group in groups.items():
        yield f"\n### {name}\n"
        yield from _list(group)


def _option_groups(rows: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Return the options that several commands share, by the heading of their table."""
    counted = Counter(row for options in rows.values() for row in options)
    groups: dict[str, list[Row]] = {name: [] for name in (*words.OPTION_GROUPS, _OTHER_OPTIONS)}
    for row, count in counted.items():
        if count >= _SHARED_BY:
            together = {_long(r) for options in rows.values() if row in options for r in options}
            groups[_heading(_long(row), together)].append(row)
    return groups


def _heading(option: str, together: Set[str]) -> str:
    """Return the group of an option that has these others beside it in its commands."""
    for name, options in words.OPTION_GROUPS.items():
        if option in options and together >= set(options):
            return name
    return _OTHER_OPTIONS


def _also(options: Sequence[Row], groups: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Yield what of the shared options a command has: links to whole groups, and single ones."""
    for name, group in groups.items():
        if name == _OTHER_OPTIONS:
            yield from (_code(_long(row)) for row in options if row in group)
        elif set(group) <= set(options):
            yield f"[{name.lower()}](#{name.lower().replace(' ', '-')})"


def _long(row: Row) -> str:
    """Return the long name of an option, as in `--output`."""
    return next(word.strip("`,") for word in row[0].split() if word.strip("`").startswith("--"))


def _usage(typed: str, command: click.Command) -> str:
    """Return what is typed, with its arguments."""
    arguments = [argument for argument in command.params if isinstance(argument, click.Argument)]
    shown = [_argument(argument) for argument in arguments]
    if isinstance(command, click.Group):
        shown.append("COMMAND")
    return _code(" ".join([typed, *shown]))


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or str(argument.name).upper()
    return name if argument.required else f"[{name}]"


def _help(command: click.Command) -> str:
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _option(option: click.Option) -> Row:
    """Return the row of an option: how it is typed, and what it says, its default included."""
    typed = ", ".join(option.opts)
    if option.secondary_opts:
        typed += " / " + ", ".join(option.secondary_opts)
    if not option.is_flag:
        typed += f" {_metavar(option)}"
    value = option.default if isinstance(option.default, str | int | float) else ""
    default = "" if isinstance(value, bool) and not option.secondary_opts else str(value)
    if option.secondary_opts and isinstance(value, bool):  # else it depends on more
        default = (option.opts if value else option.secondary_opts)[0]
    text = option.help or words.OPTIONS[option.opts[-1]]
    if option.required:
        text += " Required."
    elif default:
        text = f"{text.removesuffix('.')} (default: {default})."
    return _code(typed), text


def _metavar(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.IntRange | click.FloatRange):
        low, high = option.type.min, option.type.max
        return f"NUMBER (at least {low:g})" if high is None else f"NUMBER ({low:g} to {high:g})"
    return {"integer": "NUMBER", "float": "NUMBER", "path": "FILE"}.get(option.type.name, "TEXT")


# ---- exit codes, environment, ledger -----------------------------------------------------------


def exit_codes() -> list[int]:
    """Return every exit code that an error or the end of a run has, ascending."""
    named = [
        thing for thing in (*vars(errors).values(), InfeasibleError) if isinstance(thing, type)
    ]
    raised = {kind.exit_code for kind in named if issubclass(kind, errors.CloudtuneError)}
    return sorted(raised | {reason.exit_code for reason in EndReason})


def _exit_codes() -> Iterator[str]:
    _worded("EXIT_CODES", map(str, exit_codes()), words.EXIT_CODES)
    yield "## Exit codes\n"
    rows = ((_code(code), words.EXIT_CODES[code]) for code in map(str, exit_codes()))
    yield from _list(rows)


def _environment() -> Iterator[str]:
    yield "## Variables of the environment\n"
    yield from _list(words.ENVIRONMENT)


def _ledger() -> Iterator[str]:
    yield "## The ledger\n"
    yield words.LEDGER
    for heading, union in (("Events", Event), ("Commands", Command)):
        yield f"\n### {heading}\n"
        for kind in get_args(union):
            names = ", ".join(map(_code, _fields_of(kind)))
            shown = f" ({names})" if names else ""
            yield f"- {_code(kind.__name__)}{shown}: {_first_line(kind)}"


def _fields_of(kind: type) -> list[str]:
    """Return the names of an event's or a command's fields; all events have a time."""
    names = [field.name for field in dataclasses.fields(kind)]
    return [name for name in names if name != "at" or kind in get_args(Command)]


# ---- JSON ----------------------------------------------------------------------------------------

_EXAMPLE = Path(__file__).parents[1] / "examples/digits/experiment.yaml"


def _objects() -> Iterator[str]:
    """Yield the fields of what `-o json` prints, as a plan and a simulated run of an example do."""
    yield "## JSON\n"
    yield words.JSON
    for command, said in words.OBJECTS.items():
        printed = _print_object(command)
        _worded(f"OBJECTS, {command}", printed, said)
        yield f"\n### `{command} -o json`\n"
        yield from _list((f"{_code(name)} ({_shape(printed[name])})", said[name]) for name in said)


def _print_object(command: str) -> dict[str, Any]:
    """Return what a command prints for the example, on a machine that has run nothing."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"CLOUDTUNE_HOME": home, "CUDA_VISIBLE_DEVICES": ""}
        done = CliRunner().invoke(
            cli, [command, str(_EXAMPLE), "-o", "json"], env=environment, standalone_mode=False
        )
    if done.exception is not None:
        raise done.exception
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


_SHAPES = {bool: "true or false", int: "number", float: "number", str: "text", list: "list"}


def _shape(value: object) -> str:
    return "null if there is none" if value is None else _SHAPES.get(type(value), "object")


if __name__ == "__main__":
    main()
